"""v12: short sequences in one go."""

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
)
from kernels.variant import Config, Constraint, Pass, ProblemLike, Tunable, Variant, Work, ceil_div

BLOCK_M = 16  # query rows of one mma tile
PADDING = 8  # elements after each row of V, and floats after each row of O


def _max_keys(_: ProblemLike, config: Config) -> int:
    return config["num_warps"] * config["keys_per_warp"]


def _too_long(problem: ProblemLike, config: Config) -> str:
    return (
        f"v12 keeps all keys of a head in one CTA, here {_max_keys(problem, config)}, and there "
        f"are {problem.num_keys:,}: raise num_warps or keys_per_warp, or choose a variant that "
        "loops."
    )


def _grid(problem: ProblemLike, _: Config) -> tuple[int, int, int]:
    return (problem.num_heads, problem.batch, ceil_div(problem.seqlen, BLOCK_M))


def _threads(_: ProblemLike, config: Config) -> int:
    return 32 * config["num_warps"]


def _smem_bytes(problem: ProblemLike, config: Config) -> int:
    """Each warp's padded V, and its O, m and l as floats."""
    v_bytes = config["keys_per_warp"] * (problem.head_dim + PADDING) * BYTES_PER_ELEMENT
    o_bytes = BLOCK_M * (problem.head_dim + PADDING) * BYTES_PER_FLOAT
    ml_bytes = 2 * BLOCK_M * BYTES_PER_FLOAT
    return config["num_warps"] * (v_bytes + o_bytes + ml_bytes)


VARIANT = Variant(
    id="v12",
    name="v12_one_shot",
    title="One shot",
    idea="Short S: the warps of a CTA split the keys, take them at once, merge on chip.",
    head_dims=(32, 64, 96, 128),
    dtypes=DTYPES,
    min_compute_capability=(8, 0),
    tunables=(
        Tunable("num_warps", (2, 4, 8), 4, "warps per CTA, which split the keys"),
        Tunable("keys_per_warp", (16, 32, 64), 32, "keys each warp takes at once"),
    ),
    constraints=(
        Constraint(holds=lambda p, c: p.num_keys <= _max_keys(p, c), reason=_too_long),
        grid_limit("y", lambda p, _: p.batch, "batches"),
        grid_limit("z", lambda p, _: ceil_div(p.seqlen, BLOCK_M), "query tiles of 16 rows"),
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
        query_rows=lambda _p, _c: BLOCK_M,
        kv_rows=_max_keys,
        conflict_ways=lambda _p, _c: 1,
    ),
)
