"""An evaluation that passed, with the times of it and of the baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine.devices.nvml import GpuState
from engine.errors import MeasureError
from engine.evaluation import BaselineTiming, Evaluation, Status
from engine.measure.sampler import SamplerSettings, SamplingRun
from engine.measure.side_by_side import FULL, PLACEMENTS, QUICK, TimingGroup
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
    settings = settings or (FULL if full else QUICK)
    placements = PLACEMENTS if full else 1
    correctness = passed.correctness
    with TimingGroup(read_state, settings.kinds, placements) as group:
        if not group.add(name, lambda: backend.timer(plan, inputs, correctness)):
            raise MeasureError(group.failures[name])
        for each in baselines:
            group.add(each, partial(baseline, each, plan.problem, inputs))
        run = group.run(name, settings)
        return with_times(passed, group, run, name, baselines)


def with_times(
    passed: Evaluation, group: TimingGroup, run: SamplingRun, name: str, baselines: Sequence[str]
) -> Evaluation:
    """`passed` with the times of a run, its own and the baselines'.

    THROTTLED when the GPU slowed down too often; what was measured stays in it.

    Args:
        name: of this evaluation in the group.
        baselines: names in the group; one that could not take part has its reason.

    Raises:
        MeasureError: it has no time.
    """
    latencies = group.latencies(run, name)
    if not latencies:
        raise MeasureError(group.failures.get(name, "The run ended before it was measured."))
    return replace(
        passed,
        status=Status.THROTTLED if run.throttled else passed.status,
        reason=run.throttled or passed.reason,
        latency=latencies[0],
        other_latencies=latencies[1:],
        baselines=tuple(_baseline(group, run, each) for each in baselines),
    )


def _baseline(group: TimingGroup, run: SamplingRun, name: str) -> BaselineTiming:
    latencies = group.latencies(run, name)
    if not latencies:
        reason = group.failures.get(name, "The run ended before it was measured.")
        return BaselineTiming(name, None, reason)
    return BaselineTiming(name, latencies[0], other_latencies=latencies[1:])
