"""Scores that are all wrong by one factor: it is fitted, and named where it is a known one."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from engine.correctness.finding_codes import FindingCode
from engine.correctness.reference import Float64Array
from engine.correctness.suspected_bugs.case import Case, SuspectedBug

# A fitted factor explains all but rounding, or it is not one.
EXPLAINED_BY_FACTOR = 0.999
_WIDEST = 16.0
_COARSE, _FINE = 25, 40
_NEAR_ONE = 0.01
_SAME_FACTOR = 0.005

_KNOWN = (
    (math.sqrt(2), "√2, as 1/√D of half as many columns is too large"),
    (1 / math.sqrt(2), "1/√2, as 1/√D of twice as many columns is too small"),
    (2.0, "2, as 1/√D of a quarter of the columns is too large"),
    (0.5, "1/2, as 1/√D of four times as many columns is too small"),
    (1 / math.log(2), "log2(e), as for exp2 where exp is used"),
    (math.log(2), "ln 2, as for exp where exp2 is used"),
)


def scaled_scores(case: Case) -> SuspectedBug | None:
    """The factor by which scores fit best, as a bug; None where it is about 1."""
    rows = case.quick
    finite = np.isfinite(rows.out).all(axis=1)
    if not finite.any():
        return None

    def rest(logarithm: float) -> float:
        error = (scaled(math.exp(logarithm), rows) - rows.out)[finite]
        return float(np.sum(error * error))

    grid = np.linspace(-math.log(_WIDEST), math.log(_WIDEST), _COARSE)
    best = int(np.argmin([rest(float(x)) for x in grid]))
    low, high = (float(grid[max(0, min(best + step, _COARSE - 1))]) for step in (-1, 1))
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(_FINE):  # golden section
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if rest(left) < rest(right):
            high = right
        else:
            low = left
    factor = math.exp((low + high) / 2)
    if abs(factor - 1) < _NEAR_ONE or not 1 / _WIDEST < factor < _WIDEST:
        return None
    known = next((text for f, text in _KNOWN if abs(factor / f - 1) < _SAME_FACTOR), "")
    what = f"scores multiplied by a factor of {factor:.3g} too much" + (
        f" ({known})" if known else ""
    )
    return SuspectedBug(
        FindingCode.SOFTMAX_SCALE,
        what,
        "look at softmax_scale, at what it is multiplied by, and at the base of the exponential",
        partial(scaled, factor),
    )


def scaled(factor: float, case: Case) -> Float64Array:
    """Attention with all scores multiplied by `factor`."""
    return case.attend(case.scores * factor, case.visible, case.v)
