"""Tasks of a comparison: count a kernel before and after, compile it, check its output, time it.

A task is usually done by a worker process, which reads the kernels' files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from engine.attention.config import default_config
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, CompileError, ToolMissing
from engine.devices import find_device
from engine.versions.figures import (
    Answer,
    Finding,
    as_answer,
    compile_fault,
    compiled_answer,
    measured_finding,
    variant_of,
)

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from engine.measure.statistics import Comparison
    from engine.model.kernel import Kernel
    from engine.pipeline.evaluate import Evaluator


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. `passed` is None if there is no verdict."""

    passed: bool | None
    sentence: str


Execution: TypeAlias = Literal["machine code", "native code"]


@dataclass(frozen=True, slots=True)
class Work:
    """A task of one process: all problems of one kernel on one GPU."""

    kernel: str
    before: Path | None
    after: Path | None
    gpu: str
    problems: tuple[Problem, ...]
    config: Mapping[str, int]
    archs: tuple[str, ...] = ()  # in place of a GPU: only compile for these
    execute: Execution | None = None  # or execute the later side
    measure: bool = False  # or time both sides on this machine's GPU


@dataclass(frozen=True, slots=True)
class Done:
    """The results of a `Work`."""

    answers: tuple[tuple[Answer, Answer], ...] = ()  # for each problem: before, after
    arch_answers: tuple[tuple[str, Answer, Answer], ...] = ()
    checked: tuple[tuple[Problem, Checked], ...] = ()
    measured: tuple[tuple[Problem, Finding], ...] = ()


def do_work(work: Work, evaluator: Evaluator | None = None) -> Done:
    """Execute, measure or count one kernel, usually in a worker process.

    Args:
        evaluator: times kernels; None: a new one.
    """
    if work.archs:
        first, second = _plan(work.before, work), _plan(work.after, work)
        pairs = []
        for arch in work.archs:
            later = _of_arch(second, arch)
            # If the later side fails, check whether the earlier side failed, too.
            pairs.append((arch, _of_arch(first, arch) if later.fault else later, later))
        return Done(arch_answers=tuple(pairs))
    if work.execute is not None or work.measure:
        assert work.after is not None
        os.environ["ATTUNE_KERNELS"] = str(work.after)
    before, after = _kernel(work.before, work), _kernel(work.after, work)
    if work.execute is not None:
        is_native = work.execute == "native code"
        return Done(
            checked=tuple(
                (p, _checked(after, p, native=is_native))
                for p in work.problems
                if is_native or not _is_same_code(before, after, p)
            )
        )
    if work.measure:
        if isinstance(before, Answer) or isinstance(after, Answer):
            return Done()
        return Done(
            measured=tuple(
                (p, measured_finding(measure_pair(before, after, p, evaluator)))
                for p in work.problems
                if all(_codes(before, after, p)) and not _is_same_code(before, after, p)
            )
        )
    return Done(answers=tuple(_both(before, after, problem) for problem in work.problems))


# A kernel of one side, or the answer why there is none: the side does not have it, or its
# description has a mistake.
Side: TypeAlias = "Kernel | Answer"


def _kernel(path: Path | None, work: Work) -> Side:
    from engine.model.kernel import Kernel

    if path is None:
        return Answer()
    try:
        return Kernel.of(variant_of(path), find_device(work.gpu), work.config)
    except AttuneError as error:
        return as_answer(error)


def _plan(path: Path | None, work: Work) -> LaunchPlan | Answer:
    """Return the plan to compile for other archs."""
    if path is None:
        return Answer()
    try:
        variant = variant_of(path)
        return make_plan(variant, work.problems[0], default_config(variant, work.config))
    except AttuneError as error:
        return as_answer(error)


def _of_arch(plan: LaunchPlan | Answer, arch: str) -> Answer:
    return plan if isinstance(plan, Answer) else compile_fault(plan, arch)


def _compiled(side: Side, problem: Problem) -> tuple[Answer, Callable[[], Answer]]:
    return (side, lambda: side) if isinstance(side, Answer) else compiled_answer(side, problem)


def _both(before: Side, after: Side, problem: Problem) -> tuple[Answer, Answer]:
    (first, count_first), (second, count_second) = (
        _compiled(side, problem) for side in (before, after)
    )
    if first.code == second.code != "":  # equal machine code is not counted
        return first, second
    return count_first(), count_second()


def _codes(before: Side, after: Side, problem: Problem) -> tuple[str, str]:
    """Return the machine code of both sides; empty if one does not exist or compile."""
    return _compiled(before, problem)[0].code, _compiled(after, problem)[0].code


def _is_same_code(before: Side, after: Side, problem: Problem) -> bool:
    """True if both sides have the same machine code, and hence the same correctness and time."""
    first, second = _codes(before, after, problem)
    return first == second != ""


def _checked(side: Side, problem: Problem, *, native: bool) -> Checked:
    if isinstance(side, Answer):
        return Checked(False if side.fault else None, side.fault or side.obstacle)
    return check_output(side, problem, native=native)


def check_output(kernel: Kernel, problem: Problem, *, native: bool) -> Checked:
    """Execute a kernel on poisoned output and compare with float64.

    Args:
        native: compile it for the host, with checks of every access, which runs native code of the
            kernel with the caller's rights. Else its machine code is executed in software, once in
            the usual order of warps and CTAs and once, on extreme inputs, in the reverse one.
    """
    from engine.base.errors import Status
    from engine.history import History
    from engine.pipeline.evaluate import Evaluator
    from engine.pipeline.request import EvaluationRequest

    if not native:
        from engine.machine_code.execution import prepare

        try:
            prepare()
        except (
            CompileError,
            ToolMissing,
        ) as error:  # an error of the emulator, not of the kernel
            return Checked(None, f"Machine code cannot be executed here: {error}")
    variant = kernel.variant
    request = EvaluationRequest(
        variant=variant.id,
        problem=problem,
        config=kernel.config,
        gpu=kernel.device.name,
        backend="cpu" if native and not variant.cubins else "machine-code",
        check=True,
        software_only=not native,
    )
    try:
        with Evaluator(History()) as evaluator:
            done = evaluator.evaluate(
                request, source=variant.source, simulates=False, keeps=False
            ).evaluation
    except ToolMissing as error:
        return Checked(None, str(error))
    except AttuneError as error:
        return Checked(False, str(error))
    unknown = (Status.TIMEOUT, Status.CANCELLED, Status.OUT_OF_MEMORY)
    # A run that is skipped after its start met an instruction that the emulator does not support.
    if done.status in unknown or (done.status is Status.SKIPPED and done.execution is not None):
        return Checked(None, done.reason)
    if done.status in (Status.PASSED, Status.SKIPPED):
        return Checked(True, done.reason or "The output is correct, and the checker found nothing.")
    found = done.correctness.findings[:1] if done.correctness is not None else ()
    return Checked(False, " ".join([done.reason, *(f.text() for f in found)]))


def measuring_gpu() -> str:
    """Return the name of this machine's GPU, on which `measure_pair` measures.

    Raises:
        ToolMissing: there is no GPU that can be measured on; the message says why.
    """
    from engine.backends.cuda import why_not_cuda
    from engine.backends.cuda.availability import is_software_gpu
    from engine.pipeline.request import target_device

    why = why_not_cuda()
    if why is None and is_software_gpu():
        why = "The GPU here is a software GPU, whose times are meaningless."
    local = target_device(None) if why is None else None
    if local is None:
        why = why or "The driver does not say which GPU this is."
        raise ToolMissing(f"--measure takes times on a GPU of this machine: {why} Leave it out.")
    return local.name


def measure_pair(
    before: Kernel, after: Kernel, problem: Problem, evaluator: Evaluator | None = None
) -> Comparison | str:
    """Check both sides on this machine's GPU, which they are for, then time them in interleaved
    rounds.

    Args:
        evaluator: its backend is used; None creates one.

    Returns:
        The times of both sides, or a sentence why neither is timed.
    """
    from engine.history import History
    from engine.pipeline.evaluate import Evaluator

    try:
        with nullcontext(evaluator) if evaluator is not None else Evaluator(History()) as held:
            return _measured(before, after, problem, held)
    except AttuneError as error:
        return str(error)


def _measured(
    before: Kernel, after: Kernel, problem: Problem, evaluator: Evaluator
) -> Comparison | str:
    from engine.base.errors import Status
    from engine.correctness import inputs_of
    from engine.measure.device_lock import measuring
    from engine.measure.sampler import SamplerSettings
    from engine.measure.side_by_side import TimingGroup
    from engine.pipeline.request import EvaluationRequest

    settings = SamplerSettings(kinds=("device_warm",))
    inputs = inputs_of(problem)
    timers = {}
    for side, kernel in (("before", before), ("after", after)):
        variant, gpu = kernel.variant, kernel.device.name
        request = EvaluationRequest(
            variant.id, problem, kernel.config, gpu=gpu, backend="cuda", effort="none"
        )
        done = evaluator.evaluate(
            request, source=variant.source, simulates=False, keeps=False
        ).evaluation
        if done.status is not Status.PASSED or done.correctness is None:
            return f"On the GPU the kernel {side} the change is {done.status}: {done.reason}"
        plan = kernel.plan(problem)
        backend = cast("CudaBackend", evaluator.backend("cuda"))
        timers[side] = partial(backend.timer, plan, inputs, done.correctness)
    purpose = f"gate, {problem.label()}"
    with measuring(purpose) as read_state, TimingGroup(read_state, settings.kinds) as group:
        for side, timer in timers.items():
            group.add(side, timer)
        if not group.failures:
            run = group.run("before", settings, ["after"])
        if group.failures:
            side, why = next(iter(group.failures.items()))
            return f"The kernel {side} the change cannot be timed: {why}"
        return run.throttled or run.comparison("after")
