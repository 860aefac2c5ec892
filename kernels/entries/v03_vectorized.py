"""v03: wide loads, padded rows, register tiles."""

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
ROW_THREADS = 16  # threads that share a row
PADDING = 8  # elements after each row of a tile
S_PADDING = 4  # floats after each row of scores


def _grid(problem: ProblemLike, _: Config) -> tuple[int, int, int]:
    return (problem.num_heads, problem.batch, ceil_div(problem.seqlen, BLOCK_M))


def _threads(_: ProblemLike, config: Config) -> int:
    return BLOCK_M // config["rows_per_thread"] * ROW_THREADS


def _smem_bytes(problem: ProblemLike, config: Config) -> int:
    """Padded tiles of Q, K and V, and the padded scores as floats."""
    row_bytes = (problem.head_dim + PADDING) * BYTES_PER_ELEMENT
    s_row_bytes = (config["block_n"] + S_PADDING) * BYTES_PER_FLOAT
    return (BLOCK_M + 2 * config["block_n"]) * row_bytes + BLOCK_M * s_row_bytes


VARIANT = Variant(
    id="v03",
    name="v03_vectorized",
    title="Vectorized",
    idea="16-byte loads, padded shared memory and register tiles: one load serves several FMAs.",
    head_dims=(32, 64, 96, 128),
    dtypes=DTYPES,
    min_compute_capability=(7, 5),
    tunables=(
        Tunable("block_n", (32, 64), 32, "K/V rows per tile"),
        Tunable("rows_per_thread", (2, 4, 8), 4, "query rows in a thread's register tile"),
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
        conflict_ways=lambda _p, _c: 1,
    ),
)
