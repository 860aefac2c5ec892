"""The worker process: serves the jobs of one server, one after another.

Started by `engine.jobs.manager` as `python -m engine.jobs.worker RUN_DIR`, in a session of its own,
so that a crash or an endless kernel ends this process and not the app, and so that it outlives a
restart of the app. It owns the CUDA context and the CPU backend's child.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.base import files
from engine.base.errors import AttuneError
from engine.devices.detect import detect_local
from engine.evaluation import Evaluation
from engine.gate.history import history_of_source
from engine.jobs.latency_stream.job import run_latency_stream
from engine.jobs.layout import JobKind, JobStatus, RunDir
from engine.jobs.supervisor import JobRunner, JobType, code_stamp
from engine.jobs.sweep.job import run_sweep_job
from engine.kernel_figures import work_out_rung
from engine.names import find_variant
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.invariance import batch_invariance
from engine.pipeline.machine_code import read_machine_code
from engine.pipeline.preview import simulated_us
from engine.pipeline.request import EvaluationRequest
from engine.schema import encode
from engine.search.sweep.journal import SweepSpec
from engine.sessions.known_times import open_history

POLL_S = 0.02
IDLE_CHECK_S = 300.0  # an idle worker looks this often whether any server still wants it
HISTORY_COMMITS = 30
PYTORCH_AFTER_S = 1.0  # of idleness after a job: PyTorch is loaded ahead of the next one


def run_evaluation(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> None:
    """One evaluation; its error maps go to a file of their own."""

    def on_stage(stage: str) -> None:
        runner.event(job.job_id, "stage", stage=stage)

    def on_part(evaluation: Evaluation) -> None:
        runner.event(job.job_id, "part", result=encode(evaluation))

    # What a page only compiles it asks to be simulated by itself.
    outcome = runner.evaluator.evaluate(
        request, on_stage, simulates=request.execute, on_part=on_part
    )
    if outcome.maps:
        runner.run.write_maps(job.job_id, outcome.maps)
    runner.event(job.job_id, "finished", result=encode(outcome.evaluation))


def run_simulation(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> None:
    """A kernel's CTA time by its machine code goes to the cache, where predictions look for it."""
    simulated_us(request, runner.evaluator.history)
    runner.event(job.job_id, "finished")


def run_machine_code(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> None:
    """A launch's machine code, counted and timed, goes to the cache, where pages look for it."""
    read_machine_code(request, runner.evaluator.history)
    runner.event(job.job_id, "finished")


def run_rung(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> None:
    """A rung's compiled kernel, simulated time and counts go to the caches."""
    work_out_rung(request, runner.evaluator.history)
    runner.event(job.job_id, "finished")


def run_invariance(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> None:
    """Whether a kernel gives a sequence the same bits in every batch."""
    runner.event(job.job_id, "stage", stage="Executing a sequence alone and in batches")
    runner.event(job.job_id, "finished", result=encode(batch_invariance(runner.evaluator, request)))


def run_history(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> None:
    """A kernel's figures over the last commits that touched it."""

    def on_done(stage: str) -> None:
        runner.event(job.job_id, "stage", stage=stage)

    source = find_variant(request.variant).source
    found = history_of_source(
        source, HISTORY_COMMITS, gpu=request.gpu, problem=request.problem, on_done=on_done
    )
    runner.event(job.job_id, "finished", result=encode(found))


JOB_TYPES: Mapping[JobKind, JobType[Any]] = {
    "evaluate": JobType(EvaluationRequest, run_evaluation, is_long=False),
    "invariance": JobType(EvaluationRequest, run_invariance, is_long=False),
    "sweep": JobType(SweepSpec, run_sweep_job, is_long=True),
    "live": JobType(EvaluationRequest, run_latency_stream, is_long=True),
}
# These need no backend, so that a thread serves them beside the others.
BESIDE_TYPES: Mapping[JobKind, JobType[Any]] = {
    "simulate": JobType(EvaluationRequest, run_simulation, is_long=False),
    "machine_code": JobType(EvaluationRequest, run_machine_code, is_long=False),
    "rung": JobType(EvaluationRequest, run_rung, is_long=False),
    "history": JobType(EvaluationRequest, run_history, is_long=False),
}


def _build(can_simulate: threading.Event) -> None:
    """Build what is C++ here, so that the first Run and simulation wait for their kernel alone."""
    from engine.cuda_on_host.build import build_runtime, precompile_headers
    from engine.cuda_on_host.toolchain import find_toolchain
    from engine.machine_code.execution import prepare
    from engine.machine_code.native_library import build_libraries

    try:
        with contextlib.suppress(AttuneError):  # the first Run says what is missing
            build_runtime(find_toolchain())
            build_libraries()
            can_simulate.set()
            precompile_headers()
            prepare()  # what executes machine code: a host build judges until it is there
    finally:
        can_simulate.set()


def _load_pytorch() -> None:
    """Two seconds that the first Run, which compares with PyTorch, need not wait for."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401


def _serve_beside(
    run: RunDir, evaluator: Evaluator, is_closing: threading.Event, can_simulate: threading.Event
) -> None:
    """Serve what needs no backend until the worker ends, once the simulator is built."""
    can_simulate.wait()
    runner = JobRunner(run, evaluator, BESIDE_TYPES, others=JOB_TYPES)
    while not is_closing.is_set():
        waiting = [job for job in runner.waiting() if job.kind in BESIDE_TYPES]
        if waiting:
            runner.serve(waiting[0])
        else:
            is_closing.wait(POLL_S)


def main(argv: list[str]) -> int:
    run = RunDir(Path(argv[0]))
    lock = files.try_lock(run.worker_lock)  # held until the process ends
    if lock is None:
        return 0  # another worker already serves this folder
    run.write_worker(os.getpid(), code_stamp())
    can_simulate = threading.Event()
    threading.Thread(target=_build, args=(can_simulate,), daemon=True).start()
    pytorch: threading.Thread | None = None
    has_served = False
    idle_since = time.monotonic()
    is_closing = threading.Event()
    with Evaluator(open_history()) as evaluator, contextlib.ExitStack() as at_end:
        if isinstance(detect_local(), str):
            args = (run, evaluator, is_closing, can_simulate)
            beside = threading.Thread(target=_serve_beside, args=args, daemon=True)
            beside.start()
            at_end.callback(beside.join, 1.0)  # a longer simulation ends with the process
            at_end.callback(is_closing.set)  # before that
            runner = JobRunner(run, evaluator, JOB_TYPES, others=BESIDE_TYPES)
        else:  # nothing runs beside a measurement
            runner = JobRunner(run, evaluator, {**JOB_TYPES, **BESIDE_TYPES})
        while True:
            waiting = runner.waiting()
            if waiting:
                runner.serve(waiting[0])
                has_served = True
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > IDLE_CHECK_S:
                if run.is_abandoned():
                    return 0
                idle_since = time.monotonic()
            else:
                is_idle = has_served and time.monotonic() - idle_since > PYTORCH_AFTER_S
                if is_idle and pytorch is None:
                    pytorch = threading.Thread(target=_load_pytorch, daemon=True)
                    pytorch.start()
                time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
