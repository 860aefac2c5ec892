"""Input tensors and the two 16-bit formats on the host.

NumPy has no bfloat16, so a *raw* array is `numpy.float16` for FP16 and `numpy.uint16` (the bit
patterns) for BF16. `encode` and `decode` translate to and from float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidProblem
from engine.problem import InputKind, Problem
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
    """Raw Q `[batch, num_heads, seqlen, head_dim]`, and K and V with `num_keys` rows instead."""

    problem: Problem
    q: RawArray
    k: RawArray
    v: RawArray


def make_inputs(problem: Problem, seed: int = 0, kind: InputKind = "normal") -> Inputs:
    """Random inputs, the same on every machine for the same (problem, seed, kind).

    `normal`: N(0, 1). `large_logits`: Q and K scaled so that softmax saturates (logits of about
    ±60 before the maximum is taken out). `structured_v`: V encodes its own (kv row, column), so a
    wrong row or column read shows as a large error instead of averaging out.
    """
    if kind not in get_args(InputKind):
        raise InvalidProblem(f"input kind must be one of {get_args(InputKind)}, not {kind!r}.")
    rng = np.random.default_rng(seed)
    shapes = (problem.shape, problem.kv_shape, problem.kv_shape)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    if kind == "large_logits":
        q *= 4.0
        k *= 4.0
    if kind == "structured_v":
        rows = np.arange(problem.num_keys, dtype=np.float32)[:, None]
        cols = np.arange(problem.head_dim, dtype=np.float32)[None, :]
        v = np.broadcast_to(
            np.sin(0.37 * rows) + 0.5 * np.cos(1.7 * cols + rows), problem.kv_shape
        ).astype(np.float32)
    return Inputs(problem, *(encode(x, problem.dtype) for x in (q, k, v)))
