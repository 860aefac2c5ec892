"""Mask bugs: the causal diagonal, and the tail mask of the last key tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from engine.attention.tensors import decode
from engine.correctness.findings import FindingCode
from engine.correctness.reference import BoolArray, Float64Array, IntArray, visible_keys
from engine.correctness.suspected_bugs.case import Case, SuspectedBug
from kernels.variant import ceil_div


def mask_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs of the causal mask, the tail mask and the key loop that the problem can have.

    If there are more keys than queries, they include seqlen used instead of seqlen_kv.
    """
    yield from _causal(case)
    yield from _lengths(case)
    tiles = case.tiles
    plain = case.problem.window is None and not case.problem.causal
    if tiles.padding and plain:
        letter = "S" if tiles.num_keys == tiles.seqlen else "KV"
        size = f"{letter} = {tiles.num_keys} is not a multiple of the key tile, {tiles.block_n}"
        yield SuspectedBug(
            FindingCode.TAIL_MASK,
            f"a missing tail mask: the {tiles.padding} padded keys of the last tile are included "
            f"as zeros ({size})",
            "look at the test key < seqlen_kv where scores are masked",
            lambda c: c.attend(c.scores, c.visible, c.v, zero_keys=c.tiles.padding),
        )
        if tiles.padding > 1:
            yield SuspectedBug(
                FindingCode.TAIL_MASK,
                f"a tail mask off by one: one padded key is included as zeros ({size})",
                "look at the test key < seqlen_kv where scores are masked",
                lambda c: c.attend(c.scores, c.visible, c.v, zero_keys=1),
            )
        yield SuspectedBug(
            FindingCode.TAIL_MASK,
            f"a missing tail mask: the last key tile reads {tiles.padding} rows past the end of "
            f"its head ({size})",
            "look at the test key < seqlen_kv where K and V are loaded",
            _past_the_end,
        )
    if tiles.padding and tiles.num_key_tiles > 1:
        kept = tiles.num_keys // tiles.block_n * tiles.block_n
        look_at = "look at the number of key tiles, which must be rounded up"
        if tiles.num_chunks > 1:
            look_at += (
                f", and at the row maximum of each {tiles.chunk_name}: the fusion leaves out one "
                "whose maximum is −inf, which is the score of a padded key"
            )
        yield SuspectedBug(
            FindingCode.TAIL_TILE,
            f"a loop that leaves out the last, partial key tile (keys {kept} to "
            f"{tiles.num_keys - 1})",
            look_at,
            partial(_first_keys, kept),
        )
    yield SuspectedBug(
        FindingCode.TAIL_TILE,
        "a loop that leaves out the last key",
        "look at the upper bound of the key loop",
        partial(_first_keys, tiles.num_keys - 1),
    )
    yield SuspectedBug(
        FindingCode.FIRST_KEY,
        "a loop that leaves out the first key",
        "look at the lower bound of the key loop",
        lambda c: c.attend(c.scores, c.visible & (c.keys > 0), c.v),
    )


def _lengths(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs that use seqlen instead of seqlen_kv; none unless there are more keys."""
    tiles = case.tiles
    visited = ceil_div(tiles.seqlen, tiles.block_n) * tiles.block_n
    for count, what, look_at in (
        (tiles.seqlen, "keys masked", "look at the test key < seqlen_kv where scores are masked"),
        (visited, "a key loop that ends", "look at the upper bound of the key loop"),
    ):
        if count < tiles.num_keys:
            yield SuspectedBug(
                FindingCode.KEY_COUNT,
                f"{what} by the number of queries, so that keys {count} to {tiles.num_keys - 1} "
                "are left out",
                look_at,
                partial(_first_keys, count),
            )


def _causal(case: Case) -> Iterator[SuspectedBug]:
    if not case.problem.causal:
        yield SuspectedBug(
            FindingCode.CAUSAL_MASK,
            "a causal mask that this problem does not have",
            "look at IS_CAUSAL and the mask",
            lambda c: c.attend(c.scores, c.visible & (c.keys <= c.positions), c.v),
        )
        return
    look_at = "look at the comparison of key and query row in the causal mask"
    one_more = "a causal mask off by one, key ≤ row + 1: each row sees one key too many"
    yield SuspectedBug(FindingCode.CAUSAL_DIAGONAL, one_more, look_at, partial(_shifted, 1, False))
    # If the key loop ends at the tile's last query, the extra key of that row is not visited.
    yield SuspectedBug(FindingCode.CAUSAL_DIAGONAL, one_more, look_at, partial(_shifted, 1, True))
    yield SuspectedBug(
        FindingCode.CAUSAL_DIAGONAL,
        "a causal mask off by one, key < row: each row misses its own key",
        look_at,
        partial(_shifted, -1, False),
    )
    yield SuspectedBug(
        FindingCode.CAUSAL_MASK,
        "attention without the causal mask",
        "look at IS_CAUSAL and the mask",
        lambda c: c.attend(c.scores, _not_causal(c), c.v),
    )
    yield SuspectedBug(
        FindingCode.CAUSAL_MASK,
        "a causal mask by whole tiles only, missing inside the tiles on the diagonal",
        "look at the mask of the last visited key tile",
        lambda c: c.attend(c.scores, _not_causal(c) & _visited(c), c.v),
    )
    yield SuspectedBug(
        FindingCode.CAUSAL_MASK,
        "a causal mask the wrong way round (key ≥ row)",
        look_at,
        lambda c: c.attend(c.scores, _not_causal(c) & (c.keys >= c.positions), c.v),
    )
    yield from _wrong_mask_row_or_key(case)
    yield from _early_loop_ends(case)
    if case.own.kv_offset:
        yield from _wrong_diagonals(case)


def _wrong_mask_row_or_key(case: Case) -> Iterator[SuspectedBug]:
    """Yield causal masks computed for the wrong row or key, such as by a wrong lane index."""
    m, n, group = case.tiles.block_m, case.tiles.block_n, case.problem.head_group
    head = case.slice_index % case.problem.num_heads % group
    rows: list[tuple[str, Callable[[IntArray], IntArray]]] = [
        ("the upper of two rows 8 apart for both", lambda i: i & ~8),
        ("the lower of two rows 8 apart for both", lambda i: i | 8),
        ("the first row of the query tile for all of it", lambda i: i // m * m),
    ]
    for count, whose in ((16, "warp"), (64, "warpgroup")):
        if m > count:
            rows.append(
                (
                    f"the first {count} rows of the query tile, those of one {whose}, for all",
                    partial(_within, m, count),
                )
            )
    if case.tiles.num_query_tiles > 1:
        rows.append(("its index within the query tile", lambda i: i % m))
    if group > 1:
        rows += [
            ("the packed row, query × heads of a group + head", lambda i: i * group + head),
            ("the head within its group", lambda i: 0 * i + head),
        ]
    look_at = "look at the query row in the comparison of the causal mask: "
    for which, row_of in rows:
        yield SuspectedBug(
            FindingCode.CAUSAL_MASK,
            f"a causal mask of a wrong row, {which}",
            look_at + "the rows of lanes, warps and warpgroups add up to it",
            partial(_masked_by, row_of, lambda j: j),
        )
    keys: list[tuple[str, Callable[[IntArray], IntArray]]] = [
        ("the first of two neighbouring keys for both", lambda j: j & ~1),
        ("the second of two neighbouring keys for both", lambda j: j | 1),
        ("the first of eight keys for all of them", lambda j: j & ~7),
        ("its index within the key tile", lambda j: j % n),
        ("the first key of the tile for all of it", lambda j: j // n * n),
    ]
    for which, key_of in keys:
        yield SuspectedBug(
            FindingCode.CAUSAL_MASK,
            f"a causal mask of a wrong key, {which}",
            "look at the key in the comparison of the causal mask",
            partial(_masked_by, lambda i: i, key_of),
        )


def _within(block_m: int, count: int, rows: IntArray) -> IntArray:
    return np.asarray(rows // block_m * block_m + rows % count)


def _masked_by(
    row_of: Callable[[IntArray], IntArray], key_of: Callable[[IntArray], IntArray], case: Case
) -> Float64Array:
    visible = key_of(case.keys) <= row_of(case.rows)[:, None] + case.own.kv_offset
    return case.attend(case.scores, visible & _not_causal(case) & _visited(case), case.v)


def _early_loop_ends(case: Case) -> Iterator[SuspectedBug]:
    """Yield key loops that end too early for the last row of the query tile."""
    m, n = case.tiles.block_m, case.tiles.block_n
    for what, end_of in (
        ("the first row of the query tile", lambda i: i // m * m),
        ("the middle row of the query tile", lambda i: i // m * m + m // 2),
        ("the last row of the query tile minus a key tile", lambda i: (i // m + 1) * m - n),
    ):
        for name, unit in (("", 1), (", rounded up to whole key tiles", n)):
            yield SuspectedBug(
                FindingCode.CAUSAL_MASK,
                f"a causal key loop that ends with {what}{name}, so that visible keys are left out",
                "look at the upper bound of the key loop of a causal query tile",
                partial(_ended, end_of, unit),
            )


def _ended(end_of: Callable[[IntArray], IntArray], unit: int, case: Case) -> Float64Array:
    end = -(-(end_of(case.rows) + case.own.kv_offset) // unit) * unit
    return case.attend(case.scores, case.visible & (case.keys < end[:, None]), case.v)


def _wrong_diagonals(case: Case) -> Iterator[SuspectedBug]:
    """Yield diagonals that start in the wrong corner; none if seqlen equals seqlen_kv."""
    look_at = "look at where KV − S, the keys before the first query, is added in the mask"
    for corner, offset in (
        ("the upper left corner, key ≤ row", 0),
        ("key ≤ row + KV instead of row + KV − S", case.own.num_keys),
        ("key ≤ row + twice KV − S", 2 * case.own.kv_offset),
        ("key ≤ row + S − KV, with the wrong sign", -case.own.kv_offset),
    ):
        yield SuspectedBug(
            FindingCode.CAUSAL_CORNER,
            f"a causal mask whose diagonal starts in the wrong place: {corner}",
            look_at,
            partial(_shifted, offset - case.own.kv_offset, False),
        )


def _not_causal(case: Case) -> BoolArray:
    """Return the mask without its causal part: only the window and the end of the sequence."""
    return visible_keys(replace(case.own, causal=False), case.rows, case.keys)


def _visited(case: Case) -> BoolArray:
    """Return the mask of keys in tiles that a causal kernel visits for each row's query tile."""
    tiles = case.tiles
    last_query = (case.rows // tiles.block_m + 1) * tiles.block_m + case.own.kv_offset
    end = -(-last_query // tiles.block_n) * tiles.block_n
    return case.keys < end[:, None]


def _shifted(by: int, visited_only: bool, case: Case) -> Float64Array:
    visible = _not_causal(case) & (case.keys <= case.positions + by)
    return case.attend(case.scores, visible & _visited(case) if visited_only else visible, case.v)


def _first_keys(count: int, case: Case) -> Float64Array:
    return case.attend(case.scores, case.visible & (case.keys < count), case.v)


def _past_the_end(case: Case) -> Float64Array | None:
    """Return attention whose last key tile includes the rows that follow: the next head's."""
    problem, padding = case.problem, case.tiles.padding
    begin = (case.kv_slice_index + 1) * problem.num_keys
    rows = problem.batch * problem.kv_heads * problem.num_keys
    if begin + padding > rows:
        return None
    k, v = (
        decode(x.reshape(rows, problem.head_dim)[begin : begin + padding], problem.dtype)
        for x in (case.inputs.k, case.inputs.v)
    )
    scores = case.scored(case.q[case.rows], np.concatenate([case.k, k.astype(np.float64)]))
    return case.attend(scores, np.ones(scores.shape, bool), np.concatenate([case.v, v]))
