"""How far the simulation was off on measured kernels, by arch and kind of kernel.

Standard deviations of log(measured / simulated) over the points that
`tests/bench/bench_sass_validation.py` prints, rounded up. Where nothing was measured the widest of
them stands in, doubled.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Literal, TypeAlias

from engine.sass.instruction import Pipe, Program

Family: TypeAlias = Literal["fma", "tensor"]
_Z90 = 1.6449

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


def interval(median_us: float, arch: str, program: Program) -> tuple[float, float]:
    """The 90 % interval of a simulated time."""
    factor = exp(_Z90 * spread(arch, family(program)))
    return median_us / factor, median_us * factor
