"""A tiled attention kernel in NumPy with bugs that can be switched on.

It follows the kernels' order (query tiles, K/V chunks, key tiles, online softmax, fusion) in
float32 and shares no code with the suspected bugs that it tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, decode, encode
from engine.base.errors import Status
from engine.cuda_on_host.client import RunResult

State = tuple[np.ndarray, np.ndarray, np.ndarray]  # m, l, acc of some rows over one chunk


def _same(index: Any, *_: Any) -> Any:
    return index


@dataclass(frozen=True)
class Kernel:
    """A kernel like v05; every field but the tile sizes is a bug."""

    block_m: int = 64
    block_n: int = 64
    num_splits: int = 1
    query_index: Callable[[np.ndarray, int], np.ndarray] = _same  # (rows, split) → rows loaded
    k_slice: Callable[[int, Problem], int] = _same  # slice → slice whose K is read
    v_extra_rows: int = 0  # a head stride of V that is this many rows too large
    skipped_split: int | None = None
    rescales_online: bool = True
    rescales_fused_acc: bool = True
    rescales_fused_l: bool = True
    masks_tail: bool = True
    causal_shift: int = 0
    scale_factor: float = 1.0
    spoil: Callable[[np.ndarray], object] | None = None  # changes the output in place

    def run(self, inputs: Inputs) -> RunResult:
        """Return the output as a run's result."""
        p = inputs.problem
        q, k, v = (
            decode(x, p.dtype).reshape(-1, p.seqlen, p.head_dim)
            for x in (inputs.q, inputs.k, inputs.v)
        )
        stride = p.seqlen + self.v_extra_rows
        v_rows = np.concatenate([v.reshape(-1, p.head_dim), np.ones_like(v[0])])
        out = np.stack(
            [
                self._head(
                    p, q[i], k[self.k_slice(i, p)], v_rows[i * stride : i * stride + p.seqlen]
                )
                for i in range(len(q))
            ]
        ).reshape(p.shape)
        if self.spoil is not None:
            self.spoil(out)
        return RunResult(status=Status.PASSED, out=encode(out, p.dtype))

    def _head(self, p: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        tiles = -(-p.seqlen // self.block_n)
        room = ((0, tiles * self.block_n - p.seqlen), (0, 0))
        k, v = np.pad(k, room), np.pad(v, room)
        chunk = -(-tiles // self.num_splits) * self.block_n
        out = np.empty_like(q)
        for m0 in range(0, p.seqlen, self.block_m):
            rows = np.arange(m0, min(m0 + self.block_m, p.seqlen))
            end = rows[-1] + 1 if p.causal else p.seqlen
            states = []
            for split in range(self.num_splits):
                if split == self.skipped_split:
                    continue
                loaded = self.query_index(rows, split)
                inside = (loaded >= 0) & (loaded < p.seqlen)
                mine = np.where(inside[:, None], q[loaded % p.seqlen], np.float32(0))
                begin = split * chunk
                n0s = range(begin, min(end, begin + chunk), self.block_n)
                states.append(self._chunk(p, rows, mine, k, v, n0s))
            out[rows] = self._fuse(states)
        return out

    def _chunk(
        self, p: Problem, rows: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, n0s: range
    ) -> State:
        m = np.full(len(rows), -np.inf, np.float32)
        row_sum = np.zeros(len(rows), np.float32)
        acc = np.zeros((len(rows), p.head_dim), np.float32)
        for n0 in n0s:
            keys = np.arange(n0, n0 + self.block_n)
            scores = q @ k[keys].T * np.float32(self.scale_factor / np.sqrt(p.head_dim))
            if self.masks_tail:
                scores[:, keys >= p.seqlen] = -np.inf
            if p.causal:
                scores[keys > rows[:, None] + self.causal_shift] = -np.inf
            m_new = np.maximum(m, scores.max(axis=1))
            m_finite = np.where(np.isfinite(m_new), m_new, np.float32(0))
            correction = np.exp(m - m_finite) if self.rescales_online else np.ones_like(m)
            weights = np.exp(scores - m_finite[:, None])
            row_sum = row_sum * correction + weights.sum(axis=1)
            acc = acc * correction[:, None] + weights @ v[keys]
            m = m_new
        return m, row_sum, acc

    def _fuse(self, states: list[State]) -> np.ndarray:
        top = np.max([m for m, _, _ in states], axis=0)
        weights = [np.exp(m - np.where(np.isfinite(top), top, 0)) for m, _, _ in states]
        acc = sum(
            (w if self.rescales_fused_acc else np.ones_like(w))[:, None] * a
            for w, (_, _, a) in zip(weights, states, strict=True)
        )
        row_sum = sum(
            (w if self.rescales_fused_l else np.ones_like(w)) * s
            for w, (_, s, _) in zip(weights, states, strict=True)
        )
        with np.errstate(invalid="ignore"):
            return np.asarray(acc / np.asarray(row_sum)[:, None])
