"""The run-time shape of one attention call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from engine.errors import InvalidProblem
from engine.schema import FieldError, Stored
from kernels.variant import Dtype

# Above these a typing slip is far more likely than a wish; index arithmetic stays within int64.
MAX_BATCH = 1 << 20
MAX_HEADS = 1 << 12
MAX_SEQLEN = 1 << 22
MAX_HEAD_DIM = 1 << 10

BYTES_PER_ELEMENT = 2  # FP16 and BF16 alike


@dataclass(frozen=True, slots=True)
class Problem(Stored):
    """Q and O are `[batch, num_heads, seqlen, head_dim]`, contiguous, FP16 or BF16.

    K and V have the same shape, or `seqlen_kv` rows where that is given (few queries against a long
    KV cache, as in decoding). A `seqlen_kv` equal to `seqlen` becomes None, so that one problem has
    one representation; `num_keys` is the number of rows either way.

    Raises:
        InvalidProblem: a size below 1 or above its limit, an unknown dtype, or causal with two
            different lengths.
    """

    batch: int
    num_heads: int
    seqlen: int
    head_dim: int
    causal: bool = False
    dtype: Dtype = "float16"
    seqlen_kv: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "batch": MAX_BATCH,
            "num_heads": MAX_HEADS,
            "seqlen": MAX_SEQLEN,
            "head_dim": MAX_HEAD_DIM,
        }
        if self.seqlen_kv is not None:
            limits["seqlen_kv"] = MAX_SEQLEN
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
        if self.seqlen_kv == self.seqlen:
            object.__setattr__(self, "seqlen_kv", None)
        if self.causal and self.seqlen_kv is not None:
            raise InvalidProblem(
                f"Causal is not defined here where S = {self.seqlen:,} and KV = "
                f"{self.seqlen_kv:,}, as libraries disagree on which keys the first query sees: "
                "leave causal out, or give both one length."
            )

    @property
    def num_keys(self) -> int:
        """Rows of K and of V per head."""
        return self.seqlen if self.seqlen_kv is None else self.seqlen_kv

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of Q and of O."""
        return (self.batch, self.num_heads, self.seqlen, self.head_dim)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Of K and of V."""
        return (self.batch, self.num_heads, self.num_keys, self.head_dim)

    @property
    def elements(self) -> int:
        """Elements of Q, and of O."""
        return self.batch * self.num_heads * self.seqlen * self.head_dim

    @property
    def tensor_bytes(self) -> int:
        """Bytes of Q, and of O."""
        return self.elements * BYTES_PER_ELEMENT

    @property
    def kv_bytes(self) -> int:
        """Bytes of K, and of V."""
        return self.batch * self.num_heads * self.num_keys * self.head_dim * BYTES_PER_ELEMENT

    @property
    def io_bytes(self) -> int:
        """The fewest bytes the call moves: Q, K, V read once and O written once."""
        return 2 * self.tensor_bytes + 2 * self.kv_bytes

    @property
    def flops(self) -> int:
        """4·B·H·S·KV·D, which is 4·B·H·S²·D for one length, halved when causal (FlashAttention's
        convention)."""
        full = 4 * self.batch * self.num_heads * self.seqlen * self.num_keys * self.head_dim
        return full // 2 if self.causal else full

    @property
    def softmax_scale(self) -> float:
        """1/√head_dim."""
        return 1.0 / math.sqrt(self.head_dim)

    def label(self) -> str:
        """`B1 H8 S128 D64 fp16 causal` or `B1 H8 S1 KV4096 D64 fp16`, for tables."""
        dtype = "fp16" if self.dtype == "float16" else "bf16"
        mask = " causal" if self.causal else ""
        return f"B{self.batch} H{self.num_heads} {self.lengths()} D{self.head_dim} {dtype}{mask}"

    def lengths(self) -> str:
        """`S128`, or `S1 KV4096` where there are other keys than queries."""
        keys = "" if self.seqlen_kv is None else f" KV{self.seqlen_kv}"
        return f"S{self.seqlen}{keys}"

    def _to_file(self, fields: dict[str, Any]) -> dict[str, Any]:
        """`seqlen_kv` only where it differs: version 1 of the format does not have it."""
        if self.seqlen_kv is None:
            del fields["seqlen_kv"]
        return fields

    def _check_file(self, raw: Mapping[str, Any]) -> None:
        if raw.get("seqlen_kv") != self.seqlen_kv:
            raise FieldError("seqlen_kv is left out where it equals seqlen", "seqlen_kv")
