"""Bugs in the softmax and the KV split: scale, normalisation, running maximum, fusion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from engine.attention.tensors import decode, encode
from engine.correctness.findings import FindingCode
from engine.correctness.reference import BoolArray, Float64Array, IntArray
from engine.correctness.suspected_bugs.case import (
    Case,
    Prediction,
    State,
    SuspectedBug,
    finite_or_zero,
    merge,
    segment_states,
)
from kernels.variant import ceil_div

# All scores wrong by one factor. The factor is fitted, and named if it is a known one.

# Because the factor is fitted, it must explain all of the error except rounding.
EXPLAINED_BY_FACTOR = 0.999
_WIDEST = 16.0
_COARSE, _FINE = 25, 40
_NEAR_ONE = 0.01
_SAME_FACTOR = 0.005

_KNOWN = (
    (math.sqrt(2), "√2, as with half the columns in 1/√D"),
    (1 / math.sqrt(2), "1/√2, as with twice the columns in 1/√D"),
    (2.0, "2, as with a quarter of the columns in 1/√D"),
    (0.5, "1/2, as with four times the columns in 1/√D"),
    (1 / math.log(2), "log2(e), as if prepared for exp2 and given to exp"),
    (math.log(2), "ln 2, as if prepared for exp and given to exp2"),
)


def scaled_scores(case: Case) -> SuspectedBug | None:
    """Return a bug with the best-fitting factor of all scores; None if it is about 1."""
    rows = case.quick
    finite = np.isfinite(rows.out).all(axis=1)
    if not finite.any():
        return None

    def rest(logarithm: float) -> float:
        error = (scaled(math.exp(logarithm), rows) - rows.out)[finite]
        return float(np.sum(error * error))

    grid = np.linspace(-math.log(_WIDEST), math.log(_WIDEST), _COARSE)
    best = int(np.argmin([rest(float(x)) for x in grid]))
    low, high = (float(grid[max(0, min(best + step, _COARSE - 1))]) for step in (-1, 1))
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(_FINE):  # golden section
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if rest(left) < rest(right):
            high = right
        else:
            low = left
    factor = math.exp((low + high) / 2)
    if abs(factor - 1) < _NEAR_ONE or not 1 / _WIDEST < factor < _WIDEST:
        return None
    known = next((text for f, text in _KNOWN if abs(factor / f - 1) < _SAME_FACTOR), "")
    what = f"scores that are wrong by a factor of {factor:.3g}" + (f" ({known})" if known else "")
    return SuspectedBug(
        FindingCode.SOFTMAX_SCALE,
        what,
        "look at softmax_scale, at its other factors, and at the base of the exponential",
        partial(scaled, factor),
    )


def scaled(factor: float, case: Case) -> Float64Array:
    """Return attention with all scores multiplied by `factor`."""
    return case.attend(case.scores * factor, case.visible, case.v)


_LARGEST = 80.0  # exp of more is infinite in float32


def softmax_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs that depend on no tile size except the key tile's."""
    yield SuspectedBug(
        FindingCode.ALL_ZERO,
        "a kernel that writes zeros",
        "look at what is accumulated and stored",
        lambda c: np.zeros_like(c.reference),
    )
    yield SuspectedBug(
        FindingCode.MEAN_V,
        "the plain mean of the visible V rows",
        "all scores are equal, so look at S = Q·Kᵀ: is Q or K zero, or the score overwritten?",
        lambda c: c.attend(np.zeros_like(c.scores), c.visible, c.v),
    )
    yield SuspectedBug(
        FindingCode.MEAN_V,
        "the plain mean of all V rows",
        "all scores are equal, so look at S = Q·Kᵀ and at the mask",
        lambda c: c.attend(np.zeros_like(c.scores), np.ones_like(c.visible), c.v),
    )
    for what, factor in (
        ("scores without the scale 1/√D", 1 / case.problem.softmax_scale),
        ("scores scaled twice by 1/√D", case.problem.softmax_scale),
        ("exp2 of scores that were not multiplied by log2(e)", math.log(2)),
        ("scores multiplied by log2(e) and then given to exp instead of exp2", 1 / math.log(2)),
    ):
        if abs(factor - 1) > 1e-6:
            yield SuspectedBug(
                FindingCode.SOFTMAX_SCALE,
                what,
                "look at softmax_scale and the base of the exponential",
                partial(scaled, factor),
                EXPLAINED_BY_FACTOR,
            )
    yield SuspectedBug(
        FindingCode.NOT_NORMALISED,
        "a sum of exp(S − m)·V that is never divided by l",
        "look at the division by the row sum at the end",
        _not_normalised,
    )
    yield from online_bugs(case)
    if case.tiles.num_key_tiles > 1:
        yield SuspectedBug(
            FindingCode.ROW_MAXIMUM,
            "the last key tile alone, as if the running maximum were not kept from one tile to the "
            "next (or the key loop started there)",
            "look at where m is set to m_new, and at the first key of the loop",
            _last_tile_alone,
        )


def online_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs in the rescaling from one key tile to the next."""
    if case.tiles.num_key_tiles > 1:
        for what, acc, row_sum in (
            ("an online softmax without the rescale of O and l by exp(m_old − m_new)", 0, 0),
            ("an online softmax that rescales l but not O by exp(m_old − m_new)", 0, 1),
            ("an online softmax that rescales O but not l by exp(m_old − m_new)", 1, 0),
            ("an online softmax that rescales O twice by exp(m_old − m_new)", 2, 1),
            ("an online softmax that rescales l twice by exp(m_old − m_new)", 1, 2),
            ("an online softmax that rescales O and l twice by exp(m_old − m_new)", 2, 2),
            ("an online softmax that rescales O and l by the inverse, exp(m_new − m_old)", -1, -1),
        ):
            yield SuspectedBug(
                FindingCode.ONLINE_RESCALE,
                what,
                "look at the correction when the running maximum grows",
                partial(_online, acc, row_sum),
            )


_STEPS = (1, 16, 32, 64, 128)  # keys between two rescales, if no tunable gives them
_MAX_STATES = 1 << 22  # values in the states of all steps


def other_steps(case: Case) -> Iterator[SuspectedBug]:
    """Yield `online_bugs` of kernels that rescale after another number of keys than a key tile."""
    size = len(case.rows) * case.problem.head_dim
    for step in _STEPS:
        count = ceil_div(case.problem.num_keys, step)
        if step == case.tiles.block_n or count < 2 or count * size > _MAX_STATES:
            continue
        if case.tiles.chunk_rows % step and case.tiles.num_chunks > 1:
            continue
        tiles = replace(case.tiles, block_n=step)
        for bug in online_bugs(replace(case, tiles=tiles)):
            what = f"{bug.what}, {'key by key' if step == 1 else f'every {step} keys'}"
            yield replace(bug, what=what, predict=partial(_in_steps, step, bug.predict))


def _in_steps(step: int, predict: Prediction, case: Case) -> Float64Array | None:
    return predict(replace(case, tiles=replace(case.tiles, block_n=step)))


def precision_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs that round scores to the problem's 16-bit dtype."""
    for what, scale in (("before", case.problem.softmax_scale), ("after", 1.0)):
        yield SuspectedBug(
            FindingCode.SCORE_PRECISION,
            f"scores S that are rounded to {case.problem.dtype} {what} they are scaled by 1/√D",
            "precision is lost where S is stored: keep it in float up to the exponential",
            partial(_rounded_scores, scale),
        )


def _rounded_scores(scale: float, case: Case) -> Float64Array | None:
    dtype = case.problem.dtype
    with np.errstate(over="ignore"):
        rounded = decode(encode((case.scores / scale).astype(np.float32), dtype), dtype)
    if not np.isfinite(rounded).all():
        return None
    return case.attend(rounded * np.float64(scale), case.visible, case.v)


def _not_normalised(case: Case) -> Float64Array:
    masked = np.where(case.visible, case.scores, -np.inf)
    return np.asarray(np.exp(masked - masked.max(axis=1, keepdims=True)) @ case.v)


def _last_tile_alone(case: Case) -> Float64Array | None:
    """Return attention to the last visited key tile of each row's query tile alone.

    A row that sees no key of that tile is NaN.
    """
    tiles, problem = case.tiles, case.problem
    if tiles.num_chunks > 1:
        return None
    end = np.full(len(case.rows), problem.num_keys)
    if problem.causal:
        last_query = (case.rows // tiles.block_m + 1) * tiles.block_m
        end = np.minimum(end, last_query + case.own.kv_offset)
    first = (end - 1) // tiles.block_n * tiles.block_n
    return case.attend(case.scores, case.visible & (case.keys >= first[:, None]), case.v)


def _online(acc_times: int, l_times: int, case: Case) -> Float64Array:
    """Return online softmax with O and l rescaled the given numbers of times.

    Chunks are combined correctly.
    """
    states = case.tile_states
    chunk_of = states.starts // case.tiles.chunk_rows
    m, l_, acc = [], [], []
    for chunk in range(case.tiles.num_chunks):
        inside = chunk_of == chunk
        running = np.maximum.accumulate(states.m[inside], axis=0)
        top = running[-1]
        # Without later rescales, a tile keeps its weight relative to the maximum at its own time.
        kept = states.m[inside] - finite_or_zero(running)
        shrinks = finite_or_zero(running) - finite_or_zero(top)
        weight_l, weight_acc = (
            np.exp(np.minimum(kept + times * shrinks, _LARGEST)) for times in (l_times, acc_times)
        )
        m.append(top)
        l_.append((weight_l * states.l[inside]).sum(axis=0))
        acc.append((weight_acc[..., None] * states.acc[inside]).sum(axis=0))
    return merge(np.array(m), np.array(l_), np.array(acc), case.sink)


# Bugs in the KV split and the loop over key tiles: which keys are summed, with which weights.

# Segments are tried one by one up to this number.
_MAX_TILES = 64


def kv_split_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs of the fusion (if K/V is split), then missing or doubled tiles or border keys."""
    tiles = case.tiles
    if tiles.num_chunks > 1:
        yield from _fusion(case)
        yield from _whole_segments(
            case, tiles.chunk_rows, tiles.chunk_name, FindingCode.SPLIT_MISSING
        )
        yield from _seams(case, tiles.chunk_rows, tiles.chunk_name, FindingCode.KV_SPLIT_SEAM)
        yield from _wrong_strides(case)
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
        + f", where m is the maximum over the {case.tiles.chunk_name}s"
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
        f"{whole} with the inverse weights, exp(m − m_i)",
        look_at,
        _with_inverse_weights,
    )

    for name, parts in (("O_i", "acc"), ("l_i", "l"), ("m_i", "m")):
        for what, moved in (
            ("of the first one for all", 0),
            ("of the next one", -1),
            ("of the previous one", 1),
        ):
            yield SuspectedBug(
                FindingCode.FUSION_RESCALE,
                f"{whole} that takes {name} {what}",
                f"look at the index of the partial {name} that the fusion reads",
                partial(_with_other_chunks, parts, moved),
            )


def _with_other_chunks(name: str, moved: int, case: Case) -> Float64Array:
    """Return the fusion with each chunk's m, l or acc replaced by another chunk's."""
    chunks = _chunk_states(case)
    parts = {"m": chunks.m, "l": chunks.l, "acc": chunks.acc}
    held = parts[name]
    parts[name] = np.roll(held, moved, axis=0) if moved else np.repeat(held[:1], len(held), axis=0)
    return merge(parts["m"], parts["l"], parts["acc"], case.sink)


def _chunk_states(case: Case) -> State:
    return segment_states(case, np.arange(0, case.problem.num_keys, case.tiles.chunk_rows))


def _fused(case: Case, *, weigh_acc: bool, weigh_l: bool) -> Float64Array:
    chunks = _chunk_states(case)
    return merge(chunks.m, chunks.l, chunks.acc, case.sink, weigh_acc=weigh_acc, weigh_l=weigh_l)


def _mean_of_splits(empty_too: bool, case: Case) -> Float64Array:
    chunks = _chunk_states(case)
    held = chunks.l > 0
    normalised = chunks.acc / np.where(held, chunks.l, 1.0)[..., None]
    count = case.tiles.num_splits if empty_too else held.sum(axis=0)[:, None]
    return np.asarray(normalised.sum(axis=0) / count)


def _with_inverse_weights(case: Case) -> Float64Array:
    chunks = _chunk_states(case)
    top = finite_or_zero(chunks.m.max(axis=0))
    # Clipped, because exp in float32 would give inf: inf·0 is a NaN, which is another finding.
    weight = np.where(chunks.l > 0, np.exp(np.minimum(top - finite_or_zero(chunks.m), 80.0)), 0.0)
    total = (weight * chunks.l).sum(axis=0)[:, None]
    return np.asarray((weight[..., None] * chunks.acc).sum(axis=0) / total)


def _whole_segments(
    case: Case, size: int, name: str, pattern: FindingCode
) -> Iterator[SuspectedBug]:
    """Yield bugs that omit one segment of `size` keys or count it twice."""
    starts = range(0, case.problem.num_keys, size)
    for index, start in enumerate(starts):
        end = min(start + size, case.problem.num_keys)
        which = f"{name} {index} (keys {start} to {end - 1})"
        inside = slice(start, end)
        yield SuspectedBug(
            pattern,
            f"leaving out {which}",
            f"look at the keys that {name} {index} reads, and at how it is summed",
            partial(_counted, inside, 0.0),
        )
        yield SuspectedBug(
            pattern,
            f"counting {which} twice",
            f"look at the keys that {name} {index} reads, and at how it is summed",
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
    """Yield bugs that omit some keys of every tile from P·V, the row sum or both."""
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
    """Return attention in which `keys` count only in the row sum, or only in P·V."""
    scores = np.where(case.visible, case.scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    rest = np.where(keys, 0.0, weights)
    in_l, in_o = (weights, rest) if in_sum else (rest, weights)
    total = in_l.sum(axis=1, keepdims=True)
    return np.asarray(in_o @ case.v / np.where(total > 0, total, np.nan))


def _every_nth(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs that omit or double every n-th key tile of a chunk: a wrong step, or one warp."""
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
                    f"a loop that {what} every {word} key tile{warp} from number {first + 1} on",
                    "look at the step of the key loop, and at the part that each warp contributes",
                    partial(_counted, keys, times),
                )


def _seams(case: Case, size: int, name: str, pattern: FindingCode) -> Iterator[SuspectedBug]:
    """Yield bugs that omit or double a key or key tile at a border of every segment."""
    num_keys, block_n = case.problem.num_keys, case.tiles.block_n
    begins, units = np.arange(0, num_keys, size), [("key", 1)]
    if size >= block_n > 1:
        units.append(("key tile", block_n))
    for unit, width in units:
        inside = np.arange(width)
        after, before = begins[:, None] + inside, begins[:, None] - 1 - inside
        # The last tile may be partial.
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


def _wrong_strides(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs whose splits have the right length, but begin too close or too far apart."""
    tiles = case.tiles
    for by, what in ((1, "1 key"), (tiles.block_n, "1 key tile")):
        for stride, moved in ((tiles.chunk_rows - by, "earlier"), (tiles.chunk_rows + by, "later")):
            if stride <= 0:
                continue
            yield SuspectedBug(
                FindingCode.KV_SPLIT_SEAM,
                f"{tiles.chunk_name}s of {tiles.chunk_rows} keys, each of which begins {what} "
                f"{moved} than the previous one ends",
                f"look at how the first key of a {tiles.chunk_name} is computed from its index",
                partial(_strided, stride),
            )


def _strided(stride: int, case: Case) -> Float64Array:
    """Return attention over splits that begin `stride` keys apart: keys in two count twice."""
    times = np.zeros(case.problem.num_keys)
    for index in range(case.tiles.num_splits):
        times[index * stride : index * stride + case.tiles.chunk_rows] += 1
    return case.attend(case.scores, case.visible, case.v, times=times)


def _counted(keys: slice | IntArray, count: float, case: Case) -> Float64Array:
    times = np.ones(case.problem.num_keys)
    times[keys] = count
    return case.attend(case.scores, case.visible, case.v, times=times)


def _only(keys: slice, case: Case) -> Float64Array:
    times = np.zeros(case.problem.num_keys)
    times[keys] = 1.0
    return case.attend(case.scores, case.visible, case.v, times=times)
