"""v04: fewer query rows per CTA."""

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

ROW_THREADS = 16  # threads that share a row
PADDING = 8  # elements after each row of a tile
S_PADDING = 4  # floats after each row of scores


def _query_tiles(problem: ProblemLike, config: Config) -> int:
    return ceil_div(problem.seqlen, config["block_m"])


def _grid(problem: ProblemLike, config: Config) -> tuple[int, int, int]:
    return (problem.num_heads, problem.batch, _query_tiles(problem, config))


def _threads(_: ProblemLike, config: Config) -> int:
    return config["block_m"] // config["rows_per_thread"] * ROW_THREADS


def _smem_bytes(problem: ProblemLike, config: Config) -> int:
    """Padded tiles of Q, K and V, and the padded scores as floats."""
    row_bytes = (problem.head_dim + PADDING) * BYTES_PER_ELEMENT
    s_row_bytes = (config["block_n"] + S_PADDING) * BYTES_PER_FLOAT
    rows = config["block_m"] + 2 * config["block_n"]
    return rows * row_bytes + config["block_m"] * s_row_bytes


VARIANT = Variant(
    id="v04",
    name="v04_small_tiles",
    title="Small tiles",
    idea="16 or 32 query rows per CTA: more CTAs, so fewer idle SMs when B·H is small.",
    head_dims=(32, 64, 96, 128),
    dtypes=DTYPES,
    min_compute_capability=(7, 5),
    tunables=(
        Tunable("block_m", (16, 32), 16, "query rows per CTA"),
        Tunable("block_n", (32, 64), 32, "K/V rows per tile"),
        Tunable("rows_per_thread", (1, 2, 4), 2, "query rows in a thread's register tile"),
    ),
    constraints=(
        grid_limit("y", lambda p, _: p.batch, "batches"),
        grid_limit("z", _query_tiles, "query tiles"),
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
        query_rows=lambda _, c: c["block_m"],
        kv_rows=lambda p, c: padded_keys(p, c["block_n"]),
        conflict_ways=lambda _p, _c: 1,
    ),
)
