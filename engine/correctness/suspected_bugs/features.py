"""Bugs in features beyond plain attention: window, softcap, ALiBi, sinks, sequence lengths, FP8."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from engine.attention.tensors import FloatArray
from engine.correctness.findings import FindingCode
from engine.correctness.reference import (
    BoolArray,
    Float64Array,
    IntArray,
    final_scores,
    visible_keys,
)
from engine.correctness.suspected_bugs.case import Case, SuspectedBug, attend

_LARGEST = 80.0  # exp of more is infinite in float32


def feature_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield suspected bugs in the features of the problem; none for plain attention."""
    if case.problem.window is not None:
        yield from _window(case.problem.window)
    if case.problem.softcap is not None:
        yield from _softcap(case.problem.softcap)
    if case.problem.alibi:
        yield from _alibi(case)
    if case.inputs.sinks is not None:
        yield from _sinks(case)
    if case.inputs.kv_scales is not None:
        yield from _fp8()
    if case.problem.seqlens is not None:
        yield from _lengths(case.problem.seqlens)


def _window(window: int) -> Iterator[SuspectedBug]:
    look_at = "look at the comparison of key and position for the window"
    for by, what in (
        (1, "|p − j| ≤ window: each row sees one key too many at its edge"),
        (-1, "|p − j| < window − 1: each row misses the last key of its window"),
    ):
        if window + by > 0:
            yield SuspectedBug(
                FindingCode.WINDOW,
                f"a window off by one, {what}",
                look_at,
                partial(_with_window, window + by),
            )
    yield SuspectedBug(
        FindingCode.WINDOW,
        "attention without the window",
        "look at WINDOW and the mask",
        partial(_with_window, None),
    )
    yield SuspectedBug(
        FindingCode.WINDOW,
        "a window by whole key tiles only, missing inside the first tile that a query tile visits",
        "look at the mask of the first visited key tile",
        lambda c: c.attend(c.scores, _from_first_tile(c), c.v),
    )
    yield SuspectedBug(
        FindingCode.WINDOW,
        "a window around the query row, without adding KV − S for the position",
        look_at,
        partial(_with_position_offset, 0),
    )
    yield SuspectedBug(
        FindingCode.WINDOW,
        "a window that is open on its left side",
        look_at,
        lambda c: c.attend(c.scores, _one_sided(c, left=False), c.v),
    )
    yield SuspectedBug(
        FindingCode.WINDOW,
        "a window that is open on its right side",
        look_at,
        lambda c: c.attend(c.scores, _one_sided(c, left=True), c.v),
    )
    for what, mask in (
        ("a window that is open on its right side within the visited tiles", _open_ahead),
        ("a window off by one only on its right side, |p − j| ≤ window there", _one_more_ahead),
        ("a window of only the keys after the row, without those before it", _only_keys_after),
        ("a window that starts at the query tile, without the keys before it", _from_query_tile),
        ("a window that is not masked in tiles before the diagonal", _masked_on_diagonal_only),
    ):
        yield SuspectedBug(FindingCode.WINDOW, what, look_at, partial(_under, mask))
    if window > 3:
        half = "a window of half its width"
        yield SuspectedBug(FindingCode.WINDOW, half, look_at, partial(_with_window, window // 2))


def _under(mask: Callable[[Case], BoolArray], case: Case) -> Float64Array:
    return case.attend(case.scores, mask(case), case.v)


def _tile_starts(case: Case) -> IntArray:
    """Return the key position of the first row of each row's query tile, `[R, 1]`."""
    block_m = case.tiles.block_m
    return (case.rows // block_m * block_m + case.own.kv_offset)[:, None]


def _open_ahead(case: Case) -> BoolArray:
    end = _tile_starts(case) + case.tiles.block_m - 1 + (case.problem.window or 0)
    visited = case.keys < -(-end // case.tiles.block_n) * case.tiles.block_n
    return _one_sided(case, left=True) & visited


def _one_more_ahead(case: Case) -> BoolArray:
    ahead: BoolArray = case.keys - case.positions == (case.problem.window or 0)
    return case.visible | (_open(case) & ahead)


def _only_keys_after(case: Case) -> BoolArray:
    return case.visible & (case.keys > case.positions)


def _from_query_tile(case: Case) -> BoolArray:
    first = _tile_starts(case) // case.tiles.block_n * case.tiles.block_n
    return case.visible & (case.keys >= first)


def _masked_on_diagonal_only(case: Case) -> BoolArray:
    tile_end = (case.keys // case.tiles.block_n + 1) * case.tiles.block_n
    whole: BoolArray = tile_end <= _tile_starts(case) + 1
    return case.visible | (_from_first_tile(case) & whole)


def _with_window(window: int | None, case: Case) -> Float64Array:
    other = replace(case.own, window=window)
    return case.attend(case.scores, visible_keys(other, case.rows, case.keys), case.v)


def _open(case: Case) -> BoolArray:
    """Return the mask without the window."""
    return visible_keys(replace(case.own, window=None), case.rows, case.keys)


def _from_first_tile(case: Case) -> BoolArray:
    tiles = case.tiles
    m0 = case.rows // tiles.block_m * tiles.block_m
    first = np.array([case.own.keys_seen(int(row))[0] for row in m0])
    begin = first // tiles.block_n * tiles.block_n
    behind = case.keys - case.positions < (case.problem.window or 0)
    return _open(case) & behind & (case.keys >= begin[:, None])


def _with_position_offset(offset: int, case: Case) -> Float64Array | None:
    if case.own.kv_offset == offset:
        return None
    near = np.abs(case.rows[:, None] + offset - case.keys) < (case.problem.window or 0)
    return case.attend(case.scores, _open(case) & near, case.v)


def _one_sided(case: Case, *, left: bool) -> BoolArray:
    distance = case.positions - case.keys
    return _open(case) & ((distance if left else -distance) < (case.problem.window or 0))


# (scaled scores, softmax scale) → capped scores.
_Cap = Callable[[Float64Array, float], Float64Array]


def _softcap(softcap: float) -> Iterator[SuspectedBug]:
    look_at = "look at SOFTCAP, and at the computation of softcap · tanh(score / softcap)"
    choices: tuple[tuple[str, _Cap], ...] = (
        ("attention without the softcap", lambda s, _: s),
        (
            "a softcap of scores that are not scaled by 1/√D until after it",
            lambda s, scale: scale * softcap * np.tanh(s / scale / softcap),
        ),
        (
            "a softcap without the factor softcap, only tanh(score / softcap)",
            lambda s, _: np.asarray(np.tanh(s / softcap)),
        ),
        (
            "a softcap without the division by softcap, softcap · tanh(score)",
            lambda s, _: softcap * np.tanh(s),
        ),
        (
            "a softcap of scores that were already multiplied by log2(e)",
            lambda s, _: softcap * np.tanh(s / math.log(2) / softcap) * math.log(2),
        ),
        (
            "a softcap of scores that are not scaled by 1/√D",
            lambda s, scale: softcap * np.tanh(s / scale / softcap),
        ),
        (
            "a softcap whose tanh is computed from e^x instead of e^2x, thus of half the score",
            lambda s, _: softcap * np.tanh(0.5 * s / softcap),
        ),
        (
            "a softcap whose exponential is exp2 without the factor log2(e)",
            lambda s, _: softcap * np.tanh(s * math.log(2) / softcap),
        ),
        (
            "a softcap by the sigmoid, 1 − 1 / (1 + e^2x), instead of tanh, 1 − 2 / (1 + e^2x)",
            lambda s, _: 0.5 * softcap * (1 + np.tanh(s / softcap)),
        ),
        (
            "scores that are clamped at the softcap instead of capped by tanh",
            lambda s, _: np.asarray(np.clip(s, -softcap, softcap)),
        ),
    )
    for what, capped in choices:
        yield SuspectedBug(FindingCode.SOFTCAP, what, look_at, partial(_capped, capped))


def _capped(capped: _Cap, case: Case) -> Float64Array:
    plain = replace(case.own, softcap=None)
    scale = case.problem.softmax_scale
    scores = capped(scale * case.q[case.rows] @ case.k.T, scale)
    slope = case.slope()
    bias = None if slope is None else np.array(slope)
    scores = final_scores(plain, scores, case.rows, case.keys, bias)
    return case.attend(scores, case.visible, case.v)


# Wrong heads: description, and (head, group size) → head that the bug uses instead.
_HEADS: tuple[tuple[str, Callable[[int, int], int]], ...] = (
    ("the next head", lambda head, _: head + 1),
    ("the head before", lambda head, _: head - 1),
    ("head 0", lambda *_: 0),
    ("the K/V head", lambda head, group: head // group),
    ("the head's index in its group", lambda head, group: head % group),
)


def _alibi(case: Case) -> Iterator[SuspectedBug]:
    look_at = "look at the bias − slope · |p − j|, and at the factors of the score after it"
    for what, factor in (
        ("attention without ALiBi's bias", 0.0),
        ("ALiBi's bias with the wrong sign", -1.0),
        ("ALiBi's bias multiplied by the softmax scale", case.problem.softmax_scale),
        ("ALiBi's bias without the factor log2(e) for exp2", math.log(2)),
    ):
        yield SuspectedBug(FindingCode.ALIBI, what, look_at, partial(_biased, factor))
    for name, head_of in _HEADS:
        what = f"ALiBi with the slope of {name}"
        yield SuspectedBug(FindingCode.ALIBI, what, look_at, partial(_with_slope_of, head_of))
    yield SuspectedBug(
        FindingCode.ALIBI,
        "ALiBi's distance from the query row, without adding KV − S for the position",
        look_at,
        _biased_from_query_row,
    )
    for what, distance in (
        ("ALiBi's signed distance p − j, which raises the scores of later keys", _signed),
        ("ALiBi's bias with half the distance", _halved),
        ("ALiBi's distance from the first query of the tile", _from_first_query),
    ):
        yield SuspectedBug(FindingCode.ALIBI, what, look_at, partial(_with_distance, distance))


def _signed(case: Case) -> IntArray:
    return case.positions - case.keys


def _halved(case: Case) -> IntArray:
    halves: IntArray = np.abs(case.positions - case.keys) // 2
    return halves


def _from_first_query(case: Case) -> IntArray:
    distance: IntArray = np.abs(_tile_starts(case) - case.keys)
    return distance


def _with_distance(distance: Callable[[Case], IntArray], case: Case) -> Float64Array:
    rest = (case.slope() or 0.0) * (distance(case) - np.abs(case.positions - case.keys))
    return case.attend(case.scores - rest, case.visible, case.v)


def _biased(factor: float, case: Case) -> Float64Array:
    """Return attention with the correct bias times `factor`."""
    rest = (factor - 1) * (case.slope() or 0.0) * np.abs(case.positions - case.keys)
    return case.attend(case.scores - rest, case.visible, case.v)


def _other_head(head_of: Callable[[int, int], int], case: Case) -> int | None:
    """Return the mapped head; None if it is the case's own or does not exist."""
    other = head_of(case.head, case.problem.head_group)
    return other if 0 <= other < case.problem.num_heads and other != case.head else None


def _with_slope_of(head_of: Callable[[int, int], int], case: Case) -> Float64Array | None:
    other = _other_head(head_of, case)
    if other is None:
        return None
    return _biased((case.slope(other) or 0.0) / (case.slope() or 1.0), case)


def _biased_from_query_row(case: Case) -> Float64Array | None:
    if not case.own.kv_offset:
        return None
    wrong = np.abs(case.rows[:, None] - case.keys) - np.abs(case.positions - case.keys)
    return case.attend(case.scores - (case.slope() or 0.0) * wrong, case.visible, case.v)


def _sinks(case: Case) -> Iterator[SuspectedBug]:
    look_at = "look at where exp(sink − m) is added to the row sum"
    splits, tiles = case.tiles.num_chunks, case.tiles.num_key_tiles
    choices: list[tuple[str, Callable[[float], float]]] = [
        ("attention whose row sum leaves the sink out", lambda _: -math.inf),
        (
            "a sink that is multiplied by the softmax scale",
            lambda sink: sink * case.problem.softmax_scale,
        ),
        (
            "a sink that is not multiplied by log2(e) before exp2",
            lambda sink: sink * math.log(2),
        ),
        ("a sink of 0 instead of the head's own", lambda _: 0.0),
        ("a sink that is added twice", lambda sink: sink + math.log(2)),
    ]
    if splits > 2:
        choices.append((f"a sink that all {splits} splits add", lambda s: s + math.log(splits)))
    if tiles > 2 and tiles != splits:
        choices.append(("a sink that every key tile adds", lambda s: s + math.log(tiles)))
    for what, wrong in choices:
        yield SuspectedBug(FindingCode.SINKS, what, look_at, partial(_with_sink, wrong))
    yield SuspectedBug(
        FindingCode.SINKS,
        "a sink without subtracting the row maximum",
        look_at,
        _sink_without_maximum,
    )
    for name, head_of in _HEADS:
        what = f"the sink of {name}"
        yield SuspectedBug(FindingCode.SINKS, what, look_at, partial(_with_sink_of, head_of))


def _with_sink(wrong: Callable[[float], float], case: Case) -> Float64Array:
    return attend(case.scores, case.visible, case.v, sink=wrong(case.sink or 0.0))


def _sink_without_maximum(case: Case) -> Float64Array:
    masked = np.where(case.visible, case.scores, -np.inf)
    weights = np.exp(masked - masked.max(axis=1, keepdims=True))
    total = weights.sum(axis=1, keepdims=True) + np.exp(min(case.sink or 0.0, _LARGEST))
    return np.asarray(weights @ case.v / total)


def _with_sink_of(head_of: Callable[[int, int], int], case: Case) -> Float64Array | None:
    other = _other_head(head_of, case)
    if other is None or case.inputs.sinks is None:
        return None
    return attend(case.scores, case.visible, case.v, sink=float(case.inputs.sinks[other]))


def _lengths(lengths: tuple[int, ...]) -> Iterator[SuspectedBug]:
    look_at = "look at the argument seqlens, and at the sequence index that a CTA uses for it"
    yield SuspectedBug(
        FindingCode.SEQUENCE_LENGTH,
        "the length of the longest sequence for all sequences, so that keys of zeros are included",
        look_at,
        lambda c: c.attend(
            c.scores, visible_keys(replace(c.problem, seqlens=None), c.rows, c.keys), c.v
        ),
    )
    for what, other in (
        ("the length of sequence 0 for all sequences", lambda _: lengths[0]),
        ("the length of the next sequence", lambda i: lengths[(i + 1) % len(lengths)]),
        ("the length of the previous sequence", lambda i: lengths[i - 1]),
        ("sequences with one key too few", lambda i: lengths[i] - 1),
    ):
        yield SuspectedBug(
            FindingCode.SEQUENCE_LENGTH, what, look_at, partial(_with_length_of, other)
        )


def _with_length_of(length_of: Callable[[int], int], case: Case) -> Float64Array | None:
    """Return attention with a wrong number of keys and the correct number of queries."""
    length = length_of(case.slice_index // case.problem.num_heads)
    if length >= case.own.num_keys:
        return None
    return case.attend(case.scores, case.visible & (case.keys < length), case.v)


# (factors of all heads, K/V head) → factors of K and V that the bug uses instead.
_Factors: TypeAlias = Callable[[FloatArray, int], tuple[float, float]]
_OF_FP8: tuple[tuple[str, _Factors], ...] = (
    ("K in FP8 without its factor", lambda s, h: (1.0, s[1, h])),
    ("V in FP8 without its factor", lambda s, h: (s[0, h], 1.0)),
    ("K and V in FP8 without their factors", lambda *_: (1.0, 1.0)),
    ("the factor of K on V", lambda s, h: (s[0, h], s[0, h])),
    ("the factor of V on K", lambda s, h: (s[1, h], s[1, h])),
    ("the factors of K and V exchanged", lambda s, h: (s[1, h], s[0, h])),
    ("the factor of K applied twice", lambda s, h: (s[0, h] ** 2, s[1, h])),
    ("the factor of V applied twice", lambda s, h: (s[0, h], s[1, h] ** 2)),
    ("division by the factor of K", lambda s, h: (1 / s[0, h], s[1, h])),
    ("division by the factor of V", lambda s, h: (s[0, h], 1 / s[1, h])),
)
# Wrong K/V heads: description, and (K/V head, query head) → K/V head whose factors the bug uses.
_KV_HEADS: tuple[tuple[str, Callable[[int, int], int]], ...] = (
    ("the next K/V head", lambda kv, _: kv + 1),
    ("the K/V head before", lambda kv, _: kv - 1),
    ("K/V head 0", lambda *_: 0),
    ("the K/V head with the index of the query head", lambda _, head: head),
)


def _fp8() -> Iterator[SuspectedBug]:
    look_at = "look at k_scale, for scores, and v_scale, for O: both are indexed by the K/V head"
    for what, factors in _OF_FP8:
        yield SuspectedBug(FindingCode.KV_SCALE, what, look_at, partial(_with_factors, factors))
    for name, number_of in _KV_HEADS:
        for of, which in (("K", (True, False)), ("V", (False, True)), ("K and V", (True, True))):
            what = f"the factor{'s' * all(which)} of {of} of {name}"
            predicted = partial(_with_factors_of, number_of, which)
            yield SuspectedBug(FindingCode.KV_SCALE, what, look_at, predicted)


def _with_factors(factors: _Factors, case: Case) -> Float64Array | None:
    scales = case.inputs.kv_scales
    if scales is None:
        return None
    head = case.kv_slice_index % case.problem.kv_heads
    own = scales[:, head].astype(np.float64)
    wrong_k, wrong_v = factors(scales.astype(np.float64), head) / own
    if wrong_k == wrong_v == 1:
        return None
    scores = case.scored(case.q[case.rows], wrong_k * case.k)
    return case.attend(scores, case.visible, wrong_v * case.v)


def _with_factors_of(
    number_of: Callable[[int, int], int], which: tuple[bool, bool], case: Case
) -> Float64Array | None:
    heads = case.problem.kv_heads
    other = number_of(case.kv_slice_index % heads, case.head) % heads
    return _with_factors(
        lambda s, h: (s[0, other if which[0] else h], s[1, other if which[1] else h]), case
    )
