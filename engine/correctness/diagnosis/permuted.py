"""Outputs that are right but in the wrong place: rows or columns that hold each other's results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.correctness.diagnosis.regions import span
from engine.correctness.finding_codes import FindingCode
from engine.correctness.reference import Float64Array, IntArray
from engine.correctness.suspected_bugs import Case, Match, SuspectedBug

# Share of the wrong rows or columns that must be found elsewhere.
_MIN_MOVED = 0.8
# Squared distance to the place it is found at, against that to the right place.
_MAX_REST = 0.01
_MAX_NAMED = 3


def moved_columns(cases: Sequence[Case]) -> Match | None:
    """Wrong columns that hold the values of other columns, in all cases alike."""
    if not cases:
        return None
    out, ref = (
        np.concatenate([np.where(np.isfinite(c.out), x, 0.0) for c, x in pairs])
        for pairs in (
            [(c, c.out) for c in cases],
            [(c, c.reference) for c in cases],
        )
    )
    wrong = np.flatnonzero(np.concatenate([c.bad for c in cases]).any(axis=0))
    source, rest = _nearest(out.T[wrong], ref.T, own=wrong)
    share = _accept(wrong, source, rest)
    if share is None:
        return None
    what = f"swapped columns of d: {_pairs('column', wrong, source)}"
    return _match(
        FindingCode.COLUMNS_OF_D, what, "look at which thread reads and stores these columns", share
    )


def moved_rows(cases: Sequence[Case]) -> Match | None:
    """Wrong rows that hold the results of other rows of their slice."""
    if not cases:
        return None
    case = cases[0]
    wrong = np.flatnonzero((case.bad & np.isfinite(case.out)).any(axis=1))
    if len(wrong) < 2:
        return None
    home = np.searchsorted(case.every_row, case.rows[wrong])
    source, rest = _nearest(np.nan_to_num(case.out[wrong]), case.every_reference, own=home)
    share = _accept(wrong, source, rest)
    if share is None:
        return None
    rows, sources = case.rows[wrong], case.every_row[source]
    what = f"rows that hold each other's results: {_pairs('row', rows, sources)}"
    look_at = "look at the query row that a result is computed for, and the one it is stored to"
    return _match(FindingCode.QUERY_INDEX, what, look_at, share)


def _nearest(
    lines: Float64Array, candidates: Float64Array, own: IntArray
) -> tuple[IntArray, Float64Array]:
    """For each line the nearest candidate, and that distance² over the one to its own place."""
    squared = (
        (lines**2).sum(axis=1)[:, None]
        - 2 * lines @ candidates.T
        + (candidates**2).sum(axis=1)[None, :]
    )
    at_home = squared[np.arange(len(own)), own].copy()
    squared[np.arange(len(own)), own] = np.inf
    source = squared.argmin(axis=1)
    rest = squared[np.arange(len(own)), source] / np.maximum(at_home, 1e-300)
    return source, rest


def _accept(wrong: IntArray, source: IntArray, rest: Float64Array) -> float | None:
    """Share of the wrong lines found elsewhere, or None if too few or all at one place."""
    moved = rest <= _MAX_REST
    share = float(moved.mean())
    # Many lines at one place are equal lines (zeros, a mean), not moved ones.
    if share < _MIN_MOVED or (len(wrong) > 2 and len(np.unique(source[moved])) <= len(wrong) // 2):
        return None
    return share


def _pairs(name: str, to: IntArray, source: IntArray) -> str:
    """`row 0 holds row 1, row 1 holds row 2, … (1 further on)`."""
    listed = [f"{name} {a} holds {name} {b}" for a, b in zip(to, source, strict=True)]
    more = ", …" if len(listed) > _MAX_NAMED else ""
    offsets = np.unique(source - to)
    rule = f" (always {abs(offsets[0])} {'further on' if offsets[0] > 0 else 'before'})"
    text = f"{', '.join(listed[:_MAX_NAMED])}{more}"
    if len(offsets) == 1 and len(listed) > 1:
        return text + rule
    return text if len(listed) <= _MAX_NAMED else f"{text} among {span(name, to, -1)}"


def _match(pattern: FindingCode, what: str, look_at: str, share: float) -> Match:
    return Match(SuspectedBug(pattern, what, look_at, lambda _: None), share, share)
