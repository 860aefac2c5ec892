"""Explain a kernel's description on one problem, and run the kernel once before it is added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.backends.base import RunOptions
from engine.base import files
from engine.base.errors import (
    FAULTS,
    CompileError,
    InvalidKernel,
    InvalidProblem,
    Status,
    ToolMissing,
)
from engine.base.launch_arguments import (
    Argument,
    NullArg,
    PassLaunch,
    ScalarArg,
    StructArg,
    TensorArg,
    TensorMapArg,
    encode_argument,
)
from engine.base.units import format_bytes
from engine.correctness import inputs_of
from engine.own_kernels.host_launch import Parameter, Signature, fields_of, kernels_of
from kernels.description import parse_variant
from kernels.source_text import has_block, read_text, sidecar_of
from kernels.toml_block import KernelDescriptionError
from kernels.variant import (
    ALIBI_SLOPES,
    BLOCK_TABLE,
    CU_SEQLENS_K,
    CU_SEQLENS_Q,
    FEATURE_BUFFERS,
    KV_SCALES,
    PACKED,
    SEQLENS,
    SINKS,
    TENSORS,
    Variant,
)

_OF_FEATURES = {
    ALIBI_SLOPES: "float32, a slope for each query head",
    SINKS: "float32, a logit for each query head",
    **dict.fromkeys(KV_SCALES, "float32, scale factor of a K/V head"),
    SEQLENS: "int32, number of keys of each sequence",
    CU_SEQLENS_Q: "int32, first row of each sequence in Q and O",
    CU_SEQLENS_K: "int32, first row of each sequence in K and V",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the explanation."""

    what: str  # "grid", or the kernel's parameter
    given: str  # the argument's name
    type: str
    value: str  # on this problem


def explain(plan: LaunchPlan, kernels: Sequence[Signature]) -> list[Row]:
    """Return the launches of a plan, line by line; `kernels` are those that the source declares."""
    declared = {kernel.name: kernel for kernel in kernels}
    rows: list[Row] = []
    for launch in plan.passes:
        kernel = declared.get(launch.entry.partition("<")[0].strip())
        rows += [*_launch_rows(launch), *_argument_rows(plan, launch, kernel)]
    return rows


def why_arguments_differ(plan: LaunchPlan, kernels: Sequence[Signature]) -> str:
    """Return a sentence about a kernel with another number of parameters; empty if all agree.

    Cubins are checked when they are added.
    """
    if plan.cubins:
        return ""
    declared = {kernel.name: kernel for kernel in kernels}
    for launch in plan.passes:
        kernel = declared.get(launch.entry.partition("<")[0].strip())
        if kernel is None:
            known = ", ".join(declared) or "none"
            return f"There is no kernel {launch.entry} in this file: it has {known}."
        if len(kernel.parameters) != len(launch.args):
            return (
                f"{kernel.name} has {len(kernel.parameters)} parameters and is given "
                f"{len(launch.args)} arguments: list one for each, in their order."
            )
    return ""


def _launch_rows(launch: PassLaunch) -> Iterator[Row]:
    x, y, z = launch.grid
    yield Row("kernel", launch.entry, "", "")
    yield Row("grid", "", "x × y × z", f"{x:,} × {y:,} × {z:,} = {launch.ctas:,} CTAs")
    block = " × ".join(f"{size:,}" for size in launch.block)
    yield Row("threads", "", "of a CTA", f"{block} = {launch.threads:,}")
    smem = format_bytes(launch.dynamic_smem_bytes)
    yield Row("shared memory", "", "dynamic, of a CTA", smem)
    if launch.cluster != (1, 1, 1):
        yield Row("cluster", "", "x × y × z", " × ".join(map(str, launch.cluster)) + " CTAs")
    if launch.warpgroup_registers:
        registers = ", ".join(map(str, launch.warpgroup_registers))
        yield Row("registers", "", "of each warpgroup's threads", registers)


def _argument_rows(plan: LaunchPlan, launch: PassLaunch, kernel: Signature | None) -> Iterator[Row]:
    written = [p.written for p in kernel.parameters] if kernel is not None else []
    for index, argument in enumerate(launch.args):
        what = written[index] if index < len(written) else f"argument {index + 1}"
        yield from _rows_of(plan, what, argument)


def _rows_of(plan: LaunchPlan, what: str, argument: Argument) -> Iterator[Row]:
    if isinstance(argument, StructArg):
        size = len(encode_argument(argument).data)
        yield Row(what, argument.name, "structure", format_bytes(size))
        for field in argument.fields:
            yield from _rows_of(plan, f"{argument.name}.{field.name}", field)
    elif isinstance(argument, TensorMapArg):
        of = f"{argument.buffer} {_shape(argument.dims)}, box {_shape(argument.box)}"
        yield Row(what, argument.name, "tensor map", f"{of}, swizzle {argument.swizzle_bytes}")
    elif isinstance(argument, NullArg):
        yield Row(what, argument.name, "pointer", "null")
    elif isinstance(argument, ScalarArg):
        yield Row(what, argument.name, argument.ctype, _number(argument))
    else:
        yield Row(what, argument.name, "pointer", _buffer(plan, argument.name))


def _number(argument: ScalarArg) -> str:
    if argument.ctype == "bool":
        return "true" if argument.value else "false"
    return f"{argument.value:.6g}" if argument.ctype.startswith("float") else f"{argument.value:,}"


def _buffer(plan: LaunchPlan, name: str) -> str:
    """Return the shape and type of a buffer, as text."""
    problem, pages = plan.problem, plan.pages
    if pages is not None and name == BLOCK_TABLE:
        return f"{_shape((problem.batch, pages.per_sequence))} int32, pages of K and V"
    if pages is not None and name in ("k", "v"):
        return f"{_shape(pages.shape)} {problem.dtype}, in pages"
    if name in FEATURE_BUFFERS:
        entries, what = plan.buffer_bytes[name] // 4, _OF_FEATURES[name]
        return f"{_shape((entries,))} {what}"
    if plan.packed and name in (PACKED, *"qkv"):
        packed = (problem.batch, problem.seqlen, 3, problem.num_heads, problem.head_dim)
        part = "" if name == PACKED else f", from {name.upper()} on"
        return f"{_shape(packed)} {problem.dtype}{part}"
    scratch = {s.name: s for s in plan.scratch}
    if name in scratch:
        buffer = scratch[name]
        again = " before each launch" if buffer.each_launch else ""
        return f"{_shape(buffer.shape)} {buffer.dtype}, scratch, {buffer.fill}{again}"
    if name == "lse" and plan.lse is not None:
        b, h, s, _ = problem.shape
        shape = (b, h, s) if plan.lse.layout == "bhs" else (b, s, h)
        base = "natural" if plan.lse.base == "e" else "base 2"
        return f"{_shape(shape)} float32, {base}"
    return f"{_shape(_in_layout(plan, name, problem))} {problem.dtype}"


def _in_layout(plan: LaunchPlan, name: str, problem: Problem) -> tuple[int, ...]:
    shapes = {"k": problem.k_shape, "v": problem.v_shape, "out": problem.out_shape}
    shape = shapes.get(name, problem.shape)
    if plan.layouts.get(name, "bhsd") == "bhsd":
        return shape
    b, h, s, d = shape
    return (b, s, h, d)


def _shape(sizes: Iterable[int]) -> str:
    return f"[{', '.join(f'{size:,}' for size in sizes)}]"


# Write a description into the source or into a file beside it.


Where: TypeAlias = Literal["in the source", "beside it"]


def described(path: Path, toml: str) -> Variant:
    """Return the variant that a source is with this description.

    Raises:
        InvalidKernel: the source cannot be read, or there is a mistake in the description.
    """
    try:
        return parse_variant(read_text(path), path, sidecar=toml, is_own=True)
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake), code=mistake.code) from None


def write_description(path: Path, toml: str, where: Where) -> Path:
    """Validate and write a description; return the file that contains it.

    Raises:
        InvalidKernel: as `described`, or the kernel has a description already.
        StoreError: the file cannot be written.
    """
    try:
        text = read_text(path)
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake), code=mistake.code) from None
    sidecar = sidecar_of(path)
    if has_block(text) or sidecar.exists():
        raise InvalidKernel(
            f"{path.name} has a description already: edit that one.", code="has_description"
        )
    described(path, toml)
    target, content = (
        (path, f"/* attune\n{toml}*/\n{text}") if where == "in the source" else (sidecar, toml)
    )
    remedy = "fix its permissions, or save the description elsewhere by hand"
    with files.explain_os_error(f"{target} cannot be written", remedy):
        files.write(target, content.encode())
    return target


# A kernel compiled and executed once on a small problem, before it is added.

# Not a multiple of any tile size, and small enough to take a second.
_SMALL: Final = Problem(1, 2, 37, 64)
_TIMEOUT_S: Final = 30.0
_CHECK_TIMEOUT_S: Final = 10.0  # without a result, the kernel passes and races were not looked for


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial run."""

    passed: bool
    sentence: str
    log: str = ""  # the compiler's, or what the kernel printed


def try_kernel(variant: Variant, arch: str, wanted: Problem | None = None) -> Trial:
    """Compile a kernel with NVRTC and for the host, execute the host build, and check its output.

    The check build is executed, too: it finds races, uninitialised reads and divergent barriers,
    with which the output may be right by chance. A cubin is executed in software, where races in
    shared memory are found.

    Args:
        arch: the GPU to compile for, `sm_89`.
        wanted: a problem to use if this kernel does not support the small one.
    """
    from engine.backends.cpu import CpuBackend
    from engine.backends.machine_code import MachineCodeBackend
    from engine.correctness import check_output
    from engine.model.kernel import compile_plan

    try:
        plan = _plan(variant, wanted)
    except InvalidProblem as error:
        return Trial(False, str(error))
    if why := why_types_differ(plan, read_text(plan.source)):
        return Trial(False, why)
    note = ""
    try:
        compile_plan(plan, arch)
    except CompileError as error:
        return Trial(False, str(error), error.log)
    except ToolMissing as error:
        note = f" Not compiled for a GPU: {error}"
    inputs = inputs_of(plan.problem)
    options = RunOptions(arch=arch, timeout_s=_TIMEOUT_S)
    with closing(MachineCodeBackend() if plan.cubins else CpuBackend()) as backend:
        result = backend.run(plan, inputs, options)
        if result.status is not Status.PASSED:
            return Trial(False, f"{result.status.name}: {result.reason}", result.log)
        found = check_output(inputs, result, plan=plan)
        options = replace(options, check=True, timeout_s=_CHECK_TIMEOUT_S)
        checked = backend.run(plan, inputs, options)
    if checked.status in FAULTS:  # of a wrong output, this is the cause
        return Trial(False, f"{checked.status.name}: {checked.reason}", checked.log)
    label = plan.problem.label()
    if found.passed:
        if checked.status is not Status.PASSED:
            note = f" Races were not looked for: {checked.reason}{note}"
        return Trial(True, f"It runs and is correct on {label}. {found.reason}{note}")
    findings = " ".join(finding.sentence for finding in found.findings[:1])
    return Trial(False, f"INCORRECT on {label}: {found.reason} {findings}".strip(), result.log)


def problem_for(variant: Variant, wanted: Problem) -> Problem:
    """Return the wanted problem in a format, mask and head_dim that the kernel declares.

    Raises:
        InvalidProblem: these do not form a valid problem.
    """
    return replace(
        wanted,
        dtype=wanted.dtype if wanted.dtype in variant.dtypes else variant.dtypes[0],
        causal=wanted.causal if wanted.causal in variant.causal else variant.causal[0],
        head_dim=wanted.head_dim if wanted.head_dim in variant.head_dims else variant.head_dims[0],
    )


def _plan(variant: Variant, wanted: Problem | None) -> LaunchPlan:
    """Return the launch on a small problem in the kernel's formats, else on the wanted problem.

    Raises:
        InvalidProblem: the kernel supports neither.
    """
    small = replace(
        _SMALL,
        head_dim=64 if 64 in variant.head_dims else variant.head_dims[0],
        dtype=variant.dtypes[0],
        causal=variant.causal[-1],
        direction="backward" if variant.is_backward else "forward",
    )
    try:
        return make_plan(variant, small, variant.default_config())
    except InvalidProblem:
        # A multiple of common tiles, for a kernel that needs whole tiles.
        for problem in filter(None, (replace(small, seqlen=64), wanted)):
            if variant.unsupported(problem, variant.default_config()) is None:
                return make_plan(variant, problem, variant.default_config())
        raise


# Check that the pointer types in a source agree with the buffers of a launch.
#
# A `float*` to halves would silently read two of them as one number. Only types with a known
# element are compared: not `void`, `uint4`, a template's `T` and names from other headers.

_TYPE_OF_WORD: Final = {
    "float": "float32", "half": "float16", "__half": "float16", "half2": "float16",
    "__half2": "float16", "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16",
    "__nv_bfloat162": "bfloat16", "nv_bfloat162": "bfloat16", "double": "float64",
    "at::Half": "float16", "c10::Half": "float16",
    "at::BFloat16": "bfloat16", "c10::BFloat16": "bfloat16",
    "int": "int32", "int32_t": "int32", "unsigned": "uint32", "unsigned int": "uint32",
    "uint32_t": "uint32", "int64_t": "int64", "long long": "int64", "uint64_t": "uint64",
}  # fmt: skip
# Integers of the same size may hold such elements.
_ALIKE: Final = ({"int32", "uint32"}, {"int64", "uint64"})


def mistaken_types(plan: LaunchPlan) -> str:
    """Return why an own kernel would misread its buffers; empty if nothing indicates that."""
    try:
        return why_types_differ(plan, read_text(plan.source))
    except KernelDescriptionError:
        return ""  # the compiler reports unreadable files


def why_types_differ(plan: LaunchPlan, text: str) -> str:
    """Return a sentence about the first pointer of another type; empty if all agree or none is
    known."""
    declared = {kernel.name: kernel for kernel in kernels_of(text)}
    for launch in plan.passes:
        kernel = declared.get(launch.entry.partition("<")[0].strip())
        if kernel is None:
            continue
        for argument, parameter in _pairs(launch.args, kernel.parameters, text):
            needs, given = _TYPE_OF_WORD.get(parameter.type), _given(plan, argument.name)
            if needs is None or not given or needs == given or {needs, given} in _ALIKE:
                continue
            tensors = (*TENSORS, PACKED)
            remedy = (
                f'dtypes = ["{needs}"]' if argument.name in tensors else f'dtype = "{needs}" of it'
            )
            return (
                f"{kernel.name} declares `{parameter.written}` and would be given "
                f"{argument.name} in {given}: write {remedy} in the description, or declare it "
                "otherwise."
            )
    return ""


def _pairs(
    arguments: Sequence[Argument], parameters: Sequence[Parameter], text: str
) -> Iterator[tuple[TensorArg, Parameter]]:
    """(pointer argument, its declaration), including the fields of structures."""
    if len(arguments) != len(parameters):
        return  # reported elsewhere
    for argument, parameter in zip(arguments, parameters, strict=True):
        if isinstance(argument, StructArg):
            yield from _pairs(argument.fields, fields_of(text, parameter.type), text)
        elif isinstance(argument, TensorArg) and parameter.is_pointer:
            yield argument, parameter


def _given(plan: LaunchPlan, name: str) -> str:
    """Return the element type of a buffer."""
    if name in (*TENSORS, PACKED):
        return plan.problem.dtype
    if name == "lse":
        return "float32"
    return next((scratch.dtype for scratch in plan.scratch if scratch.name == name), "")
