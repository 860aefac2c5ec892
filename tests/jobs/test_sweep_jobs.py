"""Sweeps in a real worker process: rows, progress, cancel and resume, evaluations in between."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from words import says

from engine.attention.problem import Problem
from engine.base.schema import decode, encode
from engine.jobs import sweep_job
from engine.jobs.layout import JobProgress, RunDir
from engine.jobs.manager import ENDED, JobManager, JobStatus
from engine.jobs.supervisor import JobTable
from engine.measure.statistics import MedianInterval
from engine.pipeline.request import EvaluationRequest
from engine.search.autotune import ProblemResult
from engine.search.ranking import RankedPoint
from engine.search.space import Space, SweepOptions
from engine.search.sweep.journal import Progress, SweepCounts, SweepJournal, SweepSpec

ROOT = Path(__file__).resolve().parents[2]
FAST = SweepOptions(gpu="L4", backend="cpu", execute=False)  # compile and predict without executing


def spec(seqlens: int = 4, options: SweepOptions = FAST) -> SweepSpec:
    problems = tuple(Problem(1, 1, 16 * (i + 1), 64) for i in range(seqlens))
    return SweepSpec(Space(("v01",), problems), options)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[JobManager]:
    made = JobManager(tmp_path / "jobs")
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobManager]:
    """Yield a manager for tests that do not change its worker."""
    made = JobManager(tmp_path_factory.mktemp("shared") / "jobs")
    yield made
    made.close()


def wait_for(manager: JobManager, job_id: str, done: Callable[[JobStatus], bool]) -> JobStatus:
    deadline = time.monotonic() + 300  # compiling takes long on a busy machine
    while time.monotonic() < deadline:
        status = manager.status(job_id)
        assert status is not None
        if done(status):
            return status
        assert status.state not in ENDED, (status.state, status.error, status.log)
        time.sleep(0.02)
    raise AssertionError(f"still {status} after 300 s")


def ended(status: JobStatus) -> bool:
    return status.is_over


def worker_pid(manager: JobManager) -> int:
    pid = manager._run.live_worker()
    assert pid is not None
    return pid


def test_a_sweep_runs_to_its_end_with_rows_and_progress(shared: JobManager) -> None:
    wanted = spec()
    job = wait_for(shared, shared.submit_sweep(wanted), ended)
    assert (job.state, job.end, job.kind) == ("done", "finished", "sweep"), job.error + job.log
    rows = shared.rows(job.job_id)
    assert len(rows) == wanted.space.count()
    assert job.progress is not None
    assert job.progress.done == job.progress.total == len(rows)
    assert {b.problem for b in job.progress.best} == {p.label() for p in wanted.space.problems}
    fastest = min((r for r in rows if r.median_us), key=lambda r: (r.problem.seqlen, r.median_us))
    assert job.progress.best[0].median_us == fastest.median_us
    path = shared._run.sweep_journal(job.journal)
    assert SweepJournal.open(path).ended == "finished"
    # Before the first row the stage names the point that is evaluated.
    lines = shared._run.journal.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines if job.job_id in line]
    told = [event["progress"] for event in events if "progress" in event]
    assert any(x["under_way"].startswith("v01 ") for x in told if x["done"] == 0)
    # Without a GPU there is no final round: rows are ranked by predicted times, which is shown.
    results = shared.results(job.job_id)
    assert len(results) == len(wanted.space.problems)
    assert {r.origin for r in results} == {"predicted"}


COUNTS = SweepCounts(
    done=6,
    total=10,
    passed=6,
    skipped=0,
    failed=0,
    resumed=0,
    elapsed_s=60.0,
    per_minute=6.0,
    eta_s=40.0,
    eta_range_s=(30.0, 60.0),
)


def test_remaining_time_counts_down_during_a_point() -> None:
    told = encode(JobProgress.of(COUNTS, ()))
    job = JobStatus("a", "running", {}, kind="sweep").after(
        {"event": "progress", "t": 1000.0, "progress": told}
    )
    for now, left_s in (
        (1000.0, (40.0, 30.0, 60.0)),
        (1004.0, (36.0, 26.0, 56.0)),
        (1012.0, (30.0, 22.5, 48.0)),  # three of four points are left
        (2000.0, (30.0, 22.5, 45.0)),
    ):
        assert job.left_s(now) == left_s
    assert replace(job, progress=replace(job.progress, eta_s=None)).left_s(0.0) is None


def test_the_point_being_evaluated_is_reported_at_once() -> None:
    """The point being evaluated is reported at once, as it may take minutes."""
    told: list[str] = []

    def event(_: str, __: str, progress: dict[str, Any]) -> None:
        told.append(progress["under_way"])

    report = sweep_job._Reporter(cast(Any, SimpleNamespace(event=event)), "a")
    figures = {f.name: getattr(COUNTS, f.name) for f in fields(SweepCounts)}
    for name in ("v01", "v02", "v03"):
        report(Progress(**(figures | {"under_way": name}), best={}, last=None))
    deadline = time.monotonic() + 60
    while told[-1] != "v03" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told == ["v01", "v03"]
    report.finish()
    assert told == ["v01", "v03"]  # no new report


def test_results_of_a_final_round_are_read_back_from_the_journal() -> None:
    place = RankedPoint(1, "point", MedianInterval(5.0, 4.9, 5.1), 1.0)
    found = ProblemResult("H200", Problem(1, 8, 128, 64), "measured", (place,), "side by side")
    assert decode(ProblemResult, json.loads(json.dumps(encode(found)))) == found


def test_an_unreachable_cluster_is_reported_and_the_sweep_can_resume_locally(
    shared: JobManager,
) -> None:
    wanted = spec(2)
    first = wait_for(shared, shared.submit_sweep(wanted, cluster="gpu-box"), ended)
    assert (first.state, first.cluster) == ("failed", "gpu-box")
    assert says(first.error, "scheduler_address")
    again = shared.resume_sweep(first.job_id)
    assert again is not None
    assert wait_for(shared, again, ended).cluster == "gpu-box"  # the cluster of the first run
    here = shared.resume_sweep(first.job_id, cluster="")
    assert here is not None
    job = wait_for(shared, here, ended)
    assert (job.state, job.end, job.cluster) == ("done", "finished", ""), job.error
    assert len(shared.rows(here)) == wanted.space.count()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_cancel_keeps_the_rows_and_resume_does_the_rest(manager: JobManager) -> None:
    wanted = spec(16)
    first = manager.submit_sweep(wanted)
    wait_for(manager, first, lambda _: len(manager.rows(first)) >= 3)
    begin = time.monotonic()
    manager.cancel(first)
    assert time.monotonic() - begin < 0.5
    status = manager.status(first)
    assert status is not None
    assert status.state == "cancelled"
    before = {row.point: row for row in manager.rows(first)}
    assert 3 <= len(before) < wanted.space.count()
    second = manager.resume_sweep(first)
    assert second is not None
    job = wait_for(manager, second, ended)
    assert (job.state, job.end) == ("done", "finished"), job.error + job.log
    after = {row.point: row for row in manager.rows(second)}
    assert len(after) == wanted.space.count()
    assert job.progress is not None
    assert job.progress.resumed >= len(before)
    assert all(after[point] == row for point, row in before.items())  # no point is evaluated again
    assert manager.resume_sweep("no such job") is None


@pytest.mark.slow
def test_a_click_that_arrives_twice_starts_one_sweep(shared: JobManager) -> None:
    first = shared.submit_sweep(spec(200))
    assert shared.submit_sweep(spec(200)) == first
    other = shared.submit_sweep(spec(201))
    assert other != first
    shared.cancel(other)
    shared.cancel(first)
    resumed = shared.resume_sweep(first)
    assert resumed not in (None, first)
    assert shared.resume_sweep(first) == resumed
    assert resumed is not None
    shared.cancel(resumed)
    again = shared.submit_sweep(spec(200))
    assert again not in (first, resumed)
    shared.cancel(again)


@pytest.mark.slow
def test_an_evaluation_does_not_wait_for_the_sweep(shared: JobManager) -> None:
    sweep = shared.submit_sweep(spec(200))
    wait_for(shared, sweep, lambda _: len(shared.rows(sweep)) >= 2)
    single = shared.submit(EvaluationRequest("v01", Problem(1, 1, 64, 64), gpu="L4", backend="cpu"))
    job = wait_for(shared, single, ended)
    assert job.result is not None
    assert job.result["status"] == "PASSED"
    running = shared.status(sweep)
    assert running is not None
    assert running.state == "running"
    shared.cancel(sweep)


@pytest.mark.slow
def test_a_killed_worker_loses_no_row_and_the_sweep_continues(manager: JobManager) -> None:
    wanted = spec(24)
    job_id = manager.submit_sweep(wanted)
    seen: dict[str, object] = {}
    killed: set[int] = set()
    for _ in range(2):
        rows = len(seen)

        def goes_on(_: JobStatus, rows: int = rows) -> bool:
            worker = manager._run.live_worker()
            return len(manager.rows(job_id)) > rows and worker not in {None, *killed}

        wait_for(manager, job_id, goes_on)
        time.sleep(random.uniform(0, 0.1))
        killed.add(worker_pid(manager))
        seen |= {row.point: row for row in manager.rows(job_id)}
        os.killpg(worker_pid(manager), signal.SIGKILL)
    assert len(seen) < wanted.space.count()
    job = wait_for(manager, job_id, ended)
    assert (job.state, job.end) == ("done", "finished"), job.error + job.log
    found = {row.point: row for row in manager.rows(job_id)}
    assert len(found) == wanted.space.count()
    assert all(found[point] == row for point, row in seen.items())


@pytest.mark.slow
def test_a_killed_server_loses_nothing_and_the_next_one_finds_the_sweep(tmp_path: Path) -> None:
    """The server process is killed while its worker continues; the next server finds the sweep."""
    code = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_sweep_jobs import spec
from engine.jobs.manager import JobManager
manager = JobManager(Path(sys.argv[1]))
job = manager.submit_sweep(spec(24))
while len(manager.rows(job)) < 3:
    time.sleep(0.02)
print(job, flush=True)
time.sleep(600)
"""
    argv = [
        sys.executable,
        "-c",
        code,
        str(tmp_path / "jobs"),
        *map(str, Path(__file__).parents[:2]),
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        job_id = server.stdout.readline().strip()
        assert job_id
        server.kill()
    found = JobManager(tmp_path / "jobs")
    try:
        status = found.status(job_id)
        assert status is not None
        assert status.state == "running"
        assert len(found.rows(job_id)) >= 3
        job = wait_for(found, job_id, ended)
        assert (job.state, job.end) == ("done", "finished"), job.error + job.log
        assert len(found.rows(job_id)) == spec(24).space.count()
    finally:
        found.close()


@pytest.mark.exhaustive
def test_server_and_worker_killed_together(tmp_path: Path) -> None:
    first = JobManager(tmp_path / "jobs")
    job_id = first.submit_sweep(spec(16))
    wait_for(first, job_id, lambda _: len(first.rows(job_id)) >= 3)
    os.killpg(worker_pid(first), signal.SIGKILL)
    first._slot_lock.release()
    process = first._worker._process
    assert process is not None
    process.wait()
    kept = {row.point for row in first.rows(job_id)}
    second = JobManager(tmp_path / "jobs")
    try:
        job = wait_for(second, job_id, ended)
        assert (job.state, job.end) == ("done", "finished"), job.error + job.log
        rows = {row.point for row in second.rows(job_id)}
        assert kept <= rows
        assert len(rows) == spec(16).space.count()
    finally:
        second.close()


DIES = """
import os, signal, sys
import engine.pipeline.evaluate
real = engine.pipeline.evaluate.Evaluator.evaluate

def evaluate(self, request, on_stage=None, **_):
    if request.problem.seqlen == 32:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, request, on_stage)

engine.pipeline.evaluate.Evaluator.evaluate = evaluate
from engine.jobs.worker import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_point_that_kills_the_worker_is_crashed_and_the_rest_is_done(
    manager: JobManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen

    def deadly(argv: list[str], **options: object) -> subprocess.Popen[bytes]:
        if "engine.jobs.worker" in argv:
            argv = [sys.executable, "-c", DIES, argv[-1]]
        return real(argv, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", deadly)
    wanted = SweepSpec(
        Space(("v01",), tuple(Problem(1, 1, s, 64) for s in (16, 32, 48)), own_values=False), FAST
    )
    job = wait_for(manager, manager.submit_sweep(wanted), ended)
    assert (job.state, job.end) == ("done", "finished"), job.error + job.log
    found = {row.problem.seqlen: row for row in manager.rows(job.job_id)}
    assert found[32].status == "CRASHED"
    assert says(found[32].reason, "worker_died_times", "2")
    assert {found[16].status, found[48].status} == {"SKIPPED"}  # predicted without executing
    assert found[16].median_us is not None


LOST = """
import sys
import engine.pipeline.evaluate
real = engine.pipeline.evaluate.Evaluator.evaluate

def evaluate(self, request, on_stage=None, **_):
    outcome = real(self, request, on_stage)
    engine.pipeline.evaluate.Evaluator.gpu_error = "the context is gone"
    return outcome

engine.pipeline.evaluate.Evaluator.evaluate = evaluate
from engine.jobs.worker import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.exhaustive
def test_a_worker_that_lost_its_gpu_restarts_and_continues(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.create()
    request = encode(spec(3))
    JobTable(run.journal).append("s", "queued", kind="sweep", request=request, journal="s")
    argv = [sys.executable, "-c", LOST, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL) as worker:
        try:
            found = SweepJournal(run.sweep_journal("s"))
            deadline = time.monotonic() + 120
            while found.ended != "finished" and time.monotonic() < deadline:
                found.poll()
                time.sleep(0.02)
            assert found.ended == "finished"
            assert len(found.rows) == spec(3).space.count()
            assert run.live_worker() == worker.pid  # the same process after exec
            events = run.journal.read_text()
            assert events.count('"started"') == 2
        finally:
            os.kill(worker.pid, signal.SIGKILL)
