"""How far the simulation was off on measured kernels, by arch and kind of kernel.

Standard deviations of log(measured / simulated) over the points that
`tests/bench/bench_sass_validation.py` prints, rounded up. Where nothing was measured the widest of
them stands in, doubled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import exp, hypot
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.devices.spec import ClockKind
from engine.machine_code.instruction import Pipe, Program

Family: TypeAlias = Literal["fma", "tensor"]
_Z90 = 1.6449
_CLOCK_SPREAD = 0.08  # of log(clock): kernels and GPUs that the energy model was not calibrated on

# (arch, family) → root mean square of log(measured / simulated).
RESIDUALS: Mapping[tuple[str, Family], float] = {
    ("sm_80", "fma"): 0.10,
    ("sm_86", "fma"): 0.10,
    ("sm_89", "fma"): 0.10,
    ("sm_90", "tensor"): 0.14,
}


def family(program: Program) -> Family:
    """What the program's products run on."""
    return "tensor" if any(i.pipe is Pipe.TENSOR for i in program.instructions) else "fma"


def spread(arch: str, kind: Family) -> float:
    """Standard deviation of the logarithm of a simulated time's error."""
    known = RESIDUALS.get((arch, kind))
    return 2 * max(RESIDUALS.values()) if known is None else known


def interval(
    median_us: float, arch: str, program: Program, clock: ClockKind = "boost"
) -> tuple[float, float]:
    """The 90 % interval of a simulated time."""
    return widened(median_us, _Z90 * spread(arch, family(program)), clock)


def widened(median_us: float, half_width: float, clock: ClockKind) -> tuple[float, float]:
    """(low, high) about a time; a sustained clock is a prediction of its own.

    Args:
        half_width: of the logarithm of the time, 90 %.
    """
    if clock == "sustained":
        half_width = hypot(half_width, _Z90 * _CLOCK_SPREAD)
    return median_us / exp(half_width), median_us * exp(half_width)


# What the simulation of an SM says: cycles, busy pipes, stalls by reason and instruction.


_UNITS = ("MIO", "LG", "GMMA")


class StallReason(IntEnum):
    """Why a warp did not issue, in Nsight Compute's words; `SELECTED` is the cycle it did."""

    SELECTED = 0
    WAIT = 1  # a fixed latency that the compiler wrote into the code
    LONG_SCOREBOARD = 2  # global or local memory
    SHORT_SCOREBOARD = 3  # shared memory, shuffles, special functions
    BARRIER = 4
    MEMBAR = 5
    MATH_PIPE_THROTTLE = 6
    MIO_THROTTLE = 7  # the queue to shared memory is full
    LG_THROTTLE = 8  # the queue to global memory is full
    NOT_SELECTED = 9  # another warp went first
    NO_INSTRUCTION = 10  # its code was not there yet
    GMMA = 11  # a warpgroup's product

    @property
    def label(self) -> str:
        """`Long scoreboard`, `MIO throttle`."""
        first, *rest = self.name.split("_")
        return " ".join((first if first in _UNITS else first.capitalize(), *map(str.lower, rest)))


@dataclass(frozen=True, slots=True, eq=False)
class SmTiming:
    """One SM working through a queue of CTAs."""

    cycles: float
    issued: int  # warp instructions
    started: NDArray[np.float64]  # [ctas] cycle of each CTA's start, in the queue's order
    finished: NDArray[np.float64]  # [ctas]
    busy_cycles: dict[str, float]  # by pipe and port, over the SM: four partitions add up
    stalls: NDArray[np.float64]  # [instructions, StallReason] warp cycles; [0, …] if not wanted

    def busy(self) -> dict[str, float]:
        """Share of the cycles in which each pipe or port was busy, 0 to 1."""
        units = {name: 1.0 if name in PORTS else 4.0 for name in self.busy_cycles}
        return {k: v / (units[k] * max(self.cycles, 1.0)) for k, v in self.busy_cycles.items()}

    def stall_cycles(self) -> dict[StallReason, float]:
        """Warp cycles by reason over all instructions."""
        return {r: float(self.stalls[:, r].sum()) for r in StallReason}


# What the four partitions share.
PORTS = ("shared_port", "l1_tags", "l2_port")
