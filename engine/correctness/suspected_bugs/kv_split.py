"""Bugs in the KV split and the walk over key tiles: what is summed, with which weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from engine.correctness.compared_output import BoolArray
from engine.correctness.finding_codes import FindingCode
from engine.correctness.reference import Float64Array, IntArray
from engine.correctness.suspected_bugs.case import (
    Case,
    State,
    SuspectedBug,
    finite_or_zero,
    merge,
    segment_states,
)

# Single tiles are tried one by one up to here.
_MAX_TILES = 64


def kv_split_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Fusion bugs where K/V is split, then tiles or seam keys left out or counted twice."""
    tiles = case.tiles
    if tiles.num_chunks > 1:
        yield from _fusion(case)
        yield from _whole_segments(
            case, tiles.chunk_rows, tiles.chunk_name, FindingCode.SPLIT_MISSING
        )
        yield from _seams(case, tiles.chunk_rows, tiles.chunk_name, FindingCode.KV_SPLIT_SEAM)
    if tiles.block_n >= 16:
        yield from _parts_of_tiles(case)
    if 1 < tiles.num_key_tiles <= _MAX_TILES:
        yield from _every_nth(case)
        yield from _whole_segments(case, tiles.block_n, "key tile", FindingCode.KEY_TILE)
        yield from _seams(case, tiles.block_n, "key tile", FindingCode.KEY_TILE)


def _fusion(case: Case) -> Iterator[SuspectedBug]:
    look_at = (
        "look at the weights exp(m_i − m) of the fusion"
        + (" pass" if case.tiles.num_passes > 1 else "")
        + f", m being the maximum over the {case.tiles.chunk_name}s"
    )
    whole = f"a fusion of the {case.tiles.num_splits} {case.tiles.chunk_name}s"
    for what, weigh_acc, weigh_l in (
        (f"{whole} without the rescale by exp(m_i − m)", False, False),
        (f"{whole} that rescales l_i but not O_i by exp(m_i − m)", False, True),
        (f"{whole} that rescales O_i but not l_i by exp(m_i − m)", True, False),
    ):
        yield SuspectedBug(
            FindingCode.FUSION_RESCALE,
            what,
            look_at,
            partial(_fused, weigh_acc=weigh_acc, weigh_l=weigh_l),
        )
    yield SuspectedBug(
        FindingCode.FUSION_RESCALE,
        f"{whole} without the rescale: the plain mean of their normalised outputs",
        look_at,
        partial(_mean_of_splits, False),
    )
    yield SuspectedBug(
        FindingCode.FUSION_RESCALE,
        f"{whole} without the rescale: the plain mean over all of them, empty ones counted",
        look_at,
        partial(_mean_of_splits, True),
    )
    yield SuspectedBug(
        FindingCode.FUSION_RESCALE,
        f"{whole} with the weights upside down, exp(m − m_i)",
        look_at,
        _upside_down,
    )

    for name, parts in (("O_i", "acc"), ("l_i", "l"), ("m_i", "m")):
        for what, moved in (
            ("of the first one for all", 0),
            ("of the one behind", -1),
            ("of the one before", 1),
        ):
            yield SuspectedBug(
                FindingCode.FUSION_RESCALE,
                f"{whole} that takes {name} {what}",
                f"look at the index of the partial {name} that the fusion reads",
                partial(_with_others, parts, moved),
            )


def _with_others(name: str, moved: int, case: Case) -> Float64Array:
    """m, l or acc of another chunk."""
    chunks = _chunks(case)
    parts = {"m": chunks.m, "l": chunks.l, "acc": chunks.acc}
    held = parts[name]
    parts[name] = np.roll(held, moved, axis=0) if moved else np.repeat(held[:1], len(held), axis=0)
    return merge(parts["m"], parts["l"], parts["acc"], case.sink)


def _chunks(case: Case) -> State:
    return segment_states(case, np.arange(0, case.problem.num_keys, case.tiles.chunk_rows))


def _fused(case: Case, *, weigh_acc: bool, weigh_l: bool) -> Float64Array:
    chunks = _chunks(case)
    return merge(chunks.m, chunks.l, chunks.acc, case.sink, weigh_acc=weigh_acc, weigh_l=weigh_l)


def _mean_of_splits(empty_too: bool, case: Case) -> Float64Array:
    chunks = _chunks(case)
    held = chunks.l > 0
    normalised = chunks.acc / np.where(held, chunks.l, 1.0)[..., None]
    count = case.tiles.num_splits if empty_too else held.sum(axis=0)[:, None]
    return np.asarray(normalised.sum(axis=0) / count)


def _upside_down(case: Case) -> Float64Array:
    chunks = _chunks(case)
    top = finite_or_zero(chunks.m.max(axis=0))
    # Clipped as exp does it in float32: inf·0 would be the kernel's own NaN, not a mismatch.
    weight = np.where(chunks.l > 0, np.exp(np.minimum(top - finite_or_zero(chunks.m), 80.0)), 0.0)
    total = (weight * chunks.l).sum(axis=0)[:, None]
    return np.asarray((weight[..., None] * chunks.acc).sum(axis=0) / total)


def _whole_segments(
    case: Case, size: int, name: str, pattern: FindingCode
) -> Iterator[SuspectedBug]:
    """Each segment of `size` keys left out, or counted twice."""
    starts = range(0, case.problem.num_keys, size)
    for index, start in enumerate(starts):
        end = min(start + size, case.problem.num_keys)
        which = f"{name} {index} (keys {start} to {end - 1})"
        inside = slice(start, end)
        yield SuspectedBug(
            pattern,
            f"leaving out {which}",
            f"look at how {name} {index} gets its keys and how it is summed up",
            partial(_counted, inside, 0.0),
        )
        yield SuspectedBug(
            pattern,
            f"counting {which} twice",
            f"look at how {name} {index} gets its keys and how it is summed up",
            partial(_counted, inside, 2.0),
        )
        if name == case.tiles.chunk_name and len(starts) > 2:
            yield SuspectedBug(
                pattern,
                f"using {which} alone",
                f"look at the loop over the {name}s in the fusion",
                partial(_only, inside),
            )


def _parts_of_tiles(case: Case) -> Iterator[SuspectedBug]:
    """Some keys of every tile that count in the row sum but not in P·V, or in neither."""
    block_n = case.tiles.block_n
    in_tile = case.keys % block_n
    for count in (1, 2, 4, 8, 16, block_n // 2):
        for what, keys in (
            ("last", in_tile >= block_n - count),
            ("first", in_tile < count),
        ):
            which = f"the {what} key" if count == 1 else f"the {what} {count} keys"
            for where, in_sum in (
                ("P·V but not of the row sum", True),
                ("the row sum alone", False),
            ):
                yield SuspectedBug(
                    FindingCode.KEY_TILE,
                    f"leaving {which} of every key tile out of {where}",
                    "look at the loop over the keys of a tile where P is "
                    + ("multiplied by V" if in_sum else "added to l"),
                    partial(_partly_counted, keys, in_sum),
                )


def _partly_counted(keys: BoolArray, in_sum: bool, case: Case) -> Float64Array:
    """Keys that count in the row sum alone, or in P·V alone."""
    scores = np.where(case.visible, case.scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    rest = np.where(keys, 0.0, weights)
    in_l, in_o = (weights, rest) if in_sum else (rest, weights)
    total = in_l.sum(axis=1, keepdims=True)
    return np.asarray(in_o @ case.v / np.where(total > 0, total, np.nan))


def _every_nth(case: Case) -> Iterator[SuspectedBug]:
    """Every n-th key tile of a chunk left out, or counted twice: a step, or one warp of n."""
    in_chunk = case.keys % case.tiles.chunk_rows // case.tiles.block_n
    for step, word in ((2, "second"), (4, "fourth"), (8, "eighth")):
        if case.tiles.num_key_tiles <= step:
            return
        warp = "" if step * 32 != case.tiles.threads else f", that of one of {step} warps,"
        for first in range(step):
            keys = np.flatnonzero(in_chunk % step == first)
            for what, times in (("leaves out", 0.0), ("counts twice", 2.0)):
                yield SuspectedBug(
                    FindingCode.KEY_TILE,
                    f"a loop that {what} every {word} key tile{warp} from the {first + 1}. one on",
                    "look at the step of the key loop, and at what each warp adds to the whole",
                    partial(_counted, keys, times),
                )


def _seams(case: Case, size: int, name: str, pattern: FindingCode) -> Iterator[SuspectedBug]:
    """A key or a key tile at the border of every segment left out, or visited from both sides."""
    num_keys, block_n = case.problem.num_keys, case.tiles.block_n
    begins, units = np.arange(0, num_keys, size), [("key", 1)]
    if size >= block_n > 1:
        units.append(("key tile", block_n))
    for unit, width in units:
        inside = np.arange(width)
        after, before = begins[:, None] + inside, begins[:, None] - 1 - inside
        # The last tile may be partial, and then it ends before a whole one would.
        final = np.arange((num_keys - 1) // width * width, num_keys)
        last = np.concatenate([before[1:].ravel(), final])
        for what, keys, times in (
            (f"leaving out the first {unit} of every {name}", after, 0.0),
            (f"leaving out the first {unit} of every {name} but the first", after[1:], 0.0),
            (f"leaving out the last {unit} of every {name}", last, 0.0),
            (f"leaving out the last {unit} of every {name} but the last", before[1:], 0.0),
            (f"counting the first {unit} of every {name} but the first twice", after[1:], 2.0),
            (f"counting the last {unit} of every {name} but the last twice", before[1:], 2.0),
        ):
            yield SuspectedBug(
                pattern,
                what,
                f"look at the first and last key of a {name}: one bound is off by one {unit}",
                partial(_counted, keys[keys < num_keys], times),
            )


def _counted(keys: slice | IntArray, count: float, case: Case) -> Float64Array:
    times = np.ones(case.problem.num_keys)
    times[keys] = count
    return case.attend(case.scores, case.visible, case.v, times=times)


def _only(keys: slice, case: Case) -> Float64Array:
    times = np.zeros(case.problem.num_keys)
    times[keys] = 1.0
    return case.attend(case.scores, case.visible, case.v, times=times)
