"""A kernel compiled and executed once on a small problem, before it is added."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from engine.backends.base import RunOptions
from engine.base.errors import CompileError, InvalidProblem, ToolMissing
from engine.base.status import Status
from engine.correctness import inputs_of
from engine.own_kernels.pointer_types import why_types_differ
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from kernels.source_text import read_text
from kernels.variant import Variant

# No multiple of any tile, and small enough to take a second.
_SMALL: Final = Problem(1, 2, 37, 64)
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it."""

    passed: bool
    sentence: str
    log: str = ""  # the compiler's, or what the kernel printed


def try_kernel(variant: Variant, arch: str, wanted: Problem | None = None) -> Trial:
    """Compile a kernel with NVRTC and for the host, run it there, and check its output.

    Args:
        arch: the GPU to compile for, `sm_89`.
        wanted: a problem to take where the small one is none for this kernel.
    """
    from engine.backends.cpu import CpuBackend
    from engine.compiled_plan import compile_plan
    from engine.correctness import check_output

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
    backend = CpuBackend()
    try:
        result = backend.run(plan, inputs, RunOptions(arch=arch, timeout_s=_TIMEOUT_S))
    finally:
        backend.close()
    if result.status is not Status.PASSED:
        return Trial(False, f"{result.status.name}: {result.reason}", result.log)
    found = check_output(inputs, result, plan=plan)
    label = plan.problem.label()
    if found.passed:
        return Trial(True, f"It runs and is right on {label}. {found.reason}{note}")
    findings = " ".join(finding.sentence for finding in found.findings[:1])
    return Trial(False, f"INCORRECT on {label}: {found.reason} {findings}".strip(), result.log)


def _plan(variant: Variant, wanted: Problem | None) -> LaunchPlan:
    """The launch on a small problem of the kernel's own formats; else on the wanted one.

    Raises:
        InvalidProblem: it takes neither.
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
        # A tile's multiple, where a kernel takes nothing else.
        for problem in filter(None, (replace(small, seqlen=64), wanted)):
            if variant.unsupported(problem, variant.default_config()) is None:
                return make_plan(variant, problem, variant.default_config())
        raise
