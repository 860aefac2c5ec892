"""An evaluation that passed, with the times of it and of the baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.devices.nvml import GpuState
from engine.errors import MeasureError
from engine.evaluation import BaselineTiming, Evaluation, Status
from engine.measure.sampler import SamplerSettings, SamplingRun
from engine.measure.side_by_side import FULL, QUICK, Field
from engine.plan import LaunchPlan
from engine.tensors import Inputs

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend


def time_evaluation(
    backend: CudaBackend,
    plan: LaunchPlan,
    inputs: Inputs,
    passed: Evaluation,
    read_state: Callable[[], GpuState],
    *,
    full: bool,
    settings: SamplerSettings | None = None,
) -> Evaluation:
    """Measure a plan on the GPU, with the SDPA baselines in the same run when `full`.

    Args:
        passed: the evaluation of this plan, with its verdict.
        settings: how to measure; FULL or QUICK when not given.

    Raises:
        MeasureError: the kernel could not be timed.
    """
    from engine.backends.sdpa import BACKENDS, baseline

    assert passed.correctness is not None
    name = plan.variant
    baselines = tuple(BACKENDS) if full else ()
    with Field(read_state) as field:
        if not field.add(name, backend.timer(plan, inputs, passed.correctness)):
            raise MeasureError(field.failures[name])
        for each in baselines:
            field.add(each, baseline(each, plan.problem, inputs))
        run = field.run(name, settings or (FULL if full else QUICK))
        return with_times(passed, field, run, name, baselines)


def with_times(
    passed: Evaluation, field: Field, run: SamplingRun, name: str, baselines: Sequence[str]
) -> Evaluation:
    """`passed` with what a run says of it and of the baselines.

    THROTTLED when the GPU slowed down too often; what was measured stays in it.

    Args:
        name: of this evaluation in the field.
        baselines: names in the field; one that could not take part has its reason.

    Raises:
        MeasureError: it has no time.
    """
    latencies = field.latencies(run, name)
    if not latencies:
        raise MeasureError(field.failures.get(name, "The run ended before it was measured."))
    return replace(
        passed,
        status=Status.THROTTLED if run.throttled else passed.status,
        reason=run.throttled or passed.reason,
        latency=latencies[0],
        other_latencies=latencies[1:],
        baselines=tuple(_baseline(field, run, each) for each in baselines),
    )


def _baseline(field: Field, run: SamplingRun, name: str) -> BaselineTiming:
    latencies = field.latencies(run, name)
    if not latencies:
        reason = field.failures.get(name, "The run ended before it was measured.")
        return BaselineTiming(name, None, reason)
    return BaselineTiming(name, latencies[0], other_latencies=latencies[1:])
