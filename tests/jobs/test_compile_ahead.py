"""Compiling ahead: the cache is filled beside the evaluations; no process is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.schema import encode
from engine.jobs import worker
from engine.jobs.layout import JobStatus, RunDir
from engine.jobs.supervisor import JobRunner, JobTable
from engine.jobs.sweep_job import CompileAhead
from engine.model.kernel import cached_kernel
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest, resolve

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")


def requests(count: int) -> list[EvaluationRequest]:
    dims = [32, 64, 96, 128][:count]
    return [EvaluationRequest("v02", Problem(1, 1, 64, d), gpu="L4", execute=False) for d in dims]


def is_cached(request: EvaluationRequest) -> bool:
    target = resolve(request)
    assert target.device is not None
    plan = make_plan(target.variant, request.problem, target.config)
    return cached_kernel(plan, target.device.arch) is not None


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))


@pytest.mark.slow
def test_kernels_are_compiled_ahead() -> None:
    wanted = requests(3)
    with CompileAhead(wanted, on_cpu=False, processes=1) as ahead:
        wait_until(lambda: all(map(is_cached, wanted)))
        for _ in wanted:
            ahead.next_point()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_compile_error_does_not_stop_compiling_ahead() -> None:
    wrong = EvaluationRequest("v02", Problem(1, 1, 64, 80), gpu="L4", execute=False)
    good = requests(1)
    with CompileAhead([wrong, *good], on_cpu=False, processes=1):
        wait_until(lambda: is_cached(good[0]))


def test_one_point_or_none_starts_no_process() -> None:
    before = psutil.Process().children()
    with CompileAhead(requests(1), on_cpu=False) as ahead:
        ahead.next_point()
        assert psutil.Process().children() == before


@pytest.mark.slow
def test_a_killed_parent_leaves_no_process_behind() -> None:
    code = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_compile_ahead import requests
from engine.jobs import worker
from engine.jobs.layout import JobStatus, RunDir
from engine.jobs.supervisor import JobRunner, JobTable
from engine.jobs.sweep_job import CompileAhead
if __name__ == "__main__":
    with CompileAhead(requests(4), on_cpu=False, processes=1):
        print("up", flush=True)
        time.sleep(600)
"""
    argv = [sys.executable, "-c", code, str(Path(__file__).parent)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        assert children
        time.sleep(0.5)
        os.kill(parent.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=30)
    for process in alive:
        process.kill()
    assert not alive


def test_the_emulator_is_built_when_no_job_runs() -> None:
    """The build would slow down the first Run, which is executed by a host build."""
    built = threading.Event()
    can_simulate, *busy = (threading.Event() for _ in range(3))
    for event in busy:
        event.set()
    args = (can_simulate, busy, 0.1, (lambda: None, built.set))
    thread = threading.Thread(target=worker._build_simulator, args=args)
    thread.start()
    assert can_simulate.wait(10)
    busy[0].clear()
    assert not built.wait(0.3)
    busy[1].clear()
    assert built.wait(10)
    thread.join(10)


def test_rungs_are_computed_concurrently_and_other_jobs_singly(tmp_path: Path) -> None:
    """Other jobs run one at a time, as two often need the same simulation."""
    run = RunDir(tmp_path)
    table = JobTable(run.journal)
    kinds = {"a": "rung", "b": "rung", "c": "rung", "d": "simulate", "e": "rung"}
    request = encode(requests(1)[0])
    for name, kind in kinds.items():
        table.append(name, "queued", kind=kind, request=request)
    at_once: list[set[str]] = []
    under_way: set[str] = set()
    may_end = threading.Semaphore(0)

    class Recording(JobRunner):
        def serve(self, job: JobStatus) -> None:
            under_way.add(job.job_id)
            at_once.append(set(under_way))
            may_end.acquire()
            self.event(job.job_id, "finished", result=None)
            under_way.discard(job.job_id)

    is_closing, can_simulate, is_busy = (threading.Event() for _ in range(3))
    can_simulate.set()
    with Evaluator() as evaluator:
        runner = Recording(run, evaluator, worker.JOB_TYPES, lambda job: job.is_background)
    args = (runner, is_closing, can_simulate, is_busy, 2)
    thread = threading.Thread(target=worker._serve_beside, args=args)
    thread.start()
    wait_until(lambda: len(at_once) == 2)
    assert is_busy.is_set()
    may_end.release(len(kinds))
    wait_until(lambda: len(at_once) == len(kinds) and not is_busy.is_set())
    is_closing.set()
    thread.join(10)
    assert {"a", "b"} in at_once
    assert max(map(len, at_once)) == 2
    assert [served for served in at_once if "d" in served] == [{"d"}]
