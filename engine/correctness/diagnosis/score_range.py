"""Whether only rows with scores far from 0 are wrong: then it is the maximum that is subtracted."""

from __future__ import annotations

import numpy as np

from engine.correctness.compared_output import BoolArray, ComparedOutput
from engine.correctness.reference import Float64Array, score_blocks, slice_qkv
from engine.tensors import Inputs

# exp of it is about the largest FP32, exp of minus it about the smallest normal one.
_FAR = 80.0
_MAX_SLICES = 3


def far_scores_words(inputs: Inputs, compared: ComparedOutput, wrong: BoolArray) -> str:
    """A clause that says so; empty where rows with scores near 0 are wrong too, or all are far.

    Args:
        wrong: `[slices, rows, head_dim]` on the covered rows.
    """
    by_row = np.asarray(wrong.any(axis=2))
    slices = np.flatnonzero(by_row.any(axis=1))[:_MAX_SLICES]
    if not slices.size:
        return ""
    lowest, top = _score_range(inputs, compared, slices)
    low, high, wide = top < -_FAR, lowest > _FAR, top - lowest > _FAR
    far = np.asarray(low | high | (top > _FAR) | wide)
    bad = by_row[slices]
    if far.all() and not low.all():
        return ""
    if bad[~far].any():
        return ""
    if low[bad].all():
        return (
            f"these rows alone have all their scores below {-_FAR:g} ({top[bad].max():.3g} at "
            "most), where exp is 0 unless the row's own maximum is subtracted: look at whether the "
            "maximum begins at −inf (not at 0) and is that of the row"
        )
    if (top[bad] > _FAR).all():
        return (
            f"these rows alone have scores above {_FAR:g} (up to {top[bad].max():.3g}), where exp "
            "overflows unless the row's maximum is subtracted: look at where it is"
        )
    return (
        "these rows alone have scores far from 0, where a wrong maximum shows: look at whether "
        "the maximum that is subtracted is over all keys of the row, and of no other row"
    )


def _score_range(
    inputs: Inputs, compared: ComparedOutput, positions: np.ndarray
) -> tuple[Float64Array, Float64Array]:
    """Smallest and largest visible score of the covered rows of some slices, `[slices, rows]`."""
    coverage = compared.coverage
    q, k, _ = slice_qkv(inputs, coverage.slices[positions])
    lowest = np.empty((len(positions), len(coverage.rows)))
    top = np.empty_like(lowest)
    for block, scores in score_blocks(inputs.problem, q, k, coverage.rows):
        top[:, block] = scores.max(axis=-1)
        lowest[:, block] = np.where(np.isneginf(scores), np.inf, scores).min(axis=-1)
    return lowest, top
