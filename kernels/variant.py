"""Data and formulas of a kernel variant, independent of CUDA and the engine.

A `Variant` says of one `.cu` file which problems it supports, which compile-time choices it has,
and which passes it launches with what grid, threads, shared memory and arguments. It is read from
the description block in that file (`kernels.description`). The engine builds launch plans from it,
and all derived figures (CTAs, waves, batch size) come from these formulas.

Macros given to a kernel by `-D`, unless its block has its own `defines`: `HEAD_DIM`, `IS_CAUSAL`
(0/1), `IS_BF16` (0/1) and each tunable's name in capitals (`block_m` → `BLOCK_M`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

AUTO: Final = "auto"  # the variant that is chosen for a problem; no kernel has this name
KERNELS_DIR = Path(__file__).resolve().parent
MAX_PERSISTENT_CTAS = 65_535

Dtype: TypeAlias = Literal["float16", "bfloat16", "float32"]
BYTES_PER_ELEMENT: Mapping[Dtype, int] = {"float16": 2, "bfloat16": 2, "float32": 4}
# Accepted spellings.
DTYPES: Mapping[str, Dtype] = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "fp16": "float16",
    "fp32": "float32",
}
# Features that a kernel supports only if its block lists them, with their names in messages.
Feature: TypeAlias = Literal[
    "backward", "varlen", "kv_offset", "window", "softcap", "alibi", "sinks", "kv_fp8", "lse"
]  # fmt: skip
FEATURES: Mapping[Feature, str] = {
    "backward": "the backward pass",
    "varlen": "sequences of different lengths (seqlens)",
    "kv_offset": "positions where S ≠ KV (a mask or ALiBi over other numbers of queries and keys)",
    "window": "a sliding window",
    "softcap": "a softcap of the scores",
    "alibi": "ALiBi",
    "sinks": "attention sinks",
    "kv_fp8": "K and V in FP8 (kv_dtype)",
    "lse": "LSE besides O",
}
MathUnit: TypeAlias = Literal["fma", "tensor"]
ScalarType: TypeAlias = Literal["int32", "uint32", "int64", "uint64", "bool", "float32", "float64"]
# The order of a tensor's dimensions in memory: batch, head, sequence, head_dim.
Layout: TypeAlias = Literal["bhsd", "bshd"]
# Dimensions of Q, K, V or O in tensor maps: "row" is the position in the sequence.
TensorDim: TypeAlias = Literal["head_dim", "row", "head", "batch"]
LseLayout: TypeAlias = Literal["bhs", "bsh"]
LseBase: TypeAlias = Literal["e", "2"]
ScratchType: TypeAlias = Literal[
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16",
    "int32", "uint32", "int64", "uint64",
]  # fmt: skip
Shares: TypeAlias = Literal["query tiles", "key tiles"]
ScratchFill: TypeAlias = Literal["poison", "zero", "-inf"]
CppStandard: TypeAlias = Literal["c++17", "c++20"]
OutFill: TypeAlias = Literal["poison", "zero"]
Config: TypeAlias = Mapping[str, int]

# Names of buffers in the arguments of a description.
TENSORS: Final = ("q", "k", "v", "out")
PACKED: Final = "qkv"
LSE: Final = "lse"
# Backward, `out`, `lse` and `dout` (the gradient of O) are inputs, and dq, dk and dv outputs.
DOUT: Final = "dout"
GRADIENTS: Final = ("dq", "dk", "dv")
BLOCK_TABLE: Final = "block_table"
# Buffers of features: a pass gets them only for problems with the feature.
ALIBI_SLOPES: Final = "alibi_slopes"
SINKS: Final = "sinks"
SEQLENS: Final = "seqlens"
KV_SCALES: Final = ("k_scale", "v_scale")
# For a pass with these arguments, sequences are packed in Q, K, V and O: [sum of lengths, heads,
# head_dim].
CU_SEQLENS_Q: Final = "cu_seqlens_q"
CU_SEQLENS_K: Final = "cu_seqlens_k"
FEATURE_BUFFERS: Final[Mapping[str, Feature]] = {
    ALIBI_SLOPES: "alibi",
    SINKS: "sinks",
    SEQLENS: "varlen",
    CU_SEQLENS_Q: "varlen",
    CU_SEQLENS_K: "varlen",
    **dict.fromkeys(KV_SCALES, "kv_fp8"),
}


class ProblemLike(Protocol):
    """Properties of a problem that formulas use; `engine.attention.problem.Problem` has them."""

    @property
    def batch(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def seqlen(self) -> int: ...
    @property
    def num_keys(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    @property
    def causal(self) -> bool: ...
    @property
    def dtype(self) -> Dtype: ...
    @property
    def window(self) -> int | None: ...
    @property
    def softcap(self) -> float | None: ...
    @property
    def seqlens(self) -> tuple[int, ...] | None: ...
    @property
    def twice_scores(self) -> int: ...
    @property
    def features(self) -> tuple[Feature, ...]: ...


IntFormula: TypeAlias = Callable[[ProblemLike, Config], int]
ShapeFormula: TypeAlias = Callable[[ProblemLike, Config], tuple[int, ...]]
GridFormula: TypeAlias = Callable[[ProblemLike, Config], tuple[int, int, int]]
TextFormula: TypeAlias = Callable[[ProblemLike, Config], str]


def ceil_div(a: int, b: int) -> int:
    """Return ⌈a / b⌉ for positive b."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """Return the smallest multiple of b that is at least a, for positive b."""
    return -(-a // b) * b


@dataclass(frozen=True, slots=True)
class Tunable:
    """One compile-time choice of a variant."""

    name: str  # snake_case; the macro is the same in capitals
    values: tuple[int, ...]  # all values, ascending; with `per_sm`, examples
    default: int
    meaning: str  # one line for tooltips
    # For a number of persistent CTAs: the default number per SM of a GPU whose SMs are known; any
    # number from 1 is then valid. 0: not a number of persistent CTAs.
    per_sm: int = 0

    @property
    def macro(self) -> str:
        return self.name.upper()

    def default_on(self, num_sms: int | None) -> int:
        """Return the default on a GPU with this number of SMs; None: not known."""
        return self.per_sm * num_sms if self.per_sm and num_sms else self.default

    def values_on(self, num_sms: int | None) -> tuple[int, ...]:
        """Return the values to choose from on a GPU with this number of SMs, ascending.

        For persistent CTAs these are whole numbers of CTAs per SM, up to one more than the default.
        """
        if not self.per_sm or not num_sms:
            return self.values
        return tuple(num_sms * each for each in range(1, self.per_sm + 2))

    def offers(self, value: int) -> bool:
        return value in self.values or (self.per_sm > 0 and 1 <= value <= MAX_PERSISTENT_CTAS)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on (problem, config) that a variant needs. `reason` returns the sentence for a
    problem that does not satisfy it: why, and what to do."""

    holds: Callable[[ProblemLike, Config], bool]
    reason: Callable[[ProblemLike, Config], str]


@dataclass(frozen=True, slots=True)
class Scratch:
    """A temporary global buffer shared by the passes of one launch."""

    name: str
    dtype: ScratchType
    shape: ShapeFormula
    # "poison": a NaN pattern in every word, so that reading an unwritten element gives NaN.
    # "zero" and "-inf": filled once, before the first launch (kernels reset their counters), or
    # before each launch with `each_launch`, as by a cudaMemset in host code.
    fill: ScratchFill = "poison"
    each_launch: bool = False

    @property
    def element_bytes(self) -> int:
        return int(re.sub(r"\D", "", self.dtype)) // 8


@dataclass(frozen=True, slots=True)
class Scalar:
    """A by-value argument."""

    name: str
    ctype: ScalarType
    value: Callable[[ProblemLike, Config], float]
    feature: Feature | None = None  # passed only for problems with this feature


@dataclass(frozen=True, slots=True)
class NullPointer:
    """A pointer argument that is null."""

    name: str


@dataclass(frozen=True, slots=True)
class Structure:
    """A structure by value, with fields aligned as in C++."""

    name: str
    fields: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor map for TMA: a `CUtensorMap`, passed by value as `__grid_constant__`.

    Formulas for several dimensions return the innermost (head_dim) first.
    """

    name: str
    tensor: str  # q, k, v or out; of a backward kernel dout, dq, dk or dv as well
    sizes: ShapeFormula  # elements
    strides: ShapeFormula  # elements, of all but the innermost dimension
    box: ShapeFormula  # elements that one copy brings
    swizzle_bytes: IntFormula  # 0 (none), 32, 64 or 128


# A name is a pointer: to `q`, `k`, `v`, `out`, `lse` or the scratch buffer with that name.
Argument: TypeAlias = "str | Scalar | NullPointer | Structure | TensorMap"


def feature_of(argument: Argument, takes: Collection[Feature]) -> Feature | None:
    """Return the feature that a problem must have for an argument to be passed; None: always
    passed.

    Args:
        takes: features that the kernel supports. With "lse" among them, it writes LSE only on
            request, else always.
    """
    if isinstance(argument, Scalar):
        return argument.feature
    if argument == LSE and "lse" in takes:
        return "lse"
    return FEATURE_BUFFERS.get(argument) if isinstance(argument, str) else None


@dataclass(frozen=True, slots=True)
class Lse:
    """How a kernel stores the logarithm of each row's sum of exponentials, in float32.

    It is `ln Σ exp(softmax_scale · q·k)`, or the base-2 logarithm of the same sum.
    """

    base: LseBase = "e"
    layout: LseLayout = "bhs"


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel launch. Passes of a variant run in order on one stream."""

    entry: str  # as in the block: `fwd`, `flash::fwd<{head_dim}, {causal}>`
    grid: GridFormula
    threads: IntFormula  # per CTA
    dynamic_smem_bytes: IntFormula
    args: tuple[Argument, ...]  # in the order of the kernel's parameters
    entry_of: TextFormula | None = None  # the name expression; None: `entry`
    block: GridFormula | None = None  # threads along x, y and z; None: (threads, 1, 1)
    cluster: GridFormula | None = None  # CTAs of a cluster along each axis; None: no clusters
    # Registers per thread of each warpgroup, set by `setmaxnreg`; None: not used.
    warpgroup_registers: ShapeFormula | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The tiles that each CTA of a persistent kernel processes. CTAs differ only along the grid's
    first axis.

    "query tiles": CTAs take whole query tiles from one list, one after the other, in reverse order
    in every second round. The list consists of sections of `heads_at_once` heads. With a causal
    mask, the last section goes from the last query tile of its heads to the first, the section
    before it in the opposite direction, and so on; within a section, equal query tiles of all heads
    are adjacent.

    "key tiles": the key tiles of all query tiles are one list, head after head, in each head the
    last query tile first. CTA c of n processes the part from c / n to (c + 1) / n, so query tiles
    are split between CTAs. The list has `start_tiles` additional entries before each query tile,
    which stand for its other costs.
    """

    shares: Shares
    heads_at_once: IntFormula | None = None  # None: one
    start_tiles: IntFormula | None = None  # None: none


@dataclass(frozen=True, slots=True)
class Work:
    """What one CTA of the main pass does, which the latency model needs and no compiler reports."""

    math_unit: MathUnit
    math_threads: IntFormula  # threads per CTA that execute the inner products
    query_rows: IntFormula  # query rows per CTA
    kv_rows: IntFormula  # maximum K/V rows that a CTA visits (a split visits fewer)
    # Degree of shared-memory bank conflicts in the inner loop; 1 without conflicts. None:
    # row-major tiles without padding, whose conflicts the latency model computes.
    conflict_ways: IntFormula | None = None
    schedule: Schedule | None = None  # of persistent CTAs


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel: a `.cu` file and its description block."""

    id: str  # "v01"
    name: str  # "v01_fa1_baseline", also the file's stem
    title: str  # short human name
    idea: str  # one sentence
    head_dims: tuple[int, ...]
    dtypes: tuple[Dtype, ...]
    min_compute_capability: tuple[int, int]
    tunables: tuple[Tunable, ...]
    constraints: tuple[Constraint, ...]  # those of the block, then CUDA's grid limits
    scratch: tuple[Scratch, ...]
    passes: tuple[Pass, ...]
    work: Work
    source: Path  # the `.cu` file
    gqa: bool = False  # supports GQA: K and V may have fewer heads than Q
    arch_specific: bool = False  # needs the "a" target (sm_90a): wgmma, setmaxnreg
    causal: tuple[bool, ...] = (False, True)  # supported values of `causal`
    takes: tuple[Feature, ...] = ()  # supported features of a problem
    dim_pairs: tuple[tuple[int, int], ...] = ()  # supported (head_dim, head_dim_v) that differ
    layouts: tuple[tuple[str, Layout], ...] = ()  # of the tensors that are not bhsd
    lse: Lse | None = None  # None: writes no LSE
    page_rows: IntFormula | None = None  # keys of a page; None: K and V are not paged
    macros: tuple[tuple[str, TextFormula], ...] | None = None  # instead of the default ones
    include_folders: tuple[Path, ...] = ()  # of headers, searched after the source's own
    out_fill: OutFill = "poison"  # "zero" before each launch, for kernels that add to O
    packed: bool = False  # Q, K and V are one tensor, [batch, seqlen, 3, num_heads, head_dim]
    cpp: CppStandard = "c++17"
    tf32: bool = False  # multiplies FP32 numbers in TF32, with the tolerance of TF32
    repeatable: bool = True  # False: results differ between runs, as with atomic sums
    # Files with machine code of another compiler, one per arch, instead of CUDA C++ in the source.
    cubins: tuple[Path, ...] = ()

    @property
    def is_backward(self) -> bool:
        """True if it computes dQ, dK and dV; False if it computes O."""
        return "backward" in self.takes

    def default_config(self, num_sms: int | None = None) -> dict[str, int]:
        """Return the default config on a GPU with this number of SMs; None: not known."""
        return {t.name: t.default_on(num_sms) for t in self.tunables}

    def defines(self, problem: ProblemLike, config: Config) -> tuple[tuple[str, str], ...]:
        """Return the `-D` macros of one compile, sorted so that equal builds have equal keys."""
        if self.macros is not None:
            own = {name: text(problem, config) for name, text in self.macros}
            return tuple(sorted((own | feature_macros(problem)).items()))
        macros = {
            "HEAD_DIM": str(problem.head_dim),
            "IS_CAUSAL": str(int(problem.causal)),
            "IS_BF16": str(int(problem.dtype == "bfloat16")),
        }
        macros |= {t.macro: str(config[t.name]) for t in self.tunables} | feature_macros(problem)
        return tuple(sorted(macros.items()))

    def invalid_values(self, given: Config) -> str | None:
        """Return a sentence on the first tunable or value that it does not have; None if there is
        none."""
        tunables = {t.name: t for t in self.tunables}
        for name, value in given.items():
            if name not in tunables:
                names = ", ".join(tunables) or "none"
                return f"{self.id} has no tunable {name}: its tunables are {names}."
            if not tunables[name].offers(value):
                offered = ", ".join(map(str, tunables[name].values))
                if tunables[name].per_sm:
                    offered = f"1 to {MAX_PERSISTENT_CTAS:,}, for instance {offered}"
                return f"{self.id} does not offer {name}={value}: choose one of {offered}."
        return None

    def unsupported(self, problem: ProblemLike, config: Config) -> str | None:
        """Return a sentence why this variant cannot run (problem, config); None if it can."""
        if (why := self.unsupported_problem(problem)) is not None:
            return why
        if (why := self.invalid_values(config)) is not None:
            return why
        for tunable in self.tunables:
            if tunable.name not in config:
                return f"{self.id} needs a value for {tunable.name}."
        for constraint in self.constraints:
            if not constraint.holds(problem, config):
                return constraint.reason(problem, config)
        return None

    def unsupported_problem(self, problem: ProblemLike) -> str | None:
        """Return a sentence why no config of this variant can run a problem; None if only
        constraints can forbid it."""
        dims = (problem.head_dim, problem.value_dim)
        if dims[0] != dims[1] and dims not in self.dim_pairs:
            pairs = ", ".join(f"{d} and {dv}" for d, dv in self.dim_pairs)
            known = f"choose {pairs}" if pairs else "choose one that does, or leave head_dim_v out"
            return (
                f"{self.id} does not support K of {dims[0]} columns with V of {dims[1]} "
                f"(head_dim_v): {known}."
            )
        if dims[0] == dims[1] and problem.head_dim not in self.head_dims:
            known = ", ".join(map(str, self.head_dims))
            return (
                f"{self.id} has no kernel for head_dim {problem.head_dim}: choose one of {known}."
            )
        if problem.dtype not in self.dtypes:
            return f"{self.id} does not support {problem.dtype}: choose {' or '.join(self.dtypes)}."
        if problem.kv_heads != problem.num_heads and not self.gqa:
            return (
                f"{self.id} needs a K/V head for every query head, and here {problem.num_heads:,} "
                f"query heads share {problem.kv_heads:,} (GQA): choose a variant that supports "
                "GQA, or as many K/V heads as query heads."
            )
        if problem.causal not in self.causal:
            known = "causal problems" if self.causal[0] else "problems without a causal mask"
            return f"{self.id} computes only {known}: choose such a problem."
        return self._unsupported_features(problem.features)

    def _unsupported_features(self, features: tuple[Feature, ...]) -> str | None:
        """Return a sentence on the features of a problem that it does not support; None if it
        supports all."""
        if self.is_backward and "backward" not in features:
            return (
                f"{self.id} computes only the backward pass (dQ, dK and dV): ask for backward, or "
                "choose a variant that computes O."
            )
        taken = (*self.takes, "lse") if self.lse is not None else self.takes
        missing = [FEATURES[name] for name in features if name not in taken]
        if not missing:
            return None
        if "backward" in features and not self.is_backward:
            return (
                f"{self.id} computes only the forward pass: choose one of v23 to v26, which "
                "compute dQ, dK and dV, or leave backward out."
            )
        what = " and ".join(", ".join(missing).rsplit(", ", 1))
        return (
            f"{self.id} does not support {what}: choose a variant that does (`attune variants` "
            "lists what each supports), or leave it out."
        )


def feature_macros(problem: ProblemLike) -> dict[str, str]:
    """Return the `-D` macros for a problem's features; none for plain attention.

    `HAS_KV_OFFSET`, `WINDOW` (keys), `SOFTCAP` (a float), `HAS_ALIBI`, `HAS_SINKS`, `HAS_VARLEN`,
    `HAS_KV_FP8` and `HAS_LSE`; kernels of the ladder use them through `features.cuh`.
    """
    used = [name for name in problem.features if name != "backward"]
    macros = {f"HAS_{name.upper()}": "1" for name in used if name not in ("window", "softcap")}
    if problem.value_dim != problem.head_dim:
        macros["HEAD_DIM_V"] = str(problem.value_dim)
    if "window" in used:
        macros["WINDOW"] = str(problem.window)
    if "softcap" in used and problem.softcap is not None:
        text = repr(float(problem.softcap))
        macros["SOFTCAP"] = f"{text}f"
    return macros
