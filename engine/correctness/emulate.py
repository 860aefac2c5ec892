"""Same-dtype attention in NumPy: the honest low-precision answer without PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.correctness.reference import (
    Coverage,
    Floats,
    score_blocks,
    slice_groups,
    slice_qkv,
    softmax_parts,
)
from engine.tensors import FloatArray, Inputs, decode, encode


def as_tf32(values: Floats) -> FloatArray:
    """What tensor cores see of FP32 numbers: 10 bits of each mantissa, the others dropped."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def emulated_attention(
    inputs: Inputs, coverage: Coverage, products: Callable[[Floats], Floats] | None = None
) -> FloatArray:
    """What a kernel without defects gives for the covered rows, `[slices, rows, head_dim]`.

    Scores and sums in float32; softmax weights rounded to the problem's dtype before they meet V,
    as tensor cores need them; the output rounded to the dtype.

    Args:
        products: what becomes of Q, K, V and the weights before they are multiplied.
    """
    problem = inputs.problem
    given = products or (lambda values: values)
    out = np.empty((len(coverage.slices), len(coverage.rows), problem.head_dim), np.float32)
    for group in slice_groups(len(coverage.slices), problem):
        q, k, v = (given(x.astype(np.float32)) for x in slice_qkv(inputs, coverage.slices[group]))
        for block, scores in score_blocks(problem, q, k, coverage.rows):
            weights, row_sum = softmax_parts(scores)
            weights = given(decode(encode(weights, problem.dtype), problem.dtype))
            out[group, block] = (weights @ v[:, : weights.shape[-1]]) / row_sum
    return decode(encode(out, problem.dtype), problem.dtype)
