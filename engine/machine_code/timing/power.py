"""The clock that a launch sustains within a GPU's power limit.

The energy of a launch is the sum of its tensor-core FLOPs, other warp instructions and DRAM bytes,
each with an energy per unit; the first two fall with the voltage, which falls with the clock. The
sustained clock is the one at which energy over time plus the board's base power equals the power
limit. Time is cycles over clock: TFLOP/s per MHz is constant within 1 % over an H100's limits.

Short launches run at the boost clock: a power limit acts over some milliseconds, and clocks settle
in tens of milliseconds.

Origins are as in `constants.py`. *Calibrated*: solved from one published pair of clock and power of
a dense GEMM (named), so that it includes what such a kernel does besides its products. On pairs
that were not used for calibration, clocks are within 12 % (`tests/machine_code/test_power.py`).
The energy of products depends on the data, by up to a factor of three (zeros); the values here are
for random data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from engine.base.units import format_us
from engine.devices.spec import DeviceSpec
from engine.machine_code.counts import LaunchCounts
from engine.machine_code.emulation import EXECUTED
from engine.machine_code.timing.native import tensor_fmas

BURST_US = 5_000.0  # shorter launches run at the boost clock
# Voltage relative to that at the boost clock, over the relative clock. Calibrated on an H100 SXM's
# clocks at five power limits (FP16 GEMM, 4096 cubed): 0.61, 0.63, 0.71, 0.80 and 0.90 pJ a FLOP at
# 634, 880, 1118, 1255 and 1348 MHz, with a base power of 110 W.
_MIN_VOLTAGE, _VOLTAGE_AT_0, _VOLTAGE_SLOPE = 0.688, 0.443, 0.557

# pJ per FLOP of tensor cores at the highest clock, 16-bit values.
_TENSOR_PJ = {
    # calibrated: T4 at 70 W, cuBLAS FP16 24 TFLOP/s in the long run. Another source measured 47 for
    # one kernel over 1.2 s; no single value fits its four kernels: engine/machine_code/README.md.
    "sm_75": 4.5,
    # calibrated: A100 SXM at 400 W, cuBLAS FP16 257 TFLOP/s on random values
    "sm_80": 1.44,
    # calibrated: A10 at 150 W, cuBLAS BF16 at 1,050 to 1,110 MHz
    "sm_86": 2.6,
    # calibrated: L4 at 72 W, cuBLAS BF16 at 880 to 1,110 MHz
    "sm_89": 2.05,
    # calibrated: H100 SXM, as the voltages
    "sm_90": 1.29,
    # calibrated: GB200 at 1,170 W, BF16 GEMM of normal values, 1,490 TFLOP/s at 1,289 MHz
    "sm_100": 1.05,
    # fitted, with the instructions below: three series on an RTX 5090 held to 400 W, one on an RTX
    # PRO 6000 Max-Q; each left out in turn, 1.45 to 1.65 and 7 % of mean error. 575 W and 2,527 MHz
    # at 210 TFLOP/s of linear layers are published too and would be 2.5: cards and data differ.
    "sm_120": 1.6,
}
# pJ of any other warp instruction at the highest clock: 64 FLOPs of an FFMA.
_INSTRUCTION_PJ = {
    "sm_80": 340.0,  # published: gpu-benches' roofline, 5.1 to 5.5 pJ per FP32 FLOP, A100
    "sm_86": 415.0,  # published: the same, 6.5, A40
    "sm_90": 370.0,  # published: the same, 5.8, H200
    "sm_120": 250.0,  # fitted, as above
}
_OTHER_INSTRUCTION_PJ = 400.0  # assumed: of that order
# pJ per byte of DRAM, by kind of memory, which no clock changes.
_HBM_PJ = 120.0  # published: gpu-benches' roofline, 117 to 122 on A100 and H200
_GDDR_PJ = 198.0  # published: the same, A40
_BASE_W = {  # power of a board at low load
    "A100 40GB SXM": 70.0,  # published: gpu-benches
    "A100 80GB SXM": 70.0,  # carried over
    "H100 SXM": 110.0,  # published: with the power limits above
    "H200": 105.0,  # published: gpu-benches
    "A40": 69.0,  # published: gpu-benches
    "RTX 3090": 150.0,  # calibrated: prompts of a language model, 1,350 MHz at 250 W
}
# Highest clock of any board with this chip, for chips whose boards differ.
_CHIP_CLOCK_MHZ = {"sm_120": 2860.0}  # published: as an RTX 5090's `top_clock` in devices/gpus.toml
_BASE_SHARE = 0.2  # base power as a share of the limit, if none is published; assumed
_MIN_SHARE = 0.15  # of the boost clock: GPUs go no lower


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a launch, independent of the clock."""

    passes: tuple[tuple[float, float], ...]  # (cycles of the busiest SM, µs of DRAM) of each pass
    tensor_flops: float
    instructions: float  # warp instructions, without those of the tensor cores
    dram_bytes: float

    def us(self, clock_mhz: float) -> float:
        """Time without the launch floor."""
        return sum(max(cycles / clock_mhz, dram_us) for cycles, dram_us in self.passes)

    def __add__(self, other: Work) -> Work:
        """The work of both, one after the other."""
        return Work(
            self.passes + other.passes,
            self.tensor_flops + other.tensor_flops,
            self.instructions + other.instructions,
            self.dram_bytes + other.dram_bytes,
        )


@dataclass(frozen=True, slots=True)
class SustainedClock:
    clock_mhz: float
    watts: float  # at that clock
    limit_w: float

    @property
    def is_limited(self) -> bool:
        return self.watts >= 0.999 * self.limit_w


def executed_work(counts: LaunchCounts) -> tuple[float, float]:
    """(FLOP of the tensor cores, other warp instructions) of a launch."""
    executed = counts.totals[:, EXECUTED]
    flops = np.array([2.0 * tensor_fmas(i) for i in counts.program.instructions])
    return float((executed * flops).sum()), float(executed[flops == 0].sum())


def work_of(counts: LaunchCounts, cycles: float, dram_us: float, dram_bytes: float) -> Work:
    """The work of a counted launch that was simulated."""
    tensor_flops, instructions = executed_work(counts)
    return Work(((cycles, dram_us),), tensor_flops, instructions, dram_bytes)


def voltage(share: float) -> float:
    """Voltage at a share of the chip's highest clock, relative to that at the highest clock."""
    return max(_MIN_VOLTAGE, _VOLTAGE_AT_0 + _VOLTAGE_SLOPE * share)


def watts(device: DeviceSpec, work: Work, clock_mhz: float) -> float | None:
    """Power of the board while such launches are repeated; None if a figure is missing."""
    if device.power_w is None or not device.boost_clock_mhz:
        return None
    tensor = _TENSOR_PJ.get(device.arch, max(_TENSOR_PJ.values()))
    other = _INSTRUCTION_PJ.get(device.arch, _OTHER_INSTRUCTION_PJ)
    dynamic_pj = work.tensor_flops * tensor + work.instructions * other
    scaled = dynamic_pj * voltage(clock_mhz / _full_voltage_mhz(device)) ** 2
    memory_pj = work.dram_bytes * (_HBM_PJ if has_hbm(device) else _GDDR_PJ)
    base = _BASE_W.get(device.name, _BASE_SHARE * device.power_w)
    return base + (scaled + memory_pj) * 1e-6 / max(work.us(clock_mhz), 1e-9)


def highest_clock_mhz(device: DeviceSpec) -> float:
    """Highest clock without a power limit: above the data sheet's boost clock if that was seen."""
    boost = float(device.boost_clock_mhz or 0)
    return max(boost, float(device.top_clock_mhz or 0))


def _full_voltage_mhz(device: DeviceSpec) -> float:
    """Clock at which the energies above apply. The voltage depends on the chip's clock, so a board
    limited to a lower clock also runs at a lower voltage."""
    return max(highest_clock_mhz(device), _CHIP_CLOCK_MHZ.get(device.arch, 0.0))


def has_hbm(device: DeviceSpec) -> bool:
    """Whether the memory is HBM, as in the large GPUs of a generation (x.0) only."""
    return device.compute_capability in ((8, 0), (9, 0), (10, 0))


def sustained_clock(device: DeviceSpec, work: Work) -> SustainedClock | None:
    """The highest clock within the power limit; None if the table lacks the limit or the clock."""
    if device.power_w is None or not device.boost_clock_mhz:
        return None
    high = highest_clock_mhz(device)
    low = _MIN_SHARE * high
    limit = float(device.power_w)

    def power(clock_mhz: float) -> float:
        taken = watts(device, work, clock_mhz)
        assert taken is not None
        return taken

    if power(high) <= limit:
        return SustainedClock(high, power(high), limit)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle) <= limit else (low, middle)
    return SustainedClock(low, power(low), limit)


def power_limit_sentence(
    device: DeviceSpec, found: SustainedClock, us: float, slower_us: float
) -> str:
    """Return a sentence on the time at the clock that the power limit sustains.

    Args:
        found: that clock.
        us: time at the boost clock, in µs.
        slower_us: time at the sustained clock, in µs.
    """
    when = "Over a launch this long" if us > BURST_US else "In launches one after another"
    limit = f"the power limit of {device.power_w} W lowers the clock to about"
    slower = f"{format_us(slower_us)} predicted in place of {format_us(us)}"
    return f"{when}, {limit} {found.clock_mhz:,.0f} MHz: {slower}."


@lru_cache(maxsize=256)
def power_limit_note(device: DeviceSpec, work: Work, us: float) -> str:
    """Return `power_limit_sentence` of a launch that is predicted to take `us` at the boost clock.

    Empty if the power limit sustains the boost clock, is not known, or does not change the time.
    """
    found, boost_mhz = sustained_clock(device, work), device.boost_clock_mhz
    if found is None or boost_mhz is None or found.clock_mhz >= boost_mhz:
        return ""
    slower_us = us + work.us(found.clock_mhz) - work.us(boost_mhz)
    return "" if slower_us < 1.01 * us else power_limit_sentence(device, found, us, slower_us)
