"""How many launches, copies and replays a measurement takes. Pure arithmetic, no GPU.

A launch of 3 µs cannot be timed by itself: events around it read 5 to 6 µs. So n launches go into a
CUDA graph, events stand around its replay, and one sample is the replay's time over n.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from engine.measure.statistics import MIN_SAMPLES

# Events and the graph's start cost about 5 µs a replay: 0.13 % of this, shared by all launches.
TARGET_REPLAY_US = 4_000.0
# Nodes of one graph. Capturing costs about 7 µs a launch and memory for each node's arguments.
MAX_LAUNCHES = 8_192
# A rotation through this many times the L2 finds nothing of its last round there.
COLD_L2_MULTIPLE = 5
# A memset of this many times the L2 leaves nothing of what was there.
FLUSH_L2_MULTIPLE = 2

_MAX_REPLAYS = 60
_SAMPLING_BUDGET_US = 1_000_000.0
_WARMUP_US = 200_000.0
_PILOT_US = 1_000.0
_MAX_PILOT_LAUNCHES = 64
_MAX_CALLS = 300


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One graph and how often it is replayed."""

    launches: int  # in the graph; launch i uses copy i % copies
    copies: int  # of Q, K, V and O
    replays: int  # timed ones
    warmup_replays: int  # untimed ones before them
    flush: bool  # write over the L2 before every replay

    def __post_init__(self) -> None:
        if min(self.launches, self.copies, self.warmup_replays) < 1 or self.replays < MIN_SAMPLES:
            raise ValueError(f"not a measurement: {self}")
        if self.launches % self.copies:
            raise ValueError("every copy must be used equally often")


def pilot_launches(single_launch_us: float) -> int:
    """Launches of the pilot graph, which finds the launch time that the plans start from.

    `single_launch_us` is read by events around one launch and is several µs too long.
    """
    return _clamp(ceil(_PILOT_US / single_launch_us), 1, _MAX_PILOT_LAUNCHES)


def plan_warm(launch_us: float) -> ReplayPlan:
    """Every launch reuses one copy, so what fits stays in L2."""
    launches = _clamp(ceil(TARGET_REPLAY_US / launch_us), 1, MAX_LAUNCHES)
    return _with_replays(launches, 1, launch_us, flush=False)


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
        return _with_replays(rounds * copies, copies, launch_us, flush=False)
    copies = min(affordable, timed)
    return _with_replays(copies, copies, launch_us, flush=True)


def call_count(call_us: float) -> int:
    """Timed calls of an end-to-end measurement."""
    return _clamp(int(_SAMPLING_BUDGET_US / call_us), MIN_SAMPLES, _MAX_CALLS)


def _with_replays(launches: int, copies: int, launch_us: float, *, flush: bool) -> ReplayPlan:
    replay_us = launches * launch_us
    return ReplayPlan(
        launches=launches,
        copies=copies,
        replays=_clamp(int(_SAMPLING_BUDGET_US / replay_us), MIN_SAMPLES, _MAX_REPLAYS),
        warmup_replays=max(1, ceil(_WARMUP_US / replay_us)),
        flush=flush,
    )


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
