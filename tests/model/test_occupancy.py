"""Occupancy: known answers, properties, sentences, impossible inputs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from words import raises, says

from engine.attention.evaluation import Occupancy
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.devices import find_device, limits_for
from engine.devices.spec import SM_LIMITS, SmLimits
from engine.model.kernel import Kernel
from engine.model.occupancy import occupancy, whatif

L4 = limits_for((8, 9))
limits_ = st.sampled_from(list(SM_LIMITS.values()))
threads_ = st.integers(1, 1024)
registers_ = st.integers(0, 255)
smem_ = st.integers(0, 228 * 1024)
ctas_ = st.integers(1, 10**7)
sms_ = st.integers(1, 200)


def test_v01_on_an_l4() -> None:
    """95 registers and 40 KiB, as the FA-1 baseline at D = 64."""
    o = occupancy(L4, 58, 512, 256, 95, 40960)
    assert (o.ctas_per_sm, o.active_warps_per_sm, o.max_warps_per_sm) == (2, 16, 48)
    assert o.occupancy == pytest.approx(1 / 3)
    assert o.limits == {"warps": 6, "ctas": 24, "registers": 2, "shared memory": 2}
    assert o.waves == pytest.approx(512 / 116)
    assert o.tail_ctas == 512 - 4 * 116
    assert o.wave_efficiency == pytest.approx(512 / (5 * 116))
    assert o.sm_fill == 1.0
    assert o.limiter == "registers"
    assert "registers" in o.reason
    assert says(o.reason, "shared_memory")


def test_v01_on_the_smallest_problem_fills_two_sms_of_58() -> None:
    o = occupancy(L4, 58, 2, 256, 95, 40960)
    assert o.sm_fill == pytest.approx(2 / 58)
    assert o.waves == pytest.approx(2 / 116)
    # CTAs of 256 threads whose threads fill 58 × 1,536 slots.
    assert o.ctas_to_fill == 58 * 1536 // 256 == 348
    assert o.thread_fill == pytest.approx(2 * 256 / (58 * 1536))


def test_one_wave_and_one_cta_more() -> None:
    full = occupancy(L4, 58, 116, 256, 95, 40960)
    over = occupancy(L4, 58, 117, 256, 95, 40960)
    assert (full.waves, full.tail_ctas, full.wave_efficiency) == (1.0, 0, 1.0)
    assert over.tail_ctas == 1
    assert over.wave_efficiency == pytest.approx(117 / 232)


@pytest.mark.parametrize(
    ("threads", "registers", "smem", "limiter", "resident", "name", "fact"),
    [
        (256, 32, 0, "warps", 6, "occupancy_is_full", "6"),
        (1024, 32, 0, "warps", 1, "another_cta_exceeds_warps", "1 CTA of 32 warps"),
        (32, 16, 0, "ctas", 24, "all_cta_slots", "24"),
        (256, 255, 0, "registers", 1, "limited_by_registers", "255"),
        (128, 32, 60_000, "shared memory", 1, "limited_by_smem", "60,000"),
        (32, 16, 0, "ctas", 24, "fit_on_sm", "24 CTAs of 1 warp"),
        (1024, 65, 0, "does not fit", 0, "cta_registers_exceed", "65 registers"),
        (64, 32, 101_377, "does not fit", 0, "cta_smem_exceeds", "101,377 bytes"),
    ],
)
def test_each_limiter_has_its_explanation(
    threads: int, registers: int, smem: int, limiter: str, resident: int, name: str, fact: str
) -> None:
    o = occupancy(L4, 58, 100, threads, registers, smem)
    assert (o.limiter, o.ctas_per_sm) == (limiter, resident)
    assert says(o.reason, name, fact)
    assert o.reason.endswith(".")


def test_all_limiters_are_named() -> None:
    o = occupancy(L4, 58, 8, 256, 100, 40 * 1024)
    assert (o.limits["registers"], o.limits["shared memory"], o.ctas_per_sm) == (2, 2, 2)
    assert o.limiters == ("registers", "shared memory")
    assert all(name in o.limited_by() for name in o.limiters)


@pytest.mark.parametrize("threads", [32, 64, 96, 128, 256, 512, 640, 1024])
def test_advice_matches_the_occupancy_calculator(threads: int) -> None:
    for registers, smem in product((16, 24, 40, 64, 95, 128, 255), range(0, 100_000, 4_096)):
        now = occupancy(L4, 58, 100, threads, registers, smem)
        if not now.ctas_per_sm:
            continue
        fewer = occupancy(L4, 58, 100, threads, 16, smem).ctas_per_sm > now.ctas_per_sm
        smaller = occupancy(L4, 58, 100, threads, registers, 0).ctas_per_sm > now.ctas_per_sm
        if says(now.reason, "limited_by_registers"):
            assert fewer, now.reason
        if says(now.reason, "limited_by_smem"):
            assert smaller, now.reason
        if "alike" in now.reason:
            assert len(now.limiters) > 1, now.reason
            assert all(name.split()[-1] in now.reason for name in now.limiters if name != "ctas")
            assert not fewer, now.reason
            assert not smaller, now.reason


def test_a_cta_that_does_not_fit_has_no_waves() -> None:
    o = occupancy(L4, 58, 100, 1024, 65, 0)
    assert (o.waves, o.tail_ctas, o.wave_efficiency, o.sm_fill) == (None, None, None, 0.0)
    assert (o.occupancy, o.active_warps_per_sm) == (0.0, 0)


def test_waves_are_unknown_without_the_number_of_sms() -> None:
    o = occupancy(L4, None, 100, 256, 95, 40960)
    assert o.ctas_per_sm == 2
    assert (o.num_sms, o.waves, o.tail_ctas, o.sm_fill, o.thread_fill, o.ctas_to_fill) == (
        None,
    ) * 6


@pytest.mark.parametrize(
    ("case", "code", "fact"),
    [
        ((58, 1, 0, 32, 0), "cta_threads_range", "not 0"),
        ((58, 1, -5, 32, 0), "cta_threads_range", "-5"),
        ((58, 1, 1025, 32, 0), "cta_threads_range", "1,025"),
        ((58, 1, 256, 256, 0), "thread_registers_range", "256"),
        ((58, 1, 256, -1, 0), "thread_registers_range", "-1"),
        ((58, 1, 256, 32, -1), "cta_smem_range", "-1"),
        ((58, 0, 256, 32, 0), "launch_empty", "0"),
        ((58, -3, 256, 32, 0), "launch_empty", "-3"),
        ((0, 1, 256, 32, 0), "gpu_sms_range", "0"),
        ((58, 1, 256.0, 32, 0), "launch_no_whole_number", "threads"),
        ((58, 1, True, 32, 0), "launch_no_whole_number", "True"),
        ((58, 1, 256, 32, "1"), "launch_no_whole_number", "shared memory"),
        ((58, 1.5, 256, 32, 0), "launch_empty", "1.5"),
    ],
)
def test_impossible_inputs(case: tuple[int, int, int, int, int], code: str, fact: str) -> None:
    with raises(InvalidProblem, code, fact):
        occupancy(L4, *case)


@settings(deadline=None)
@given(limits_, sms_, ctas_, threads_, registers_, smem_)
def test_figures_agree_with_each_other(
    limits: SmLimits, num_sms: int, ctas: int, threads: int, registers: int, smem: int
) -> None:
    o = occupancy(limits, num_sms, ctas, threads, registers, smem)
    assert o.ctas_per_sm == min(o.limits.values())
    assert 0 <= o.occupancy <= 1
    assert o.active_warps_per_sm == o.ctas_per_sm * -(-threads // 32)
    assert o.active_warps_per_sm <= limits.max_warps_per_sm
    if o.ctas_per_sm == 0:
        assert o.limiter == o.limited_by() == "does not fit"
        return
    assert o.limits[o.limiter] == o.ctas_per_sm
    per_wave = o.ctas_per_sm * num_sms
    assert o.waves == pytest.approx(ctas / per_wave)
    assert 0 <= o.tail_ctas < per_wave
    assert (ctas - o.tail_ctas) % per_wave == 0
    assert 0 < o.wave_efficiency <= 1
    assert (o.wave_efficiency == 1) == (o.tail_ctas == 0)
    assert o.sm_fill == pytest.approx(min(1.0, ctas / num_sms))
    assert o.ctas_to_fill * threads >= num_sms * limits.max_threads_per_sm
    assert (o.ctas_to_fill - 1) * threads < num_sms * limits.max_threads_per_sm


def _at(limits: SmLimits, threads: int, registers: int, smem: int) -> Occupancy:
    return occupancy(limits, None, 1, threads, registers, smem)


@settings(deadline=None)
@given(limits_, threads_, registers_, smem_, st.integers(0, 255), st.integers(0, 10**5))
def test_more_of_a_resource_never_helps(
    limits: SmLimits, threads: int, registers: int, smem: int, more: int, more_smem: int
) -> None:
    now = _at(limits, threads, registers, smem).ctas_per_sm
    assert _at(limits, threads, min(255, registers + more), smem).ctas_per_sm <= now
    assert _at(limits, threads, registers, smem + more_smem).ctas_per_sm <= now
    assert _at(limits, min(1024, threads + more), registers, smem).ctas_per_sm <= now


@settings(deadline=None)
@given(limits_, sms_, ctas_, threads_)
def test_more_ctas_never_make_fewer_waves(
    limits: SmLimits, num_sms: int, ctas: int, threads: int
) -> None:
    few, more = (occupancy(limits, num_sms, n, threads, 32, 0) for n in (ctas, ctas + 1))
    assert few.waves < more.waves


@settings(deadline=None)
@given(limits_, threads_, registers_, st.integers(0, 99 * 1024))
def test_what_if_curves_contain_the_present_point(
    limits: SmLimits, threads: int, registers: int, smem: int
) -> None:
    if smem > limits.smem_per_cta_optin_bytes:
        smem = limits.smem_per_cta_optin_bytes
    now = _at(limits, threads, registers, smem)
    curves = whatif(limits, threads, registers, smem)
    assert list(curves) == ["threads", "registers", "smem_bytes"]
    for name, value in (("threads", threads), ("registers", registers), ("smem_bytes", smem)):
        curve = curves[name]
        assert curve[name].is_monotonic_increasing
        assert curve[name].is_unique
        (point,) = curve[curve["present"]].itertuples()
        assert getattr(point, name) == value
        assert point.ctas_per_sm == now.ctas_per_sm
        assert point.active_warps == now.active_warps_per_sm
        assert point.occupancy == pytest.approx(now.occupancy)
        assert point.limiter == now.limiter
        if name != "threads":  # a larger CTA may use warps better
            assert curve["ctas_per_sm"].is_monotonic_decreasing


def test_what_if_shows_the_steps() -> None:
    curve = whatif(L4, 256, 95, 40960)["registers"].set_index("registers")["ctas_per_sm"]
    assert curve[80] == 2  # shared memory holds it at two CTAs
    light = whatif(L4, 256, 95, 0)["registers"].set_index("registers")["ctas_per_sm"]
    assert (light[40], light[48], light[64], light[80], light[81]) == (6, 5, 4, 3, 2)


def test_what_if_rejects_the_impossible() -> None:
    with pytest.raises(InvalidProblem):
        whatif(L4, 0, 95, 0)


def test_every_device_has_an_occupancy() -> None:
    for name in ("T4", "A100", "L4", "H100", "B200", "RTX 5090"):
        device = find_device(name)
        o = occupancy(limits_for(device.compute_capability), device.num_sms, 64, 128, 64, 16384)
        assert o.ctas_per_sm >= 1


def test_the_occupancy_of_a_backward_kernel_is_of_its_main_pass() -> None:
    pytest.importorskip("cupy")
    problem = Problem(1, 2, 256, 64, direction="backward")
    kernel = Kernel.of("v23", "L4")
    first, main, _ = kernel.passes(problem)
    assert first.occupancy.occupancy != main.occupancy.occupancy
    assert kernel.occupancy(problem) == main.occupancy
