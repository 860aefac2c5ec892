"""A tiled attention kernel in NumPy with bugs that can be switched on.

It follows the kernels' own order (query tiles, K/V chunks, key tiles, online softmax, fusion) in
float32 and knows nothing of the engine's suspects, so that a test of the words is no tautology.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.backends.base import RunResult
from engine.evaluation import Status
from engine.tensors import Inputs, decode, encode

# (row, split) → the query row that is really loaded; seqlen or more loads zeros.
QueryIndex = Callable[[np.ndarray, int], np.ndarray]


@dataclass
class Kernel:
    """A v05-like kernel; every field but the tile sizes is a bug."""

    block_m: int = 64
    block_n: int = 64
    num_splits: int = 1
    query_index: QueryIndex = lambda rows, _: rows
    rescale_online: bool = True
    rescale_fusion: bool = True
    weigh_fused_l: bool = True
    mask_tail: bool = True
    causal_shift: int = 0
    k_head: Callable[[int, int], int] | None = None  # (batch, head) → slice whose K is read
    v_row_step: int = 0  # V is read this many rows too far on in every head but the first
    skip_split: int | None = None
    scale: float | None = None
    after: list[Callable[[np.ndarray], None]] = field(default_factory=list)

    def run(self, inputs: Inputs, **flags: Any) -> RunResult:
        """The output of the kernel as a run's result."""
        problem = inputs.problem
        q, k, v = (
            decode(x, problem.dtype).reshape(-1, problem.seqlen, problem.head_dim)
            for x in (inputs.q, inputs.k, inputs.v)
        )
        out = np.empty_like(q)
        for index in range(len(q)):
            batch, head = divmod(index, problem.num_heads)
            from_head = index if self.k_head is None else self.k_head(batch, head)
            values = v[index]
            if self.v_row_step and index:
                flat = v.reshape(-1, problem.head_dim)
                begin = index * (problem.seqlen + self.v_row_step)
                values = np.resize(flat[begin : begin + problem.seqlen], values.shape)
            out[index] = self._head(inputs, q[index], k[from_head], values)
        for change in self.after:
            change(out.reshape(problem.shape))
        raw = encode(out, problem.dtype).reshape(problem.shape)
        return RunResult(status=Status.PASSED, out=raw, **flags)

    def _head(self, inputs: Inputs, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        problem = inputs.problem
        seqlen = problem.seqlen
        padded = -(-seqlen // self.block_n) * self.block_n
        room = ((0, padded - seqlen), (0, 0))
        k, v = np.pad(k, room), np.pad(v, room)
        tiles = padded // self.block_n
        per_chunk = -(-tiles // self.num_splits) * self.block_n
        out = np.empty_like(q)
        for m0 in range(0, seqlen, self.block_m):
            rows = np.arange(m0, min(m0 + self.block_m, seqlen))
            end = min(seqlen, m0 + self.block_m) if problem.causal else seqlen
            states = [
                self._chunk(
                    inputs,
                    rows,
                    q,
                    k,
                    v,
                    split * per_chunk,
                    min(end, (split + 1) * per_chunk),
                    split,
                )
                for split in range(self.num_splits)
                if split != self.skip_split
            ]
            out[rows] = self._fuse(states)
        return out

    def _chunk(self, inputs, rows, q, k, v, begin, end, split):
        problem = inputs.problem
        loaded = self.query_index(rows, split)
        inside = (loaded >= 0) & (loaded < problem.seqlen)
        mine = np.where(inside[:, None], q[np.clip(loaded, 0, problem.seqlen - 1)], 0)
        scale = self.scale or 1 / np.sqrt(problem.head_dim)
        m = np.full(len(rows), -np.inf, np.float32)
        total = np.zeros(len(rows), np.float32)
        acc = np.zeros((len(rows), q.shape[1]), np.float32)
        for n0 in range(begin, end, self.block_n):
            keys = np.arange(n0, n0 + self.block_n)
            scores = (mine @ k[keys].T * np.float32(scale)).astype(np.float32)
            hidden = np.zeros(scores.shape, bool)
            if self.mask_tail:
                hidden |= keys >= problem.seqlen
            if problem.causal:
                hidden |= keys > rows[:, None] + self.causal_shift
            scores[hidden] = -np.inf
            new = np.maximum(m, scores.max(axis=1))
            safe = np.where(np.isfinite(new), new, 0).astype(np.float32)
            correction = np.exp(m - safe) if self.rescale_online else np.ones_like(m)
            p = np.exp(scores - safe[:, None])
            total = total * correction + p.sum(axis=1)
            acc = acc * correction[:, None] + p @ v[keys]
            m = new
        return m, total, acc

    def _fuse(self, states):
        top = np.max([m for m, _, _ in states], axis=0)
        top = np.where(np.isfinite(top), top, 0)
        numerator, denominator = 0, 0
        for m, total, acc in states:
            exact = np.exp(m - top)
            weight = exact if self.rescale_fusion else np.where(np.isfinite(m), 1, 0)
            numerator = numerator + weight[:, None] * acc
            denominator = (
                denominator
                + (
                    exact
                    if self.weigh_fused_l and self.rescale_fusion
                    else np.where(np.isfinite(m), 1, 0)
                )
                * total
            )
        with np.errstate(invalid="ignore", divide="ignore"):
            return numerator / denominator[:, None]
