"""The one recipe by which everything is timed, our kernels and the baselines alike.

Warm and cold device time by CUDA-graph replay, and the end-to-end call. `engine/measure/plan.py`
holds the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.evaluation import Latency
from engine.measure.plan import (
    FLUSH_L2_MULTIPLE,
    ReplayPlan,
    pilot_launches,
    plan_cold,
    plan_warm,
)
from engine.measure.sample import (
    LatencyKind,
    describe_replays,
    measured_latency,
    sample_calls,
    sample_replays,
)


class Launchable(Protocol):
    """Something on a GPU that is launched over copies of its Q, K, V and O."""

    @property
    def copy_bytes(self) -> int:
        """Device memory of one copy."""
        ...

    @property
    def l2_bytes(self) -> int: ...

    def free_bytes(self) -> int:
        """Device memory there is for more copies."""
        ...

    def make_copies(self, count: int) -> None:
        """Have this many copies in all."""
        ...

    def once_us(self) -> float:
        """Device time between events around one launch on the first copy."""
        ...

    def graph(self, launches: int, copies: int) -> Callable[[], float]:
        """Capture launches, the i-th on copy i % copies. Calling the result replays them once and
        gives the device time in µs."""
        ...

    def flush_l2(self, size: int) -> None:
        """Queue writing over `size` bytes of other memory."""
        ...

    def call(self) -> None:
        """One launch on the first copy, waited for, as a user's code would."""
        ...


def measure(subject: Launchable) -> tuple[Latency, Latency, Latency]:
    """Warm device time, cold device time, end to end; in this order."""
    launch_us = measure_pilot(subject)
    return (
        measure_warm(subject, launch_us),
        measure_cold(subject, launch_us),
        measure_end_to_end(subject),
    )


def measure_pilot(subject: Launchable) -> float:
    """About how long one launch takes, in µs; the numbers of the others start from it."""
    subject.call()  # loads the kernel: neither capture nor events should see that
    launches = pilot_launches(subject.once_us())
    replay = subject.graph(launches, 1)
    return min(replay() for _ in range(3)) / launches


def measure_warm(subject: Launchable, launch_us: float) -> Latency:
    """Device time of launches that find in L2 what the one before left there."""
    return _measure_replays(subject, "device_warm", plan_warm(launch_us))


def measure_cold(subject: Launchable, launch_us: float) -> Latency:
    """Device time of launches that find nothing of their inputs in L2."""
    plan = plan_cold(launch_us, subject.copy_bytes, subject.l2_bytes, subject.free_bytes())
    subject.make_copies(plan.copies)
    return _measure_replays(subject, "device_cold", plan)


def measure_end_to_end(subject: Launchable) -> Latency:
    """Host wall time of a call, Python included."""
    samples = sample_calls(subject.call)
    how = f"median of {len(samples)} calls from Python, launch and wait"
    return measured_latency(samples, "end_to_end", how)


def _measure_replays(subject: Launchable, kind: LatencyKind, plan: ReplayPlan) -> Latency:
    replay = subject.graph(plan.launches, plan.copies)

    def flush_and_replay() -> float:
        subject.flush_l2(FLUSH_L2_MULTIPLE * subject.l2_bytes)
        return replay()

    samples = sample_replays(flush_and_replay if plan.flush else replay, plan)
    return measured_latency(samples, kind, describe_replays(plan))
