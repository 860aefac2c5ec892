"""The quick part of the pipeline, for a page that follows a slider: no compile, no execution."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from engine.base.errors import AttuneError, InvalidProblem, Status
from engine.devices.spec import DeviceSpec
from engine.evaluation import Evaluation, Latency, PassReport
from engine.history import History
from engine.model.kernel import Estimate, launch_plan
from engine.pipeline.execute import check_host_memory
from engine.pipeline.request import EvaluationRequest, resolve
from engine.plan import LaunchPlan, cached_kernel
from kernels.variant import Variant

NO_RESOURCES = "No prediction without the compiled kernel's resources."


@dataclass(frozen=True)
class Preview:
    """What is known at once, without compiling or running.

    `unsupported` is the sentence why this cannot run at all; `needs_compile` says that registers
    are not in the compile cache yet, so that occupancy and prediction wait for a compile.
    """

    variant: Variant
    config: dict[str, int]
    device: DeviceSpec | None
    plan: LaunchPlan | None
    unsupported: str | None
    estimate: Estimate | None  # None without a device, or without the compiled kernel
    latency_reason: str  # what binds, or why there is no latency
    needs_compile: bool

    @cached_property
    def memory(self) -> str | None:
        """Why executing it on the CPU does not fit in free host memory, or None.

        The system is asked when this is first read, which takes longer than all of the preview.
        """
        return check_host_memory(self.plan, "cpu") if self.plan is not None else None

    @property
    def passes(self) -> tuple[PassReport, ...]:
        return self.estimate.passes if self.estimate is not None else ()

    @property
    def latency(self) -> Latency | None:
        return self.estimate.latency if self.estimate is not None else None

    @property
    def bound_us(self) -> float | None:
        """`Estimate.bound_us`: what stands in the place of a prediction."""
        return self.estimate.bound_us if self.estimate is not None else None

    @property
    def predicted(self) -> Latency | None:
        """The latency as pages show it: None where no more than `bound_us` is known."""
        return self.latency if self.bound_us is None else None


def preview(request: EvaluationRequest, history: History | None = None) -> Preview:
    """The quick part of the pipeline: a few milliseconds, nothing compiled, nothing executed.

    Args:
        history: what is known beforehand, which is only looked up; None knows no times of sessions.

    Raises:
        UnknownName: the variant or GPU is not in its list.
        InvalidKernel: there is a mistake in the kernel's description.
    """
    history = history or History()
    if history.work != "look up":
        history = history.doing("look up")
    resolved = resolve(request, history)
    variant, device, kernel = resolved.variant, resolved.device, resolved.kernel
    plan: LaunchPlan | None = None
    result: Estimate | None = None
    unsupported: str | None = None
    needs_compile = False
    try:
        plan = launch_plan(variant, request.problem, resolved.config, device)
    except InvalidProblem as error:
        unsupported = str(error)
    if plan is not None and kernel is not None:
        compiled = cached_kernel(plan, kernel.device.arch)
        needs_compile = compiled is None
        if compiled is not None:
            result = history.estimate_plan(kernel, plan, compiled)
            unsupported = result.misfit or None
    return Preview(
        variant=variant,
        config=resolved.config,
        device=device,
        plan=plan,
        unsupported=unsupported,
        estimate=result,
        latency_reason=(
            result.reason if result else unsupported or resolved.device_reason or NO_RESOURCES
        ),
        needs_compile=needs_compile,
    )


def evaluation_of_preview(seen: Preview, reason: str) -> Evaluation:
    """A preview as an evaluation that was not executed; `reason` says why it was not.

    Raises:
        ValueError: the kernel is not compiled.
    """
    if seen.plan is None or seen.device is None:
        raise ValueError("there is no launch to speak of")
    compiled = cached_kernel(seen.plan, seen.device.arch)
    if compiled is None:
        raise ValueError("the kernel is not compiled")
    return Evaluation(
        status=Status.SKIPPED,
        reason=reason,
        variant=seen.variant.id,
        problem=seen.plan.problem,
        config=seen.config,
        device=seen.device.name,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        passes=seen.passes,
        latency=seen.latency,
        log=compiled.log,
        source_sha256=compiled.source_sha256,
        flags=compiled.flags,
    )


# A kernel's CTA time by its machine code, ahead of the previews and evaluations that use it.


def simulated_us(request: EvaluationRequest, history: History) -> float | None:
    """The request's time by machine code; its kernel is compiled and simulated where it was not.

    From then on previews and evaluations of the kernel on that GPU, of any problem, predict by
    machine code. Takes about a second the first time and a few milliseconds after that.

    Returns:
        None without a GPU, a compiler, nvdisasm or figures of the GPU, and of code that cannot be
        run.
    """
    try:
        kernel = resolve(request, history).kernel
        if kernel is None:
            return None
        predicted = history.doing("simulate").estimate(kernel, request.problem)
    except AttuneError:  # evaluating the request says what is wrong with it
        return None
    return predicted.latency.median_us if predicted.by_machine_code and predicted.latency else None
