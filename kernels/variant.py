"""What a kernel variant is: its data and formulas, without CUDA and without the engine.

A `Variant` says of one `.cu` file which problems it takes, which compile-time choices it offers,
and which passes it launches with what grid, threads, shared memory and arguments. It is read from
the description block in that file (`kernels.description`). The engine turns it into a launch plan,
and every derived figure (CTAs, waves, batch size) comes from these formulas.

Macros given to a kernel by `-D`, unless its block has `defines` of its own: `HEAD_DIM`, `IS_CAUSAL`
(0/1), `IS_BF16` (0/1) and each tunable's name in capitals (`block_m` → `BLOCK_M`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

AUTO: Final = "auto"  # stands for the variant that is chosen for a problem; no kernel has it
KERNELS_DIR = Path(__file__).resolve().parent
MAX_PERSISTENT_CTAS = 65_535

Dtype: TypeAlias = Literal["float16", "bfloat16", "float32"]
BYTES_PER_ELEMENT: Mapping[Dtype, int] = {"float16": 2, "bfloat16": 2, "float32": 4}
# As a person may name them.
DTYPES: Mapping[str, Dtype] = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "fp16": "float16",
    "fp32": "float32",
}
# Features that a kernel takes only if its block says so, with their names in messages.
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
# A dimension of Q, K, V or O, as tensor maps name them: "row" is the sequence.
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

# Buffers by the names under which a description gives them to a kernel.
TENSORS: Final = ("q", "k", "v", "out")
PACKED: Final = "qkv"
LSE: Final = "lse"
# Of the backward pass: `out` and `lse` are given, with what comes back for O, and these written.
DOUT: Final = "dout"
GRADIENTS: Final = ("dq", "dk", "dv")
BLOCK_TABLE: Final = "block_table"
# Buffers of a problem's features: a pass is given them where the problem has them alone.
ALIBI_SLOPES: Final = "alibi_slopes"
SINKS: Final = "sinks"
SEQLENS: Final = "seqlens"
KV_SCALES: Final = ("k_scale", "v_scale")
# A pass that takes these has Q, K, V and O of such sequences packed: [sum of lengths, heads,
# head_dim].
CU_SEQLENS_Q: Final = "cu_seqlens_q"
CU_SEQLENS_K: Final = "cu_seqlens_k"
OF_FEATURES: Final[Mapping[str, Feature]] = {
    ALIBI_SLOPES: "alibi",
    SINKS: "sinks",
    SEQLENS: "varlen",
    CU_SEQLENS_Q: "varlen",
    CU_SEQLENS_K: "varlen",
    **dict.fromkeys(KV_SCALES, "kv_fp8"),
}


class ProblemLike(Protocol):
    """The run-time shape, as much of it as formulas need. the engine's `Problem` satisfies it."""

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
    """⌈a / b⌉ for positive b."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The smallest multiple of b that is at least a, for positive b."""
    return -(-a // b) * b


@dataclass(frozen=True, slots=True)
class Tunable:
    """One compile-time choice of a variant."""

    name: str  # snake_case; the macro is the same in capitals
    values: tuple[int, ...]  # every value offered, ascending; with `per_sm`, those worth listing
    default: int
    meaning: str  # one line for tooltips
    # A number of persistent CTAs: so many on each SM is the default of a GPU whose SMs are known,
    # and any number from 1 is offered. 0: a tunable like any other.
    per_sm: int = 0

    @property
    def macro(self) -> str:
        return self.name.upper()

    def default_on(self, num_sms: int | None) -> int:
        """The default on a GPU of so many SMs; None: not known."""
        return self.per_sm * num_sms if self.per_sm and num_sms else self.default

    def values_on(self, num_sms: int | None) -> tuple[int, ...]:
        """The values to choose from on a GPU of so many SMs, ascending.

        Of persistent CTAs whole numbers on each SM, up to one more than the default.
        """
        if not self.per_sm or not num_sms:
            return self.values
        return tuple(num_sms * each for each in range(1, self.per_sm + 2))

    def offers(self, value: int) -> bool:
        return value in self.values or (self.per_sm > 0 and 1 <= value <= MAX_PERSISTENT_CTAS)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on (problem, config) that a variant needs; `reason` says why and what to do."""

    holds: Callable[[ProblemLike, Config], bool]
    reason: Callable[[ProblemLike, Config], str]


@dataclass(frozen=True, slots=True)
class Scratch:
    """A temporary global buffer shared by the passes of one launch."""

    name: str
    dtype: ScratchType
    shape: ShapeFormula
    # "poison": every word a NaN pattern, so that reading an unwritten element shows up as NaN.
    # "zero" and "-inf": filled once before the first launch (self-resetting counters), never in
    # between, unless `each_launch` says so, as where host code calls cudaMemset.
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
    feature: Feature | None = None  # given where a problem has it alone


@dataclass(frozen=True, slots=True)
class NullPointer:
    """A pointer argument that the kernel is told not to use."""

    name: str


@dataclass(frozen=True, slots=True)
class Structure:
    """A structure by value; its fields lie as C++ aligns them."""

    name: str
    fields: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What TMA needs to know of a tensor: a `CUtensorMap`, by value to a `__grid_constant__`.

    Its formulas yield a value for each dimension, the innermost (head_dim) first, where they yield
    several.
    """

    name: str
    tensor: str  # q, k, v or out; of a backward kernel dout, dq, dk or dv as well
    sizes: ShapeFormula  # elements
    strides: ShapeFormula  # elements, of all but the innermost dimension
    box: ShapeFormula  # elements that one copy brings
    swizzle_bytes: IntFormula  # 0 (none), 32, 64 or 128


# A name stands for a pointer: to `q`, `k`, `v`, `out`, `lse` or the scratch buffer of that name.
Argument: TypeAlias = "str | Scalar | NullPointer | Structure | TensorMap"


def feature_of(argument: Argument, takes: Collection[Feature]) -> Feature | None:
    """What a problem must have for an argument to be given; None: it always is.

    Args:
        takes: of the kernel: one that takes LSE writes it where it is asked for, others always.
    """
    if isinstance(argument, Scalar):
        return argument.feature
    if argument == LSE and "lse" in takes:
        return "lse"
    return OF_FEATURES.get(argument) if isinstance(argument, str) else None


@dataclass(frozen=True, slots=True)
class Lse:
    """How a kernel stores the logarithm of each row's sum of exponentials, in float32.

    Of the scaled scores: `ln Σ exp(softmax_scale · q·k)`, or the base-2 logarithm of the same sum.
    """

    base: LseBase = "e"
    layout: LseLayout = "bhs"


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel launch. Passes of a variant run in order on one stream."""

    entry: str  # as the block writes it: `fwd`, `flash::fwd<{head_dim}, {causal}>`
    grid: GridFormula
    threads: IntFormula  # per CTA
    dynamic_smem_bytes: IntFormula
    args: tuple[Argument, ...]  # in the order of the kernel's parameters
    entry_of: TextFormula | None = None  # the name expression; None: the entry as it is
    block: GridFormula | None = None  # the threads' three dimensions; None: (threads, 1, 1)
    cluster: GridFormula | None = None  # CTAs of a cluster along each axis; None: no clusters
    # Registers per thread that each warpgroup asks for by `setmaxnreg`; None: it does not.
    warpgroup_registers: ShapeFormula | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """What each CTA of a persistent kernel takes; CTAs differ along the grid's first axis alone.

    "query tiles": all of them stand in a line, and CTAs take one after the other, every other round
    backwards. The line is made of sections of `heads_at_once` heads, of which the last goes from
    the heads' last query tile to their first where there is a causal mask, the one before the other
    way, and so on; the same query tile of a section's heads stands together.

    "key tiles": those of all query tiles stand in a line, head after head, of a head the last query
    tile first, and CTA c of n takes all from c / n to (c + 1) / n: query tiles are cut. Each query
    tile begins with `start_tiles` that nobody visits: what else it costs.
    """

    shares: Shares
    heads_at_once: IntFormula | None = None  # None: one
    start_tiles: IntFormula | None = None  # None: none


@dataclass(frozen=True, slots=True)
class Work:
    """What one CTA of the main pass does; the latency model needs it and no compiler reports it."""

    math_unit: MathUnit
    math_threads: IntFormula  # threads per CTA that execute the inner products
    query_rows: IntFormula  # query rows per CTA
    kv_rows: IntFormula  # K/V rows one CTA visits at most (a split visits fewer)
    # Ways of the shared-memory bank conflict in the inner loop, 1 when there is none. None stands
    # for row-major tiles without padding, which the latency model works out for itself.
    conflict_ways: IntFormula | None = None
    schedule: Schedule | None = None  # of persistent CTAs


@dataclass(frozen=True, slots=True)
class Variant:
    """One algorithm: a `.cu` file and what its description block says."""

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
    gqa: bool = False  # reads K and V of fewer heads than Q's, num_heads / num_heads_kv to each
    arch_specific: bool = False  # needs the "a" target (sm_90a): wgmma, setmaxnreg
    causal: tuple[bool, ...] = (False, True)  # masks that it computes
    takes: tuple[Feature, ...] = ()  # features of a problem that it computes
    dim_pairs: tuple[tuple[int, int], ...] = ()  # (head_dim, head_dim_v) where V has other columns
    layouts: tuple[tuple[str, Layout], ...] = ()  # of the tensors that are not bhsd
    lse: Lse | None = None  # where it writes one: always, or where it is asked for
    page_rows: IntFormula | None = None  # keys of a page, where K and V lie in pages
    macros: tuple[tuple[str, TextFormula], ...] | None = None  # in place of the usual ones
    include_folders: tuple[Path, ...] = ()  # besides the source's own
    out_fill: OutFill = "poison"  # "zero" before each launch, for kernels that add to O
    packed: bool = False  # Q, K and V are one tensor, [batch, seqlen, 3, num_heads, head_dim]
    cpp: CppStandard = "c++17"
    tf32: bool = False  # multiplies FP32 numbers in TF32, and is judged by that
    repeatable: bool = True  # False: adds by atomics, in an order that no two runs share
    # Machine code of another compiler's, in place of CUDA C++ in the source: one for each arch.
    cubins: tuple[Path, ...] = ()

    @property
    def is_backward(self) -> bool:
        """Whether it computes dQ, dK and dV, and nothing else; O where not."""
        return "backward" in self.takes

    def default_config(self, num_sms: int | None = None) -> dict[str, int]:
        """The default config on a GPU with so many SMs; None: of no GPU in particular."""
        return {t.name: t.default_on(num_sms) for t in self.tunables}

    def defines(self, problem: ProblemLike, config: Config) -> tuple[tuple[str, str], ...]:
        """The `-D` macros of one compile, sorted so that equal builds have equal keys."""
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

    def unoffered(self, given: Config) -> str | None:
        """Why these values are not all its own: one sentence, or None when they are."""
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
        """Why this variant cannot run (problem, config): one sentence, or None when it can."""
        dims = (problem.head_dim, problem.value_dim)
        if dims[0] != dims[1] and dims not in self.dim_pairs:
            pairs = ", ".join(f"{d} and {dv}" for d, dv in self.dim_pairs)
            known = f"choose {pairs}" if pairs else "choose one that does, or leave head_dim_v out"
            return (
                f"{self.id} does not take K of {dims[0]} columns with V of {dims[1]} "
                f"(head_dim_v): {known}."
            )
        if dims[0] == dims[1] and problem.head_dim not in self.head_dims:
            known = ", ".join(map(str, self.head_dims))
            return (
                f"{self.id} has no kernel for head_dim {problem.head_dim}: choose one of {known}."
            )
        if problem.dtype not in self.dtypes:
            return f"{self.id} does not take {problem.dtype}: choose {' or '.join(self.dtypes)}."
        if problem.kv_heads != problem.num_heads and not self.gqa:
            return (
                f"{self.id} needs a K/V head for every query head, and here {problem.num_heads:,} "
                f"query heads share {problem.kv_heads:,} (GQA): choose a variant that supports "
                "GQA, or as many K/V heads as query heads."
            )
        if problem.causal not in self.causal:
            known = "causal problems" if self.causal[0] else "problems without a causal mask"
            return f"{self.id} computes only {known}: choose such a problem."
        if (why := self._untaken(problem.features)) is not None:
            return why
        if (why := self.unoffered(config)) is not None:
            return why
        for tunable in self.tunables:
            if tunable.name not in config:
                return f"{self.id} needs a value for {tunable.name}."
        for constraint in self.constraints:
            if not constraint.holds(problem, config):
                return constraint.reason(problem, config)
        return None

    def _untaken(self, features: tuple[Feature, ...]) -> str | None:
        """Why it cannot compute what a problem asks for, or None when it can."""
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
            f"{self.id} does not take {what}: choose one that does (`variants` lists what each "
            "takes), or leave it out."
        )


def feature_macros(problem: ProblemLike) -> dict[str, str]:
    """The `-D` macros of what a problem asks for, none for plain attention.

    `HAS_KV_OFFSET`, `WINDOW` (keys), `SOFTCAP` (a float), `HAS_ALIBI`, `HAS_SINKS`, `HAS_VARLEN`,
    `HAS_KV_FP8` and `HAS_LSE`; kernels of the ladder read them in `features.cuh`.
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
