"""The run-time shape of one attention call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from engine.base.errors import InvalidProblem
from engine.schema import FieldError, Stored
from kernels.variant import Dtype

# Above these a typing slip is far more likely than a wish; index arithmetic stays within int64.
MAX_BATCH = 1 << 20
MAX_HEADS = 1 << 12
MAX_SEQLEN = 1 << 22
MAX_HEAD_DIM = 1 << 10

BYTES_PER_ELEMENT: Mapping[Dtype, int] = {"float16": 2, "bfloat16": 2, "float32": 4}
# As tables name them.
SHORT_DTYPES: Mapping[Dtype, str] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

# Sizes of K and V that may differ from those of Q.
_OF_KV = {"seqlen_kv": "seqlen", "num_heads_kv": "num_heads"}


@dataclass(frozen=True, slots=True)
class Problem(Stored):
    """Q and O are `[batch, num_heads, seqlen, head_dim]`, contiguous, FP16, BF16 or FP32.

    K and V have the same shape, or `seqlen_kv` rows where that is given (few queries against a long
    KV cache, as in decoding), and `num_heads_kv` heads where that is given: grouped-query attention
    (GQA), in which query head h reads K/V head h // (num_heads // num_heads_kv). One that equals
    `seqlen` or `num_heads` becomes None, so that one problem has one representation; `num_keys` and
    `kv_heads` are the numbers either way.

    Raises:
        InvalidProblem: a size below 1 or above its limit, an unknown dtype, causal with two
            different lengths, or heads that do not share the K/V heads evenly.
    """

    batch: int
    num_heads: int
    seqlen: int
    head_dim: int
    causal: bool = False
    dtype: Dtype = "float16"
    seqlen_kv: int | None = None
    num_heads_kv: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "batch": MAX_BATCH,
            "num_heads": MAX_HEADS,
            "seqlen": MAX_SEQLEN,
            "head_dim": MAX_HEAD_DIM,
        }
        if self.seqlen_kv is not None:
            limits["seqlen_kv"] = MAX_SEQLEN
        if self.num_heads_kv is not None:
            limits["num_heads_kv"] = MAX_HEADS
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
                f"dtype must be one of {', '.join(get_args(Dtype))}, not {self.dtype!r}."
            )
        if self.seqlen_kv == self.seqlen:
            object.__setattr__(self, "seqlen_kv", None)
        if self.causal and self.seqlen_kv is not None:
            raise InvalidProblem(
                f"Causal is not defined here where S = {self.seqlen:,} and KV = "
                f"{self.seqlen_kv:,}, as libraries disagree on which keys the first query sees: "
                "leave causal out, or give both one length."
            )
        if self.num_heads_kv == self.num_heads:
            object.__setattr__(self, "num_heads_kv", None)
        if self.num_heads % self.kv_heads:
            raise InvalidProblem(
                f"{self.num_heads:,} query heads cannot share {self.kv_heads:,} K/V heads evenly: "
                "num_heads must be a multiple of num_heads_kv."
            )

    @property
    def num_keys(self) -> int:
        """Rows of K and of V per head."""
        return self.seqlen if self.seqlen_kv is None else self.seqlen_kv

    @property
    def kv_heads(self) -> int:
        """Heads of K and of V."""
        return self.num_heads if self.num_heads_kv is None else self.num_heads_kv

    @property
    def head_group(self) -> int:
        """Query heads that read one K/V head: 1 without GQA."""
        return self.num_heads // self.kv_heads

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of Q and of O."""
        return (self.batch, self.num_heads, self.seqlen, self.head_dim)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Of K and of V."""
        return (self.batch, self.kv_heads, self.num_keys, self.head_dim)

    @property
    def elements(self) -> int:
        """Elements of Q, and of O."""
        return self.batch * self.num_heads * self.seqlen * self.head_dim

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of Q, K, V or O."""
        return BYTES_PER_ELEMENT[self.dtype]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of Q, and of O."""
        return self.elements * self.element_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of K, and of V."""
        return self.batch * self.kv_heads * self.num_keys * self.head_dim * self.element_bytes

    @property
    def io_bytes(self) -> int:
        """The fewest bytes the call moves: Q, K, V read once and O written once."""
        return 2 * self.tensor_bytes + 2 * self.kv_bytes

    @property
    def flops(self) -> int:
        """4·B·H·S·KV·D, which is 4·B·H·S²·D for one length, halved when causal (FlashAttention's
        convention). Sharing K/V heads saves bytes, not FLOPs."""
        full = 4 * self.batch * self.num_heads * self.seqlen * self.num_keys * self.head_dim
        return full // 2 if self.causal else full

    @property
    def softmax_scale(self) -> float:
        """1/√head_dim."""
        return 1.0 / math.sqrt(self.head_dim)

    def label(self) -> str:
        """`B1 H8 S128 D64 fp16 causal` or `B1 H32 HKV8 S1 KV4096 D64 fp16`, for tables."""
        dtype = SHORT_DTYPES[self.dtype]
        mask = " causal" if self.causal else ""
        return f"B{self.batch} {self.heads()} {self.lengths()} D{self.head_dim} {dtype}{mask}"

    def heads(self) -> str:
        """`H8`, or `H32 HKV8` where query heads share K/V heads."""
        shared = "" if self.num_heads_kv is None else f" HKV{self.num_heads_kv}"
        return f"H{self.num_heads}{shared}"

    def lengths(self) -> str:
        """`S128`, or `S1 KV4096` where there are other keys than queries."""
        keys = "" if self.seqlen_kv is None else f" KV{self.seqlen_kv}"
        return f"S{self.seqlen}{keys}"

    def _to_file(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Those of K and V only where they differ: versions 1 and 2 of the format lack them."""
        for name in _OF_KV:
            if fields[name] is None:
                del fields[name]
        return fields

    def _check_file(self, raw: Mapping[str, Any]) -> None:
        for name, of_q in _OF_KV.items():
            if raw.get(name) != getattr(self, name):
                raise FieldError(f"{name} is left out where it equals {of_q}", name)
