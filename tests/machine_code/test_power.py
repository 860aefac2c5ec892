"""The clock that a power limit sustains, compared with published pairs that were not fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from words import raises, says

from engine.base.errors import InvalidProblem
from engine.base.units import format_us
from engine.cuda_source import compile_kernel
from engine.devices import find_device
from engine.devices.spec import DeviceSpec, at_clock
from engine.history.simulation import time_launch
from engine.machine_code.analysis import analyse
from engine.machine_code.launch import Launch, parse_arguments
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US
from engine.machine_code.timing.power import (
    BURST_US,
    Work,
    power_limit_note,
    sustained_clock,
    watts,
)
from engine.pipeline.simulated_launches import clock_note, device_at, sustained_by

# FP16 multiply-adds per SM and cycle, if the table's peak is for another clock than boost.
_HOPPER = 2048


def gemm(device: DeviceSpec, share: float) -> Work:
    """Return a dense product on random values that uses tensor cores for `share` of a second."""
    clock, sms = device.boost_clock_mhz or 0, device.num_sms or 0
    peak = (device.fp16_tensor_tflops or 0) * 1e12
    if device.compute_capability == (9, 0):
        peak = 2.0 * _HOPPER * sms * clock * 1e6
    few_bytes = 0.02 * (device.memory_gb_per_s or 0) * 1e9
    return Work(((1e6 * clock, 0.0),), share * peak, 0.0, few_bytes)


@pytest.mark.parametrize(
    ("gpu", "limit_w", "share", "mhz", "within"),
    [
        # Pairs that the model was fitted to.
        ("H100 SXM", 700, 0.905, 1348, 0.04),
        ("H100 SXM", 600, 0.905, 1255, 0.04),
        ("H100 SXM", 500, 0.905, 1118, 0.04),
        ("H100 SXM", 400, 0.905, 880, 0.05),
        ("A100 80GB SXM", 400, 0.93, 1267, 0.04),  # published: about 1,200 to 1,335
        ("A10", 150, 0.85, 1080, 0.04),
        ("L4", 72, 0.85, 995, 0.06),
        # Pairs that it was not fitted to.
        ("H200", 700, 0.9, 1485, 0.10),
        ("L40S", 350, 0.85, 1826, 0.12),  # published: 1,718 to 1,935
        ("B200", 1000, 0.644, 1580, 0.12),  # FlashAttention-4, steady
        ("RTX 3090", 220, 0.85, 1050, 0.12),
        ("RTX 3090", 190, 0.85, 735, 0.12),
        ("RTX 3090", 350, 0.85, 1665, 0.05),  # published at 327 and 381 W: 1,620 and 1,710
    ],
)
def test_published_clocks_under_load(
    gpu: str, limit_w: int, share: float, mhz: float, within: float
) -> None:
    device = replace(find_device(gpu), power_w=limit_w)
    found = sustained_clock(device, gemm(device, share))
    assert found is not None
    assert found.clock_mhz == pytest.approx(mhz, rel=within)


def test_the_clock_rises_with_less_work_and_falls_with_a_lower_limit() -> None:
    device = find_device("H200")
    busy, half = (sustained_clock(device, gemm(device, share)) for share in (0.9, 0.45))
    assert busy is not None
    assert half is not None
    assert busy.is_limited
    assert busy.watts == pytest.approx(700, rel=0.001)
    assert busy.clock_mhz < half.clock_mhz <= 1980
    streaming = Work(((1e5, 1e6),), 0.0, 1e9, 3.9e12)
    at_boost = sustained_clock(device, streaming)
    assert at_boost is not None
    assert at_boost.clock_mhz == 1980
    assert not at_boost.is_limited
    taken = [watts(device, gemm(device, 0.9), mhz) for mhz in (600.0, 1200.0, 1800.0)]
    assert taken == sorted(taken, key=float)


def test_a_card_that_exceeds_its_boost_clock() -> None:
    device = find_device("RTX 5090")
    light, heavy = (sustained_clock(device, gemm(device, share)) for share in (0.2, 0.95))
    assert light is not None
    assert heavy is not None
    assert (light.clock_mhz, light.is_limited) == (2860, False)
    assert 2527 < heavy.clock_mhz <= 2860  # published: 2,527 of random values, 2,860 of constants
    held = sustained_clock(replace(device, power_w=400), gemm(device, 0.95))
    assert held is not None
    assert 2200 < held.clock_mhz < heavy.clock_mhz


def test_some_gpus_have_no_known_power_limit() -> None:
    device = find_device("GH200")
    assert sustained_clock(device, gemm(device, 0.9)) is None


def test_peaks_scale_with_the_clock_and_memory_does_not() -> None:
    device = find_device("A10")
    slow = at_clock(device, 847.5)
    assert slow.fp32_tflops == pytest.approx((device.fp32_tflops or 0) * 848 / 1695)
    assert slow == at_clock(device, 848)  # as many operations in a cycle as at boost
    assert slow.memory_gb_per_s == device.memory_gb_per_s
    assert says(slow.clock_label, "as_given", "848 MHz")
    assert says(device.clock_label, "clock_of_boost", "1,695 MHz")
    for mhz in (0.0, -5.0, float("nan"), 1e6):
        with raises(InvalidProblem, "clock_range"):
            at_clock(device, mhz)


@pytest.mark.slow
def test_a_launch_names_its_clock_and_takes_equal_cycles_at_each() -> None:
    source = Path(__file__).parent / "kernels" / "tile_order.cu"
    device = find_device("A10")
    cubin = compile_kernel(source, (("ORDER", "0"),), device.arch, ("gemm",)).cubin
    arguments = parse_arguments(["ptr", "ptr", "ptr", "i32:512"])
    analysis = analyse(cubin, None, Launch((8, 8, 1), (256, 1, 1), 0, arguments))
    boost = time_launch(analysis, device, quick=True)
    at_half = device_at(device, "847.5", [analysis], lambda: [boost])
    half = time_launch(analysis, at_half, quick=True).simulated
    assert half.sm_cycles == pytest.approx(boost.simulated.sm_cycles, rel=0.01)
    assert half.latency.clock == "given"
    in_sms = boost.simulated.latency.median_us - LAUNCH_FLOOR_US
    assert half.latency.median_us - LAUNCH_FLOOR_US == pytest.approx(2 * in_sms, rel=0.01)
    assert boost.simulated.us_at(847.5) == pytest.approx(half.latency.median_us, rel=0.01)
    note = clock_note(device, [analysis], [boost])
    assert says(note, "times_are_at")
    assert says(note, "clock_of_boost", "1,695")
    poor = replace(device, power_w=60)
    found = sustained_by(poor, [analysis], [boost])
    assert found is not None
    assert found.is_limited
    sustained = device_at(poor, "sustained", [analysis], lambda: [boost])
    later = time_launch(analysis, sustained, quick=True).simulated
    assert later.latency.clock == "sustained"
    widths = [x.latency.high_us / x.latency.low_us for x in (half, later)]
    assert widths[1] > widths[0]
    assert "60 W" in clock_note(sustained, [analysis], [time_launch(analysis, sustained)])
    assert "(--clock sustained" in clock_note(poor, [analysis], [boost])


def test_a_prediction_names_the_time_under_the_power_limit() -> None:
    device = find_device("H100 SXM")
    heavy, light = gemm(device, 0.9), gemm(device, 0.1)
    mhz = sustained_clock(device, heavy).clock_mhz
    us = heavy.us(device.boost_clock_mhz or 0)
    note = power_limit_note(device, heavy, us)
    assert f"{mhz:,.0f} MHz" in note
    assert "700 W" in note
    assert format_us(heavy.us(mhz)) in note
    assert power_limit_note(device, light, us) == ""
    assert power_limit_note(replace(device, power_w=None), heavy, us) == ""
    assert power_limit_note(device, heavy, 0.9 * BURST_US) != power_limit_note(device, heavy, 9e9)
    waits = Work(((1.0, us),), heavy.tensor_flops, 0.0, 0.0)  # bound by DRAM
    assert power_limit_note(device, waits, us) == ""
