"""How finely each format tells numbers apart, and what arithmetic of its own leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from kernels.variant import Dtype

UNIT_ROUNDOFF: Final[Mapping[Dtype, float]] = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
}
# Relative errors below which nothing is concluded: what rounding O leaves, and in FP32, where it
# hides nothing, what the arithmetic leaves (exp of two units, sums of a thousand terms).
NOISE: Final[Mapping[Dtype, float]] = {**UNIT_ROUNDOFF, "float32": 2.0**-19}

# The study's old bound in FP16, the same number of rounding steps in BF16 (8 times wider ones), and
# in FP32 that of torch.testing.assert_close.
FIXED_BOUNDS: dict[Dtype, float] = {"float16": 0.002, "bfloat16": 0.016, "float32": 1e-5}

_MIN_EXPONENT: dict[Dtype, int] = {"float16": -14, "bfloat16": -126, "float32": -126}


def absolute_tolerance(max_abs_ref: float, dtype: Dtype, num_keys: int = 1) -> float:
    """Half the distance between neighbouring numbers of `dtype` at `max_abs_ref`.

    In FP32 that of a sum of `num_keys` terms.
    """
    exponent = np.frexp(max_abs_ref)[1] - 1 if max_abs_ref > 0 else _MIN_EXPONENT[dtype]
    half_step = float(UNIT_ROUNDOFF[dtype] * 2.0 ** max(int(exponent), _MIN_EXPONENT[dtype]))
    return half_step * math.sqrt(num_keys) if dtype == "float32" else half_step
