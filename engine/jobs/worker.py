"""The worker process: runs the jobs of one server, one after another.

Started by `engine.jobs.manager` as `python -m engine.jobs.worker RUN_DIR`, in its own process
session. A crash or an endless kernel ends this process, not the app, and the worker survives a
restart of the app. It owns the CUDA context and the CPU backend's child.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from engine.attention.config import find_variant
from engine.attention.evaluation import Evaluation
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.tensors import Inputs
from engine.base import files
from engine.base.errors import AttuneError, MeasureError, Status
from engine.base.schema import Stored, encode
from engine.correctness import inputs_of
from engine.devices.nvml import GpuState
from engine.devices.spec import detect_local
from engine.gate.commits import KernelHistory, history_of_source
from engine.jobs.latency_series import (
    MAX_SAMPLES,
    UNSEEN_IN_THE_WAY_S,
    UNSEEN_S,
    LatencySample,
    append_samples,
    begin_stream,
    is_unseen,
)
from engine.jobs.layout import JobKind, JobStatus, RunDir, Task
from engine.jobs.supervisor import JobRunner, JobType, code_stamp
from engine.jobs.sweep_job import run_sweep_job
from engine.kernel_figures import work_out_rung
from engine.measure.sampler import Sample, SamplerSettings
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.invariance import BatchInvariance, batch_invariance
from engine.pipeline.request import EvaluationRequest, resolve, simulated_us
from engine.pipeline.simulated_launches import read_machine_code
from engine.search.sweep.journal import SweepSpec
from engine.sessions.known_times import open_history

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend

POLL_S = 0.02
# Interval at which an idle worker checks whether a server still holds the folder.
IDLE_CHECK_S = 300.0
HISTORY_COMMITS = 30
EXECUTOR_AFTER_S = 10.0  # without a job, before the emulator for execution is built
RUNGS_AT_ONCE = min(4, os.cpu_count() or 1)  # a compiler needs some 100 MB
PYTORCH_AFTER_S = 1.0  # idle time after a job, before PyTorch is loaded for the next one


def _evaluation(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> Evaluation:
    """Run one evaluation; write its error maps to a file."""

    def on_part(evaluation: Evaluation) -> None:
        runner.event(job.job_id, "part", result=encode(evaluation))

    # Pages that only compile request the simulation separately.
    outcome = runner.evaluator.evaluate(
        request, partial(_on_stage, runner, job), simulates=request.execute, on_part=on_part
    )
    if outcome.maps:
        runner.run.write_maps(job.job_id, outcome.maps)
    return outcome.evaluation


def _on_stage(runner: JobRunner, job: JobStatus, stage: str) -> None:
    runner.event(job.job_id, "stage", stage=stage)


def _simulation(runner: JobRunner, _: JobStatus, request: EvaluationRequest) -> None:
    simulated_us(request, runner.evaluator.history)


def _machine_code(runner: JobRunner, _: JobStatus, request: EvaluationRequest) -> None:
    read_machine_code(request, runner.evaluator.history)


def _rung(runner: JobRunner, _: JobStatus, request: EvaluationRequest) -> None:
    work_out_rung(request, runner.evaluator.history)


def _invariance(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> BatchInvariance:
    _on_stage(runner, job, "Executing a sequence alone and in batches")
    return batch_invariance(runner.evaluator, request)


def _history(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> KernelHistory:
    return history_of_source(
        find_variant(request.variant).source,
        HISTORY_COMMITS,
        gpu=request.gpu,
        problem=request.problem,
        on_done=partial(_on_stage, runner, job),
    )


# The functions of single jobs return the result for the page, or None if the page finds it in the
# caches.
_TASKS: Mapping[Task, Callable[[JobRunner, JobStatus, EvaluationRequest], Stored | None]] = {
    "evaluate": _evaluation,
    "invariance": _invariance,
    "simulate": _simulation,
    "machine_code": _machine_code,
    "rung": _rung,
    "history": _history,
}


def run_single(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> None:
    """Run the task of a single job and write its result as the job's end."""
    found = _TASKS[job.task](runner, job, request)
    runner.event(job.job_id, "finished", result=None if found is None else encode(found))


# One run of the sampler, after which waiting processes get the GPU.
_TURN = SamplerSettings(kinds=("device_warm",), min_rounds=1 << 40, max_s=5.0)
_YIELD_S = 0.1  # longer than the polling interval of processes that wait for the lock
_CPU_INTERVAL_S = 0.05  # least time between two executions
_CPU_SHARE = 0.5  # maximum share of time that the CPU backend is busy


def run_latency_stream(
    runner: JobRunner,
    job: JobStatus,
    request: EvaluationRequest,
    *,
    turn: SamplerSettings = _TURN,
    max_samples: int = MAX_SAMPLES,
) -> None:
    """Check the kernel once, then measure until the job is cancelled or has no readers.

    For an incorrect kernel, the job ends with the evaluation as its result.

    Args:
        turn: one run of the sampler, after which waiting processes get the GPU.
    """
    job_id = job.job_id
    if is_unseen(runner.run.stream(job_id), time.time()):  # while it was queued
        runner.event(job_id, "finished", end="unseen")
        return
    request = replace(request, effort="quick")
    outcome = runner.evaluator.evaluate(
        request, lambda stage: runner.event(job_id, "stage", stage=stage)
    )
    checked = outcome.evaluation
    if checked.status not in (Status.PASSED, Status.THROTTLED) or checked.execution is None:
        runner.event(job_id, "finished", result=encode(checked))
        return
    target = resolve(request, runner.evaluator.history)
    plan = make_plan(target.variant, request.problem, target.config)
    inputs = inputs_of(request.problem, request.seed, request.input_kind)
    stream = _Stream(runner, job_id, checked, plan, inputs, turn, max_samples)
    if checked.execution.backend == "cuda":
        stream.measure_on_gpu()
    else:
        stream.measure_on_cpu(request)
    if not runner.is_cancelled(job_id):
        runner.event(job_id, "finished", end="full" if stream.is_full else "unseen")


@dataclass
class _Stream:
    runner: JobRunner
    job_id: str
    checked: Evaluation
    plan: LaunchPlan
    inputs: Inputs
    turn: SamplerSettings = _TURN
    max_samples: int = MAX_SAMPLES
    last_stage: str = ""
    count: int = 0

    def __post_init__(self) -> None:
        self.stream = self.runner.run.stream(self.job_id)
        self.began = time.time()

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_samples

    def measure_on_cpu(self, request: EvaluationRequest) -> None:
        backend = self.runner.evaluator.backend("cpu")
        begin_stream(self.stream, "cpu_execution", "this machine's CPU")
        arch = resolve(request, self.runner.evaluator.history).arch
        options = request.run_options(arch, repeat=False)
        self._stage("Executing on the CPU, repeatedly")
        while not self._is_over():
            began = time.monotonic()
            result = backend.run(self.plan, self.inputs, options)
            if result.status is not Status.PASSED or result.execution_ms is None:
                raise MeasureError(f"The kernel stopped working: {result.reason}")
            self._append([LatencySample(time.time(), result.execution_ms * 1000)])
            busy = time.monotonic() - began
            self.runner.serve_waiting_evaluations()
            time.sleep(max(_CPU_INTERVAL_S - busy, busy * (1 / _CPU_SHARE - 1)))

    def measure_on_gpu(self) -> None:
        from engine.backends.cuda.backend import SOFTWARE_TIMES
        from engine.measure.device_lock import measuring

        if cast("CudaBackend", self.runner.evaluator.backend("cuda")).is_software:
            raise MeasureError(SOFTWARE_TIMES)
        begin_stream(self.stream, "device_warm", self.checked.device)
        purpose = f"live, {self.checked.variant}, {self.checked.problem.label()}"
        while not self._is_over():
            with measuring(purpose, self._stage) as read_state:
                self._stage("Measuring repeatedly")
                self._turn(read_state)
            self.runner.restart_if_gpu_unusable()
            self.runner.serve_waiting_evaluations()
            time.sleep(_YIELD_S)

    def _turn(self, read_state: Callable[[], GpuState]) -> None:
        from engine.measure.side_by_side import TimingGroup

        assert self.checked.correctness is not None
        backend = cast("CudaBackend", self.runner.evaluator.backend("cuda"))
        name = self.plan.variant
        with TimingGroup(read_state, self.turn.kinds, placements=1) as group:
            timer = partial(backend.timer, self.plan, self.inputs, self.checked.correctness)
            group.add(name, timer)
            if name not in group.failures:
                group.run(name, self.turn, on_round=self._emit, should_stop=self._ends_turn)
            if name in group.failures:
                raise MeasureError(f"The kernel stopped working: {group.failures[name]}")

    def _emit(self, samples: Sequence[Sample]) -> None:
        offset = time.time() - max(s.at_s for s in samples)
        self._append([LatencySample.of(s.at_s + offset, s.time_us, s.state) for s in samples])

    def _append(self, samples: Sequence[LatencySample]) -> None:
        append_samples(self.stream, samples)
        self.count += len(samples)

    def _ends_turn(self) -> bool:
        """True if the job has ended or an evaluation is waiting."""
        return self._is_over() or bool(self.runner.waiting_evaluations())

    def _is_over(self) -> bool:
        limit_s = UNSEEN_IN_THE_WAY_S if self.runner.has_next_long_job() else UNSEEN_S
        return (
            self.runner.is_cancelled(self.job_id)
            or self.is_full
            or is_unseen(self.stream, self.began, limit_s)
        )

    def _stage(self, stage: str) -> None:
        if stage != self.last_stage:  # only if the stage changed
            self.last_stage = stage
            self.runner.event(self.job_id, "stage", stage=stage)


JOB_TYPES: Mapping[JobKind, JobType[Any]] = {
    "single": JobType(EvaluationRequest, run_single, is_long=False),
    "sweep": JobType(SweepSpec, run_sweep_job, is_long=True),
    "live": JobType(EvaluationRequest, run_latency_stream, is_long=True),
}


def _build_simulator(
    can_simulate: threading.Event,
    busy: Sequence[threading.Event],
    executor_after_s: float = EXECUTOR_AFTER_S,
    builds: tuple[Callable[[], object], Callable[[], object]] | None = None,
) -> None:
    """Build the simulator and the emulator for execution before their first use.

    Args:
        busy: set while jobs run. The first Run usually follows the first prediction, uses a host
            build, and should not share its core with this compiler.
        executor_after_s: idle time before the emulator is built.
        builds: how both are built; default: those of `engine.machine_code`.
    """
    from engine.machine_code.execution import prepare
    from engine.machine_code.native_library import build_libraries

    build_simulator, build_emulator = builds or (build_libraries, prepare)
    try:
        with contextlib.suppress(AttuneError):  # the first simulation reports what is missing
            build_simulator()
            can_simulate.set()
            _wait_until_idle(busy, executor_after_s)
            build_emulator()
    finally:
        can_simulate.set()


def _wait_until_idle(busy: Sequence[threading.Event], quiet_s: float) -> None:
    """Wait until there was no job for this many seconds."""
    since = time.monotonic()
    while time.monotonic() - since < quiet_s:
        if any(event.is_set() for event in busy):
            since = time.monotonic()
        time.sleep(POLL_S)


def _build_host_runtime() -> None:
    """Build the C++ runtime of host builds, so that the first Run only compiles its kernel."""
    from engine.base.cxx import find_toolchain
    from engine.cuda_on_host.build import build_runtime, precompile_headers

    with contextlib.suppress(AttuneError):  # the first Run reports what is missing
        build_runtime(find_toolchain())
        precompile_headers()


def _load_pytorch() -> None:
    """Import PyTorch, which saves the first Run two seconds."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401


def _may_begin(job: JobStatus, served: Sequence[JobStatus], rungs_at_once: int) -> bool:
    """True if a job may start beside the running ones."""
    if not served:
        return True
    are_rungs = all(each.task == "rung" for each in (job, *served))
    return are_rungs and len(served) < rungs_at_once


def _serve_beside(
    runner: JobRunner,
    is_closing: threading.Event,
    can_simulate: threading.Event,
    is_busy: threading.Event,
    rungs_at_once: int = RUNGS_AT_ONCE,
) -> None:
    """Run jobs that need no backend, from when the simulator is built until the worker ends.

    Rungs run in parallel, because most of their time is spent in compilers that release the
    interpreter lock. Other jobs run one by one, because two of them often need the same simulation.
    """
    can_simulate.wait()
    served: dict[threading.Thread, JobStatus] = {}
    while not is_closing.is_set():
        served = {thread: job for thread, job in served.items() if thread.is_alive()}
        begun = {job.job_id for job in served.values()}
        waiting = [job for job in runner.waiting() if job.job_id not in begun]
        if waiting and _may_begin(waiting[0], list(served.values()), rungs_at_once):
            thread = threading.Thread(target=runner.serve, args=(waiting[0],), daemon=True)
            served[thread] = waiting[0]
            is_busy.set()
            thread.start()
        else:
            if not served:
                is_busy.clear()
            is_closing.wait(POLL_S)


def main(argv: list[str], idle_check_s: float = IDLE_CHECK_S) -> int:
    """Run jobs until no server holds the folder; return the exit code."""
    run = RunDir(Path(argv[0]))
    lock = files.try_lock(run.worker_lock)  # held until the process ends
    if lock is None:
        return 0  # another worker already serves this folder
    run.write_worker(os.getpid(), code_stamp())
    can_simulate = threading.Event()
    # In parallel, which halves the time to the first prediction on two cores.
    threading.Thread(target=_build_host_runtime, daemon=True).start()
    busy = is_busy, is_busy_beside = threading.Event(), threading.Event()
    threading.Thread(target=_build_simulator, args=(can_simulate, busy), daemon=True).start()
    pytorch: threading.Thread | None = None
    has_served = False
    idle_since = time.monotonic()
    is_closing = threading.Event()
    with Evaluator(open_history()) as evaluator, contextlib.ExitStack() as at_end:
        if isinstance(detect_local(), str):
            background = JobRunner(run, evaluator, JOB_TYPES, lambda job: job.is_background)
            args = (background, is_closing, can_simulate, is_busy_beside)
            beside = threading.Thread(target=_serve_beside, args=args, daemon=True)
            beside.start()
            at_end.callback(beside.join, 1.0)  # a longer simulation is ended with the process
            at_end.callback(is_closing.set)  # runs before the join
            runner = JobRunner(run, evaluator, JOB_TYPES, lambda job: not job.is_background)
        else:  # nothing may run beside a measurement
            runner = JobRunner(run, evaluator, JOB_TYPES)
        while True:
            waiting = runner.waiting()
            if waiting:
                is_busy.set()
                runner.serve(waiting[0])
                is_busy.clear()
                has_served = True
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > idle_check_s:
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
