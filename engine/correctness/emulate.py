"""Same-dtype attention in NumPy: the honest low-precision answer without PyTorch."""

from __future__ import annotations

import numpy as np

from engine.correctness.reference import (
    Coverage,
    score_blocks,
    slice_groups,
    slice_qkv,
    softmax_parts,
)
from engine.tensors import FloatArray, Inputs, decode, encode


def emulated_attention(inputs: Inputs, coverage: Coverage) -> FloatArray:
    """What a 16-bit kernel without defects gives for the covered rows, `[slices, rows, head_dim]`.

    Scores and sums in float32; softmax weights rounded to the problem's dtype before they meet V,
    as tensor cores need them; the output rounded to the dtype.
    """
    problem = inputs.problem
    out = np.empty((len(coverage.slices), len(coverage.rows), problem.head_dim), np.float32)
    for group in slice_groups(len(coverage.slices), problem):
        q, k, v = (x.astype(np.float32) for x in slice_qkv(inputs, coverage.slices[group]))
        for block, scores in score_blocks(problem, q, k, coverage.rows):
            weights, row_sum = softmax_parts(scores)
            weights = decode(encode(weights, problem.dtype), problem.dtype)
            out[group, block] = (weights @ v[:, : weights.shape[-1]]) / row_sum
    return decode(encode(out, problem.dtype), problem.dtype)
