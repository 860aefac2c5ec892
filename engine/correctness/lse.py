"""The verdict on a kernel's LSE: `ln Σ exp(scale · q·k)` of every query row, against float64.

    max|lse − ref| ≤ half a rounding step of the dtype at 1, plus 1e-3 · max(1, max|ref|)

The first part allows for a sum over P that was rounded to the dtype, the second for approximate
exp2 and log2. Whatever is really wrong (a scale, a base, a mask, a maximum that is not added back)
errs by tenths at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.correctness.reference import (
    Coverage,
    Float64Array,
    choose_coverage,
    covered_blocks,
    softmax_parts,
)
from engine.tensors import NOISE, FloatArray, Inputs

_RELATIVE: Final = 1e-3
_BLOCK: Final = 16  # keys


@dataclass(frozen=True, slots=True)
class LseVerdict:
    """Whether an LSE is right, and the sentence that says so."""

    passed: bool
    sentence: str


def covered_lse(inputs: Inputs, coverage: Coverage) -> tuple[Float64Array, Float64Array]:
    """The reference for the covered rows, and their largest scores: both `[slices, rows]`."""
    lse = np.zeros((len(coverage.slices), len(coverage.rows)))
    maxima = np.zeros_like(lse)
    for part in covered_blocks(inputs, coverage):
        highest = part.scores.max(axis=-1, keepdims=True)
        if part.sinks is not None:
            highest = np.maximum(highest, part.sinks)
        _, sums = softmax_parts(part.scores, part.sinks)
        lse[part.slices, part.rows] = (highest + np.log(sums))[..., 0]
        maxima[part.slices, part.rows] = highest[..., 0]
    return lse, maxima


def check_lse(inputs: Inputs, lse: FloatArray) -> LseVerdict:
    """Judge a natural LSE, `[batch, num_heads, seqlen]`, of one run."""
    problem = inputs.problem
    bad = int(np.count_nonzero(~np.isfinite(lse)))
    if bad:
        where = np.unravel_index(int(np.argmax(~np.isfinite(lse))), lse.shape)
        place = "batch {}, head {}, row {}".format(*map(int, where))
        return LseVerdict(
            False,
            f"LSE is wrong: {bad:,} of its {lse.size:,} elements are NaN, infinite or were never "
            f"written, the first at {place}.",
        )
    coverage = choose_coverage(problem)
    ref, maxima = covered_lse(inputs, coverage)
    covered = lse.reshape(-1, problem.seqlen)[coverage.slices[:, None], coverage.rows[None, :]]
    error = np.abs(covered - ref)
    worst = float(error.max())
    allowed = NOISE[problem.dtype] + _RELATIVE * max(1.0, float(np.abs(ref).max()))
    if worst <= allowed:
        return LseVerdict(
            True, f"The largest error of LSE is {worst:.3g}; {allowed:.3g} is allowed."
        )
    at = np.unravel_index(int(error.argmax()), error.shape)
    batch, head, row = coverage.index(int(at[0]), int(at[1]))
    guess = _suspicion(covered, ref, maxima, inputs, coverage, allowed)
    return LseVerdict(
        False,
        f"LSE is wrong: at batch {batch}, head {head}, row {row} it is {covered[at]:.6g} and not "
        f"{ref[at]:.6g}, where {allowed:.3g} is allowed.{guess}",
    )


def _suspicion(
    lse: FloatArray,
    ref: Float64Array,
    maxima: Float64Array,
    inputs: Inputs,
    coverage: Coverage,
    allowed: float,
) -> str:
    """What would give these values; empty where nothing usual does."""
    scale = inputs.problem.softmax_scale
    candidates = {
        'It is the base-2 logarithm: say so by `lse = {base = "2"}`.': ref / np.log(2),
        "It is natural where the description says base 2.": ref * np.log(2),
        "It is divided by the softmax scale.": ref / scale,
        "It is the sum, without its logarithm.": np.exp(np.minimum(ref, 80.0)),
        "The row maximum is not added back to the logarithm of the sum.": ref - maxima,
        "The row maximum is added back unscaled.": ref - maxima + maxima / scale,
        "It is the row maximum alone, without the logarithm of the sum.": maxima,
        "The row maximum is added back twice.": ref + maxima,
        "Its sign is wrong.": -ref,
        "The sum under the logarithm is twice what it is.": ref + np.log(2),
        "The sum under the logarithm is half of what it is.": ref - np.log(2),
    }
    for sentence, values in candidates.items():
        if float(np.abs(lse - values).max()) <= allowed * max(1.0, 1 / scale):
            return f" {sentence}"
    if said := _of_a_part(lse, inputs, coverage, ref, allowed):
        return f" {said}"
    if float(np.abs(np.sort(lse, axis=None) - np.sort(ref, axis=None)).max()) <= allowed:
        return " The values are right and in each other's places: look at the index of LSE."
    return ""


def _of_a_part(
    lse: FloatArray, inputs: Inputs, coverage: Coverage, ref: Float64Array, allowed: float
) -> str:
    """What a wrong combination of equal parts of the keys (splits, tiles) would give.

    The parts are tried in all sizes of whole blocks of 16 keys.
    """
    blocks = _lse_of_blocks(inputs, coverage)
    for size in range(1, blocks.shape[-1]):
        starts = np.arange(0, blocks.shape[-1], size)
        parts = np.logaddexp.reduceat(blocks, starts, axis=-1)
        largest = parts.max(axis=-1)
        keys = size * _BLOCK
        for sentence, values in (
            (f"It is that of keys 0 to {keys - 1} alone, one split or tile.", parts[..., 0]),
            (f"It is that of the last part of {keys} keys alone.", parts[..., -1]),
            (
                f"It is the largest of the LSEs of parts of {keys} keys (splits or tiles): their "
                "sum is left out, where the maximum among them is taken.",
                largest,
            ),
            (
                f"The maximum of the LSEs of the parts of {keys} keys (splits or tiles) is not "
                "added back to the logarithm of their sum.",
                ref - largest,
            ),
        ):
            if float(np.abs(lse - values).max()) <= allowed:
                return sentence
    return ""


def _lse_of_blocks(inputs: Inputs, coverage: Coverage) -> Float64Array:
    """Of every 16 keys, `[slices, rows, blocks]`; −inf where a row sees none of them."""
    starts = np.arange(0, inputs.problem.num_keys, _BLOCK)
    found = np.full((len(coverage.slices), len(coverage.rows), len(starts)), -np.inf)
    for part in covered_blocks(inputs, coverage):
        own = starts[starts < part.scores.shape[-1]]
        of_blocks = np.logaddexp.reduceat(part.scores, own, axis=-1)
        found[part.slices, part.rows, : len(own)] = of_blocks
    return found
