"""What the engine says of one kernel on one problem and GPU: the gate's only way into it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import AttuneError, CompileError, InvalidKernel, InvalidProblem, ToolMissing
from engine.config import default_config
from engine.devices import find_device
from engine.names import variant_from
from engine.problem import Problem
from kernels.description import read_own
from kernels.ladder import is_numbered
from kernels.toml_block import KernelDescriptionError
from kernels.variant import Variant


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all passes of a launch; counted but for the time. None: it could not be found out."""

    registers: int  # per thread, of the pass that takes most
    spill_bytes: int  # per thread, stores and loads
    smem_bytes: int  # per CTA
    ctas_per_sm: int | None  # of the main pass
    code_bytes: int | None = None
    instructions: int | None = None  # a warp's
    conflicts: int | None = None  # shared wavefronts beyond those that are needed
    wavefronts: int | None = None  # of shared memory
    sectors: int | None = None  # of global memory, 32 bytes each
    local_sectors: int | None = None  # spills and arrays on the stack
    simulated_us: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one side: figures, or the sentence why there are none."""

    code: str = ""  # of the machine code and the launch: equal ones run alike
    figures: Figures | None = None
    fault: str = ""  # of the kernel: it does not compile, or refuses the problem
    obstacle: str = ""  # not of the kernel: a tool is missing, the simulation does not take it
    refused: bool = False  # the fault is that the description does not take the problem


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether the output is right. `passed` is None where it could not be judged."""

    passed: bool | None
    sentence: str


def variant_of(path: Path) -> Variant:
    """The variant of a file of a tree. Raises InvalidKernel."""
    if is_numbered(path.name):
        return variant_from(path, path.stem)
    try:
        return read_own(path)
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake)) from None


def compiled_answer(
    path: Path, problem: Problem, gpu: str, config: Mapping[str, int]
) -> tuple[Answer, Callable[[], Answer]]:
    """(code and resources, a function that counts and simulates it).

    Nothing of the kernel is executed, host code included: it is compiled, and its machine code is
    run by an emulator.
    """
    from engine.compiled_plan import compile_plan, resources
    from engine.machine_code.cubin import read_cubin
    from engine.model.estimate import launch_plan

    try:
        variant, device = variant_of(path), find_device(gpu)
        plan = launch_plan(variant, problem, default_config(variant, config), device)
        compiled = compile_plan(plan, device.arch)
        used = resources(plan, compiled)
        launches = [
            (p.grid, p.block, p.dynamic_smem_bytes, p.args, p.cluster, p.warpgroup_registers)
            for p in plan.passes
        ]
        key = repr((read_cubin(compiled.cubin).code_sha256, launches, plan.scratch))
        code = hashlib.sha256(key.encode()).hexdigest()
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
        from engine.compiled_plan import analyse_plan
        from engine.history import History
        from engine.machine_code.summary import launch_figures
        from engine.model.kernel import Kernel

        obstacle, counts, predicted = "", {}, None
        try:
            analyses = analyse_plan(plan, device.arch)
            each = [launch_figures(a.counts) for a in analyses]
            counts = {
                "code_bytes": sum(a.program.code_bytes for a in analyses),
                "instructions": sum(f.executed for f in each),
                "conflicts": sum(f.shared_wavefronts - f.ideal_shared_wavefronts for f in each),
                "wavefronts": sum(f.shared_wavefronts for f in each),
                "sectors": sum(f.global_sectors for f in each),
                "local_sectors": sum(f.local_sectors for f in each),
            }
        except AttuneError as error:
            obstacle = f"Its machine code is not counted: {error}"
        try:
            # No time of a session counts: the verdict is the same on every machine.
            kernel = Kernel.of(variant, device, plan.config)
            predicted = History().estimate(kernel, plan.problem)
        except AttuneError as error:
            obstacle = obstacle or f"It is not simulated: {error}"
        us = None
        if predicted is not None:
            if predicted.by_machine_code and predicted.latency is not None:
                us = predicted.latency.median_us
            else:
                obstacle = obstacle or f"It is not simulated: {predicted.reason}"
        held = predicted.passes[0].occupancy.ctas_per_sm if predicted is not None else None
        known: dict[str, Any] = asdict(figures) | counts
        known |= {"ctas_per_sm": held, "simulated_us": us}
        return Answer(code, Figures(**known), obstacle=obstacle)

    return Answer(code, figures), counted


def compile_fault(path: Path, problem: Problem, arch: str, config: Mapping[str, int]) -> Answer:
    """Whether it compiles for an arch, of which no GPU is looked at."""
    from engine.compiled_plan import compile_plan
    from engine.plan import make_plan

    try:
        variant = variant_of(path)
        compile_plan(make_plan(variant, problem, default_config(variant, config)), arch)
    except AttuneError as error:
        return _failed(error)
    return Answer()


def check_output(path: Path, problem: Problem, gpu: str, config: Mapping[str, int]) -> Checked:
    """Compile for the host, execute with the checker, compare with float64.

    This runs native code of the kernel with the caller's rights.
    """
    from engine.base.status import Status
    from engine.history import History
    from engine.pipeline.evaluate import Evaluator
    from engine.pipeline.request import EvaluationRequest

    try:
        variant = variant_of(path)
        request = EvaluationRequest(
            variant=variant.id,
            problem=problem,
            config=default_config(variant, config),
            gpu=gpu,
            backend="cpu",
            check=True,
        )
        with Evaluator(History()) as evaluator:
            done = evaluator.evaluate(request, source=path).evaluation
    except ToolMissing as error:
        return Checked(None, str(error))
    except AttuneError as error:
        return Checked(False, str(error))
    if done.status in (Status.PASSED, Status.SKIPPED):
        return Checked(True, done.reason or "The output is right, and the checker found nothing.")
    if done.status in (Status.TIMEOUT, Status.CANCELLED, Status.OUT_OF_MEMORY):
        return Checked(None, done.reason)
    return Checked(False, done.reason)


def _failed(error: AttuneError) -> Answer:
    if isinstance(error, (CompileError, InvalidKernel)):
        return Answer(fault=str(error))
    if isinstance(error, InvalidProblem):
        return Answer(fault=str(error), refused=True)
    return Answer(obstacle=str(error))
