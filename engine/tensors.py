"""Input tensors and the two 16-bit formats on the host.

NumPy has no bfloat16, so a *raw* array is `numpy.float16` for FP16 and `numpy.uint16` (the bit
patterns) for BF16. `encode` and `decode` translate to and from float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.input_kinds import NORMAL, InputKind, shape_inputs
from engine.problem import Problem
from kernels.variant import Dtype

RawArray: TypeAlias = npt.NDArray[np.float16] | npt.NDArray[np.uint16]
FloatArray: TypeAlias = npt.NDArray[np.float32]

# A NaN in FP16 (0x7C00 exponent) and in BF16 (0x7F80 exponent) alike, with a payload no kernel
# produces: an output element that still holds these bits was never written.
POISON_BITS = np.uint16(0x7FA5)


def encode(values: npt.NDArray[np.float32], dtype: Dtype) -> RawArray:
    """float32 → raw, round to nearest even."""
    if dtype == "float16":
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding may carry a NaN's mantissa away; keep NaN a quiet NaN.
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def decode(raw: RawArray, dtype: Dtype) -> FloatArray:
    """raw → float32, exact."""
    if dtype == "float16":
        return raw.astype(np.float32)
    return (raw.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Raw Q `[batch, num_heads, seqlen, head_dim]`, and K and V of `Problem.kv_shape`."""

    problem: Problem
    q: RawArray
    k: RawArray
    v: RawArray


def make_inputs(problem: Problem, seed: int = 0, kind: InputKind = NORMAL) -> Inputs:
    """Random inputs, the same on every machine for the same (problem, seed, kind).

    Args:
        kind: see `engine.input_kinds.MEANINGS`.

    Raises:
        InvalidProblem: there is no such kind.
    """
    rng = np.random.default_rng(seed)
    shapes = (problem.shape, problem.kv_shape, problem.kv_shape)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    shape_inputs(kind, q, k, v, rng)
    return Inputs(problem, *(encode(x, problem.dtype) for x in (q, k, v)))
