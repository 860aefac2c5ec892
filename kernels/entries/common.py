"""What the entries share: the usual arguments, CUDA's grid limits, tile counts."""

from __future__ import annotations

import math

from kernels.variant import (
    Config,
    Constraint,
    Dtype,
    IntFormula,
    ProblemLike,
    Scalar,
    Tensor,
    ceil_div,
)

DTYPES: tuple[Dtype, ...] = ("float16", "bfloat16")
BYTES_PER_ELEMENT = 2
BYTES_PER_FLOAT = 4
MAX_GRID_Y = MAX_GRID_Z = 65535  # CUDA programming guide, technical specifications

Q, K, V, OUT = Tensor("q"), Tensor("k"), Tensor("v"), Tensor("out")
NUM_HEADS = Scalar("num_heads", "int32", lambda p, _: p.num_heads)
SEQLEN = Scalar("seqlen", "int32", lambda p, _: p.seqlen)
SEQLEN_KV = Scalar("seqlen_kv", "int32", lambda p, _: p.num_keys)
SOFTMAX_SCALE = Scalar("softmax_scale", "float32", lambda p, _: 1.0 / math.sqrt(p.head_dim))


def padded_keys(problem: ProblemLike, block_n: int) -> int:
    """K/V rows in whole tiles: masked rows of the last tile cost as much as the others."""
    return ceil_div(problem.num_keys, block_n) * block_n


def grid_limit(axis: str, size: IntFormula, meaning: str) -> Constraint:
    """The grid's y or z axis holds at most 65,535 CTAs. `meaning` names what it counts."""

    def reason(problem: ProblemLike, config: Config) -> str:
        return (
            f"The grid's {axis} axis would count {size(problem, config):,} {meaning}, and CUDA "
            f"allows {MAX_GRID_Y:,}: choose fewer."
        )

    return Constraint(holds=lambda p, c: size(p, c) <= MAX_GRID_Y, reason=reason)
