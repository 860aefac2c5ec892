"""Outputs with wrong weights between keys, or with rows that are off by a factor.

An output row is Σ_s A_s / l, where A_s is the contribution of a segment s of the keys. A bug in a
row maximum, a row sum or a rescale multiplies contributions by factors that cannot be predicted,
because they depend on lanes, but the row stays a linear combination of them. So the wrong rows are
fitted with the contributions of several partitions of the keys, coarse ones first. The partition
that explains the error identifies the bug: one segment means the row sum; segments by lane mean a
maximum that they do not share; segments by tile mean the rescale, or, if some factors are 0 and the
others equal, tiles that are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.attention.tensors import NOISE, Inputs
from engine.correctness.findings import FindingCode, span
from engine.correctness.output_error import ComparedOutput
from engine.correctness.reference import BoolArray, Float64Array, IntArray, covered_blocks
from engine.correctness.suspected_bugs import MIN_EXPLAINED, Case, Match, SuspectedBug

_MAX_ROWS = 48
# Maximum unknowns per equation of a row's group of columns, so that a fit is significant.
_MAX_UNKNOWNS = 0.5
_MIN_COLUMNS = 4  # in a group
_MIN_EXPLAINED_BY_FEW_ROWS = 0.9
# A tile's factor relative to the largest: below the first it is missing, above the second present.
_MISSING_BELOW, _PRESENT_ABOVE = 0.1, 0.9
_MIN_TILE_WEIGHT = 1e-3  # minimum share of a row's weights to determine a tile's factor
_MAX_PLACES = 3
# Error of a sum of some hundred terms in 16 bits, in half rounding steps.
_ROUNDED = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """A partition of the keys, and its meaning if it explains the error."""

    pattern: FindingCode
    what: str
    look_at: str
    segment_of_key: IntArray


def wrong_weights(cases: Sequence[Case]) -> Match | None:
    """Return a bug for the coarsest partition of the keys that explains the wrong rows of all
    cases; else None."""
    if not cases or cases[0].problem.num_keys < 2:
        return None
    rows = [_wrong_rows(case) for case in cases]
    few = [rows[0][:: max(1, len(rows[0]) // 6)]]
    head_dim = cases[0].problem.value_dim
    for cut in _cuts(cases[0]):
        segments = int(cut.segment_of_key.max()) + 1
        for groups in _column_groups(head_dim):
            if segments > _MAX_UNKNOWNS * len(groups[0]):
                continue
            if _explained(cases[:1], few, cut, groups)[0] < _MIN_EXPLAINED_BY_FEW_ROWS:
                continue
            explained, low, high = _explained(cases, rows, cut, groups)
            if explained >= MIN_EXPLAINED:
                bug = _bug(cases[0], cut, groups, low, high)
                if (
                    cut.pattern
                    in (
                        FindingCode.FUSION_RESCALE,
                        FindingCode.ONLINE_RESCALE,
                        FindingCode.LANE_MAXIMUM,
                    )
                    and len(groups) == 1
                ):
                    bug = _left_out(cases, rows, cut) or bug
                return Match(bug, explained, 1.0)
    return None


def _bug(
    case: Case, cut: _Cut, groups: Sequence[IntArray], low: float, high: float
) -> SuspectedBug:
    what, look_at = cut.what, cut.look_at
    if len(groups) > 1:
        columns = span("column", groups[0], -1)
        what += f", a different one for each group of columns ({columns}, and so on)"
        look_at += "; it differs between the threads that own the columns"
    if cut.pattern == FindingCode.ROW_FACTOR and max(abs(low), abs(high)) < _MIN_TILE_WEIGHT:
        what = "rows of zeros, to which nothing was stored"
        look_at = (
            "look at the rows that are stored: how many there are, and which thread stores which"
        )
    elif cut.pattern == FindingCode.ROW_FACTOR:
        what += f" ({low:.3g} to {high:.3g})"
        limit = _ROUNDED * NOISE[case.problem.dtype]
        if 1 - limit < low < 1 < high < 1 + limit:
            look_at = (
                "look for lost precision in the row sum l: factors slightly above and below 1 come "
                "from a sum in 16 bits"
            )
    return SuspectedBug(cut.pattern, what, look_at, lambda _: None)


def _left_out(cases: Sequence[Case], rows: Sequence[IntArray], cut: _Cut) -> SuspectedBug | None:
    """Return a bug if whole key tiles are missing in query tiles and the others weigh alike."""
    keys: list[str] = []
    places: list[str] = []
    for case, wrong in zip(cases, rows, strict=True):
        for query_tile, factors in _factors_by_query_tile(case, wrong, cut):
            known = np.isfinite(factors).any(axis=0)
            typical = np.nanmedian(factors[:, known], axis=0)
            typical /= typical.max()
            missing = np.flatnonzero(known)[typical < _MISSING_BELOW]
            if not len(missing) or np.any((typical >= _MISSING_BELOW) & (typical < _PRESENT_ABOVE)):
                return None
            left_out = np.flatnonzero(np.isin(cut.segment_of_key, missing))
            keys.append(span("key", left_out, case.problem.num_keys))
            places.append(f"{keys[-1]} {_place(case, query_tile)}")
    if not places:
        return None
    more = "" if len(places) <= _MAX_PLACES else ", and so on"
    which = "; ".join(places[:_MAX_PLACES]) + more
    return SuspectedBug(
        FindingCode.KEY_TILE,
        f"leaving out {keys[0]}"
        if len(set(keys)) == 1
        else f"leaving out key tiles, different ones in each query tile: {which}",
        "look at the first and last key tile that a CTA processes for a query tile",
        lambda _: None,
    )


def _factors_by_query_tile(
    case: Case, wrong: IntArray, cut: _Cut
) -> Iterator[tuple[int, Float64Array]]:
    """Yield (query tile, factors `[wrong rows, segments]`), NaN where a segment weighs too
    little."""
    if not len(wrong):
        return
    parts = _parts(case, wrong, cut.segment_of_key).transpose(1, 2, 0)
    factors, _ = _fit(parts, case.out[wrong])
    sizes = np.linalg.norm(parts, axis=1)
    factors[sizes < _MIN_TILE_WEIGHT * sizes.max(axis=1, keepdims=True)] = np.nan
    query_tiles = case.rows[wrong] // case.tiles.block_m
    for query_tile in np.unique(query_tiles):
        yield int(query_tile), factors[query_tiles == query_tile]


def _place(case: Case, query_tile: int) -> str:
    """`in rows 64–127 of batch 0, head 1`."""
    problem, block_m = case.problem, case.tiles.block_m
    rows = np.arange(query_tile * block_m, min((query_tile + 1) * block_m, problem.seqlen))
    batch, head = divmod(case.slice_index, problem.num_heads)
    return f"in {span('row', rows, -1)} of batch {batch}, head {head}"


def _cuts(case: Case) -> Iterator[_Cut]:
    keys, tiles = case.keys, case.tiles
    yield _Cut(
        FindingCode.ROW_FACTOR,
        "rows that are each wrong by one constant factor",
        "look at the row sum l: the keys and lanes that it sums over, and the division by it",
        np.zeros_like(keys),
    )
    tile_of_key = keys // tiles.block_n
    num_tiles = int(tile_of_key[-1]) + 1
    if tiles.num_chunks > 1:
        yield _Cut(
            FindingCode.FUSION_RESCALE,
            f"{tiles.chunk_name}s that are each right and combined with wrong weights",
            "look at the weights exp(m_i − m) of the fusion, and at the m_i and l_i that it reads",
            keys // tiles.chunk_rows,
        )
    if num_tiles > 1:
        yield _Cut(
            FindingCode.ONLINE_RESCALE,
            "key tiles that are each right and combined with wrong weights",
            "look at the rescale of O and l by exp(m_old − m_new), and at its row",
            tile_of_key,
        )
    in_tile = keys % tiles.block_n
    for bit in range(min(6, (min(len(keys), tiles.block_n) - 1).bit_length())):
        half = in_tile >> bit & 1
        first = span("key", np.flatnonzero(half == 0)[:4], -1)
        yield _Cut(
            FindingCode.LANE_MAXIMUM,
            f"keys with wrong weights relative to others of their tile, by bit {bit} of their "
            f"index ({first}, … and the rest)",
            "look at the row maximum and its reduction over the lanes, which differs between the "
            "lanes with these keys and the others",
            half if num_tiles == 1 else 2 * tile_of_key + half,
        )


def _column_groups(head_dim: int) -> Iterator[list[IntArray]]:
    """Return the columns that one thread may own: all, neighbours, or every n-th, pairs too."""
    columns = np.arange(head_dim)
    yield [columns]
    counts = [2**i for i in range(1, head_dim.bit_length()) if head_dim // 2**i >= _MIN_COLUMNS]
    for count in counts:
        if head_dim % count == 0:
            yield np.split(columns, count)
    for width in (1, 2, 4, 8, 16):  # adjacent columns in a group
        for count in counts:
            if count * width < head_dim and head_dim % (count * width) == 0:
                owner = columns // width % count
                yield [columns[owner == i] for i in range(count)]


def _wrong_rows(case: Case) -> IntArray:
    wrong = np.flatnonzero(case.bad.any(axis=1) & np.isfinite(case.out).all(axis=1))
    return (
        wrong[np.unique(np.linspace(0, max(0, len(wrong) - 1), _MAX_ROWS).astype(int))]
        if len(wrong)
        else wrong
    )


def _explained(
    cases: Sequence[Case], rows: Sequence[IntArray], cut: _Cut, groups: Sequence[IntArray]
) -> tuple[float, float, float]:
    """Return (explained share of the squared error, least and largest first factor)."""
    before = after = 0.0
    factors: list[Float64Array] = []
    for case, wrong in zip(cases, rows, strict=True):
        half_step = NOISE[case.problem.dtype]
        parts = _parts(case, wrong, cut.segment_of_key)
        for columns in groups:
            basis = parts[:, :, columns].transpose(1, 2, 0)  # [rows, columns, segments]
            out = case.out[np.ix_(wrong, columns)]
            fit, rest = _fit(basis, out)
            factors.append(fit[:, 0])
            noise = ((half_step * out) ** 2).sum(axis=1)
            before += float(((out - case.reference[np.ix_(wrong, columns)]) ** 2).sum())
            after += float(np.maximum(0.0, (rest**2).sum(axis=1) - noise).sum())
    if before == 0.0:
        return 0.0, 0.0, 0.0
    first = np.concatenate(factors)
    return 1.0 - after / before, float(first.min()), float(first.max())


def _fit(basis: Float64Array, out: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Fit every row by least squares; return factors `[rows, segments]` and the rest of `out`."""
    size = np.maximum(np.linalg.norm(basis, axis=1, keepdims=True), 1e-300)
    unit = basis / size  # segments of small weight count equally
    square = unit.transpose(0, 2, 1) @ unit + 1e-9 * np.eye(unit.shape[2])
    factors = np.linalg.solve(square, unit.transpose(0, 2, 1) @ out[..., None])
    return factors[..., 0] / size[:, 0], out - (unit @ factors)[..., 0]


def _parts(case: Case, rows: IntArray, segment_of_key: IntArray) -> Float64Array:
    """Return each segment's contribution to the correct rows, `[segments, rows, head_dim]`."""
    scores = np.where(case.visible[rows], case.scores[rows], -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.stack(
        [
            weights[:, segment_of_key == s] @ case.v[segment_of_key == s]
            for s in range(int(segment_of_key.max()) + 1)
        ]
    )


# If only rows with scores far from 0 are wrong, the subtracted maximum is wrong.


# Its exp is about the largest FP32, and that of its negative about the smallest normal one.
_FAR = 80.0
_MAX_SLICES = 3


def far_scores_clause(inputs: Inputs, compared: ComparedOutput, wrong: BoolArray) -> str:
    """Return a clause if only rows with scores far from 0 are wrong; else empty.

    Also empty if all rows have scores far from 0, because then the position tells nothing.

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
            f"only these rows have all their scores below {-_FAR:g} ({top[bad].max():.3g} at "
            "most), where exp is 0 unless the row's own maximum is subtracted: look at whether the "
            "maximum begins at −inf (not at 0) and is that of the row"
        )
    if (top[bad] > _FAR).all():
        return (
            f"only these rows have scores above {_FAR:g} (up to {top[bad].max():.3g}), where exp "
            "overflows unless the row's maximum is subtracted: look at where it is"
        )
    return (
        "only these rows have scores far from 0, where a wrong maximum has an effect: look at "
        "whether the subtracted maximum is over all keys of the row and of no other row"
    )


def _score_range(
    inputs: Inputs, compared: ComparedOutput, positions: np.ndarray
) -> tuple[Float64Array, Float64Array]:
    """Return the smallest and largest visible score of covered rows, `[slices, rows]` each."""
    coverage = compared.coverage
    lowest = np.zeros((len(positions), len(coverage.rows)))
    top = np.zeros_like(lowest)
    for part in covered_blocks(inputs, replace(coverage, slices=coverage.slices[positions])):
        at, scores = (part.slices, part.rows), part.scores
        top[at] = scores.max(axis=-1)
        lowest[at] = np.where(np.isneginf(scores), np.inf, scores).min(axis=-1)
    return lowest, top
