"""Plans of warm, cold and end-to-end measurements: launches per sample, copies, flushes."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.measure.side_by_side import (
    COLD_L2_MULTIPLE,
    MAX_LAUNCHES,
    TARGET_REPLAY_US,
    ReplayPlan,
    call_count,
    pilot_launches,
    plan_cold,
    plan_warm,
)

MIB = 1 << 20
launch_times = st.floats(0.3, 1e8)
sizes = st.integers(1, 1 << 33)
l2_sizes = st.integers(1 << 16, 1 << 28)


def test_a_3_us_kernel_is_timed_in_replays_of_4_ms() -> None:
    plan = plan_warm(3.0)
    assert plan.copies == 1
    assert not plan.flush
    assert plan.launches * 3.0 >= TARGET_REPLAY_US
    assert plan.launches == 1334
    # The 5 µs of events and the graph's start are negligible in it.
    assert 5.0 / plan.launches < 0.002 * 3.0


def test_a_3_us_kernel_cold_on_an_h200_rotates_through_five_times_its_l2() -> None:
    copy = 4 * 128 * 64 * 2  # B·H = 1, S = 128, D = 64
    plan = plan_cold(3.0, copy, 50 * MIB, 130 << 30)
    assert plan.copies == ceil(5 * 50 * MIB / copy) == 4000
    assert plan.launches == plan.copies
    assert not plan.flush


def test_a_problem_too_tiny_to_fill_the_l2_is_flushed() -> None:
    plan = plan_cold(2.0, 1024, 50 * MIB, 130 << 30)  # S = 4, D = 4 would take 256,000 copies
    assert plan.flush
    assert plan.launches == plan.copies == 2000


def test_too_little_memory_is_flushed() -> None:
    plan = plan_cold(50.0, 64 * MIB, 50 * MIB, 150 * MIB)
    assert plan.flush
    assert plan.launches == plan.copies == 1


def test_one_copy_larger_than_five_times_the_l2_suffices() -> None:
    plan = plan_cold(5_000.0, 512 * MIB, 50 * MIB, 0)
    assert (plan.launches, plan.copies, plan.flush) == (1, 1, False)


@given(launch_us=launch_times)
def test_warm_plans_are_measurements(launch_us: float) -> None:
    plan = plan_warm(launch_us)
    assert plan.launches * launch_us >= min(TARGET_REPLAY_US, MAX_LAUNCHES * launch_us)
    assert plan.launches <= MAX_LAUNCHES
    assert plan.launches == 1 or (plan.launches - 1) * launch_us < TARGET_REPLAY_US


@given(launch_us=launch_times, copy=sizes, l2=l2_sizes, free=st.integers(0, 1 << 38))
def test_cold_plans_are_cold(launch_us: float, copy: int, l2: int, free: int) -> None:
    plan = plan_cold(launch_us, copy, l2, free)
    assert plan.launches <= MAX_LAUNCHES
    assert plan.launches % plan.copies == 0
    if plan.flush:
        assert plan.launches == plan.copies  # no copy is used twice between two flushes
    else:
        assert plan.copies * copy >= COLD_L2_MULTIPLE * l2
    assert (plan.copies - 1) * copy <= free  # the first copy is already allocated


@given(single_us=st.floats(0.1, 1e8))
def test_the_pilot_is_short(single_us: float) -> None:
    launches = pilot_launches(single_us)
    assert 1 <= launches <= 64
    assert launches == 1 or (launches - 1) * single_us < 1_000


@given(call_us=st.floats(0.5, 1e8))
def test_an_end_to_end_sample_is_short(call_us: float) -> None:
    calls = call_count(call_us)
    assert 1 <= calls <= 32
    assert calls == 1 or calls * call_us <= 500


@pytest.mark.parametrize("numbers", [(0, 1), (10, 3), (10, 0)])
def test_impossible_plans_are_rejected(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        ReplayPlan(*numbers, flush=False)
