"""v08: tensor cores through mma.sync."""

from __future__ import annotations

from kernels.entries.common import (
    BYTES_PER_ELEMENT,
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

WARP_ROWS = 16  # query rows of one mma tile
PADDING = 8  # elements after each row of a tile


def _query_rows(_: ProblemLike, config: Config) -> int:
    return WARP_ROWS * config["num_warps"]


def _query_tiles(problem: ProblemLike, config: Config) -> int:
    return ceil_div(problem.seqlen, _query_rows(problem, config))


def _grid(problem: ProblemLike, config: Config) -> tuple[int, int, int]:
    return (problem.num_heads, problem.batch, _query_tiles(problem, config))


def _threads(_: ProblemLike, config: Config) -> int:
    return 32 * config["num_warps"]


def _smem_bytes(problem: ProblemLike, config: Config) -> int:
    """Padded tiles of K and V; Q lives in registers."""
    return 2 * config["block_n"] * (problem.head_dim + PADDING) * BYTES_PER_ELEMENT


VARIANT = Variant(
    id="v08",
    name="v08_mma_sync",
    title="mma.sync",
    idea="Tensor cores by mma.m16n8k16 and ldmatrix; P stays in registers and warps split Q.",
    head_dims=(32, 64, 96, 128),
    dtypes=DTYPES,
    min_compute_capability=(8, 0),
    tunables=(
        Tunable("block_n", (32, 64), 64, "K/V rows per tile"),
        Tunable("num_warps", (1, 2, 4, 8), 4, "warps per CTA, 16 query rows each"),
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
        math_unit="tensor",
        math_threads=_threads,
        query_rows=_query_rows,
        kv_rows=lambda p, c: padded_keys(p, c["block_n"]),
        conflict_ways=lambda _p, _c: 1,
    ),
)
