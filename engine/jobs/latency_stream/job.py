"""A latency stream in the worker process: measures one kernel again and again.

On the GPU by short runs of the sampler, between which others get the device; on the CPU backend the
execution time on this host, which is no GPU's latency and is never called one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from engine.backends.base import RunOptions
from engine.base.errors import MeasureError, Status
from engine.correctness import inputs_of
from engine.devices.detect import GpuState
from engine.evaluation import Evaluation
from engine.jobs.latency_stream.series import (
    MAX_SAMPLES,
    UNSEEN_IN_THE_WAY_S,
    UNSEEN_S,
    LatencySample,
    append_samples,
    begin_stream,
    is_unseen,
)
from engine.jobs.layout import JobStatus
from engine.jobs.supervisor import JobRunner
from engine.measure.sampler import Sample, SamplerSettings
from engine.pipeline.request import EvaluationRequest, resolve
from engine.plan import LaunchPlan, make_plan
from engine.schema import encode
from engine.tensors import Inputs

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend

# One run of the sampler; then others that wait for the GPU get it.
_TURN = SamplerSettings(kinds=("device_warm",), min_rounds=1 << 40, max_s=5.0)
_YIELD_S = 0.1  # longer than the interval in which a waiting process asks for the lock
_CPU_INTERVAL_S = 0.05  # between two executions, at the least
_CPU_SHARE = 0.5  # of the time that the CPU backend may be busy


def run_latency_stream(runner: JobRunner, job: JobStatus, request: EvaluationRequest) -> None:
    """Check the kernel once, then measure until the job is cancelled or its stream is not read.

    A kernel that is not right gets no stream: the job is over, with its evaluation as the result.
    """
    job_id = job.job_id
    if is_unseen(runner.run.stream(job_id), time.time()):  # while it waited for its turn
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
    stream = _Stream(runner, job_id, checked, plan, inputs)
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
    last_stage: str = ""
    count: int = 0

    def __post_init__(self) -> None:
        self.stream = self.runner.run.stream(self.job_id)
        self.began = time.time()

    @property
    def is_full(self) -> bool:
        return self.count >= MAX_SAMPLES

    def measure_on_cpu(self, request: EvaluationRequest) -> None:
        backend = self.runner.evaluator.backend("cpu")
        begin_stream(self.stream, "cpu_execution", "this machine's CPU")
        options = RunOptions(
            request.check,
            request.schedule,
            request.seed,
            request.timeout_s,
            repeat=False,
            arch=resolve(request, self.runner.evaluator.history).arch,
        )
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
        from engine.measure.device_lock import measuring

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
        with TimingGroup(read_state, _TURN.kinds, placements=1) as group:
            timer = partial(backend.timer, self.plan, self.inputs, self.checked.correctness)
            group.add(name, timer)
            if name not in group.failures:
                group.run(name, _TURN, on_round=self._emit, should_stop=self._ends_turn)
            if name in group.failures:
                raise MeasureError(f"The kernel stopped working: {group.failures[name]}")

    def _emit(self, samples: Sequence[Sample]) -> None:
        offset = time.time() - max(s.at_s for s in samples)
        self._append([LatencySample.of(s.at_s + offset, s.time_us, s.state) for s in samples])

    def _append(self, samples: Sequence[LatencySample]) -> None:
        append_samples(self.stream, samples)
        self.count += len(samples)

    def _ends_turn(self) -> bool:
        """The job is over, or a person waits for an evaluation."""
        return self._is_over() or bool(self.runner.waiting_evaluations())

    def _is_over(self) -> bool:
        limit_s = UNSEEN_IN_THE_WAY_S if self.runner.has_next_long_job() else UNSEEN_S
        return (
            self.runner.is_cancelled(self.job_id)
            or self.is_full
            or is_unseen(self.stream, self.began, limit_s)
        )

    def _stage(self, stage: str) -> None:
        if stage != self.last_stage:  # not with every turn
            self.last_stage = stage
            self.runner.event(self.job_id, "stage", stage=stage)
