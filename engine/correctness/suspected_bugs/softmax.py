"""Bugs in the softmax itself: scale, normalisation, running maximum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from engine.correctness.finding_codes import FindingCode
from engine.correctness.reference import Float64Array
from engine.correctness.suspected_bugs.case import (
    Case,
    Prediction,
    SuspectedBug,
    finite_or_zero,
    merge,
)
from engine.correctness.suspected_bugs.score_factor import EXPLAINED_BY_FACTOR, scaled
from engine.tensors import decode, encode
from kernels.variant import ceil_div

_LARGEST = 80.0  # exp of more is infinite in float32


def softmax_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Bugs that need no tile size but the key tile's."""
    yield SuspectedBug(
        FindingCode.ALL_ZERO,
        "a kernel that writes zeros",
        "look at what is accumulated and stored",
        lambda c: np.zeros_like(c.reference),
    )
    yield SuspectedBug(
        FindingCode.MEAN_V,
        "the plain mean of the visible V rows",
        "all scores come out equal, so look at S = Q·Kᵀ: is Q or K zero, or the score overwritten?",
        lambda c: c.attend(np.zeros_like(c.scores), c.visible, c.v),
    )
    yield SuspectedBug(
        FindingCode.MEAN_V,
        "the plain mean of all V rows",
        "all scores come out equal, so look at S = Q·Kᵀ and at the mask",
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
            "the last key tile alone, as a running maximum gives that is not kept from one tile to "
            "the next (or a key loop that begins there)",
            "look at where m takes the value of m_new, and at the first key of the loop",
            _last_tile_alone,
        )


def online_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Wrong rescales from one key tile to the next."""
    if case.tiles.num_key_tiles > 1:
        for what, acc, row_sum in (
            ("an online softmax without the rescale of O and l by exp(m_old − m_new)", 0, 0),
            ("an online softmax that rescales l but not O by exp(m_old − m_new)", 0, 1),
            ("an online softmax that rescales O but not l by exp(m_old − m_new)", 1, 0),
            ("an online softmax that rescales O twice by exp(m_old − m_new)", 2, 1),
            ("an online softmax that rescales l twice by exp(m_old − m_new)", 1, 2),
            ("an online softmax that rescales O and l twice by exp(m_old − m_new)", 2, 2),
            ("an online softmax that rescales O and l by exp(m_new − m_old), upside down", -1, -1),
        ):
            yield SuspectedBug(
                FindingCode.ONLINE_RESCALE,
                what,
                "look at the correction when the running maximum grows",
                partial(_online, acc, row_sum),
            )


_STEPS = (1, 16, 32, 64, 128)  # keys between two rescales, where no tunable says
_MOST_STATES = 1 << 22  # numbers of the states of all steps


def other_steps(case: Case) -> Iterator[SuspectedBug]:
    """`online_bugs` of a kernel that takes another number of keys at once, or one by one."""
    size = len(case.rows) * case.problem.head_dim
    for step in _STEPS:
        count = ceil_div(case.problem.num_keys, step)
        if step == case.tiles.block_n or count < 2 or count * size > _MOST_STATES:
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
    """Scores in the problem's 16 bits."""
    for what, scale in (("before", case.problem.softmax_scale), ("after", 1.0)):
        yield SuspectedBug(
            FindingCode.SCORE_PRECISION,
            f"scores S that are rounded to {case.problem.dtype} {what} they are scaled by 1/√D",
            "precision is lost where S is stored: keep it in float until the exponential",
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
    """Of each row the last tile that its query tile visits; NaN where it sees nothing there."""
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
    """Tiles in order within each chunk, O and l rescaled so many times; chunks fused rightly."""
    states = case.tile_states
    chunk_of = states.starts // case.tiles.chunk_rows
    m, l_, acc = [], [], []
    for chunk in range(case.tiles.num_chunks):
        inside = chunk_of == chunk
        running = np.maximum.accumulate(states.m[inside], axis=0)
        top = running[-1]
        # What a tile keeps when nothing later shrinks it: the maximum up to it, not the last one.
        kept = states.m[inside] - finite_or_zero(running)
        shrinks = finite_or_zero(running) - finite_or_zero(top)
        weight_l, weight_acc = (
            np.exp(np.minimum(kept + times * shrinks, _LARGEST)) for times in (l_times, acc_times)
        )
        m.append(top)
        l_.append((weight_l * states.l[inside]).sum(axis=0))
        acc.append((weight_acc[..., None] * states.acc[inside]).sum(axis=0))
    return merge(np.array(m), np.array(l_), np.array(acc), case.sink)
