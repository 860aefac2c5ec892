"""Rows that see too many keys or too few: up to which key each of them does.

A row of a causal mask that is computed with another row's number, or with a column that is off, is
still attention over the keys from 0 to some end. That end is looked for, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.correctness.diagnosis.regions import span
from engine.correctness.finding_codes import FindingCode
from engine.correctness.reference import IntArray
from engine.correctness.suspected_bugs import MIN_EXPLAINED, Case, Match, SuspectedBug

_MAX_ROWS = 48
_MAX_SUMS = 1 << 24  # rows · keys · columns
_FEWEST_ROWS = 3
_LANES = 16  # rows of a fragment, in which a wrong mask repeats
_MAX_NAMED = 3


def wrong_limits(cases: Sequence[Case]) -> Match | None:
    """The causal mask as the wrong rows of all cases have it, where each ends at some other key."""
    if not cases or not cases[0].problem.causal or cases[0].sink is not None:
        return None
    rows: list[IntArray] = []
    by: list[IntArray] = []
    explained = 1.0
    for case in cases:
        found = _ends(case)
        if found is None:
            return None
        wrong, ends, share = found
        rows.append(wrong)
        by.append(ends - (wrong + case.own.kv_offset + 1))
        explained = min(explained, share)
    all_rows, offsets = np.concatenate(rows), np.concatenate(by)
    if explained < MIN_EXPLAINED or len(all_rows) < _FEWEST_ROWS:
        return None
    bug = _bug(all_rows, offsets, cases[0].own.kv_offset)
    return Match(bug, explained, explained)


def _ends(case: Case) -> tuple[IntArray, IntArray, float] | None:
    """(wrong rows, the number of keys that each sees, share of the squared error explained)."""
    wrong = np.flatnonzero(case.bad.any(axis=1) & np.isfinite(case.out).all(axis=1))
    if not len(wrong):
        return None
    limit = min(_MAX_ROWS, _MAX_SUMS // (case.problem.num_keys * case.problem.head_dim))
    if limit < _FEWEST_ROWS:
        return None
    wrong = wrong[np.unique(np.linspace(0, len(wrong) - 1, limit).astype(int))]
    scores = case.scores[wrong]
    weights = np.exp(np.maximum(scores - scores.max(axis=1, keepdims=True), -700.0))
    weights[np.arange(scores.shape[1]) < case.visible[wrong].argmax(axis=1)[:, None]] = 0
    sums = np.cumsum(weights[:, :, None] * case.v[None], axis=1)
    sums /= np.maximum(np.cumsum(weights, axis=1), np.finfo(float).tiny)[:, :, None]
    rest = np.square(sums - case.out[wrong][:, None]).sum(axis=2)
    ends = rest.argmin(axis=1)
    before = np.square(case.reference[wrong] - case.out[wrong]).sum()
    after = rest[np.arange(len(wrong)), ends].sum()
    return case.rows[wrong], ends + 1, float(1 - after / before)


def _bug(rows: IntArray, offsets: IntArray, first: int) -> SuspectedBug:
    """`first`: the position of the first query."""
    order = np.unique(rows, return_index=True)[1]
    rows, offsets = rows[order], offsets[order]
    named = ", ".join(
        f"row {row} up to key {row + first + offset} "
        f"({abs(offset)} too {'many' if offset > 0 else 'few'})"
        for row, offset in zip(rows[:_MAX_NAMED], offsets[:_MAX_NAMED], strict=True)
    )
    lanes = np.unique(rows % _LANES)
    where = ""
    if len(lanes) < _LANES and len(rows) >= _LANES:
        where = f"; of every {_LANES} rows it is {span('row', lanes, -1)}"
    return SuspectedBug(
        FindingCode.CAUSAL_MASK,
        f"a causal mask that ends at another key than the row's own: {named}"
        + (", …" if len(rows) > _MAX_NAMED else "")
        + where,
        "look at the query row, and the key of each register, that the mask compares",
        lambda _: None,
    )
