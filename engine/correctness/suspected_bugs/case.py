"""Cases: the rows that a diagnosis examines, and building blocks to predict buggy outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, alibi_slopes
from engine.correctness.findings import FindingCode
from engine.correctness.output_error import ComparedOutput, Tiles
from engine.correctness.reference import (
    BoolArray,
    Float64Array,
    IntArray,
    final_scores,
    kv_slices,
    slice_qkv,
    visible_keys,
)

MAX_CASES = 3
_MAX_ROWS = 256
# BLAS runs on one thread up to this many multiply-adds: starting others would take longer.
_QUICK_WORK = 1 << 18
_LARGEST_LOG = 700.0  # exp of more is infinite in float64
# Limit on the scores of one case, so that a prediction takes about 10 ms.
_MAX_SCORES = 1 << 20


@dataclass(frozen=True, eq=False)
class Case:
    """Some query rows of one wrong (batch, head) slice."""

    inputs: Inputs
    tiles: Tiles
    slice_index: int  # batch · num_heads + head
    kv_slice_index: int  # batch · kv_heads + K/V head
    rows: IntArray  # [R], ascending
    q: Float64Array  # [seqlen, head_dim]
    k: Float64Array  # [num_keys, head_dim]
    v: Float64Array  # [num_keys, head_dim]
    out: Float64Array  # [R, head_dim]
    reference: Float64Array  # [R, head_dim]
    bad: BoolArray  # [R, head_dim]
    every_row: IntArray  # all covered rows of the slice
    every_reference: Float64Array  # [len(every_row), head_dim]
    columns: BoolArray  # [head_dim], the columns that are compared with a prediction

    @property
    def problem(self) -> Problem:
        return self.inputs.problem

    @cached_property
    def own(self) -> Problem:
        """Return the problem of the case's own sequence, whose length may be shorter."""
        return self.problem.of_sequence(self.slice_index // self.problem.num_heads)

    @property
    def head(self) -> int:
        return self.slice_index % self.problem.num_heads

    def slope(self, head: int | None = None) -> float | None:
        """Return the ALiBi slope of `head`, by default the case's; None without ALiBi."""
        if not self.problem.alibi:
            return None
        slopes = alibi_slopes(self.problem.num_heads)
        return float(slopes[self.head if head is None else head])

    @property
    def sink(self) -> float | None:
        """Return the sink logit that is added to the head's row sums; None without sinks."""
        return None if self.inputs.sinks is None else float(self.inputs.sinks[self.head])

    @cached_property
    def quick(self) -> Case:
        """Return the case with only a few of its wrong rows, to reject most bugs quickly."""
        wrong = np.flatnonzero(self.bad.any(axis=1))
        count = min(max(_QUICK_WORK // (self.problem.num_keys * self.problem.head_dim), 4), 32)
        picked = wrong[np.unique(np.linspace(0, len(wrong) - 1, count).astype(int))]
        return replace(
            self,
            rows=self.rows[picked],
            out=self.out[picked],
            reference=self.reference[picked],
            bad=self.bad[picked],
        )

    @cached_property
    def keys(self) -> IntArray:
        return np.arange(self.problem.num_keys)

    @cached_property
    def scores(self) -> Float64Array:
        """Return the final scores of the rows and all keys, without a mask, `[R, num_keys]`."""
        return self.scored(self.q[self.rows], self.k)

    def scored(
        self, q: Float64Array, k: Float64Array, rows: IntArray | None = None
    ) -> Float64Array:
        """Return final scores of queries and the first `len(k)` keys, `[len(q), len(k)]`.

        Args:
            rows: query rows of `q`, `[len(q)]`; default: the case's rows.
        """
        slope = self.slope()
        final: Float64Array = final_scores(
            self.own,
            self.problem.softmax_scale * q @ k.T,
            self.rows if rows is None else rows,
            np.arange(len(k)),
            None if slope is None else np.array(slope),
        )
        return final

    @cached_property
    def visible(self) -> BoolArray:
        """Return the correct mask, True where a row sees a key, `[R, num_keys]`."""
        return visible_keys(self.own, self.rows, self.keys)

    @cached_property
    def positions(self) -> IntArray:
        """Return the position of each row in the sequence of keys, `[R, 1]`."""
        return self.rows[:, None] + self.own.kv_offset

    def attend(
        self,
        scores: Float64Array,
        visible: BoolArray,
        v: Float64Array,
        zero_keys: int = 0,
        times: Float64Array | None = None,
    ) -> Float64Array:
        """Compute the function `attend` with the sink of the case's head."""
        return attend(scores, visible, v, zero_keys, times, self.sink)

    @cached_property
    def tile_states(self) -> State:
        """Return the softmax state of each key tile by itself."""
        return segment_states(self, np.arange(0, self.problem.num_keys, self.tiles.block_n))


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Softmax state (m, l, acc) of key segments; an empty one has m = −inf, l = 0, acc = 0."""

    starts: IntArray  # [T], first key of each segment
    m: Float64Array  # [T, R], row maximum
    l: Float64Array  # [T, R], sum of exp(score − m)  # noqa: E741
    acc: Float64Array  # [T, R, head_dim], sum of exp(score − m) · V


def choose_cases(inputs: Inputs, compared: ComparedOutput, tiles: Tiles) -> list[Case]:
    """Return cases of up to three wrong slices: the worst, the first and the last.

    Each has wrong and right rows.
    """
    bad = compared.bad
    wrong = np.flatnonzero((bad & compared.finite).any(axis=(1, 2)))
    if not wrong.size:
        return []
    positions = dict.fromkeys([compared.worst_slice(), int(wrong[0]), int(wrong[-1])])
    return [_case(inputs, compared, bad, tiles, position) for position in positions]


def spread_cases(inputs: Inputs, compared: ComparedOutput, tiles: Tiles) -> list[Case]:
    """Return cases of up to three slices of an output that passes, with rows spread over each."""
    total = len(compared.coverage.slices)
    positions = dict.fromkeys([0, total // 2, total - 1])
    everything = np.ones(compared.error.shape, bool)
    return [_case(inputs, compared, everything, tiles, position) for position in positions]


def in_wrong_columns(cases: Sequence[Case]) -> list[Case]:
    """Return the cases restricted to columns that have a wrong element."""
    wrong = np.logical_or.reduce([case.bad.any(axis=0) for case in cases])
    return [replace(case, columns=wrong) for case in cases]


def _case(
    inputs: Inputs, compared: ComparedOutput, bad: BoolArray, tiles: Tiles, position: int
) -> Case:
    limit = max(8, min(_MAX_ROWS, _MAX_SCORES // inputs.problem.num_keys))
    bad_rows = np.flatnonzero(bad[position].any(axis=1))
    every = np.arange(len(compared.coverage.rows))
    # Right rows are included, to rule out bugs that would have changed them.
    chosen = np.union1d(_spread(bad_rows, limit // 2), _spread(every, limit // 2))
    index = compared.coverage.slices[position]
    q, k, v = (x[0] for x in slice_qkv(inputs, np.array([index])))
    return Case(
        inputs=inputs,
        tiles=tiles,
        slice_index=int(index),
        kv_slice_index=int(kv_slices(inputs.problem, index)),
        rows=compared.coverage.rows[chosen],
        q=q,
        k=k,
        v=v,
        out=compared.out[position, chosen],
        reference=compared.reference[position, chosen],
        bad=bad[position, chosen],
        every_row=compared.coverage.rows,
        every_reference=compared.reference[position],
        columns=np.ones(inputs.problem.value_dim, bool),
    )


def _spread(indices: IntArray, count: int) -> IntArray:
    """Return at most `count` of `indices`, including both ends, at irregular distances."""
    if len(indices) <= count:
        return indices
    middle = np.random.default_rng(len(indices)).choice(indices[1:-1], count - 2, replace=False)
    return np.concatenate([indices[:1], np.sort(middle), indices[-1:]])


def attend(
    scores: Float64Array,
    visible: BoolArray,
    v: Float64Array,
    zero_keys: int = 0,
    times: Float64Array | None = None,
    sink: float | None = None,
) -> Float64Array:
    """Compute softmax(scores)·V over visible keys, `[R, head_dim]`; NaN in rows without any.

    Args:
        scores: `[R, keys]`; visible: the same shape; v: `[keys, head_dim]`.
        zero_keys: number of additional keys of zeros (score 0, value 0).
        times: weight of each key in both sums, `[keys]`; None: 1.
        sink: a logit that is added to the row sums.
    """
    masked = np.where(visible, scores, -np.inf)
    top = masked.max(axis=1, keepdims=True, initial=0.0 if zero_keys else -np.inf)
    weights = np.exp(masked - np.where(np.isfinite(top), top, 0.0))
    if times is not None:
        weights = weights * times
    total = weights.sum(axis=1, keepdims=True)
    if zero_keys:
        total += zero_keys * np.exp(-top)
    if sink is not None:
        total += np.exp(np.minimum(sink - finite_or_zero(top), _LARGEST_LOG))
    return _divide(weights @ v, total)


def segment_states(case: Case, starts: IntArray) -> State:
    """Return softmax states of the key segments that begin at `starts`, correctly masked."""
    masked = np.where(case.visible, case.scores, -np.inf)
    ends = [*starts[1:], masked.shape[1]]
    m, l_, acc = [], [], []
    for a, b in zip(starts, ends, strict=True):
        top = masked[:, a:b].max(axis=1)
        weights = np.exp(masked[:, a:b] - finite_or_zero(top)[:, None])
        m.append(top)
        l_.append(weights.sum(axis=1))
        acc.append(weights @ case.v[a:b])
    return State(starts, np.array(m), np.array(l_), np.array(acc))


def finite_or_zero(x: Float64Array) -> Float64Array:
    return np.where(np.isfinite(x), x, 0.0)


def _divide(numerator: Float64Array, denominator: Float64Array) -> Float64Array:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return numerator / denominator


def merge(
    m: Float64Array,
    l: Float64Array,  # noqa: E741
    acc: Float64Array,
    sink: float | None,
    *,
    weigh_acc: bool = True,
    weigh_l: bool = True,
) -> Float64Array:
    """Combine states over their first axis: Σ w·acc / Σ w·l with w = exp(m − max m).

    Args:
        sink: logit that is added to the row sums; None without sinks.
        weigh_acc: False omits w in the numerator, a bug to predict.
        weigh_l: False omits w in the denominator.
    """
    top = m.max(axis=0)
    weight = np.exp(m - finite_or_zero(top))
    numerator = (acc * (weight[..., None] if weigh_acc else 1.0)).sum(axis=0)
    denominator = (l * (weight if weigh_l else 1.0)).sum(axis=0)
    if sink is not None:
        denominator = denominator + np.exp(np.minimum(sink - finite_or_zero(top), _LARGEST_LOG))
    return _divide(numerator, denominator[..., None])


# A suspected bug: its code, a description, and a function that predicts its output.


# `[R, head_dim]` for the case's rows, with NaN if the bug gives NaN; None if it cannot occur.
Prediction = Callable[[Case], Float64Array | None]


@dataclass(frozen=True, slots=True)
class SuspectedBug:
    """A possible bug of the kernel whose output can be predicted."""

    pattern: FindingCode
    what: str  # completes "The output matches …"
    look_at: str  # where to look: "look at …"
    predict: Prediction
    # Least explained share of the squared error, if higher than usual because of a similar bug.
    min_explained: float = 0.0

    def predicted(self, case: Case) -> Float64Array | None:
        """Return `predict(case)`; None if it cannot be computed.

        That is so if rows of V replace rows of Q or K with another number of columns, because it is
        unknown what such a kernel reads.
        """
        if case.problem.head_dim_v is None:
            return self.predict(case)
        try:
            found = self.predict(case)
        except (ValueError, IndexError):
            return None
        return found if found is not None and found.shape == case.out.shape else None
