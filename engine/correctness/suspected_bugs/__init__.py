"""Suspected bugs: compute the output that each would give, and find the one that matches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine.attention.tensors import NOISE
from engine.correctness.reference import BoolArray, Float64Array
from engine.correctness.suspected_bugs.addressing import addressing_bugs, page_bugs
from engine.correctness.suspected_bugs.case import (
    MAX_CASES,
    Case,
    SuspectedBug,
    choose_cases,
    in_wrong_columns,
    spread_cases,
)
from engine.correctness.suspected_bugs.features import feature_bugs
from engine.correctness.suspected_bugs.fragments import descriptor_bugs, fragment_bugs
from engine.correctness.suspected_bugs.masks import mask_bugs
from engine.correctness.suspected_bugs.softmax import (
    EXPLAINED_BY_FACTOR,
    kv_split_bugs,
    other_steps,
    precision_bugs,
    scaled_scores,
    softmax_bugs,
)

__all__ = [
    "MAX_CASES",
    "MIN_EXPLAINED",
    "Case",
    "Match",
    "SuspectedBug",
    "best_match",
    "choose_cases",
    "in_wrong_columns",
    "lost_precision",
    "small_bugs",
    "spread_cases",
]

# Least share of the squared error that a matching bug explains. Rounding and the order of summation
# cause the rest. Another bug with a similar effect can reach 0.9.
MIN_EXPLAINED = 0.97
_MIN_EXPLAINED_BY_FEW_ROWS = 0.9
_SAME = 1e-3


@dataclass(frozen=True, slots=True)
class Match:
    """A suspected bug, and how well its prediction fits the output."""

    bug: SuspectedBug
    explained: float  # share of the squared error that the prediction removes
    share: float  # share of the wrong elements that the prediction gets right


# Simple bugs first: if two explain the error equally well, the first one is reported.
_FAMILIES: tuple[Callable[[Case], Iterator[SuspectedBug]], ...] = (
    softmax_bugs,
    mask_bugs,
    feature_bugs,
    page_bugs,
    kv_split_bugs,
    addressing_bugs,
    descriptor_bugs,
    fragment_bugs,
    precision_bugs,
)


def small_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs whose effect may be within the tolerance, such as one extra key or weight."""
    for family in (softmax_bugs, mask_bugs, feature_bugs, kv_split_bugs, precision_bugs):
        yield from family(case)


def best_match(cases: Sequence[Case]) -> Match | None:
    """Return the bug that best explains the wrong rows of all cases; None if none does."""
    best = _best_of(_FAMILIES, cases) or _best_of((other_steps,), cases)
    if (best is not None and best.explained >= EXPLAINED_BY_FACTOR) or not cases:
        return best
    scaled = scaled_scores(cases[0])
    if scaled is None:
        return best
    match = _fit(scaled, cases)
    if match.explained < EXPLAINED_BY_FACTOR:
        return best
    return match if best is None or match.explained > best.explained + _SAME / 2 else best


def lost_precision(cases: Sequence[Case]) -> Match | None:
    """Return the best match among bugs that round values too coarsely; None if none fits."""
    return _best_of((precision_bugs,), cases)


def _best_of(
    families: Sequence[Callable[[Case], Iterator[SuspectedBug]]], cases: Sequence[Case]
) -> Match | None:
    if not cases:
        return None
    best: Match | None = None
    for bug in (b for family in families for b in family(cases[0])):
        if not any(_fit(bug, [c.quick]).explained >= _MIN_EXPLAINED_BY_FEW_ROWS for c in cases):
            continue
        match = _fit(bug, cases)
        if match.explained >= max(MIN_EXPLAINED, bug.min_explained) and (
            best is None or match.explained > best.explained + _SAME
        ):
            best = match
    return best


def _fit(bug: SuspectedBug, cases: Sequence[Case]) -> Match:
    """Return how well the prediction fits where prediction, output and reference are finite."""
    before = after = 0.0
    wrong = right_now = 0
    for case in cases:
        predicted = bug.predicted(case)
        if predicted is None:
            continue
        comparable = np.isfinite(predicted) & np.isfinite(case.out) & case.columns
        noise = _rounding(case, comparable)
        error, rest = ((case.out - x)[comparable] for x in (case.reference, predicted))
        before += float(error @ error)
        after += max(0.0, float(rest @ rest) - float(noise @ noise))
        bad = case.bad[comparable]
        wrong += int(np.count_nonzero(bad))
        limit = np.maximum(0.1 * np.abs(error[bad]), 3 * noise[bad])
        right_now += int(np.count_nonzero(np.abs(rest[bad]) <= limit))
    if before == 0.0 or not wrong:
        return Match(bug, 0.0, 0.0)
    return Match(bug, 1.0 - after / before, right_now / wrong)


def _rounding(case: Case, comparable: BoolArray) -> Float64Array:
    """Return the approximate rounding error of each comparable element in the output's dtype."""
    return NOISE[case.problem.dtype] * np.abs(case.out[comparable])
