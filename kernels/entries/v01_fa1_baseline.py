"""v01: the FlashAttention-1 order."""

from __future__ import annotations

from kernels.entries.common import (
    BYTES_PER_ELEMENT,
    BYTES_PER_FLOAT,
    DTYPES,
    NUM_HEADS,
    OUT,
    SEQLEN,
    SEQLEN_KV,
    SOFTMAX_SCALE,
    K,
    Q,
    V,
    grid_limit,
    padded_keys,
)
from kernels.variant import Config, Pass, ProblemLike, Tunable, Variant, Work, ceil_div

BLOCK_M = 64


def _grid(problem: ProblemLike, _: Config) -> tuple[int, int, int]:
    return (problem.num_heads, problem.batch, ceil_div(problem.seqlen, BLOCK_M))


def _smem_bytes(problem: ProblemLike, config: Config) -> int:
    """Tiles of Q, K and V, and the scores S as floats."""
    tiles = (BLOCK_M + 2 * config["block_n"]) * problem.head_dim * BYTES_PER_ELEMENT
    return tiles + BLOCK_M * config["block_n"] * BYTES_PER_FLOAT


VARIANT = Variant(
    id="v01",
    name="v01_fa1_baseline",
    title="FA-1 baseline",
    idea="FlashAttention-1 order: sequential K/V tiles under an online softmax, a thread per row.",
    head_dims=(4, 32, 64, 96, 128),
    dtypes=DTYPES,
    min_compute_capability=(7, 5),
    tunables=(Tunable("block_n", (32, 64), 64, "K/V rows per tile"),),
    constraints=(
        grid_limit("y", lambda p, _: p.batch, "batches"),
        grid_limit("z", lambda p, _: ceil_div(p.seqlen, BLOCK_M), "query tiles of 64 rows"),
    ),
    scratch=(),
    passes=(
        Pass(
            entry="attention_forward",
            grid=_grid,
            threads=lambda _p, _c: 256,
            dynamic_smem_bytes=_smem_bytes,
            args=(Q, K, V, OUT, NUM_HEADS, SEQLEN, SEQLEN_KV, SOFTMAX_SCALE),
        ),
    ),
    work=Work(
        math_unit="fma",
        math_threads=lambda _p, _c: BLOCK_M,
        query_rows=lambda _p, _c: BLOCK_M,
        kv_rows=lambda p, c: padded_keys(p, c["block_n"]),
    ),
)
