"""Make a launch plan from variant, problem and config."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.evaluation import Resources
from engine.attention.paged_kv import Pages
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, UnknownName
from engine.base.launch_arguments import (
    WARPGROUP,
    Argument,
    NullArg,
    PassLaunch,
    ScalarArg,
    StructArg,
    TensorArg,
    TensorMapArg,
    encode_argument,
)
from engine.devices.spec import DeviceSpec, limits_for
from kernels.variant import (
    BLOCK_TABLE,
    CU_SEQLENS_Q,
    DOUT,
    FEATURE_BUFFERS,
    GRADIENTS,
    KV_SCALES,
    LSE,
    PACKED,
    SEQLENS,
    Config,
    CppStandard,
    Dtype,
    Layout,
    Lse,
    NullPointer,
    OutFill,
    Scalar,
    ScratchFill,
    ScratchType,
    Structure,
    TensorMap,
    Variant,
    feature_of,
)
from kernels.variant import Argument as DescribedArgument

if TYPE_CHECKING:
    from engine.attention.tensors import ByteArray, Inputs, RawArray
    from engine.cuda_source.nvrtc import CompileReport

MAX_THREADS = 1024  # per CTA: CUDA programming guide, technical specifications
MAX_SMEM_BYTES = 2**31 - 1  # an int argument of a launch
MAX_CLUSTER = 8  # portable cluster size, the same on every GPU with clusters
MAX_CTA_REGISTERS = 65536
FIRST_WITH_CLUSTERS = (9, 0)  # compute capability
BF16_CAPABILITY = (8, 0)  # the first with BF16 tensor cores
# Format in which tensor cores multiply Q, K and V of a dtype. They have no FP32.
TENSOR_FORMATS: Mapping[Dtype, str] = {"float16": "FP16", "bfloat16": "BF16", "float32": "TF32"}


# Little-endian.
_MINUS_INFINITY: Mapping[ScratchType, bytes] = {
    "float16": b"\0\xfc",
    "bfloat16": b"\x80\xff",
    "float32": struct.pack("<f", -math.inf),
    "float64": struct.pack("<d", -math.inf),
}


@dataclass(frozen=True, slots=True)
class ScratchBuffer:
    name: str
    dtype: ScratchType
    shape: tuple[int, ...]
    fill: ScratchFill
    element_bytes: int = 4
    each_launch: bool = False  # refilled before each launch

    @property
    def size_bytes(self) -> int:
        return self.element_bytes * prod(self.shape)

    @property
    def initial(self) -> npt.NDArray[np.uint8] | None:
        """Return the buffer's bytes before the first launch; None for poison."""
        if self.fill == "poison":
            return None
        if self.fill == "zero":
            return np.zeros(self.size_bytes, np.uint8)
        element = np.frombuffer(_MINUS_INFINITY[self.dtype], np.uint8)
        return np.tile(element, prod(self.shape))


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One compilation (source and defines) and its launches, in order."""

    variant: str
    problem: Problem
    config: dict[str, int]
    source: Path
    defines: tuple[tuple[str, str], ...]
    scratch: tuple[ScratchBuffer, ...]
    passes: tuple[PassLaunch, ...]
    arch_specific: bool = False  # the kernel needs the "a" target of its arch (sm_90a)
    query_rows: int = 64  # query rows of a CTA of the main pass
    kv_rows: int | None = None  # maximum K/V rows of such a CTA; None: all
    layouts: Mapping[str, Layout] = field(default_factory=dict)  # of tensors not in bhsd
    lse: Lse | None = None  # how `lse` is written, if it is
    pages: Pages | None = None  # if K and V are paged
    include_folders: tuple[Path, ...] = ()
    tf32: bool = False  # declared to multiply FP32 numbers in TF32
    out_fill: OutFill = "poison"
    cpp: CppStandard = "c++17"
    packed: bool = False  # Q, K and V are one tensor, `qkv`
    repeatable: bool = True  # False: two runs may differ in bits, as with atomic sums
    cubins: tuple[Path, ...] = ()  # machine code, launched instead of a compiled source

    @property
    def entries(self) -> tuple[str, ...]:
        """Return the launched entries, each once."""
        return tuple(dict.fromkeys(p.entry for p in self.passes))

    @property
    def lse_bytes(self) -> int:
        p = self.problem
        return 4 * p.batch * p.num_heads * p.seqlen if self.lse is not None else 0

    @property
    def buffer_bytes(self) -> dict[str, int]:
        """Return the size in bytes of every buffer that arguments may point to, by name."""
        p = self.problem
        tensor = p.tensor_bytes
        sizes = {"q": tensor, "k": p.k_bytes, "v": p.v_bytes, "out": p.out_bytes}
        if self.pages is not None:
            sizes |= {"k": self.pages.kv_bytes, "v": self.pages.kv_bytes}
        if self.packs_sequences:
            each = [self.problem.of_sequence(i) for i in range(self.problem.batch)]
            sizes = {
                "q": sum(x.tensor_bytes for x in each),
                "k": sum(x.k_bytes for x in each),
                "v": sum(x.v_bytes for x in each),
                "out": sum(x.out_bytes for x in each),
            }
        if self.packed:
            sizes = {PACKED: 3 * tensor, "out": tensor}
        if self.pages is not None:
            sizes[BLOCK_TABLE] = self.pages.table_bytes
        if self.is_backward:
            rows = 4 * self.problem.batch * self.problem.num_heads * self.problem.seqlen
            sizes |= {DOUT: tensor, LSE: rows}
            sizes |= zip(GRADIENTS, (tensor, p.k_bytes, p.v_bytes), strict=True)
        if self.lse is not None:
            sizes["lse"] = self.lse_bytes
        sizes |= {name: 4 * self._entries_of(name) for name in self._of_features}
        return sizes | {scratch.name: scratch.size_bytes for scratch in self.scratch}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the buffers that a kernel only reads."""
        if self.is_backward:
            return ("q", "k", "v", "out", DOUT, LSE)
        tensors = (PACKED,) if self.packed else ("q", "k", "v")
        table = () if self.pages is None else (BLOCK_TABLE,)
        return (*tensors, *table, *self._of_features)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the output buffers, the most important first."""
        if self.is_backward:
            return GRADIENTS
        return ("out",) if self.lse is None else ("out", LSE)

    @property
    def is_backward(self) -> bool:
        return self.problem.direction == "backward"

    @property
    def _of_features(self) -> tuple[str, ...]:
        taken = {a.name for p in self.passes for a in p.args if isinstance(a, TensorArg)}
        return tuple(name for name in FEATURE_BUFFERS if name in taken)

    def _entries_of(self, name: str) -> int:
        if name in KV_SCALES:
            return self.problem.kv_heads
        if FEATURE_BUFFERS[name] != "varlen":
            return self.problem.num_heads
        return self.problem.batch + (name != SEQLENS)

    @property
    def packs_sequences(self) -> bool:
        """True if Q, K, V and O contain sequences of different lengths without padding."""
        return CU_SEQLENS_Q in self._of_features

    def tensors_of(self, inputs: Inputs) -> dict[str, RawArray | ByteArray | npt.NDArray[np.int32]]:
        """Return the buffers of `inputs` by name, in the kernel's layouts."""
        tensors = inputs.in_layouts(
            self.layouts, self.pages, packed=self.packed, packs_sequences=self.packs_sequences
        )
        return {name: tensors[name] for name in self.inputs}

    def output_of(self, raw: npt.NDArray[np.uint8]) -> RawArray:
        """Return O as `[batch, num_heads, seqlen, head_dim]`, from the kernel's output bytes."""
        from engine.attention.tensors import output_of, padded_output

        if self.packs_sequences:
            return padded_output(raw, self.problem)
        return output_of(raw, self.problem, self.layouts.get("out", "bhsd"))

    @property
    def inside(self) -> dict[str, tuple[str, int]]:
        """Return pointers into a buffer of another name, as (buffer, byte): packed Q, K and V."""
        p = self.problem
        step = p.num_heads * p.head_dim * p.element_bytes
        return {name: (PACKED, n * step) for n, name in enumerate("qkv")} if self.packed else {}

    def addresses(self, of_buffers: Mapping[str, int]) -> dict[str, int]:
        """Return the address of every pointer, given the buffers' addresses."""
        inside = {name: of_buffers[of] + byte for name, (of, byte) in self.inside.items()}
        return {**of_buffers, **inside}

    @property
    def refilled(self) -> dict[str, npt.NDArray[np.uint8]]:
        """Return the contents of buffers that are refilled before each launch, by name."""
        fills = {s.name: s.initial for s in self.scratch if s.each_launch}
        if self.out_fill == "zero":
            fills["out"] = np.zeros(self.problem.out_bytes, np.uint8)
        return {name: values for name, values in fills.items() if values is not None}

    @property
    def device_bytes(self) -> int:
        """Return the bytes of the call: Q, K, V, O, LSE, block table and scratch."""
        return sum(self.buffer_bytes.values())


def make_plan(variant: Variant, problem: Problem, config: Config) -> LaunchPlan:
    """Build the launch plan.

    Raises:
        InvalidProblem: the variant does not support (problem, config) (for a SKIPPED row, call
            `variant.unsupported` first), or its formulas yield an invalid launch.
    """
    if (why := variant.unsupported(problem, config)) is not None:
        raise InvalidProblem(why, code="problem_not_taken")
    scratch = tuple(
        ScratchBuffer(
            s.name, s.dtype, s.shape(problem, config), s.fill, s.element_bytes, s.each_launch
        )
        for s in variant.scratch
    )
    given = (None, *problem.features)
    passes = tuple(
        PassLaunch(
            entry=p.entry if p.entry_of is None else p.entry_of(problem, config),
            grid=p.grid(problem, config),
            threads=p.threads(problem, config),
            dynamic_smem_bytes=p.dynamic_smem_bytes(problem, config),
            args=tuple(
                _argument(variant, a, problem, config)
                for a in p.args
                if feature_of(a, variant.takes) in given
            ),
            block_shape=None if p.block is None else p.block(problem, config),
            cluster=(1, 1, 1) if p.cluster is None else p.cluster(problem, config),
            warpgroup_registers=(
                ()
                if p.warpgroup_registers is None
                else tuple(n for n in p.warpgroup_registers(problem, config) if n)
            ),
        )
        for p in variant.passes
    )
    for p in passes:
        if (
            min(p.block) < 1
            or min(p.grid) < 1
            or not 1 <= p.threads <= MAX_THREADS
            or not 0 <= p.dynamic_smem_bytes <= MAX_SMEM_BYTES
        ):
            raise InvalidProblem(
                f"{variant.id} would launch {p.entry} with a grid of {p.grid}, {p.threads} threads "
                f"and {p.dynamic_smem_bytes} bytes of shared memory, which CUDA does not allow: "
                f"see the formulas in {variant.source.name}."
            )
        if (why := _cluster_mistake(p) or _register_mistake(p)) is not None:
            raise InvalidProblem(
                f"{variant.id} would launch {p.entry} {why}: see {variant.source.name}."
            )
    return LaunchPlan(
        variant=variant.id,
        problem=problem,
        config=dict(config),
        source=variant.source,
        defines=variant.defines(problem, config),
        scratch=scratch,
        passes=passes,
        arch_specific=variant.arch_specific,
        query_rows=variant.work.query_rows(problem, config),
        kv_rows=variant.work.kv_rows(problem, config),
        layouts=dict(variant.layouts),
        lse=variant.lse if feature_of(LSE, variant.takes) in given else None,
        pages=(
            None
            if variant.page_rows is None
            else Pages(problem, variant.page_rows(problem, config))
        ),
        include_folders=variant.include_folders,
        tf32=variant.tf32,
        out_fill=variant.out_fill,
        packed=variant.packed,
        cpp=variant.cpp,
        repeatable=variant.repeatable,
        cubins=variant.cubins,
    )


def _cluster_mistake(launch: PassLaunch) -> str | None:
    """Return why no GPU launches these clusters, as the end of a sentence; None if one does."""
    if min(launch.cluster) < 1 or prod(launch.cluster) > MAX_CLUSTER:
        return f"with clusters of {launch.cluster} CTAs, and every GPU has 1 to {MAX_CLUSTER}"
    if any(n % size for n, size in zip(launch.grid, launch.cluster, strict=True)):
        return f"with a grid of {launch.grid} that clusters of {launch.cluster} CTAs do not divide"
    return None


def _register_mistake(launch: PassLaunch) -> str | None:
    """Return why a launch cannot have these register budgets, as the end of a sentence; None if it
    can."""
    budgets = launch.warpgroup_registers
    if not budgets:
        return None
    if len(budgets) * WARPGROUP != launch.threads:
        return (
            f"with registers for {len(budgets)} warpgroups of {WARPGROUP} threads, and it has "
            f"{launch.threads} threads"
        )
    if any(n % 8 or not 24 <= n <= 256 for n in budgets):
        return f"with {budgets} registers per thread, and setmaxnreg takes 24, 32, ... 256"
    if sum(budgets) * WARPGROUP > MAX_CTA_REGISTERS:
        return (
            f"with {sum(budgets) * WARPGROUP:,} registers for its warpgroups, and an SM has "
            f"{MAX_CTA_REGISTERS:,}"
        )
    return None


def _argument(
    variant: Variant, described: DescribedArgument, problem: Problem, config: Config
) -> Argument:
    match described:
        case str():
            return TensorArg(described)
        case NullPointer(name):
            return NullArg(name)
        case Structure(name, fields):
            return StructArg(name, tuple(_argument(variant, f, problem, config) for f in fields))
        case TensorMap():
            return _tensor_map(variant, described, problem, config)
        case Scalar(name, ctype, value):
            argument = ScalarArg(name, ctype, value(problem, config))
    try:
        encode_argument(argument)
    except (struct.error, OverflowError):
        raise InvalidProblem(
            f"{variant.id} would get {name} = {argument.value:,}, which {ctype} cannot hold: "
            f"choose a smaller problem, or another type in {variant.source.name}."
        ) from None
    return argument


def _tensor_map(
    variant: Variant, described: TensorMap, problem: Problem, config: Config
) -> TensorMapArg:
    argument = TensorMapArg(
        described.name,
        described.tensor,
        dims=described.sizes(problem, config),
        strides_bytes=tuple(problem.element_bytes * s for s in described.strides(problem, config)),
        box=described.box(problem, config),
        swizzle_bytes=described.swizzle_bytes(problem, config),
        element_bytes=problem.element_bytes,
    )
    if (why := argument.mistake) is not None:
        raise InvalidProblem(
            f"{variant.id} would get a tensor map {argument.name} that TMA does not support, "
            f"{why}: see tensor_maps in {variant.source.name}."
        )
    return argument


# Whether a GPU takes a launch, before anything is compiled.


def capability_reason(variant: Variant, dtype: Dtype, device: DeviceSpec) -> str | None:
    """Return a sentence why the device's compute capability cannot run the variant, or None."""
    needed, has = variant.min_compute_capability, device.compute_capability
    if has < needed:
        return (
            f"{variant.id} needs compute capability {needed[0]}.{needed[1]} and "
            f"{device.name} has {has[0]}.{has[1]}: choose another variant or GPU."
        )
    if variant.arch_specific and has != needed:
        return (
            f"{variant.id} uses instructions that exist on compute capability "
            f"{needed[0]}.{needed[1]} alone, and {device.name} has {has[0]}.{has[1]}: "
            "choose another variant or GPU."
        )
    if dtype != "float16" and variant.work.math_unit == "tensor" and has < BF16_CAPABILITY:
        return (
            f"{variant.id} multiplies on tensor cores, and those of {device.name} "
            f"({device.arch}) have no {TENSOR_FORMATS[dtype]}: choose FP16, or a variant without "
            "tensor cores."
        )
    return None


def no_clusters(compute_capability: tuple[int, int]) -> InvalidProblem:
    """Return the error for a GPU without clusters."""
    major, minor = compute_capability
    return InvalidProblem(
        f"Clusters of CTAs need compute capability 9.0 or newer, and this GPU has {major}.{minor}: "
        "launch each CTA on its own.",
        code="clusters_unsupported",
    )


def most_smem_bytes(device: DeviceSpec) -> int:
    """Return the maximum shared memory of a CTA. Raises UnknownName for an unknown compute
    capability."""
    return limits_for(device.compute_capability).smem_per_cta_optin_bytes


def dynamic_smem_bytes(variant: Variant, problem: Problem, config: Config) -> int:
    """Return the largest dynamic shared memory of a pass."""
    return max(p.dynamic_smem_bytes(problem, config) for p in variant.passes)


def takes(variant: Variant, problem: Problem, config: Config, device: DeviceSpec | None) -> bool:
    """True if a launch meets the variant's constraints and the GPU's limits: compute capability,
    clusters, dynamic shared memory.

    Args:
        device: None leaves the GPU's limits unchecked.
    """
    if variant.unsupported(problem, config) is not None:
        return False
    if device is None:
        return True
    if capability_reason(variant, problem.dtype, device) is not None:
        return False
    if device.compute_capability < FIRST_WITH_CLUSTERS and any(
        p.cluster is not None and prod(p.cluster(problem, config)) > 1 for p in variant.passes
    ):
        return False
    try:
        return dynamic_smem_bytes(variant, problem, config) <= most_smem_bytes(device)
    except UnknownName:  # nothing is known of this compute capability
        return False


CompileArguments: TypeAlias = tuple[
    Path, tuple[tuple[str, str], ...], str, tuple[str, ...], tuple[Path, ...], CppStandard
]


def compile_arguments(plan: LaunchPlan, arch: str) -> CompileArguments:
    """Return the arguments of `compile_kernel`."""
    target = target_arch(plan, arch)
    return plan.source, plan.defines, target, plan.entries, plan.include_folders, plan.cpp


def resources(plan: LaunchPlan, compiled: CompileReport) -> tuple[Resources, ...]:
    """Return the resources of each pass, in the plan's order."""
    return tuple(
        Resources(
            entry=p.entry,
            arch=compiled.arch,
            threads_per_cta=p.threads,
            registers_per_thread=info.registers_per_thread,
            static_smem_bytes=info.static_smem_bytes,
            dynamic_smem_bytes=p.dynamic_smem_bytes,
            spill_store_bytes=info.spill_store_bytes,
            spill_load_bytes=info.spill_load_bytes,
            stack_bytes=info.stack_bytes,
        )
        for p in plan.passes
        for info in (compiled.entries[p.entry],)
    )


def target_arch(plan: LaunchPlan, arch: str) -> str:
    """Return `sm_89` unchanged, or `sm_90a` for plans that need arch-specific instructions."""
    return f"{arch}a" if plan.arch_specific and not arch.endswith("a") else arch
