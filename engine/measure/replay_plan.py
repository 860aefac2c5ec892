"""How many launches and copies one sample takes. Pure arithmetic, no GPU.

A launch of 3 µs cannot be timed by itself: events around it read 5 to 6 µs. So n launches go into a
CUDA graph, events stand around its replay, and one sample is the replay's time over n.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

# Events and the graph's start cost about 5 µs a replay: 0.13 % of this, shared by all launches.
TARGET_REPLAY_US = 4_000.0
# Nodes of one graph. Capturing costs about 7 µs a launch and memory for each node's arguments.
MAX_LAUNCHES = 8_192
# A rotation through this many times the L2 finds nothing of its last round there.
COLD_L2_MULTIPLE = 5
# A memset of this many times the L2 leaves nothing of what was there.
FLUSH_L2_MULTIPLE = 2

# The clock has risen when the pilot got no faster over this much work; boards take up to half a
# second from idle.
SETTLED_US = 50_000.0
MAX_PILOT_US = 1_000_000.0

_PILOT_US = 1_000.0
_MAX_PILOT_LAUNCHES = 64
# One end-to-end sample; a single call of 10 µs would be at the mercy of the interpreter.
_CALLS_US = 500.0
_MAX_CALLS = 32


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One graph; a sample is the time of one replay over its launches."""

    launches: int  # in the graph; launch i uses copy i % copies
    copies: int  # of Q, K, V and O
    flush: bool  # write over the L2 before every replay

    def __post_init__(self) -> None:
        if min(self.launches, self.copies) < 1:
            raise ValueError(f"not a measurement: {self}")
        if self.launches % self.copies:
            raise ValueError("every copy must be used equally often")

    def describe(self) -> str:
        """How a sample was taken, for `Latency.reason`."""
        if self.copies == 1:
            inputs = "on the same inputs"
        else:
            inputs = f"rotating over {self.copies:,} copies of the inputs"
        launches = "1 launch" if self.launches == 1 else f"{self.launches:,} launches"
        flushed = ", the L2 written over before each" if self.flush else ""
        return f"each a replay of a CUDA graph of {launches} {inputs}{flushed}"


def pilot_launches(single_launch_us: float) -> int:
    """Launches of the pilot graph, which finds the launch time that the plans start from.

    `single_launch_us` is read by events around one launch and is several µs too long.
    """
    return _clamp(ceil(_PILOT_US / single_launch_us), 1, _MAX_PILOT_LAUNCHES)


def plan_warm(launch_us: float) -> ReplayPlan:
    """Every launch reuses one copy, so what fits stays in L2."""
    return ReplayPlan(_clamp(ceil(TARGET_REPLAY_US / launch_us), 1, MAX_LAUNCHES), 1, flush=False)


def plan_cold(launch_us: float, copy_bytes: int, l2_bytes: int, free_bytes: int) -> ReplayPlan:
    """No launch finds its inputs in L2.

    Copies rotate through at least five times the L2. Where that would take too many of them (a tiny
    problem on a large L2) or more than half the free memory, each copy is used once a replay, and
    the L2 is written over before it.

    Args:
        copy_bytes: device memory of one copy of Q, K, V and O.
        free_bytes: device memory there is for copies; the first is always there.
    """
    affordable = _clamp(free_bytes // 2 // copy_bytes, 1, MAX_LAUNCHES)
    wanted = ceil(COLD_L2_MULTIPLE * l2_bytes / copy_bytes)
    timed = _clamp(ceil(TARGET_REPLAY_US / launch_us), 1, MAX_LAUNCHES)
    if wanted <= affordable:
        copies = max(wanted, 1)
        rounds = max(1, min(ceil(timed / copies), MAX_LAUNCHES // copies))
        return ReplayPlan(rounds * copies, copies, flush=False)
    copies = min(affordable, timed)
    return ReplayPlan(copies, copies, flush=True)


def call_count(call_us: float) -> int:
    """Calls of one end-to-end sample, which is their mean."""
    return _clamp(int(_CALLS_US / call_us), 1, _MAX_CALLS)


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
