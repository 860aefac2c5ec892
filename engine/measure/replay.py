"""What the sampler times on a GPU: CUDA graphs of many launches, and calls from Python.

A launch of a few µs cannot be timed by itself, so one sample is a replay of a graph over its number
of launches. `engine/measure/replay_plan.py` holds the numbers, `engine/measure/sampler.py` decides
who is timed when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from engine.devices.nvml import GpuState
from engine.errors import MeasureError
from engine.evaluation import ALL_KINDS, LatencyKind
from engine.measure.replay_plan import (
    FLUSH_L2_MULTIPLE,
    MAX_PILOT_US,
    SETTLED_US,
    ReplayPlan,
    call_count,
    pilot_launches,
    plan_cold,
    plan_warm,
)

Replay: TypeAlias = Callable[[], float]


class Launchable(Protocol):
    """Something on a GPU that is launched over copies of its Q, K, V and O.

    What fails comes out as the library raises it; `failed` turns that into a sentence.
    """

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

    def graph(self, launches: int, copies: int) -> Replay:
        """Capture launches, the i-th on copy i % copies. Calling the result replays them once and
        gives the device time in µs."""
        ...

    def flush_l2(self, size: int) -> None:
        """Queue writing over `size` bytes of other memory."""
        ...

    def call_us(self, calls: int) -> float:
        """Host wall time of one launch on the first copy, waited for, as a user's code would; the
        mean of so many."""
        ...

    def verify(self) -> None:
        """Look at what all those launches wrote.

        Raises:
            MeasureError: it is not the output of a single launch.
        """
        ...

    def failed(self, error: Exception) -> MeasureError:
        """The sentence for an error of this one; an error that is a defect of ours is raised."""
        ...


@dataclass(frozen=True, slots=True)
class _Ready:
    """One subject with its graphs."""

    subject: Launchable
    settle: Replay  # one launch, so that a warm sample finds in L2 what a launch leaves there
    warm: Replay
    warm_plan: ReplayPlan
    cold: Replay | None  # None where no cold sample is wanted
    cold_plan: ReplayPlan | None
    calls: int


class ReplayDevice:
    """This machine's GPU for the sampler. Satisfies `engine.measure.sampler.TimedDevice`.

    Args:
        read_state: what NVML says now.
        kinds: the samples that will be taken; nothing is prepared for others.
    """

    def __init__(
        self, read_state: Callable[[], GpuState], kinds: Sequence[LatencyKind] = ALL_KINDS
    ) -> None:
        self._read_state = read_state
        self.kinds = tuple(kinds)
        self._ready: dict[str, list[_Ready]] = {}

    def add(self, name: str, subject: Launchable, memory_share: float = 1.0) -> None:
        """Find out how long it takes, and capture its graphs; again for one more placement.

        Args:
            memory_share: of the free device memory, for its copies.

        Raises:
            MeasureError: it cannot be launched, or not in a graph.
        """
        placements = self._ready.get(name, [])
        first = placements[0] if placements else None
        cold = "device_cold" in self.kinds
        try:
            ready = _prepare(subject, first, memory_share, cold=cold)
        except Exception as error:
            raise subject.failed(error) from error
        self._ready[name] = [*placements, ready]

    def placements(self, candidate: str) -> int:
        return len(self._ready[candidate])

    def has_room(self, name: str) -> bool:
        """Whether another placement of it leaves as much memory again to others.

        Raises:
            MeasureError: the GPU failed.
        """
        first = self._ready[name][0]
        copies = 1 if first.cold_plan is None else first.cold_plan.copies
        subject = first.subject
        try:
            return subject.free_bytes() >= 2 * copies * subject.copy_bytes
        except Exception as error:
            raise subject.failed(error) from error

    def time_once(self, candidate: str, kind: LatencyKind, placement: int = 0) -> float:
        ready = self._ready[candidate][placement]
        try:
            return _sample(ready, kind)
        except Exception as error:
            raise ready.subject.failed(error) from error

    def state(self) -> GpuState:
        return self._read_state()

    def now_s(self) -> float:
        return time.perf_counter()

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def verify(self, name: str) -> None:
        """Look at what a subject's launches wrote.

        Raises:
            MeasureError: only single launches are right, so that the measured time is meaningless.
        """
        for ready in self._ready[name]:
            try:
                ready.subject.verify()
            except Exception as error:
                raise ready.subject.failed(error) from error

    def describe(self, candidate: str, kind: LatencyKind) -> str:
        """How one sample of this kind is taken."""
        ready = self._ready[candidate][0]
        if kind == "device_warm":
            return ready.warm_plan.describe()
        if kind == "device_cold":
            assert ready.cold_plan is not None
            return ready.cold_plan.describe()
        each = "one call" if ready.calls == 1 else f"the mean of {ready.calls} calls"
        return f"each {each} from Python, launch and wait"


def _prepare(
    subject: Launchable, first: _Ready | None, memory_share: float, *, cold: bool
) -> _Ready:
    """Graphs of the same sizes as the first placement's, where there is one."""
    subject.call_us(1)  # loads the kernel: neither capture nor events should see that
    cold_plan, cold_graph = None, None
    if first is not None:
        warm_plan, cold_plan = first.warm_plan, first.cold_plan
    else:
        launch_us = _pilot_us(subject)
        warm_plan = plan_warm(launch_us)
        if cold:
            free = int(subject.free_bytes() * memory_share)
            cold_plan = plan_cold(launch_us, subject.copy_bytes, subject.l2_bytes, free)
    warm = subject.graph(warm_plan.launches, 1)
    settle = subject.graph(1, 1)
    if cold_plan is not None:
        subject.make_copies(cold_plan.copies)
        cold_graph = subject.graph(cold_plan.launches, cold_plan.copies)
    return _Ready(
        subject=subject,
        settle=settle,
        warm=warm,
        warm_plan=warm_plan,
        cold=cold_graph,
        cold_plan=cold_plan,
        calls=first.calls if first else call_count(min(subject.call_us(1) for _ in range(3))),
    )


def _pilot_us(subject: Launchable) -> float:
    """Device time of one launch, once the GPU has left its idle clocks.

    At those a launch takes several times as long, and graphs sized by it would be as much too
    small. So the pilot is replayed until it gets no faster.
    """
    launches = pilot_launches(subject.once_us())
    pilot = subject.graph(launches, 1)
    fastest = before = busy = pilot()
    unchanged = 0.0
    while unchanged < SETTLED_US and busy < MAX_PILOT_US:
        time_us = pilot()
        busy += time_us
        fastest = min(fastest, time_us)
        unchanged += time_us
        if fastest < 0.99 * before:
            before, unchanged = fastest, 0.0
    return fastest / launches


def _sample(ready: _Ready, kind: LatencyKind) -> float:
    """µs of one launch, just after a launch of another candidate."""
    if kind == "device_warm":
        ready.settle()
        return ready.warm() / ready.warm_plan.launches
    if kind == "device_cold":
        assert ready.cold is not None
        assert ready.cold_plan is not None
        if ready.cold_plan.flush:
            ready.subject.flush_l2(FLUSH_L2_MULTIPLE * ready.subject.l2_bytes)
        return ready.cold() / ready.cold_plan.launches
    ready.subject.call_us(1)
    return ready.subject.call_us(ready.calls)
