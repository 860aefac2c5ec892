"""Execute a kernel: check its output, or time it beside its earlier version."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from engine.attention.problem import Problem
from engine.base.errors import AttuneError, CompileError, ToolMissing
from engine.versions.figures import variant_of

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from engine.measure.statistics import Comparison
    from engine.pipeline.evaluate import Evaluator


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. `passed` is None if there is no verdict."""

    passed: bool | None
    sentence: str


def check_output(
    path: Path, problem: Problem, gpu: str, config: Mapping[str, int], *, native: bool
) -> Checked:
    """Execute a kernel on poisoned output and compare with float64.

    Args:
        native: compile it for the host, with checks of every access, which runs native code of the
            kernel with the caller's rights. Else its machine code is executed in software, once in
            the usual order of warps and CTAs and once, on extreme inputs, in the reverse one.
    """
    from engine.base.errors import Status
    from engine.history import History
    from engine.model.kernel import Kernel
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
    try:
        variant = variant_of(path)
        request = EvaluationRequest(
            variant=variant.id,
            problem=problem,
            config=Kernel.of(variant, gpu, config).config,
            gpu=gpu,
            backend="cpu" if native and not variant.cubins else "machine-code",
            check=True,
            software_only=not native,
        )
        with Evaluator(History()) as evaluator:
            done = evaluator.evaluate(request, source=path, simulates=False, keeps=False).evaluation
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
    before: Path,
    after: Path,
    problem: Problem,
    gpu: str,
    config: Mapping[str, int],
    evaluator: Evaluator | None = None,
) -> Comparison | str:
    """Check both sides on this machine's GPU, then time them in interleaved rounds.

    Args:
        gpu: the name of that GPU.
        evaluator: its backend is used; None creates one.

    Returns:
        The times of both sides, or a sentence why neither is timed.
    """
    from engine.history import History
    from engine.pipeline.evaluate import Evaluator

    try:
        with nullcontext(evaluator) if evaluator is not None else Evaluator(History()) as held:
            return _measured(before, after, problem, gpu, config, held)
    except AttuneError as error:
        return str(error)


def _measured(
    before: Path,
    after: Path,
    problem: Problem,
    gpu: str,
    config: Mapping[str, int],
    evaluator: Evaluator,
) -> Comparison | str:
    from engine.base.errors import Status
    from engine.correctness import inputs_of
    from engine.measure.device_lock import measuring
    from engine.measure.sampler import SamplerSettings
    from engine.measure.side_by_side import TimingGroup
    from engine.model.kernel import Kernel
    from engine.pipeline.request import EvaluationRequest

    settings = SamplerSettings(kinds=("device_warm",))
    inputs = inputs_of(problem)
    timers = {}
    for side, path in (("before", before), ("after", after)):
        kernel = Kernel.of(variant_of(path), gpu, config)
        request = EvaluationRequest(
            kernel.variant.id, problem, kernel.config, gpu=gpu, backend="cuda", effort="none"
        )
        done = evaluator.evaluate(request, source=path, simulates=False, keeps=False).evaluation
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
