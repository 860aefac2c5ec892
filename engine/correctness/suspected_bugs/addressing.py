"""Addressing bugs: a wrong query row, another head's data, a wrong stride, a wrong page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.attention.paged_kv import Pages
from engine.attention.tensors import RawArray, decode
from engine.correctness.findings import FindingCode
from engine.correctness.reference import Float64Array, IntArray, visible_keys
from engine.correctness.suspected_bugs.case import Case, SuspectedBug

# Wrong head offsets are tried up to this distance on either side.
_NEAR_HEADS = 4

# (query row, split of the key) → query row that the bug reads instead, `[R, splits]`.
QueryMap = Callable[[IntArray, IntArray], IntArray]
# (operand, batch, head) → slice index that the bug reads instead.
HeadMap = Callable[["Operand", int, int], int]
# operand → index of the first element that the bug reads.
BaseMap = Callable[["Operand"], int]
# (case, batch, query head) → slice index of K and V that the bug reads.
KvMap = Callable[[Case, int, int], int]


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """Q, K or V as a correct kernel reads it for the head of a case."""

    case: Case
    raw: RawArray
    own: Float64Array  # [rows, head_dim]
    slice_index: int  # batch · num_heads + head
    num_heads: int  # of this tensor: K and V may have fewer than Q


def addressing_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield suspected addressing bugs: wrong query rows first, then heads and strides."""
    if case.problem.seqlen > 1:
        yield from _wrong_query_rows(case)
    if case.problem.batch * case.problem.num_heads > 1:
        if case.problem.head_group > 1:
            yield from _wrong_kv_heads()
        yield from _wrong_length_strides(case)
        yield from _wrong_heads()
    yield from _wrong_strides(case)
    yield from _zero_filled(case)
    yield from _wrong_key_tiles(case)
    yield from _wrong_tensors(case)


def _wrong_query_rows(case: Case) -> Iterator[SuspectedBug]:
    tiles = case.tiles
    m, n = tiles.block_m, tiles.num_splits
    split_pass = " in the KV-split partial pass" if tiles.num_chunks > 1 else ""
    maps: list[tuple[str, QueryMap]] = [
        ("the next row", lambda i, s: i + 1 + 0 * s),
        ("the previous row", lambda i, s: i - 1 + 0 * s),
    ]
    if tiles.num_query_tiles > 1:
        maps += [
            ("the first query tile for every tile", lambda i, s: i % m + 0 * s),
            ("the next query tile", lambda i, s: i + m + 0 * s),
            ("the previous query tile", lambda i, s: i - m + 0 * s),
        ]
    for count in (64, 32, 16, 8):
        if count < m:
            maps.append(
                (
                    f"the first {count} rows of the query tile again and again",
                    partial(_first_of_tile, m, count),
                )
            )
    if tiles.num_chunks > 1:
        maps += [
            ("query tile s, where s is the split", lambda i, s: s * m + i % m),
            ("the query tile s tiles later, where s is the split", lambda i, s: i + s * m),
            ("the row s rows later, where s is the split", lambda i, s: i + s),
            ("the rows of the split's own keys", lambda i, s: s * tiles.chunk_rows + i % m),
            (
                "the tile with the joint index of query tile and split",
                lambda i, s: (i // m * n + s) * m + i % m,
            ),
            ("the query tile × number of splits", lambda i, s: i // m * n * m + i % m + 0 * s),
        ]
    for name, query_of in maps:
        for own_mask in (True, False) if case.problem.causal else (True,):
            yield SuspectedBug(
                FindingCode.QUERY_INDEX,
                f"a wrong query index{split_pass}: Q is read from {name}",
                f"look at the query row from which Q is loaded{split_pass}",
                partial(_wrong_query, query_of, own_mask),
            )


def _first_of_tile(block_m: int, count: int, rows: IntArray, split: IntArray) -> IntArray:
    return np.asarray(rows // block_m * block_m + rows % count + 0 * split)


def _wrong_query(query_of: QueryMap, own_mask: bool, case: Case) -> Float64Array:
    """Return attention with Q read from the mapped rows.

    Rows past the end are zeros, because kernels guard these loads.
    """
    seqlen = case.problem.seqlen
    split_of_key = case.keys // case.tiles.chunk_rows
    scores = np.empty_like(case.scores)
    visible = case.visible.copy()
    for split in range(case.tiles.num_chunks):
        keys = np.flatnonzero(split_of_key == split)
        mapped = query_of(case.rows, np.array(split))
        inside = (mapped >= 0) & (mapped < seqlen)
        q = np.where(inside[:, None], case.q[np.clip(mapped, 0, seqlen - 1)], 0.0)
        scores[:, keys] = case.scored(q, case.k)[:, keys]
        if not own_mask:
            visible[:, keys] = visible_keys(case.own, mapped, keys)
    return case.attend(scores, visible, case.v)


def _wrong_length_strides(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs that use seqlen in a stride instead of seqlen_kv, or the reverse."""
    p = case.problem
    by = (p.num_keys - p.seqlen) * p.head_dim
    if by:
        of_q, of_kv = "the head stride of Q, seqlen rows", "the head stride of K, seqlen_kv rows"
        yield from _read_from_wrong_offset(f"with {of_q}", partial(_strided, -by), ("kv", "k", "v"))
        yield from _read_from_wrong_offset(f"with {of_kv}", partial(_strided, by), ("q",))


def _wrong_heads() -> Iterator[SuspectedBug]:
    """Yield bugs that read some of Q, K and V at another (batch, head)."""
    places: list[tuple[str, HeadMap]] = [
        ("at an offset that leaves out the batch", lambda _, _b, h: h),
        ("at an offset that leaves out the head", lambda x, b, _h: b * x.num_heads),
        ("at the offset (batch + head) · seqlen · D, without num_heads", lambda _, b, h: b + h),
        (
            "at an offset with batch and head in each other's place",
            lambda x, b, h: h * x.case.problem.batch + b,
        ),
        ("where the first head of the first batch begins", lambda _x, _b, _h: 0),
        (
            "where the last head of the last batch begins",
            lambda x, _b, _h: x.case.problem.batch * x.num_heads - 1,
        ),
    ]
    for distance in range(1, _NEAR_HEADS + 1):
        heads = "one head" if distance == 1 else f"{distance} heads"
        for step, word in ((distance, "later"), (-distance, "before")):
            places.append((f"from {heads} {word}", partial(_head_at_distance, step)))
    for where, head_of in places:
        yield from _read_from_wrong_offset(where, partial(_head_base, head_of))


def _wrong_strides(case: Case) -> Iterator[SuspectedBug]:
    """Yield slightly wrong strides between heads, and slices shifted by a row or a tile."""
    p, tiles = case.problem, case.tiles
    strides = [("of whole key tiles", tiles.padding * p.head_dim)]
    for by, unit in ((p.head_dim, "one row"), (1, "one element"), (8, "8 elements")):
        strides += [(f"{unit} too large", by), (f"{unit} too small", -by)]
    for what, by in strides:
        if by and p.batch * p.num_heads > 1:
            yield from _read_from_wrong_offset(f"with a head stride {what}", partial(_strided, by))
    for rows, name in ((1, "one row"), (tiles.block_n, "one key tile")):
        for step, word in ((rows, "too far on"), (-rows, "too early")):
            yield from _read_from_wrong_offset(f"{name} {word}", partial(_moved, step * p.head_dim))


def _zero_filled(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs that read K and V shifted by rows, with zeros outside the head, as TMA does."""
    for operands in ("kv", "k", "v"):
        names = " and ".join(operands.upper())
        for rows, name in ((1, "one row"), (case.tiles.block_n, "one key tile")):
            for step, word in ((rows, "too far on"), (-rows, "too early")):
                yield SuspectedBug(
                    FindingCode.HEAD_STRIDE,
                    f"{names} of a head read {name} {word}, with zeros outside the head",
                    f"look at the row from which {names} is copied: a TMA coordinate, or the index "
                    "of a guarded load",
                    partial(_read_shifted, operands, step),
                )


def _wrong_key_tiles(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs that read other key tiles: a wrong pipeline stage, page or counter."""
    tiles = case.tiles
    total = tiles.num_key_tiles
    if tiles.num_chunks > 1 and tiles.chunk_rows % tiles.block_n:
        for operands in ("v", "k"):
            yield SuspectedBug(
                FindingCode.KEY_TILE,
                f"{operands.upper()} read from the keys of the first {tiles.chunk_name} in all",
                f"look at how the first key of a {tiles.chunk_name} enters the address of "
                f"{operands.upper()}",
                partial(_with_rows, operands, case.keys % tiles.chunk_rows),
            )
    if total < 2:
        return
    warps = tiles.threads // 32
    in_chunk = max(1, tiles.chunk_rows // tiles.block_n)
    maps: list[tuple[str, Callable[[IntArray], IntArray]]] = [
        ("the first key tile every time", lambda t: 0 * t),
        ("the key tile before", lambda t: np.maximum(t - 1, 0)),
        ("the key tile behind", lambda t: np.minimum(t + 1, total - 1)),
        ("the first of each two key tiles for both", lambda t: t // 2 * 2),
        ("every second key tile, also for the one before it", lambda t: t | 1),
        ("only the first two key tiles, alternating", lambda t: t % 2),
        ("only the first three key tiles, in turn", lambda t: t % 3),
        ("the key tile with twice the index", lambda t: 2 * t),
        ("the key tile with half the index", lambda t: t // 2),
        ("the last key tiles first", lambda t: total - 1 - t),
    ]
    if tiles.num_chunks > 1:
        maps += [
            (f"the key tiles of the first {tiles.chunk_name} in all", lambda t: t % in_chunk),
            (
                f"the first key tile of its {tiles.chunk_name} every time",
                lambda t: t // in_chunk * in_chunk,
            ),
        ]
    if 1 < warps < total:
        maps.append(
            (
                "the key tile of the CTA's first warp for all warps",
                lambda t: t - t % in_chunk % warps,
            )
        )
    for operands in ("v", "k", "kv"):
        names = " and ".join(operands.upper())
        for which, tile_of in maps:
            yield SuspectedBug(
                FindingCode.KEY_TILE,
                f"{names} read from another key tile: {which}",
                f"look at the pipeline stage, page or row to which {names} of a key tile is copied "
                "and from which it is read",
                partial(_with_key_tiles, operands, tile_of),
            )


def _with_key_tiles(
    operands: str, tile_of: Callable[[IntArray], IntArray], case: Case
) -> Float64Array:
    """Return attention with K or V read from the mapped key tiles, and zeros past the last key."""
    block_n = case.tiles.block_n
    rows = tile_of(case.keys // block_n) * block_n + case.keys % block_n
    return _with_rows(operands, rows, case)


def _with_rows(operands: str, rows: IntArray, case: Case) -> Float64Array:
    """Return attention with K or V read from other rows, and zeros past the last key."""
    count = case.problem.num_keys
    inside = (rows < count)[:, None]
    k, v = (
        np.where(inside, x[np.minimum(rows, count - 1)], 0.0) if name in operands else x
        for name, x in (("k", case.k), ("v", case.v))
    )
    return case.attend(case.scored(case.q[case.rows], k), case.visible, v)


def _read_shifted(operands: str, by: int, case: Case) -> Float64Array | None:
    count = case.problem.num_keys
    if abs(by) >= count:
        return None
    rows = case.keys + by
    inside = ((rows >= 0) & (rows < count))[:, None]
    k, v = (
        np.where(inside, x[np.clip(rows, 0, count - 1)], 0.0) if name in operands else x
        for name, x in (("k", case.k), ("v", case.v))
    )
    return case.attend(case.scored(case.q[case.rows], k), case.visible, v)


def _wrong_kv_heads() -> Iterator[SuspectedBug]:
    """Yield wrong maps from query heads to K/V heads in grouped-query attention."""
    maps: list[tuple[str, KvMap]] = [
        # First, because it stays in bounds for every head; the others may not.
        (
            "by head % num_heads_kv instead of head / (num_heads / num_heads_kv)",
            lambda c, b, h: b * c.problem.kv_heads + h % c.problem.kv_heads,
        ),
        (
            "by the query head, as if each had one of its own",
            lambda c, b, h: b * c.problem.num_heads + h,
        ),
        (
            "with a batch stride of num_heads heads instead of the num_heads_kv of K and V",
            lambda c, b, h: b * c.problem.num_heads + h // c.problem.head_group,
        ),
    ]
    for where, kv_slice_of in maps:
        yield from _read_from_wrong_offset(where, partial(_kv_base, kv_slice_of), ("kv", "k", "v"))


def _kv_base(kv_slice_of: KvMap, operand: Operand) -> int:
    case = operand.case
    batch, head = divmod(case.slice_index, case.problem.num_heads)
    return kv_slice_of(case, batch, head) * operand.own.size


def _wrong_tensors(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs that read one tensor instead of another, such as K instead of V."""
    names = "kvq" if case.problem.num_keys == case.problem.seqlen else "kv"
    for operand in names:
        for source in names:
            if operand != source:
                yield SuspectedBug(
                    FindingCode.OPERAND,
                    f"{source.upper()} in {operand.upper()}'s place",
                    f"look at the pointer from which {operand.upper()} is loaded",
                    partial(_replaced, operand, source),
                )


def _replaced(operand: str, source: str, case: Case) -> Float64Array:
    tensors = {"q": case.q, "k": case.k, "v": case.v}
    tensors[operand] = tensors[source]
    scores = case.scored(tensors["q"][case.rows], tensors["k"])
    return case.attend(scores, case.visible, tensors["v"])


def _head_at_distance(step: int, operand: Operand, batch: int, head: int) -> int:
    return batch * operand.num_heads + head + step


def _head_base(head_of: HeadMap, operand: Operand) -> int:
    batch, head = divmod(operand.slice_index, operand.num_heads)
    return head_of(operand, batch, head) * operand.own.size


def _strided(by: int, operand: Operand) -> int:
    return operand.slice_index * (operand.own.size + by)


def _moved(by: int, operand: Operand) -> int:
    return operand.slice_index * operand.own.size + by


def _read_from_wrong_offset(
    where: str, base_of: BaseMap, choices: Iterable[str] = ("k", "v", "kv", "q", "qkv")
) -> Iterator[SuspectedBug]:
    for operands in choices:
        names = " and ".join(operands.upper()) if len(operands) < 3 else "Q, K and V"
        yield SuspectedBug(
            FindingCode.HEAD_STRIDE,
            f"{names} of a head read {where}",
            f"look at how the address of {names} is computed from batch, head and stride",
            partial(_read_at, base_of, operands),
        )


def _read_at(base_of: BaseMap, operands: str, case: Case) -> Float64Array | None:
    """Return attention with operands read at another offset; None if that is out of bounds."""
    p, of_kv = case.problem, case.kv_slice_index
    read = []
    for name, operand in (
        ("q", Operand(case, case.inputs.q, case.q, case.slice_index, p.num_heads)),
        ("k", Operand(case, case.inputs.k, case.k, of_kv, p.kv_heads)),
        ("v", Operand(case, case.inputs.v, case.v, of_kv, p.kv_heads)),
    ):
        if name not in operands:
            read.append(operand.own)
            continue
        base = base_of(operand)
        if not 0 <= base <= operand.raw.size - operand.own.size:
            return None
        read.append(_segment(operand.raw, base, operand.own, case))
    q, k, v = read
    return case.attend(case.scored(q[case.rows], k), case.visible, v)


def _segment(raw: RawArray, base: int, own: Float64Array, case: Case) -> Float64Array:
    """Return the elements of `raw` from `base` on, in the shape of `own`; None if out of bounds."""
    flat = raw.reshape(-1)[base : base + own.size]
    return decode(flat, case.problem.dtype).astype(np.float64).reshape(own.shape)


# Bugs of paged K and V: a wrong page or wrong rows of a page.


@dataclass(frozen=True, slots=True, eq=False)
class _Reads:
    """Where a correct kernel reads each key of a head: page and row."""

    pages: Pages
    batch: int
    keys: IntArray  # [num_keys]
    tile_rows: int

    @property
    def of_table(self) -> IntArray:
        """Return the index of each key's page in the sequence's block table."""
        return self.keys // self.pages.rows

    @property
    def row(self) -> IntArray:
        """Return the row of each key within its page."""
        return self.keys % self.pages.rows

    def looked_up(self, batch: int | IntArray, entry: IntArray) -> IntArray:
        """Return the pages of block-table entries; −1 where the table has no such entry.

        An index past a sequence's entries gives those of the next sequence, as in memory.
        """
        table = self.pages.table().reshape(-1)
        at = batch * self.pages.per_sequence + entry
        inside = (at >= 0) & (at < table.size)
        return np.where(inside, table[np.clip(at, 0, table.size - 1)], -1)


# → (page, row within it) that the bug reads for each key.
PageMap = Callable[[_Reads], tuple[IntArray, IntArray]]

_MAPS: tuple[tuple[str, PageMap], ...] = (
    ("from the next page", lambda r: (r.looked_up(r.batch, r.of_table + 1), r.row)),
    ("from the previous page", lambda r: (r.looked_up(r.batch, r.of_table - 1), r.row)),
    (
        "through the block table of the first sequence",
        lambda r: (r.looked_up(0, r.of_table), r.row),
    ),
    (
        "through a block table whose stride between sequences is one entry too small",
        lambda r: (r.looked_up(r.batch, r.of_table - r.batch), r.row),
    ),
    (
        "from the first rows of their page for every tile",
        lambda r: (r.looked_up(r.batch, r.of_table), r.row % r.tile_rows),
    ),
    (
        "from pages in consecutive order, without the block table",
        lambda r: (r.batch * r.pages.per_sequence + r.of_table, r.row),
    ),
    (
        "from the pages of the pool with the sequence's page indices, without the block table",
        lambda r: (r.of_table, r.row),
    ),
    (
        "with the index of the key tile as index into the block table, instead of the page's",
        lambda r: (r.looked_up(r.batch, r.keys // r.tile_rows), r.row),
    ),
    (
        "with the index of the tile within its page as index into the block table",
        lambda r: (r.looked_up(r.batch, r.row // r.tile_rows), r.row),
    ),
    ("from the page of the first key", lambda r: (r.looked_up(r.batch, 0 * r.keys), r.row)),
    ("from page 0 of the pool", lambda r: (0 * r.keys, r.row)),
)


def page_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs that read K and V, or one of them, from wrong pages or rows of the pool."""
    if not case.tiles.page_rows:
        return
    for operands in ("kv", "k", "v"):
        names = " and ".join(operands.upper())
        for where, read in _MAPS:
            yield SuspectedBug(
                FindingCode.PAGES,
                f"wrong pages: {names} read {where}",
                "look at the index into block_table, and at the row within the page",
                partial(_read_from, read, operands),
            )


def _read_from(read: PageMap, operands: str, case: Case) -> Float64Array | None:
    """Return attention with keys at the mapped pages and rows.

    None if an unused page is read, because such pages hold NaN.
    """
    problem = case.problem
    pages = Pages(problem, case.tiles.page_rows)
    batch, head = divmod(case.kv_slice_index, problem.kv_heads)
    page, row = read(_Reads(pages, batch, case.keys, case.tiles.block_n))
    owner = np.full(pages.count, -1)
    owner[pages.table().reshape(-1)] = np.arange(pages.table().size)
    entry = np.where(
        (page >= 0) & (page < pages.count), owner[np.clip(page, 0, len(owner) - 1)], -1
    )
    key = entry % pages.per_sequence * pages.rows + row
    if (entry < 0).any() or (key >= problem.num_keys).any():
        return None
    tensors = {"k": case.k, "v": case.v}
    for name in operands:
        raw = getattr(case.inputs, name)[entry // pages.per_sequence, head, key]
        tensors[name] = decode(raw, problem.dtype).astype(np.float64)
    scores = case.scored(case.q[case.rows], tensors["k"])
    return case.attend(scores, case.visible, tensors["v"])
