"""Bugs in the softmax itself: scale, normalisation, running maximum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from engine.correctness.reference import Float64Array
from engine.correctness.suspected_bugs.bug import SuspectedBug
from engine.correctness.suspected_bugs.case import Case, attend, finite_or_zero, merge
from engine.tensors import decode, encode


def softmax_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Bugs that need no tile size but the key tile's."""
    yield SuspectedBug(
        "all_zero",
        "a kernel that writes zeros",
        "look at what is accumulated and stored",
        lambda c: np.zeros_like(c.reference),
    )
    yield SuspectedBug(
        "mean_v",
        "the plain mean of the visible V rows",
        "all scores come out equal, so look at S = Q·Kᵀ: is Q or K zero, or the score overwritten?",
        lambda c: attend(np.zeros_like(c.scores), c.visible, c.v),
    )
    yield SuspectedBug(
        "mean_v",
        "the plain mean of all V rows",
        "all scores come out equal, so look at S = Q·Kᵀ and at the mask",
        lambda c: attend(np.zeros_like(c.scores), np.ones_like(c.visible), c.v),
    )
    for what, factor in (
        ("scores without the scale 1/√D", 1 / case.problem.softmax_scale),
        ("scores scaled twice by 1/√D", case.problem.softmax_scale),
        ("exp2 of scores that were not multiplied by log2(e)", math.log(2)),
        ("scores multiplied by log2(e) and then given to exp instead of exp2", 1 / math.log(2)),
    ):
        if abs(factor - 1) > 1e-6:
            yield SuspectedBug(
                "softmax_scale",
                what,
                "look at softmax_scale and the base of the exponential",
                partial(_scaled, factor),
            )
    yield SuspectedBug(
        "not_normalised",
        "a sum of exp(S − m)·V that is never divided by l",
        "look at the division by the row sum at the end",
        _not_normalised,
    )
    if case.tiles.num_key_tiles > 1:
        for what, acc, row_sum in (
            ("an online softmax without the rescale of O and l by exp(m_old − m_new)", 0, 0),
            ("an online softmax that rescales l but not O by exp(m_old − m_new)", 0, 1),
            ("an online softmax that rescales O but not l by exp(m_old − m_new)", 1, 0),
        ):
            yield SuspectedBug(
                "online_rescale",
                what,
                "look at the correction when the running maximum grows",
                partial(_online, bool(acc), bool(row_sum)),
            )


def precision_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Scores in the problem's 16 bits."""
    for what, scale in (("before", case.problem.softmax_scale), ("after", 1.0)):
        yield SuspectedBug(
            "score_precision",
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
    return attend(rounded * np.float64(scale), case.visible, case.v)


def _scaled(factor: float, case: Case) -> Float64Array:
    return attend(case.scores * factor, case.visible, case.v)


def _not_normalised(case: Case) -> Float64Array:
    masked = np.where(case.visible, case.scores, -np.inf)
    return np.asarray(np.exp(masked - masked.max(axis=1, keepdims=True)) @ case.v)


def _online(rescale_acc: bool, rescale_l: bool, case: Case) -> Float64Array:
    """Tiles in order within each chunk, without one or both rescales; chunks fused rightly."""
    states = case.tile_states
    chunk_of = states.starts // case.tiles.chunk_rows
    m, l_, acc = [], [], []
    for chunk in range(case.tiles.num_chunks):
        inside = chunk_of == chunk
        running = np.maximum.accumulate(states.m[inside], axis=0)
        top = running[-1]
        rescaled = np.exp(states.m[inside] - finite_or_zero(top))
        # What a tile keeps when nothing later shrinks it: the maximum up to it, not the last one.
        kept = np.exp(states.m[inside] - finite_or_zero(running))
        m.append(top)
        l_.append(((rescaled if rescale_l else kept) * states.l[inside]).sum(axis=0))
        weight = rescaled if rescale_acc else kept
        acc.append((weight[..., None] * states.acc[inside]).sum(axis=0))
    return merge(np.array(m), np.array(l_), np.array(acc))
