"""The quick part of the pipeline, for a page that follows a slider: no compile, no execution."""

from __future__ import annotations

from dataclasses import dataclass

from engine.devices import limits_for
from engine.devices.spec import DeviceSpec
from engine.errors import InvalidProblem
from engine.evaluation import Latency, PassReport, Resources
from engine.model.latency import predict
from engine.model.occupancy import occupancy
from engine.pipeline.memory import check_memory
from engine.pipeline.request import (
    EvaluationRequest,
    Target,
    resolve,
    target_arch,
    unsupported_reason,
)
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from kernels.variant import Variant


@dataclass(frozen=True, slots=True)
class Preview:
    """What is known at once, without compiling or running.

    `unsupported` is the sentence why this cannot run at all; `memory` the one why it does not fit
    in memory; `needs_compile` says that registers are not in the compile cache yet, so that
    occupancy and prediction wait for a compile.
    """

    variant: Variant
    config: dict[str, int]
    device: DeviceSpec | None
    plan: LaunchPlan | None
    unsupported: str | None
    memory: str | None
    passes: tuple[PassReport, ...]
    latency: Latency | None
    latency_reason: str
    needs_compile: bool


def pass_reports(
    plan: LaunchPlan, resources: tuple[Resources, ...], device: DeviceSpec
) -> tuple[PassReport, ...]:
    """Occupancy of every pass on `device`."""
    limits = limits_for(device.compute_capability)
    return tuple(
        PassReport(
            r,
            occupancy(
                limits,
                device.num_sms,
                launch.ctas,
                launch.threads,
                r.registers_per_thread,
                r.smem_bytes,
            ),
        )
        for launch, r in zip(plan.passes, resources, strict=True)
    )


def does_not_fit(passes: tuple[PassReport, ...], device: DeviceSpec) -> str | None:
    """Why not even one CTA fits on an SM, or None."""
    for p in passes:
        if p.occupancy.ctas_per_sm == 0:
            return f"{p.resources.entry} does not fit on {device.name}: {p.occupancy.reason}"
    return None


def predict_latency(
    target: Target, problem: Problem, passes: tuple[PassReport, ...]
) -> tuple[Latency | None, str]:
    """The predicted latency, or the sentence why there is none."""
    if target.device is None or not passes:
        return (
            None,
            target.device_reason or "No prediction without the compiled kernel's resources.",
        )
    predicted = predict(
        target.variant,
        problem,
        target.config,
        target.device,
        tuple(p.resources for p in passes),
        tuple(p.occupancy for p in passes),
    )
    if isinstance(predicted, str):
        return None, predicted
    return predicted, predicted.reason


def preview(request: EvaluationRequest) -> Preview:
    """The quick part of the pipeline: a few milliseconds, nothing compiled, nothing executed.

    Raises:
        UnknownName: the variant or GPU is not in its list.
    """
    from engine.compile import cached_kernel, resources

    target = resolve(request)
    problem = request.problem
    unsupported = unsupported_reason(target, problem)
    plan: LaunchPlan | None = None
    memory: str | None = None
    passes: tuple[PassReport, ...] = ()
    needs_compile = False
    if unsupported is None:
        try:
            plan = make_plan(target.variant, problem, target.config)
        except InvalidProblem as error:
            unsupported = str(error)
    if plan is not None:
        memory = check_memory(plan, "cpu", None)
    if plan is not None and target.device is not None:
        compiled = cached_kernel(plan, target_arch(target.variant, target.device))
        needs_compile = compiled is None
        if compiled is not None:
            passes = pass_reports(plan, resources(plan, compiled), target.device)
            unsupported = does_not_fit(passes, target.device)
    latency, latency_reason = (None, unsupported or "")
    if unsupported is None:
        latency, latency_reason = predict_latency(target, problem, passes)
    return Preview(
        variant=target.variant,
        config=target.config,
        device=target.device,
        plan=plan,
        unsupported=unsupported,
        memory=memory,
        passes=passes,
        latency=latency,
        latency_reason=latency_reason,
        needs_compile=needs_compile,
    )
