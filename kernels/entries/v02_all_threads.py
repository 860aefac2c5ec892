"""v02: every thread computes."""

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


def _threads(_: ProblemLike, config: Config) -> int:
    return BLOCK_M * config["threads_per_row"]


def _smem_bytes(problem: ProblemLike, config: Config) -> int:
    """Tiles of Q, K and V, and the scores S as floats."""
    tiles = (BLOCK_M + 2 * config["block_n"]) * problem.head_dim * BYTES_PER_ELEMENT
    return tiles + BLOCK_M * config["block_n"] * BYTES_PER_FLOAT


VARIANT = Variant(
    id="v02",
    name="v02_all_threads",
    title="All threads",
    idea="Several threads share each query row and combine by shuffles, so none is idle.",
    head_dims=(32, 64, 96, 128),
    dtypes=DTYPES,
    min_compute_capability=(7, 5),
    tunables=(
        Tunable("block_n", (32, 64), 64, "K/V rows per tile"),
        Tunable("threads_per_row", (2, 4, 8), 4, "threads that share one query row"),
    ),
    constraints=(
        grid_limit("y", lambda p, _: p.batch, "batches"),
        grid_limit("z", lambda p, _: ceil_div(p.seqlen, BLOCK_M), "query tiles of 64 rows"),
    ),
    scratch=(),
    passes=(
        Pass(
            entry="attention_forward",
            grid=_grid,
            threads=_threads,
            dynamic_smem_bytes=_smem_bytes,
            args=(Q, K, V, OUT, NUM_HEADS, SEQLEN, SEQLEN_KV, SOFTMAX_SCALE),
        ),
    ),
    work=Work(
        math_unit="fma",
        math_threads=_threads,
        query_rows=lambda _p, _c: BLOCK_M,
        kv_rows=lambda p, c: padded_keys(p, c["block_n"]),
    ),
)
