"""The shape and features of one attention call, and presets from real models."""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

from engine.base.errors import InvalidProblem, unknown
from engine.base.schema import FieldError, Stored
from kernels.variant import BYTES_PER_ELEMENT, Dtype, Feature

# Larger values are probably typing errors. Below them, index arithmetic stays within int64.
MAX_BATCH = 1 << 20
MAX_HEADS = 1 << 12
MAX_SEQLEN = 1 << 22
MAX_HEAD_DIM = 1 << 10
MAX_SOFTCAP = 1e6
MAX_SEQUENCES = 1 << 12

_T = TypeVar("_T")
Direction: TypeAlias = Literal["forward", "backward"]
KvDtype: TypeAlias = Literal["float8_e4m3"]
# Accepted names.
KV_DTYPES: Mapping[str, KvDtype] = {"fp8": "float8_e4m3", "float8_e4m3": "float8_e4m3"}

# Names in tables.
SHORT_DTYPES: Mapping[Dtype, str] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

# Sizes of K and V that may differ from those of Q.
_OF_KV = {"seqlen_kv": "seqlen", "num_heads_kv": "num_heads"}
# Fields that files omit at their defaults; versions before 5 of the format lack them.
_LEFT_OUT = (
    *("window", "softcap", "alibi", "sinks", "seqlens", "direction", "head_dim_v"),
    *("kv_dtype", "lse"),
)


@dataclass(frozen=True, slots=True)
class Problem(Stored):
    """The shape and features of one attention call. Q and O are `[batch, num_heads, seqlen,
    head_dim]`, contiguous, in FP16, BF16 or FP32.

    K and V have the same shape, except for `seqlen_kv` rows if given (few queries and a long KV
    cache, as in decoding) and `num_heads_kv` heads if given: grouped-query attention (GQA), in
    which query head h reads K/V head h // (num_heads // num_heads_kv). A value equal to `seqlen` or
    `num_heads` becomes None, so that equal problems compare equal; `num_keys` and `kv_heads` are
    always numbers.

    The last query is at the position of the last key: query i is at p = i + KV − S
    (FlashAttention's "bottom-right aligned" mask, from version 2.1 on). A score is `softmax_scale ·
    q·k`. A softcap replaces it by `softcap · tanh(score / softcap)` (Gemma 2), then ALiBi subtracts
    `slope · |p − j|` for key j, then the mask is applied.

    Args:
        causal: the query at p sees keys j ≤ p.
        window: the query at p sees keys with |p − j| < window. With a causal mask these are
            `window` keys including its own, as in Mistral: `window_size = (window − 1, 0)` of
            FlashAttention; without one, `window_size = (window − 1, window − 1)`.
        softcap: bound of the scores; above 0.
        alibi: adds a bias with one slope per query head, those of Press et al. (arXiv 2108.12409).
        sinks: a learned logit of each query head is added to the row sum, without a value
            (gpt-oss); `Inputs.sinks` has them.
        seqlens: keys of each sequence; the largest is `seqlen_kv`, or else `seqlen`. The queries of
            a sequence are its last min(seqlen, keys) positions; further rows do not exist.
        direction: "backward" computes dQ, dK and dV.
        head_dim_v: columns of V and O if different from those of Q and K (DeepSeek: 192 and 128).
        kv_dtype: dtype of K and V if different from that of Q and O: FP8 (E4M3) with a factor for
            each K/V head (`Inputs.kv_scales`), as in the KV cache of a server.
        lse: also return the logarithm of each row's sum of exponentials, which the backward pass
            and the fusion of partial results need; it includes the sink. Natural logarithm,
            float32, `[batch, num_heads, seqlen]`.

    Raises:
        InvalidProblem: a size below 1 or above its limit, an unknown dtype, a mask that hides all
            keys from some query, or heads that do not share the K/V heads evenly.
    """

    omitted_defaults: ClassVar[tuple[str, ...]] = (*_OF_KV, *_LEFT_OUT)

    batch: int
    num_heads: int
    seqlen: int
    head_dim: int
    causal: bool = False
    dtype: Dtype = "float16"
    seqlen_kv: int | None = None
    num_heads_kv: int | None = None
    window: int | None = None
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False
    seqlens: tuple[int, ...] | None = None
    direction: Direction = "forward"
    head_dim_v: int | None = None
    kv_dtype: KvDtype | None = None
    lse: bool = False

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
        if self.window is not None:
            limits["window"] = MAX_SEQLEN
        if self.head_dim_v is not None:
            limits["head_dim_v"] = MAX_HEAD_DIM
        for name, limit in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidProblem(
                    f"{name} must be a whole number, not {value!r}.", code="size_no_whole_number"
                )
            if value < 1:
                raise InvalidProblem(
                    f"{name} must be at least 1, not {value}.", code="size_too_small"
                )
            if value > limit:
                raise InvalidProblem(
                    f"{name} must be at most {limit:,}, not {value:,}.", code="size_too_large"
                )
        for name in ("causal", "alibi", "sinks", "lse"):
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidProblem(
                    f"{name} must be true or false, not {value!r}.", code="flag_not_boolean"
                )
        choices = {"dtype": get_args(Dtype), "direction": get_args(Direction)}
        if self.kv_dtype is not None:
            choices["kv_dtype"] = get_args(KvDtype)
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                raise InvalidProblem(
                    f"{name} must be one of {', '.join(known)}, not {value!r}.",
                    code="choice_unknown",
                )
        if self.softcap is not None:
            object.__setattr__(self, "softcap", _checked_softcap(self.softcap))
        if self.seqlen_kv == self.seqlen:
            object.__setattr__(self, "seqlen_kv", None)
        if self.seqlens is not None:
            self._check_seqlens(self.seqlens)
        self._check_mask()
        if self.head_dim_v == self.head_dim:
            object.__setattr__(self, "head_dim_v", None)
        if self.num_heads_kv == self.num_heads:
            object.__setattr__(self, "num_heads_kv", None)
        if self.lse and self.direction == "backward":
            raise InvalidProblem(
                "The backward pass is given LSE, and writes none: leave lse out, or ask for the "
                "forward pass.",
                code="lse_of_the_backward_pass",
            )
        if self.num_heads % self.kv_heads:
            raise InvalidProblem(
                f"{self.num_heads:,} query heads cannot share {self.kv_heads:,} K/V heads evenly: "
                "num_heads must be a multiple of num_heads_kv.",
                code="heads_not_shared",
            )

    def _check_seqlens(self, lengths: tuple[int, ...]) -> None:
        if not isinstance(lengths, tuple) or not all(type(n) is int and n > 0 for n in lengths):
            raise InvalidProblem(
                "seqlens must be whole numbers from 1, the keys of each sequence: for instance "
                "5,17,200."
            )
        if len(lengths) != self.batch or max(lengths) != self.num_keys:
            raise InvalidProblem(
                f"seqlens names {len(lengths):,} sequences of up to {max(lengths, default=0):,} "
                f"keys, and the problem has {self.batch:,} of up to {self.num_keys:,}: leave the "
                "batch and the number of keys out."
            )
        if self.seqlen > self.num_keys:
            raise InvalidProblem(
                f"Each sequence has its last positions as queries, and S = {self.seqlen:,} is more "
                f"than the {self.num_keys:,} keys of the longest: lower S, or leave it out."
            )
        if len(set(lengths)) == 1 and self.seqlen <= lengths[0]:
            object.__setattr__(self, "seqlens", None)

    def _check_mask(self) -> None:
        """Raise InvalidProblem if the first query sees no key."""
        if self.num_keys >= self.seqlen or self.seqlens is not None:
            return
        hidden = self.seqlen - self.num_keys
        if self.causal:
            raise InvalidProblem(
                f"A causal mask ends at the last key, so that the first {hidden:,} of S = "
                f"{self.seqlen:,} queries would see none of KV = {self.num_keys:,} keys: give at "
                "least as many keys as queries, or leave causal out.",
                code="causal_without_keys",
            )
        if self.window is not None and hidden >= self.window:
            raise InvalidProblem(
                f"The last query is at the last key, so that the first of S = {self.seqlen:,} "
                f"queries is {hidden:,} before the first of KV = {self.num_keys:,} keys, outside a "
                f"window of {self.window:,}: give more keys, or a wider window."
            )

    @property
    def features(self) -> tuple[Feature, ...]:
        """Return features that the problem needs beyond plain and square causal attention."""
        has_positions = self.causal or self.window is not None or self.alibi
        offset = has_positions and self.seqlen_kv is not None
        used: dict[Feature, bool] = {
            "backward": self.direction == "backward",
            "varlen": self.seqlens is not None,
            "kv_offset": offset,
            "window": self.window is not None,
            "softcap": self.softcap is not None,
            "alibi": self.alibi,
            "sinks": self.sinks,
            "kv_fp8": self.kv_dtype is not None,
            "lse": self.lse,
        }
        return tuple(name for name, is_used in used.items() if is_used)

    @property
    def kv_offset(self) -> int:
        """Return the position of the first query: KV − S, so that the last query is at the last
        key."""
        return self.num_keys - self.seqlen

    def keys_seen(self, row: int) -> tuple[int, int]:
        """Return (first key, key after the last) that a query row sees."""
        position = row + self.kv_offset
        first, end = 0, self.num_keys
        if self.window is not None:
            first, end = max(0, position - self.window + 1), min(end, position + self.window)
        return first, min(end, position + 1) if self.causal else end

    def of_sequence(self, index: int) -> Problem:
        """Return one sequence of a batch as a problem."""
        if self.seqlens is None:
            return replace(self, batch=1)
        keys = self.seqlens[index]
        return replace(self, batch=1, seqlens=None, seqlen=min(self.seqlen, keys), seqlen_kv=keys)

    def with_keys(self, keys: int) -> Problem:
        """Return a problem of the same kernel with this many keys and batch 1, to examine its CTAs.

        Decoding keeps its few queries; otherwise S = KV. For sequences of different lengths there
        are two, the second shorter by one key.
        """
        keys = keys if self.seqlens is None else max(2, keys)
        few = self.seqlens is not None or "kv_offset" in self.features
        seqlen = keys
        if self.seqlen_kv is not None:
            seqlen = min(self.seqlen, keys) if few else self.seqlen
        lengths = None if self.seqlens is None else (keys, keys - 1)
        batch = 1 if lengths is None else 2
        return replace(self, batch=batch, seqlen=seqlen, seqlen_kv=keys, seqlens=lengths)

    @property
    def num_keys(self) -> int:
        """Return the rows of K and of V per head."""
        return self.seqlen if self.seqlen_kv is None else self.seqlen_kv

    @property
    def kv_heads(self) -> int:
        """Heads of K and of V."""
        return self.num_heads if self.num_heads_kv is None else self.num_heads_kv

    @property
    def value_dim(self) -> int:
        """Columns of V and of O."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def head_group(self) -> int:
        """Return the query heads per K/V head: 1 without GQA."""
        return self.num_heads // self.kv_heads

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of Q."""
        return (self.batch, self.num_heads, self.seqlen, self.head_dim)

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Shape of O."""
        return (self.batch, self.num_heads, self.seqlen, self.value_dim)

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.kv_heads, self.num_keys, self.head_dim)

    @property
    def v_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.kv_heads, self.num_keys, self.value_dim)

    @property
    def elements(self) -> int:
        """Elements of Q."""
        return math.prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of Q and O, and of K and V unless they are in FP8."""
        return BYTES_PER_ELEMENT[self.dtype]

    @property
    def kv_element_bytes(self) -> int:
        """Bytes of one element of K or V."""
        return self.element_bytes if self.kv_dtype is None else 1

    @property
    def tensor_bytes(self) -> int:
        """Bytes of Q."""
        return self.elements * self.element_bytes

    @property
    def out_bytes(self) -> int:
        """Bytes of O."""
        return math.prod(self.out_shape) * self.element_bytes

    @property
    def k_bytes(self) -> int:
        return math.prod(self.k_shape) * self.kv_element_bytes

    @property
    def v_bytes(self) -> int:
        return math.prod(self.v_shape) * self.kv_element_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V together."""
        return self.k_bytes + self.v_bytes

    @property
    def io_bytes(self) -> int:
        """Return the minimum bytes of the call: Q, K, V read once, O and requested LSE written
        once; backward Q, K, V, O, dO and LSE read, and dQ, dK, dV written."""
        forward = self.tensor_bytes + self.out_bytes + self.kv_bytes
        lse_bytes = 4 * self.batch * self.num_heads * self.seqlen
        if self.direction == "forward":
            return forward + lse_bytes * self.lse
        return 2 * forward + lse_bytes

    @property
    def twice_scores(self) -> int:
        """Return twice the unmasked scores of one head of all sequences, as FlashAttention
        counts them: KV − S/2 keys per query if causal, and the exact number with a window."""
        if self.seqlens is not None:
            return sum(self.of_sequence(i).twice_scores for i in range(self.batch))
        if self.window is not None:
            return 2 * self.batch * _scores_of_window(self)
        full = 2 * self.batch * self.seqlen * self.num_keys
        return full - self.batch * self.seqlen**2 if self.causal else full

    @property
    def flops(self) -> int:
        """Return 2·H·(D + DV) times the scores, 2.5 times as many for the backward pass.

        That is 4·B·H·S·KV·D if V has as many columns as K, and 2·B·H·S²·D with a causal mask and S
        = KV (FlashAttention's convention). Shared K/V heads save bytes, not FLOPs.
        """
        forward = self.num_heads * (self.head_dim + self.value_dim) * self.twice_scores
        return forward if self.direction == "forward" else 5 * forward // 2

    def main_of(self, passes: Sequence[_T]) -> _T:
        """Return the item for the main pass of a sequence with one item per pass.

        It is the first; the second for the backward pass, whose first pass computes D = rowsum(dO ·
        O).
        """
        return passes[min(int(self.direction == "backward"), len(passes) - 1)]

    @property
    def softmax_scale(self) -> float:
        """1/√head_dim."""
        return 1.0 / math.sqrt(self.head_dim)

    def label(self) -> str:
        """Return `B1 H8 S128 D64 fp16 causal` or `B1 H32 HKV8 S1 KV4096 D64 fp16`, for tables."""
        dtype = SHORT_DTYPES[self.dtype]
        words = " ".join((self.dims_label(), dtype, *self.feature_words()))
        return f"B{self.batch} {self.heads_label()} {self.lengths_label()} {words}"

    def feature_words(self) -> tuple[str, ...]:
        """Return the features as short words, such as `("causal", "window128", "softcap50",
        "alibi", "sinks")`."""
        return (
            *(["causal"] if self.causal else []),
            *([f"window{self.window}"] if self.window is not None else []),
            *([f"softcap{self.softcap:g}"] if self.softcap is not None else []),
            *(["alibi"] if self.alibi else []),
            *(["sinks"] if self.sinks else []),
            *(["kvfp8"] if self.kv_dtype is not None else []),
            *(["lse"] if self.lse else []),
            *([f"seqlens{_listed(self.seqlens)}"] if self.seqlens is not None else []),
            *([self.direction] if self.direction != "forward" else []),
        )

    @property
    def rest(self) -> tuple[object, ...]:
        """Return a key of everything except batch and query heads, so that problems with equal keys
        are on one batch curve."""
        kind = (self.direction, self.feature_words(), self.seqlens)
        return (self.lengths_label(), self.dims_label(), self.dtype, *kind)

    def dims_label(self) -> str:
        """Return `D64`, or `D192 DV128` if V and K have different columns."""
        return f"D{self.head_dim}" + ("" if self.head_dim_v is None else f" DV{self.head_dim_v}")

    def heads_label(self) -> str:
        """Return `H8`, or `H32 HKV8` if query heads share K/V heads."""
        shared = "" if self.num_heads_kv is None else f" HKV{self.num_heads_kv}"
        return f"H{self.num_heads}{shared}"

    def lengths_label(self) -> str:
        """Return `S128`, or `S1 KV4096` if K/V and Q have different lengths."""
        keys = "" if self.seqlen_kv is None else f" KV{self.seqlen_kv}"
        return f"S{self.seqlen}{keys}"

    def _check_file(self, raw: Mapping[str, Any]) -> None:
        for name, of_q in _OF_KV.items():
            if raw.get(name) != getattr(self, name):
                raise FieldError(f"{name} is left out where it equals {of_q}", name)


_DEFAULTS = {f.name: f.default for f in fields(Problem)}


def _checked_softcap(softcap: object) -> float:
    number = isinstance(softcap, int | float) and not isinstance(softcap, bool)
    if not number or not 0 < float(softcap) <= MAX_SOFTCAP:  # type: ignore[arg-type]
        raise InvalidProblem(
            f"softcap must be a number above 0 and at most {MAX_SOFTCAP:,.0f}, not {softcap!r}."
        )
    return float(softcap)  # type: ignore[arg-type]


def _scores_of_window(problem: Problem) -> int:
    """Return the scores of one head and sequence with a window: the visible keys, summed over the
    queries.

    The number of visible keys is piecewise linear in the position, so the sum consists of
    arithmetic series.
    """
    # Positions of the first query and after the last.
    first, behind = problem.kv_offset, problem.num_keys
    window = problem.window or problem.num_keys
    reach = 1 if problem.causal else window  # visible keys from a position on
    ends = _sum_clipped(first + reach, behind + reach, problem.num_keys)
    begins = _sum_clipped(first - window + 1, behind - window + 1, problem.num_keys)
    return ends - begins


def _sum_clipped(start: int, stop: int, most: int) -> int:
    """Return Σ of min(most, max(0, i)) for i from `start` to `stop` − 1."""
    start, inside = max(start, 0), min(stop, most + 1)
    rising = max(0, inside - start) * (start + inside - 1) // 2
    above = max(0, stop - max(start, most + 1))
    return rising + above * most


def features_of(problem: Problem) -> dict[str, Any]:
    """Return the feature fields that are not at their defaults, by name."""
    values = {name: getattr(problem, name) for name in _LEFT_OUT}
    return {name: value for name, value in values.items() if value != _DEFAULTS[name]}


def feature_options(problem: Problem) -> list[str]:
    """Return the command line options for a problem's features, without the causal mask."""
    values = {"window": problem.window, "softcap": problem.softcap}
    given = [f"--{name}={value:g}" for name, value in values.items() if value is not None]
    given += [f"--{name}" for name in ("alibi", "sinks", "lse") if getattr(problem, name)]
    if problem.head_dim_v is not None:
        given.append(f"--head-dim-v={problem.head_dim_v}")
    if problem.kv_dtype is not None:
        given.append("--kv-dtype=fp8")
    if problem.seqlens is not None:
        given.append(f"--seqlens={','.join(map(str, problem.seqlens))}")
    return given + ["--backward"] * (problem.direction == "backward")


def parse_seqlens(text: str) -> tuple[int, ...]:
    """Parse `5,17,200`, or `uniform:COUNT:SHORTEST:LONGEST:SEED`: lengths drawn with a seed,
    default 0.

    Raises:
        InvalidProblem: the text has neither form.
    """
    kind, _, rest = text.strip().partition(":")
    numbers = (rest if kind == "uniform" else text).split(":" if kind == "uniform" else ",")
    try:
        values = [int(number) for number in numbers]
    except ValueError:
        values = []
    if kind != "uniform" and values and min(values) > 0:
        return tuple(values)
    if kind == "uniform" and len(values) in (3, 4):
        count, low, high, seed = (*values, 0)[:4]
        if 0 < count <= MAX_SEQUENCES and 0 < low <= high <= MAX_SEQLEN and seed >= 0:
            return tuple(random.Random(seed).choices(range(low, high + 1), k=count))
    raise InvalidProblem(
        f"seqlens takes whole numbers from 1, such as 5,17,200, or uniform:8:16:512:0 for 8 "
        f"lengths from 16 to 512 drawn with seed 0, not {text[:60]!r}."
    )


def _listed(lengths: tuple[int, ...]) -> str:
    """Return `5,17,200`, or the number and the ends of many lengths."""
    if len(lengths) <= 4:
        return ",".join(map(str, lengths))
    return f"{lengths[0]},…({len(lengths)}),{lengths[-1]}"


@dataclass(frozen=True, slots=True)
class Preset:
    """A named problem. `source` is the origin of the shape."""

    name: str
    group: str
    problem: Problem
    note: str
    source: str


_FILE = Path(__file__).with_name("presets.toml")


@cache
def presets() -> tuple[Preset, ...]:
    """Return every preset, in menu order, by group."""
    groups = tomllib.loads(_FILE.read_text(encoding="utf-8"))["groups"]
    return tuple(_preset(group, dict(raw)) for group in groups for raw in group["presets"])


def _preset(group: dict[str, Any], raw: dict[str, Any]) -> Preset:
    name, note = raw.pop("name"), raw.pop("note", group.get("note", ""))
    if "seqlens" in raw:
        lengths = parse_seqlens(raw["seqlens"])
        raw |= {"seqlens": lengths, "batch": len(lengths), "seqlen": max(lengths)}
    return Preset(name, group["name"], Problem(**raw), note.format(**raw), group["source"])


def find_preset(name: str) -> Preset:
    """Return the preset with this name.

    Raises:
        UnknownName: no such preset; the nearest names are in the text.
    """
    for preset in presets():
        if preset.name == name.strip().casefold():
            return preset
    raise unknown("preset", name, (p.name for p in presets()))


# Sets of problems for `bench --preset`.
_SMALL = (
    *(Problem(1, 1, seqlen, 64) for seqlen in (64, 128, 256, 512)),
    *(Problem(1, heads, 128, 64) for heads in (8, 32, 64, 128, 256)),
)
_TOKENS, _WIDTH = 16_384, 2_048  # batch · seqlen and num_heads · head_dim of every large problem
_LARGE = tuple(
    Problem(_TOKENS // seqlen, _WIDTH // head_dim, seqlen, head_dim, causal)
    for head_dim in (128, 64)
    for causal in (False, True)
    for seqlen in (512, 1024, 2048, 4096, 8192, 16_384)
)
# One query for each of 32 heads against a KV cache, as Llama 3 8B decodes with its K/V heads
# repeated, so that every variant takes it; the last one reads 2 GiB.
_DECODE = tuple(
    Problem(batch, 32, 1, 128, seqlen_kv=keys)
    for batch, keys in ((1, 1024), (1, 4096), (1, 16_384), (8, 4096), (32, 4096))
)
BENCH_PROBLEMS: Mapping[str, tuple[Problem, ...]] = {
    "small": _SMALL,
    "large": _LARGE,
    "decode": _DECODE,
}
