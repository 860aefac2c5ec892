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
from engine.correctness.roundoff import NOISE
from engine.tensors import FloatArray, Inputs

_RELATIVE: Final = 1e-3


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
    guess = _suspicion(covered, ref, maxima, problem.softmax_scale, allowed)
    return LseVerdict(
        False,
        f"LSE is wrong: at batch {batch}, head {head}, row {row} it is {covered[at]:.6g} and not "
        f"{ref[at]:.6g}, where {allowed:.3g} is allowed.{guess}",
    )


def _suspicion(
    lse: FloatArray, ref: Float64Array, maxima: Float64Array, scale: float, allowed: float
) -> str:
    """What would give these values; empty where nothing usual does."""
    candidates = {
        'It is the base-2 logarithm: say so by `lse = {base = "2"}`.': ref / np.log(2),
        "It is natural where the description says base 2.": ref * np.log(2),
        "It is divided by the softmax scale.": ref / scale,
        "It is the sum, without its logarithm.": np.exp(np.minimum(ref, 80.0)),
        "The row maximum is not added back to the logarithm of the sum.": ref - maxima,
        "The row maximum is added back unscaled.": ref - maxima + maxima / scale,
        "It is the row maximum alone, without the logarithm of the sum.": maxima,
        "The row maximum is added back twice.": ref + maxima,
    }
    for sentence, values in candidates.items():
        if float(np.abs(lse - values).max()) <= allowed * max(1.0, 1 / scale):
            return f" {sentence}"
    if float(np.abs(np.sort(lse, axis=None) - np.sort(ref, axis=None)).max()) <= allowed:
        return " The values are right and in each other's places: look at the index of LSE."
    return ""
