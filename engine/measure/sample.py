"""Taking samples and turning them into a `Latency`; what is timed comes in as a function."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from engine.evaluation import Latency
from engine.measure.plan import ReplayPlan, call_count
from engine.measure.statistics import median_interval

LatencyKind: TypeAlias = Literal["device_warm", "device_cold", "end_to_end"]


def sample_replays(replay_us: Callable[[], float], plan: ReplayPlan) -> tuple[float, ...]:
    """µs per launch, one sample per timed replay.

    Args:
        replay_us: replays the plan's graph once and returns its device time.
    """
    for _ in range(plan.warmup_replays):
        replay_us()
    return tuple(replay_us() / plan.launches for _ in range(plan.replays))


def sample_calls(call: Callable[[], None]) -> tuple[float, ...]:
    """µs of host wall time per call. `call` launches and waits, as a user's code would."""
    call()  # the first one pays for lazy loading
    pilot_us = _wall_us(call)
    return tuple(_wall_us(call) for _ in range(call_count(pilot_us)))


def measured_latency(samples_us: tuple[float, ...], kind: LatencyKind, how: str) -> Latency:
    """Median and 95 % interval of the samples. `how` says how they were taken."""
    found = median_interval(samples_us)
    return Latency(
        origin="measured",
        median_us=found.median,
        low_us=found.low,
        high_us=found.high,
        reason=how,
        kind=kind,
        samples_us=samples_us,
    )


def describe_replays(plan: ReplayPlan) -> str:
    """How a device time was measured, for `Latency.reason`."""
    if plan.copies == 1:
        inputs = "on the same inputs"
    else:
        inputs = f"rotating over {plan.copies:,} copies of the inputs"
    launches = "1 launch" if plan.launches == 1 else f"{plan.launches:,} launches"
    flushed = ", the L2 written over before each" if plan.flush else ""
    return f"median of {plan.replays} replays of a CUDA graph of {launches} {inputs}{flushed}"


def _wall_us(call: Callable[[], None]) -> float:
    start = time.perf_counter_ns()
    call()
    # A call shorter than the clock's tick still took some time.
    return max(time.perf_counter_ns() - start, 1) / 1000
