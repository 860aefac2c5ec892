"""The second, sharper statement: an output may pass and yet err in a way that rounding does not.

Rounding errors have no direction. Averaged over all elements they vanish, so a mean that does not
vanish is a bug too small for the tolerance: weights that are truncated, a row sum that holds one
padded key. Three tests, none of which decides about pass or fail:

* the slope of the error on the reference, Σ e·ref / Σ ref², over its standard error from row to row
  (the elements of a row share their weights) and from column to column (where rows are alike);
* for each suspected bug whose effect would be small, the slope of the error on that effect: 1 if
  the bug is there, 0 if not;
* the slope of each row's own error on its reference, as RMS over the rows. It has no direction,
  but rounding the elements of a row one by one leaves little of it: same-dtype attention shows how
  much. A row sum that is rounded at every step leaves several times as much.

A slope of the first two counts from 8 standard errors on, which chance does not reach in 10¹⁴
outputs, and where it is at least a tenth of the format's unit roundoff: what rounding itself
leaves, where outputs are nearly values of V that were rounded before, is 0.04 of it.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from engine.correctness.compared_output import ComparedOutput
from engine.correctness.expected import Expected, row_factor_rms
from engine.correctness.reference import Float64Array
from engine.correctness.roundoff import NOISE
from engine.correctness.suspected_bugs import Case, SuspectedBug, small_bugs, spread_cases
from engine.correctness.tiles import Tiles

_STANDARD_ERRORS = 8.0
_LEAST_SLOPE = 0.1  # of the unit roundoff
_FEWEST_ROWS = 32
# RMS error against the baseline's from which on suspected bugs are tried.
_TELLING_RMS = 1.5
# And from which on it is worth a warning by itself, as is the largest error: of right kernels at
# most 1.0 and 1.1 on outputs of so many elements.
_IMPRECISE_RMS, _IMPRECISE_LARGEST = 1.25, 1.6
_FEWEST_ELEMENTS = 4096
# How near to 1 the slope on a bug's effect must be.
_NEAR_ONE = 0.25
# The rows' own factors against the baseline's, and against the unit roundoff: of right kernels over
# FlashAttention's shapes at most 1.0 and 0.16.
_TELLING_ROW_FACTOR = 3.0
_LEAST_ROW_FACTOR = 0.4


def systematic_error(expected: Expected, compared: ComparedOutput, tiles: Tiles) -> str | None:
    """A warning about an output that passes, or None."""
    inputs = expected.inputs
    slopes = [_pooled(*_sums(compared, to)) for to in ("sr", "sd")]
    if compared.error.shape[0] * compared.error.shape[1] < _FEWEST_ROWS:
        return None
    bias, significance = slopes[0][0], min(significance for _, significance in slopes)
    roundoff = NOISE[inputs.problem.dtype]
    least = _LEAST_SLOPE * roundoff
    biased = significance > _STANDARD_ERRORS and abs(bias) > least
    rms = float(np.sqrt(np.square(compared.error).mean()))
    factor = row_factor_rms(compared.out - compared.reference, compared.reference)
    uneven = factor > max(
        _TELLING_ROW_FACTOR * expected.baseline_row_factor, _LEAST_ROW_FACTOR * roundoff
    )
    if not (biased or uneven or rms > _TELLING_RMS * expected.baseline_rms):
        return _imprecise(rms, expected, compared)
    bug = _small_bug(spread_cases(inputs, compared, tiles))
    if bug is not None:
        return (
            f"The output passes, but its error matches the small effect of {bug.what}. "
            f"{bug.look_at[0].upper()}{bug.look_at[1:]}."
        )
    if not (biased or uneven):
        return _imprecise(rms, expected, compared)
    if not biased:
        return (
            f"The output passes, but each row is off by a factor of its own, {factor:.3%} in RMS, "
            f"where {expected.baseline_name} leaves {expected.baseline_row_factor:.3%}: look for "
            "lost precision in what a row shares, such as a row sum l, its reciprocal or a "
            "correction that is held in 16 bits."
        )
    return (
        f"The output passes, but it is systematically too {'small' if bias < 0 else 'large'}, by "
        f"{abs(bias):.2%} on average, where rounding leaves no mean ({significance:.0f} standard "
        "errors): look for weights that are truncated instead of rounded, and for a row sum that "
        f"holds {'more' if bias < 0 else 'less'} than the weights do."
    )


def _imprecise(rms: float, expected: Expected, compared: ComparedOutput) -> str | None:
    """A warning where errors have no direction and are larger than rounding the operands gives."""
    if compared.error.size < _FEWEST_ELEMENTS or not expected.baseline_err > 0:
        return None
    if (times := rms / expected.baseline_rms) > _IMPRECISE_RMS:
        name = "RMS"
    elif (times := float(compared.error.max()) / expected.baseline_err) > _IMPRECISE_LARGEST:
        name = "largest"
    else:
        return None
    return (
        f"The output passes, but its {name} error is {times:.2g} times that of "
        f"{expected.baseline_name}: look for lost precision in what is added up, such as O or a "
        "partial result that is rounded to 16 bits on its way."
    )


def _sums(compared: ComparedOutput, to: str) -> tuple[Float64Array, Float64Array]:
    """(Σ e·ref, Σ ref²) of every row ("sr") or every column of a slice ("sd"), flat."""
    out, ref = compared.out, compared.reference
    power = np.einsum(f"srd,srd->{to}", ref, ref).ravel()
    return np.einsum(f"srd,srd->{to}", out, ref).ravel() - power, power


def _pooled(products: Float64Array, power: Float64Array) -> tuple[float, float]:
    """(slope, slope / its standard error) from each row's products and power."""
    if not power.sum() > 0:
        return 0.0, 0.0
    slope = float(products.sum() / power.sum())
    spread = float(np.linalg.norm(products - slope * power) / power.sum())
    return slope, abs(slope) / spread if spread > 0 else 0.0


def _small_bug(cases: list[Case]) -> SuspectedBug | None:
    """The suspected bug whose effect the error of all cases holds, by the surest test."""
    best: tuple[float, SuspectedBug] | None = None
    for bug in small_bugs(cases[0]):
        parts = [_on_effect(bug, case) for case in cases]
        products, power = (np.array(list(chain.from_iterable(x))) for x in zip(*parts, strict=True))
        if np.count_nonzero(power) < _FEWEST_ROWS:
            continue
        slope, significance = _pooled(products, power)
        if abs(slope - 1) > _NEAR_ONE or significance <= _STANDARD_ERRORS:
            continue
        if best is None or significance > best[0]:
            best = significance, bug
    return best[1] if best is not None else None


def _on_effect(bug: SuspectedBug, case: Case) -> tuple[Float64Array, Float64Array]:
    """(Σ e·δ, Σ δ²) of every row, δ being what the bug changes."""
    predicted = bug.predicted(case)
    if predicted is None:
        return np.zeros(0), np.zeros(0)
    effect = np.nan_to_num(predicted - case.reference)
    error = case.out - case.reference
    return (error * effect).sum(axis=1), (effect**2).sum(axis=1)
