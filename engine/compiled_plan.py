"""A launch plan compiled for an arch: its kernels, what they use, their machine code."""

from __future__ import annotations

import hashlib

from engine.base.errors import CompileError, ToolMissing, UnknownName
from engine.base.launch import encode_argument
from engine.cuda_source.nvrtc import CompiledKernel, cached_compile, compile_kernel
from engine.cuda_source.sources import Sources, read_sources
from engine.evaluation import CodeCounts, Resources
from engine.machine_code.analysis import Analysis, analyse, count, program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.launch import Launch, buffer_address
from engine.machine_code.overlap import budget_mistake
from engine.plan import LaunchPlan
from engine.tensors import lengths_of
from kernels.arguments import BLOCK_TABLE
from kernels.variant import Variant


def compile_plan(plan: LaunchPlan, arch: str) -> CompiledKernel:
    """Compile what a launch plan needs for `arch` ("sm_90"; the plan adds the "a" it may need).

    Raises:
        CompileError, UnknownName, ToolMissing: as `compile_kernel`.
    """
    names = plan.entries
    target = target_arch(plan, arch)
    return compile_kernel(plan.source, plan.defines, target, names, plan.include_folders, plan.cpp)


def cached_kernel(plan: LaunchPlan, arch: str) -> CompiledKernel | None:
    """What `compile_plan` would return, if it is in the cache; None when it must be compiled.

    None also where the compiler is missing or does not know the arch: compiling says why.
    """
    try:
        target = target_arch(plan, arch)
        return cached_compile(
            plan.source, plan.defines, target, plan.entries, plan.include_folders, plan.cpp
        )
    except (CompileError, UnknownName, ToolMissing):
        return None


def resources(plan: LaunchPlan, compiled: CompiledKernel) -> tuple[Resources, ...]:
    """What each pass of the plan uses, in the plan's order."""
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
    """`sm_89` as it is, or `sm_90a` for plans that need arch-specific instructions."""
    return f"{arch}a" if plan.arch_specific and not arch.endswith("a") else arch


def variant_sources(variant: Variant) -> Sources:
    """The texts of a variant of now. Raises CompileError as `read_sources`."""
    return read_sources(variant.source, variant.include_folders)


def analyse_plan(plan: LaunchPlan, arch: str) -> tuple[Analysis, ...]:
    """Count every pass of a plan. Raises as `analyse` and `compile_plan`."""
    compiled = compile_plan(plan, arch)
    return tuple(
        analyse(
            compiled.cubin,
            compiled.symbols.get(launch.entry, launch.entry),
            launch_of_pass(plan, number),
        )
        for number, launch in enumerate(plan.passes)
    )


def code_digest(plan: LaunchPlan, compiled: CompiledKernel) -> str:
    """SHA-256 of the machine code and of how it is launched: what is equal runs alike."""
    launches = [
        (p.grid, p.block, p.dynamic_smem_bytes, p.args, p.cluster, p.warpgroup_registers)
        for p in plan.passes
    ]
    key = repr((read_cubin(compiled.cubin).code_sha256, launches, plan.scratch))
    return hashlib.sha256(key.encode()).hexdigest()


_counted: dict[tuple[str, str], CodeCounts] = {}
_MOST_COUNTED = 256


def count_plan(plan: LaunchPlan, compiled: CompiledKernel) -> CodeCounts:
    """What all passes of a plan execute together. Raises as `analyse`.

    The counts of the last plans are kept: evaluating one again does not read its code again.
    """
    key = (hashlib.sha256(compiled.cubin).hexdigest(), repr(plan))
    if (known := _counted.get(key)) is not None:
        return known
    if len(_counted) >= _MOST_COUNTED:
        _counted.clear()
    return _counted.setdefault(key, _count_plan(plan, compiled))


def _count_plan(plan: LaunchPlan, compiled: CompiledKernel) -> CodeCounts:
    from engine.machine_code.analysis import launch_figures

    counted = [
        count(
            compiled.cubin,
            compiled.symbols.get(launch.entry, launch.entry),
            launch_of_pass(plan, number),
        )
        for number, launch in enumerate(plan.passes)
    ]
    each = [launch_figures(counts) for counts in counted]
    return CodeCounts(
        code_sha256=code_digest(plan, compiled),
        code_bytes=sum(counts.program.code_bytes for counts in counted),
        instructions=sum(f.executed for f in each),
        conflicts=sum(f.shared_wavefronts - f.ideal_shared_wavefronts for f in each),
        wavefronts=sum(f.shared_wavefronts for f in each),
        sectors=sum(f.global_sectors for f in each),
        local_sectors=sum(f.local_sectors for f in each),
    )


def launch_of_pass(plan: LaunchPlan, number: int) -> Launch:
    """The launch of the plan's pass `number`; one buffer has one address in all passes."""
    launch = plan.passes[number]
    addresses = plan.addresses({n: buffer_address(i) for i, n in enumerate(plan.buffer_bytes)})
    arguments = tuple(encode_argument(arg).with_addresses(addresses) for arg in launch.args)
    known = []
    if plan.pages is not None:
        known.append((addresses[BLOCK_TABLE], plan.pages.table().tobytes()))
    for name, lengths in lengths_of(plan.problem).items():
        if name in addresses:
            known.append((addresses[name], lengths.tobytes()))
    return Launch(launch.grid, launch.block, launch.dynamic_smem_bytes, arguments, tuple(known))


def plan_budget_mistake(plan: LaunchPlan, compiled: CompiledKernel) -> str | None:
    """Why a plan's code does not keep to its register budgets; None where it does.

    Without nvdisasm only what the compiler says is known.
    """
    for launch in plan.passes:
        if launch.warpgroup_registers:
            entry = compiled.symbols.get(launch.entry, launch.entry)
            try:
                program = program_of(read_cubin(compiled.cubin), entry)
            except ToolMissing:
                program = None
            registers = compiled.entries[launch.entry].registers_per_thread
            why = budget_mistake(launch, program, registers, compiled.log, plan.source.name)
            if why is not None:
                return why
    return None
