"""The run-time shape of one attention call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from engine.errors import InvalidProblem
from kernels.variant import Dtype

# Above these a typing slip is far more likely than a wish; index arithmetic stays within int64.
MAX_BATCH = 1 << 20
MAX_HEADS = 1 << 12
MAX_SEQLEN = 1 << 22
MAX_HEAD_DIM = 1 << 10

BYTES_PER_ELEMENT = 2  # FP16 and BF16 alike


@dataclass(frozen=True, slots=True)
class Problem:
    """Q, K, V and O are `[batch, num_heads, seqlen, head_dim]`, contiguous, FP16 or BF16.

    Raises:
        InvalidProblem: a size below 1 or above its limit, or an unknown dtype.
    """

    batch: int
    num_heads: int
    seqlen: int
    head_dim: int
    causal: bool = False
    dtype: Dtype = "float16"

    def __post_init__(self) -> None:
        limits = {
            "batch": MAX_BATCH,
            "num_heads": MAX_HEADS,
            "seqlen": MAX_SEQLEN,
            "head_dim": MAX_HEAD_DIM,
        }
        for name, limit in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidProblem(f"{name} must be a whole number, not {value!r}.")
            if value < 1:
                raise InvalidProblem(f"{name} must be at least 1, not {value}.")
            if value > limit:
                raise InvalidProblem(f"{name} must be at most {limit:,}, not {value:,}.")
        if not isinstance(self.causal, bool):
            raise InvalidProblem(f"causal must be true or false, not {self.causal!r}.")
        if self.dtype not in get_args(Dtype):
            raise InvalidProblem(
                f"dtype must be {' or '.join(get_args(Dtype))}, not {self.dtype!r}."
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.num_heads, self.seqlen, self.head_dim)

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        return self.batch * self.num_heads * self.seqlen * self.head_dim

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor."""
        return self.elements * BYTES_PER_ELEMENT

    @property
    def io_bytes(self) -> int:
        """The fewest bytes the call moves: Q, K, V read once and O written once."""
        return 4 * self.tensor_bytes

    @property
    def flops(self) -> int:
        """4·B·H·S²·D, halved when causal (FlashAttention's convention)."""
        full = 4 * self.batch * self.num_heads * self.seqlen**2 * self.head_dim
        return full // 2 if self.causal else full

    @property
    def softmax_scale(self) -> float:
        """1/√head_dim."""
        return 1.0 / math.sqrt(self.head_dim)

    def label(self) -> str:
        """`B1 H8 S128 D64 fp16 causal`, for tables and file names."""
        dtype = "fp16" if self.dtype == "float16" else "bf16"
        mask = " causal" if self.causal else ""
        return f"B{self.batch} H{self.num_heads} S{self.seqlen} D{self.head_dim} {dtype}{mask}"
