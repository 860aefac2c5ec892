"""Patterns of wrong elements: a head, the tail tile, too many keys, exchanged tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.attention.tensors import NOISE
from engine.correctness.findings import FindingCode, Region, span
from engine.correctness.output_error import ComparedOutput, Tiles
from engine.correctness.reference import BoolArray, Coverage, Float64Array, IntArray
from engine.correctness.suspected_bugs import MIN_EXPLAINED, Case, Match, SuspectedBug

# Rows that see too many or too few keys.
#
# If a causal mask is computed with a wrong row or column, a row is still attention over the keys
# from 0 to some other end, which is searched row by row.

_MAX_ROWS = 48
_MAX_SUMS = 1 << 24  # rows · keys · columns
_MIN_ROWS = 3
_LANES = 16  # rows of a fragment, after which a wrong mask repeats
# Exchanged rows, columns and key tiles.
#
# Rows and columns of the output are searched among those of the reference. Blocks of V are found by
# least squares: a row is Σ_t P_t · V_σ(t) over key blocks t. With a coefficient for every product
# P_t · V_s, those that are 1 give σ.

_MAX_NAMED = 3


def wrong_key_counts(cases: Sequence[Case]) -> Match | None:
    """Return a bug if each wrong row of all cases attends to the keys up to another end; else
    None."""
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
    if explained < MIN_EXPLAINED or len(all_rows) < _MIN_ROWS:
        return None
    bug = _bug(all_rows, offsets, cases[0].own.kv_offset)
    return Match(bug, explained, explained)


def _ends(case: Case) -> tuple[IntArray, IntArray, float] | None:
    """Return (wrong rows, number of keys that each sees, explained share of the squared error)."""
    wrong = np.flatnonzero(case.bad.any(axis=1) & np.isfinite(case.out).all(axis=1))
    if not len(wrong):
        return None
    limit = min(_MAX_ROWS, _MAX_SUMS // (case.problem.num_keys * case.problem.head_dim))
    if limit < _MIN_ROWS:
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
    """Describe the ends; `first` is the position of the first query."""
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
        f"a causal mask that ends at a wrong key: {named}"
        + (", …" if len(rows) > _MAX_NAMED else "")
        + where,
        "look at the query row, and the key of each register, that the mask compares",
        lambda _: None,
    )


# Least share of the wrong rows or columns that must be found elsewhere.
_MIN_MOVED = 0.8
# Largest squared distance to the found place, relative to that to the right place.
_MAX_REST = 0.01
_BLOCK = 16  # keys
_MAX_BLOCKS = 13  # blocks of V; each pair has a coefficient


def moved_columns(cases: Sequence[Case]) -> Match | None:
    """Return a bug if wrong columns have the values of other columns in all cases; else None."""
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
    """Return a bug if wrong rows have the results of other rows of their slice; else None."""
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


def moved_blocks_of_v(cases: Sequence[Case]) -> Match | None:
    """Return a bug if blocks of V are multiplied by the weights of other keys; else None."""
    if not cases:
        return None
    block_n = cases[0].tiles.block_n
    for size in dict.fromkeys((block_n, _BLOCK)):
        blocks = -(-cases[0].problem.num_keys // size)
        if 2 <= blocks <= _MAX_BLOCKS and (match := _moved_blocks(cases, size, blocks)):
            return match
    return None


def _moved_blocks(cases: Sequence[Case], size: int, blocks: int) -> Match | None:
    before = after = 0.0
    sources: list[tuple[int, ...]] = []
    for case in cases:
        rows = np.flatnonzero(np.isfinite(case.out).all(axis=1))
        if not len(rows):  # every row has NaN
            return None
        products = _products(case, rows, size, blocks)
        out = case.out[rows].ravel()
        square = products @ products.T
        square += 1e-9 * np.trace(square) / len(square) * np.eye(len(square))
        factors = np.linalg.solve(square, products @ out).reshape(blocks, blocks)
        rounded = np.where(factors > 0.5, 1.0, 0.0)
        rest = out - rounded.ravel() @ products
        noise = NOISE[case.problem.dtype] * out
        before += float(((out - case.reference[rows].ravel()) ** 2).sum())
        after += max(0.0, float(rest @ rest) - float(noise @ noise))
        taken = (rounded.argmax(axis=1), rounded.sum(axis=1))
        if (taken[1] > 1).any():
            return None
        found = (int(s) if n else -1 for s, n in zip(*taken, strict=True))
        sources.append(tuple(found))
    explained = 1.0 - after / before if before else 0.0
    if explained < MIN_EXPLAINED or len(set(sources)) > 1:
        return None
    unit = "key tile" if size == cases[0].tiles.block_n else f"{size} keys"
    listed = [
        f"{unit} {t} takes V of {unit} {s}" if s >= 0 else f"{unit} {t} takes no V"
        for t, s in enumerate(sources[0])
        if s != t
    ]
    what = f"V of other keys: {', '.join(listed[:_MAX_NAMED])}"
    look_at = "look at the stage, address or descriptor that V of a key tile is read from"
    return _match(FindingCode.KEY_TILE, what, look_at, explained)


def _products(case: Case, rows: IntArray, size: int, blocks: int) -> Float64Array:
    """Return P_t · V_s of all pairs of blocks, `[blocks · blocks, rows · head_dim]`."""
    scores = np.where(case.visible[rows], case.scores[rows], -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    padding = ((0, blocks * size - case.problem.num_keys), (0, 0))
    p = np.pad(weights, padding[::-1]).reshape(len(rows), blocks, size)
    v = np.pad(case.v, padding).reshape(blocks, size, -1)
    products = np.einsum("rtk,skd->tsrd", p, v, optimize=True)
    return np.asarray(products.reshape(blocks * blocks, -1))


def _nearest(
    lines: Float64Array, candidates: Float64Array, own: IntArray
) -> tuple[IntArray, Float64Array]:
    """Return for each line the nearest candidate, and distance² relative to its own place's."""
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
    """Return the share of wrong lines found elsewhere; None if too few, or all at one place."""
    moved = rest <= _MAX_REST
    share = float(moved.mean())
    # Many lines found at one place are equal (zeros, a mean), not moved.
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


# Some elements of a wrong row are right by chance, so a pattern need not hold for all.
_NEARLY_ALL = 0.9
# Few scattered errors of at most this many tolerances come from lost precision, not from wrong
# elements.
_ROUNDING = 8.0
_DENSE = 0.5


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern in the positions of wrong elements."""

    name: FindingCode
    sentence: str
    tells_more: bool = True  # report it even if the cause is known


def find_patterns(compared: ComparedOutput, tiles: Tiles) -> list[Pattern]:
    """Return the patterns of the finite elements over the tolerance (at least one element)."""
    wrong = compared.over
    region = Region.of(wrong, compared.coverage)
    density = np.count_nonzero(wrong) / max(1, region.size)
    if compared.error[wrong].max() <= _ROUNDING * compared.tolerance and (
        density < _DENSE or _nearly_wrong_elsewhere(compared)
    ):
        return [_precision(compared, wrong)]
    patterns = [
        *_heads(region),
        *_rows(wrong, region, compared.coverage, tiles),
        *_columns(region),
    ]
    return patterns or [_everywhere(region)]


def _nearly_wrong_elsewhere(compared: ComparedOutput) -> bool:
    """True if a slice without wrong elements has errors near the tolerance, probably from the same
    cause."""
    largest = compared.error.max(axis=(1, 2))
    return bool((largest[largest <= compared.tolerance] > 0.5 * compared.tolerance).any())


def _heads(region: Region) -> Sequence[Pattern]:
    if region.all_slices:
        return ()
    where = region.slice_words()
    if len(region.slices) == 1:
        return (
            Pattern(
                FindingCode.ONE_HEAD,
                f"Only {where} is wrong: look at the offset of this head (its base address or "
                "stride), not at the maths.",
            ),
        )
    total = region.problem.batch * region.problem.num_heads
    if len(region.slices) == total - 1 and 0 not in region.slices:
        return (
            Pattern(
                FindingCode.HEAD_STRIDE,
                "Every head is wrong except the first of the first batch, whose offset is 0 for "
                "any stride: look at the stride between heads.",
            ),
        )
    groups = region.kv_head_words()
    if groups:
        return (
            Pattern(
                FindingCode.KV_HEAD,
                f"Only {where} are wrong, which are all the query heads of {groups}: look at the "
                "offset of K and V.",
            ),
        )
    return (
        Pattern(
            FindingCode.SOME_HEADS,
            f"Only {where} are wrong: look at how the offset is computed from batch and head.",
        ),
    )


def _rows(mask: BoolArray, region: Region, coverage: Coverage, tiles: Tiles) -> Sequence[Pattern]:
    rows, block = region.rows, tiles.block_m
    if len(rows) >= _NEARLY_ALL * len(coverage.rows):
        return ()
    which = region.row_words()
    if len(rows) == 1:
        return (Pattern(FindingCode.ONE_ROW, f"Only {which} is wrong."),)
    wrong_tiles = np.unique(rows // block)
    last = tiles.num_query_tiles - 1
    if len(wrong_tiles) == 1 and last > 0:
        tile = int(wrong_tiles[0])
        if tile == last and tiles.seqlen % block:
            return (
                Pattern(
                    FindingCode.TAIL_TILE,
                    f"Only the last, partial query tile is wrong ({which}; {tiles.seqlen % block} "
                    f"of {block} rows exist): look at how its rows are loaded, masked and stored.",
                ),
            )
        return (Pattern(FindingCode.ONE_QUERY_TILE, f"Only query tile {tile} is wrong ({which})."),)
    in_tile = _positions_in_tile(mask, coverage, block)
    if in_tile is not None:
        return (_same_rows(in_tile, tiles),)
    if wrong_tiles[0] > 0 and np.array_equal(wrong_tiles, np.arange(wrong_tiles[0], last + 1)):
        return (
            Pattern(
                FindingCode.LATER_TILES,
                f"Query tiles up to {wrong_tiles[0] - 1} are right and the later ones wrong "
                f"({which}): look at what depends on "
                + (
                    "the number of key tiles, which grows with a causal row."
                    if region.problem.causal
                    else "the query tile's index."
                ),
                tells_more=False,
            ),
        )
    return (Pattern(FindingCode.SOME_ROWS, f"Only {which} are wrong.", tells_more=False),)


def _positions_in_tile(mask: BoolArray, coverage: Coverage, block: int) -> IntArray | None:
    """Find rows within the query tile that are wrong in every tile, if the others never are."""
    position = coverage.rows % block
    wrong = np.bincount(position, weights=mask.any(axis=(0, 2)), minlength=block)
    seen = np.bincount(position, minlength=block)
    marked = np.flatnonzero(wrong > 0)
    if len(marked) < np.count_nonzero(seen) and (wrong[marked] >= _NEARLY_ALL * seen[marked]).all():
        return marked
    return None


def _same_rows(positions: IntArray, tiles: Tiles) -> Pattern:
    which = span("row", positions, tiles.block_m)
    per_warp = tiles.rows_per_warp
    warps = np.unique(positions // per_warp)
    if len(warps) == 1 and len(positions) == per_warp:
        return Pattern(
            FindingCode.ROWS_OF_ONE_WARP,
            f"In every query tile the same rows are wrong, {which} of {tiles.block_m}: the rows of "
            f"warp {warps[0]}, if the CTA's {tiles.threads} threads share its rows in order.",
        )
    return Pattern(
        FindingCode.ROWS_IN_TILE,
        f"In every query tile the same rows are wrong, {which} of {tiles.block_m}: look at what "
        "differs between its threads, such as lane, warp or a register tile.",
    )


def _columns(region: Region) -> Sequence[Pattern]:
    if len(region.columns) >= _NEARLY_ALL * region.problem.value_dim:
        return ()
    which = span("column", region.columns, region.problem.value_dim)
    verb = "is" if len(region.columns) == 1 else "are"
    return (
        Pattern(
            FindingCode.COLUMNS_OF_D,
            f"Only {which} of d {verb} wrong: look at which thread owns these columns when V is "
            "read and O is stored.",
        ),
    )


def _precision(compared: ComparedOutput, wrong: BoolArray) -> Pattern:
    times = compared.error[wrong].max() / compared.tolerance
    return Pattern(
        FindingCode.PRECISION,
        f"{np.count_nonzero(wrong):,} scattered elements are over the tolerance, by a factor of "
        f"{times:.2g} at most, which looks like lost precision: a sum in 16 bits, a coarse exp, a "
        "score that is rounded.",
        tells_more=False,
    )


def _everywhere(region: Region) -> Pattern:
    heads = "Every head," if region.problem.batch * region.problem.num_heads > 1 else "Every"
    return Pattern(
        FindingCode.EVERYWHERE,
        f"{heads} row and column has wrong elements: the main loop, or what follows it for "
        "every element, is wrong, not an edge of it.",
        tells_more=False,
    )
