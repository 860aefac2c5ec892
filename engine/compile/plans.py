"""Launch plans and the compiler: what a plan needs compiled, and what its passes then use."""

from __future__ import annotations

from engine.compile import nvrtc
from engine.compile.nvrtc import CompiledKernel
from engine.errors import CompileError, ToolMissing, UnknownName
from engine.evaluation import Resources
from engine.plan import LaunchPlan


def compile_plan(plan: LaunchPlan, arch: str) -> CompiledKernel:
    """Compile what a launch plan needs for `arch` ("sm_90"; the plan adds the "a" it may need).

    Raises:
        CompileError, UnknownName, ToolMissing: as `compile_kernel`.
    """
    names = tuple(dict.fromkeys(p.entry for p in plan.passes))
    return nvrtc.compile_kernel(plan.source, plan.defines, target_arch(plan, arch), names)


def cached_kernel(plan: LaunchPlan, arch: str) -> CompiledKernel | None:
    """What `compile_plan` would return, if it is in the cache; None when it must be compiled.

    None also where the compiler is missing or does not know the arch: compiling says why.
    """
    try:
        return nvrtc.lookup_kernel(plan.source, plan.defines, target_arch(plan, arch))
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
