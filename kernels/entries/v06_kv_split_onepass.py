"""v06: K/V split over CTAs, fused by the one that comes last."""

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
from kernels.variant import (
    Config,
    Pass,
    ProblemLike,
    Scratch,
    Tensor,
    Tunable,
    Variant,
    Work,
    ceil_div,
)

BLOCK_M = 64

O_PARTIAL, M_PARTIAL, L_PARTIAL = (Tensor(f"{x}_partial") for x in "oml")
ARRIVALS = Tensor("arrivals")


def _grid(problem: ProblemLike, config: Config) -> tuple[int, int, int]:
    x = problem.num_heads * config["num_splits"]
    return (x, problem.batch, ceil_div(problem.seqlen, BLOCK_M))


def _threads(_: ProblemLike, config: Config) -> int:
    return BLOCK_M * config["threads_per_row"]


def _smem_bytes(problem: ProblemLike, config: Config) -> int:
    """Tiles of Q, K and V, and the scores S as floats."""
    tiles = (BLOCK_M + 2 * config["block_n"]) * problem.head_dim * BYTES_PER_ELEMENT
    return tiles + BLOCK_M * config["block_n"] * BYTES_PER_FLOAT


def _query_tiles(problem: ProblemLike, _: Config) -> tuple[int, ...]:
    return (problem.batch, problem.num_heads, ceil_div(problem.seqlen, BLOCK_M))


def _rows(problem: ProblemLike, config: Config) -> tuple[int, ...]:
    return (config["num_splits"], problem.batch, problem.num_heads, problem.seqlen)


def _chunk_rows(problem: ProblemLike, config: Config) -> int:
    """K/V rows of one split: whole tiles, so that seams fall on its multiples."""
    num_tiles = padded_keys(problem, config["block_n"]) // config["block_n"]
    return ceil_div(num_tiles, config["num_splits"]) * config["block_n"]


VARIANT = Variant(
    id="v06",
    name="v06_kv_split_onepass",
    title="KV split, one pass",
    idea="The CTA that finishes a query tile last fuses its splits: one launch instead of two.",
    head_dims=(32, 64, 96, 128),
    dtypes=DTYPES,
    min_compute_capability=(7, 5),
    tunables=(
        Tunable("block_n", (32, 64), 64, "K/V rows per tile"),
        Tunable("threads_per_row", (2, 4, 8), 4, "threads that share one query row"),
        Tunable("num_splits", (1, 2, 4, 8, 16, 32), 4, "K/V chunks per query tile"),
    ),
    constraints=(
        grid_limit("y", lambda p, _: p.batch, "batches"),
        grid_limit("z", lambda p, _: ceil_div(p.seqlen, BLOCK_M), "query tiles of 64 rows"),
    ),
    scratch=(
        Scratch("o_partial", "float32", lambda p, c: (*_rows(p, c), p.head_dim)),
        Scratch("m_partial", "float32", _rows),
        Scratch("l_partial", "float32", _rows),
        Scratch("arrivals", "int32", _query_tiles, fill="zero"),
    ),
    passes=(
        Pass(
            entry="attention_forward",
            grid=_grid,
            threads=_threads,
            dynamic_smem_bytes=_smem_bytes,
            args=(
                *(Q, K, V, OUT, O_PARTIAL, M_PARTIAL, L_PARTIAL, ARRIVALS),
                *(NUM_HEADS, SEQLEN, SEQLEN_KV, SOFTMAX_SCALE),
            ),
        ),
    ),
    work=Work(
        math_unit="fma",
        math_threads=_threads,
        query_rows=lambda _p, _c: BLOCK_M,
        kv_rows=_chunk_rows,
    ),
)
