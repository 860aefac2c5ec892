"""Outputs whose keys weigh wrongly against each other, or whose rows are off by a factor.

An output row is Σ_s A_s / l with A_s the part that a segment s of the keys adds. A bug in a row
maximum, a row sum or a rescale multiplies such parts by factors that cannot be predicted, as they
depend on which lane held what; but it leaves the row a mix of the same parts. So the wrong rows are
fitted with the parts of several cuts of the keys, coarse ones first. The cut that explains the
error says what went wrong: one part, the whole row, means the row sum; parts by lanes mean a
maximum that they do not share; parts by tiles mean the rescale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine.correctness.diagnosis.regions import span
from engine.correctness.reference import Float64Array, IntArray
from engine.correctness.suspected_bugs import MIN_EXPLAINED, Case, Match, SuspectedBug

_MAX_ROWS = 48
# Unknowns that a row's (or a column block's) equations may have: more would fit anything.
_MAX_UNKNOWNS = 0.4
_MIN_BLOCK = 8  # columns


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """One way to divide the keys, and what it means if it explains the error."""

    pattern: str
    what: str
    look_at: str
    segment_of_key: IntArray


def wrong_weights(cases: Sequence[Case]) -> Match | None:
    """The coarsest cut whose parts make up the wrong rows of all cases."""
    if not cases or cases[0].problem.num_keys < 2:
        return None
    rows = [_wrong_rows(case) for case in cases]
    head_dim = cases[0].problem.head_dim
    for cut in _cuts(cases[0]):
        segments = int(cut.segment_of_key.max()) + 1
        for blocks in _block_counts(head_dim):
            if segments > _MAX_UNKNOWNS * head_dim / blocks:
                continue
            explained, low, high = _explained(cases, rows, cut, blocks)
            if explained >= MIN_EXPLAINED:
                return Match(_bug(cut, blocks, head_dim, low, high), explained, 1.0)
    return None


def _bug(cut: _Cut, blocks: int, head_dim: int, low: float, high: float) -> SuspectedBug:
    what, look_at = cut.what, cut.look_at
    if blocks > 1:
        what += f", another for each {head_dim // blocks} columns"
        look_at += "; the threads that own the columns do not agree on it"
    if cut.pattern == "row_factor":
        what += f" ({low:.3g} to {high:.3g})"
    return SuspectedBug(cut.pattern, what, look_at, lambda _: None)


def _cuts(case: Case) -> Iterator[_Cut]:
    keys, tiles = case.keys, case.tiles
    yield _Cut(
        "row_factor",
        "rows that are right but for a factor of their own",
        "look at the row sum l: the keys and lanes that it sums over, and the division by it",
        np.zeros_like(keys),
    )
    tile_of_key = keys // tiles.block_n
    num_tiles = int(tile_of_key[-1]) + 1
    if tiles.num_chunks > 1:
        yield _Cut(
            "fusion_rescale",
            f"{tiles.chunk_name}s that weigh wrongly against each other, each right in itself",
            "look at the weights exp(m_i − m) of the fusion, and at the m_i and l_i handed over",
            keys // tiles.chunk_rows,
        )
    if num_tiles > 1:
        yield _Cut(
            "online_rescale",
            "key tiles that weigh wrongly against each other, each right in itself",
            "look at the rescale of O and l by exp(m_old − m_new), and whose row's it is",
            tile_of_key,
        )
    in_tile = keys % tiles.block_n
    for bit in range(min(6, (min(len(keys), tiles.block_n) - 1).bit_length())):
        half = in_tile >> bit & 1
        first = span("key", np.flatnonzero(half == 0)[:4], -1)
        yield _Cut(
            "lane_maximum",
            f"keys that weigh wrongly against others of their tile, by bit {bit} of their number "
            f"({first}, … against the rest)",
            "look at the row maximum and its reduction over the lanes: those that take these keys "
            "do not share one",
            half if num_tiles == 1 else 2 * tile_of_key + half,
        )


def _block_counts(head_dim: int) -> list[int]:
    """Into how many column blocks: 1, 2, 4, …"""
    counts = [1]
    while head_dim % (2 * counts[-1]) == 0 and head_dim // (2 * counts[-1]) >= _MIN_BLOCK:
        counts.append(2 * counts[-1])
    return counts


def _wrong_rows(case: Case) -> IntArray:
    wrong = np.flatnonzero(case.bad.any(axis=1) & np.isfinite(case.out).all(axis=1))
    return (
        wrong[np.unique(np.linspace(0, max(0, len(wrong) - 1), _MAX_ROWS).astype(int))]
        if len(wrong)
        else wrong
    )


def _explained(
    cases: Sequence[Case], rows: Sequence[IntArray], cut: _Cut, blocks: int
) -> tuple[float, float, float]:
    """(share of the squared error that the fit removes, least and largest first factor)."""
    before = after = 0.0
    factors: list[float] = []
    for case, wrong in zip(cases, rows, strict=True):
        half_step = 2.0**-11 if case.problem.dtype == "float16" else 2.0**-8
        parts = _parts(case, wrong, cut.segment_of_key)
        for i, row in enumerate(wrong):
            out, ref = case.out[row], case.reference[row]
            for columns in np.split(np.arange(len(out)), blocks):
                basis = parts[:, i, columns].T
                fit = np.linalg.lstsq(basis, out[columns], rcond=1e-9)[0]
                factors.append(float(fit[0]))
                noise = float(((half_step * out[columns]) ** 2).sum())
                rest = float(((out[columns] - basis @ fit) ** 2).sum())
                before += float(((out[columns] - ref[columns]) ** 2).sum())
                after += max(0.0, rest - noise)
    if before == 0.0:
        return 0.0, 0.0, 0.0
    return 1.0 - after / before, min(factors), max(factors)


def _parts(case: Case, rows: IntArray, segment_of_key: IntArray) -> Float64Array:
    """What each segment adds to the right rows, `[segments, rows, head_dim]`."""
    scores = np.where(case.visible[rows], case.scores[rows], -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.stack(
        [
            weights[:, segment_of_key == s] @ case.v[segment_of_key == s]
            for s in range(int(segment_of_key.max()) + 1)
        ]
    )
