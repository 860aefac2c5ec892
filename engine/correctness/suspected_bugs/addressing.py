"""Bugs in the addressing: a wrong query row, another head's data, a wrong stride."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np

from engine.correctness.reference import Float64Array, IntArray
from engine.correctness.suspected_bugs.bug import SuspectedBug
from engine.correctness.suspected_bugs.case import Case, attend
from engine.tensors import RawArray, decode

# Heads on either side that a wrong offset is looked for in.
_NEAR_HEADS = 4

# Which query row a row's scores are really computed with, given the key's split: `[R, splits]`.
QueryMap = Callable[[IntArray, IntArray], IntArray]
# (batch, head) → the slice index that is read.
HeadMap = Callable[[int, int], int]
# (case, elements of one head of the operand) → the element from which on the operand is read.
BaseMap = Callable[[Case, int], int]


def addressing_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Wrong query rows first, then heads and strides."""
    if case.problem.seqlen > 1:
        yield from _queries(case)
    if case.problem.batch * case.problem.num_heads > 1:
        yield from _lengths(case)
        yield from _heads(case)
    yield from _offsets(case)


def _queries(case: Case) -> Iterator[SuspectedBug]:
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
    if tiles.num_chunks > 1:
        maps += [
            ("query tile s, s being the split", lambda i, s: s * m + i % m),
            ("the query tile s further on, s being the split", lambda i, s: i + s * m),
            ("the row s further on, s being the split", lambda i, s: i + s),
            ("the rows of the split's own keys", lambda i, s: s * tiles.chunk_rows + i % m),
            (
                "the tile that counts splits and query tiles together",
                lambda i, s: (i // m * n + s) * m + i % m,
            ),
            ("the query tile times the splits", lambda i, s: i // m * n * m + i % m + 0 * s),
        ]
    for name, query_of in maps:
        for own_mask in (True, False) if case.problem.causal else (True,):
            yield SuspectedBug(
                "query_index",
                f"a wrong query index{split_pass}, Q being read from {name}",
                f"look at the query row that Q is loaded from{split_pass}",
                partial(_wrong_query, query_of, own_mask),
            )


def _wrong_query(query_of: QueryMap, own_mask: bool, case: Case) -> Float64Array:
    """Scores with the mapped query rows; rows past the end read as zeros, as loads guard them."""
    seqlen = case.problem.seqlen
    split_of_key = case.keys // case.tiles.chunk_rows
    scores = np.empty_like(case.scores)
    visible = case.visible.copy()
    for split in range(case.tiles.num_chunks):
        keys = np.flatnonzero(split_of_key == split)
        mapped = query_of(case.rows, np.array(split))
        inside = (mapped >= 0) & (mapped < seqlen)
        q = np.where(inside[:, None], case.q[np.clip(mapped, 0, seqlen - 1)], 0.0)
        scores[:, keys] = case.problem.softmax_scale * q @ case.k[keys].T
        if not own_mask:
            visible[:, keys] = keys <= mapped[:, None]
    return attend(scores, visible, case.v)


def _lengths(case: Case) -> Iterator[SuspectedBug]:
    """With other keys than queries: one's stride used for the other."""
    p = case.problem
    by = (p.num_keys - p.seqlen) * p.head_dim
    if by:
        of_q, of_kv = "the head stride of Q, seqlen rows", "the head stride of K, seqlen_kv rows"
        yield from _elsewhere(f"with {of_q}", partial(_strided, -by), ("kv", "k", "v"))
        yield from _elsewhere(f"with {of_kv}", partial(_strided, by), ("q",))


def _heads(case: Case) -> Iterator[SuspectedBug]:
    """Some of Q, K and V read at another (batch, head)."""
    num_heads, batches = case.problem.num_heads, case.problem.batch
    places: list[tuple[str, HeadMap]] = [
        ("with an offset that leaves out the batch", lambda _, h: h),
        ("with an offset that leaves out the head", lambda b, _: b * num_heads),
        ("with the offset (batch + head) · seqlen · D, without num_heads", lambda b, h: b + h),
        (
            "with an offset that has batch and head in each other's place",
            lambda b, h: h * batches + b,
        ),
        ("where the first head of the first batch begins", lambda _b, _h: 0),
        ("where the last head of the last batch begins", lambda _b, _h: batches * num_heads - 1),
    ]
    for distance in range(1, _NEAR_HEADS + 1):
        heads = "one head" if distance == 1 else f"{distance} heads"
        for step, word in ((distance, "further on"), (-distance, "before")):
            places.append((f"from {heads} {word}", partial(_head_at_distance, num_heads, step)))
    for where, head_of in places:
        yield from _elsewhere(where, partial(_head_base, head_of))


def _offsets(case: Case) -> Iterator[SuspectedBug]:
    """Strides between heads that are a little off, and slices moved by a row or a tile."""
    p, tiles = case.problem, case.tiles
    strides = [("of whole key tiles", tiles.padding * p.head_dim)]
    for by, unit in ((p.head_dim, "one row"), (1, "one element"), (8, "8 elements")):
        strides += [(f"{unit} too large", by), (f"{unit} too small", -by)]
    for what, by in strides:
        if by and p.batch * p.num_heads > 1:
            yield from _elsewhere(f"with a head stride {what}", partial(_strided, by))
    for rows, name in ((1, "one row"), (tiles.block_n, "one key tile")):
        for step, word in ((rows, "too far on"), (-rows, "too early")):
            yield from _elsewhere(f"{name} {word}", partial(_moved, step * p.head_dim))


def _head_at_distance(num_heads: int, step: int, batch: int, head: int) -> int:
    return batch * num_heads + head + step


def _head_base(head_of: HeadMap, case: Case, size: int) -> int:
    return head_of(*case.batch_head) * size


def _strided(by: int, case: Case, size: int) -> int:
    return case.slice_index * (size + by)


def _moved(by: int, case: Case, size: int) -> int:
    return case.slice_index * size + by


def _elsewhere(
    where: str, base_of: BaseMap, choices: Iterable[str] = ("k", "v", "kv", "q", "qkv")
) -> Iterator[SuspectedBug]:
    for operands in choices:
        names = " and ".join(operands.upper()) if len(operands) < 3 else "Q, K and V"
        yield SuspectedBug(
            "head_stride",
            f"{names} of a head read {where}",
            f"look at how the address of {names} is made from batch, head and stride",
            partial(_read_at, base_of, operands),
        )


def _read_at(base_of: BaseMap, operands: str, case: Case) -> Float64Array | None:
    """Attention with some operands read from another element on; None where that lies outside."""
    read = []
    for name, raw, own in (
        ("q", case.inputs.q, case.q),
        ("k", case.inputs.k, case.k),
        ("v", case.inputs.v, case.v),
    ):
        if name not in operands:
            read.append(own)
            continue
        base = base_of(case, own.size)
        if not 0 <= base <= raw.size - own.size:
            return None
        read.append(_segment(raw, base, own, case))
    q, k, v = read
    return attend(case.problem.softmax_scale * q[case.rows] @ k.T, case.visible, v)


def _segment(raw: RawArray, base: int, own: Float64Array, case: Case) -> Float64Array:
    """As many elements as `own`, in its shape."""
    flat = raw.reshape(-1)[base : base + own.size]
    return decode(flat, case.problem.dtype).astype(np.float64).reshape(own.shape)
