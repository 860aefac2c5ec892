"""How finely each format tells numbers apart, and what arithmetic of its own leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernels.variant import Dtype

UNIT_ROUNDOFF: Final[Mapping[Dtype, float]] = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
}
# Relative errors below which nothing is concluded: what rounding O leaves, and in FP32, where it
# hides nothing, what the arithmetic leaves (exp of two units, sums of a thousand terms).
NOISE: Final[Mapping[Dtype, float]] = {**UNIT_ROUNDOFF, "float32": 2.0**-19}
