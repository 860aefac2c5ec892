"""Figures of one kernel on one problem and GPU, found without executing native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.attention.config import default_config, variant_from
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, CompileError, InvalidKernel, InvalidProblem
from engine.base.schema import Stored
from engine.devices import find_device
from kernels.description import read_own
from kernels.ladder import is_numbered
from kernels.toml_block import KernelDescriptionError
from kernels.variant import Variant

if TYPE_CHECKING:
    from engine.attention.evaluation import CodeCounts, Evaluation
    from engine.attention.plan import LaunchPlan
    from engine.cuda_source.nvrtc import CompiledKernel
    from engine.model.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Figures(Stored):
    """Figures of a launch, all passes together. All but the time are counted. None: not known."""

    registers: int  # per thread, of the pass with the most
    spill_bytes: int  # per thread, stores and loads
    smem_bytes: int  # per CTA
    ctas_per_sm: int | None  # of the main pass
    code_bytes: int | None = None
    instructions: int | None = None  # warp instructions
    conflicts: int | None = None  # shared-memory wavefronts beyond those needed
    wavefronts: int | None = None  # of shared memory
    sectors: int | None = None  # of global memory, 32 bytes each
    local_sectors: int | None = None  # spills and arrays on the stack
    simulated_us: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer(Stored):
    """The result for one side: figures, or a sentence why there are none."""

    code: str = ""  # digest of machine code and launch: equal digests behave the same
    figures: Figures | None = None
    fault: str = ""  # fault of the kernel: it does not compile, or does not support the problem
    obstacle: str = ""  # not the kernel's fault: a tool is missing, or it cannot be simulated
    refused: bool = False  # the fault is that the description does not support the problem


def variant_of(path: Path) -> Variant:
    """Return the variant of a file in a tree. Raises InvalidKernel."""
    if is_numbered(path.name):
        return variant_from(path, path.stem)
    try:
        return read_own(path)
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake), code=mistake.code) from None


def compiled_answer(
    path: Path, problem: Problem, gpu: str, config: Mapping[str, int]
) -> tuple[Answer, Callable[[], Answer]]:
    """Compile a kernel; return (code and resources, a function that counts and simulates it).

    No native code is executed, including host code: the kernel is compiled, and its machine code is
    emulated.
    """
    from engine.attention.plan import resources
    from engine.model.kernel import code_digest, count_plan

    try:
        kernel = _kernel(path, gpu, config)
        plan, compiled = _compiled(kernel, problem)
        used = resources(plan, compiled)
        code = code_digest(plan, compiled)
    except AttuneError as error:
        answer = _failed(error)
        return answer, lambda: answer
    figures = Figures(
        registers=max(r.registers_per_thread for r in used),
        spill_bytes=max(r.spill_bytes for r in used),
        smem_bytes=max(r.static_smem_bytes + r.dynamic_smem_bytes for r in used),
        ctas_per_sm=None,
    )

    def counted() -> Answer:
        from engine.history import History

        obstacle, counts, predicted = "", None, None
        try:
            counts = count_plan(plan, compiled).counts
        except AttuneError as error:
            obstacle = f"Its machine code is not counted: {error}"
        try:
            # Times of sessions are ignored, so that the verdict is the same on every machine.
            predicted = History().estimate(kernel, plan.problem)
        except AttuneError as error:
            obstacle = obstacle or f"It is not simulated: {error}"
        us = None
        if predicted is not None:
            if predicted.by_machine_code and predicted.latency is not None:
                us = predicted.latency.median_us
            else:
                obstacle = obstacle or f"It is not simulated: {predicted.reason}"
        held = None
        if predicted is not None:
            held = problem.main_of(predicted.passes).occupancy.ctas_per_sm
        whole = replace(_with_counts(figures, counts), ctas_per_sm=held, simulated_us=us)
        return Answer(code, whole, obstacle=obstacle)

    return Answer(code, figures), counted


def counts_of(path: Path, problem: Problem, gpu: str, config: Mapping[str, int]) -> CodeCounts:
    """Count what a source's machine code executes, without running native code.

    Raises:
        AttuneError: it does not compile, does not support the problem, or cannot be emulated.
    """
    from engine.model.kernel import count_plan

    return count_plan(*_compiled(_kernel(path, gpu, config), problem)).counts


def _kernel(path: Path, gpu: str, config: Mapping[str, int]) -> Kernel:
    from engine.model.kernel import Kernel

    return Kernel.of(variant_of(path), find_device(gpu), config)


def _compiled(kernel: Kernel, problem: Problem) -> tuple[LaunchPlan, CompiledKernel]:
    from engine.model.kernel import compile_plan

    plan = kernel.plan(problem)
    return plan, compile_plan(plan, kernel.device.arch)


def answer_of(evaluation: Evaluation) -> Answer | None:
    """Return the answer for an evaluation's code; None if it was not compiled.

    Without `counts`, there is no digest of the code, and figures are only the compiler's.
    """
    counts, main = evaluation.counts, evaluation.main_pass
    if main is None:
        return None
    used = [p.resources for p in evaluation.passes]
    figures = Figures(
        registers=max(r.registers_per_thread for r in used),
        spill_bytes=max(r.spill_bytes for r in used),
        smem_bytes=max(r.smem_bytes for r in used),
        ctas_per_sm=main.occupancy.ctas_per_sm,
    )
    latency = evaluation.latency
    us = latency.median_us if latency is not None and latency.is_simulated else None
    code = counts.code_sha256 if counts is not None else ""
    return Answer(code, replace(_with_counts(figures, counts), simulated_us=us))


def _with_counts(figures: Figures, counts: CodeCounts | None) -> Figures:
    if counts is None:
        return figures
    known = asdict(counts)
    del known["code_sha256"]
    return replace(figures, **known)


def compile_fault(path: Path, problem: Problem, arch: str, config: Mapping[str, int]) -> Answer:
    """Return an answer with the fault if the kernel does not compile for an arch."""
    from engine.attention.plan import make_plan
    from engine.model.kernel import compile_plan

    try:
        variant = variant_of(path)
        compile_plan(make_plan(variant, problem, default_config(variant, config)), arch)
    except AttuneError as error:
        return _failed(error)
    return Answer()


def _failed(error: AttuneError) -> Answer:
    if isinstance(error, (CompileError, InvalidKernel)):
        return Answer(fault=str(error))
    if isinstance(error, InvalidProblem):
        return Answer(fault=str(error), refused=True)
    return Answer(obstacle=str(error))
