"""A kernel's CTA time by its machine code, ahead of the previews and evaluations that use it."""

from __future__ import annotations

from engine.base.errors import AttuneError
from engine.devices.spec import DeviceSpec
from engine.model.estimate import CalibrationOf, Estimate, launch_plan
from engine.model.launches import collect
from engine.pipeline.estimate import estimate_compiled
from engine.pipeline.request import EvaluationRequest, resolve
from engine.plan import LaunchPlan
from kernels.variant import Variant


def simulate(request: EvaluationRequest) -> bool:
    """Compile and simulate the request's kernel for its GPU; the result is kept on disk.

    From then on previews and evaluations of the kernel on that GPU, of any problem, predict by
    machine code. Takes about a second the first time and a few milliseconds after that.

    Returns:
        Whether there is a simulated time: not without a GPU, a compiler, nvdisasm or figures of the
        GPU, and not of code that cannot be run.
    """
    return simulated_us(request) is not None


def simulated_us(request: EvaluationRequest) -> float | None:
    """The request's time by machine code; None where there is none, as `simulate` says."""
    try:
        resolved = resolve(request)
        variant, device = resolved.variant, resolved.device
        if device is None:
            return None
        plan = launch_plan(variant, request.problem, resolved.config, device)
        predicted = predict_simulated(variant, plan, device)
    except AttuneError:  # evaluating the request says what is wrong with it
        return None
    return predicted.latency.median_us if predicted.by_machine_code and predicted.latency else None


def predict_simulated(
    variant: Variant,
    plan: LaunchPlan,
    device: DeviceSpec,
    calibration_of: CalibrationOf | None = None,
) -> Estimate:
    """The one prediction of a launch, by machine code where that can be: compiled and simulated.

    Args:
        calibration_of: what it is calibrated on; None uses the priors.

    Raises:
        CompileError, ToolMissing, UnknownName: as `compile_plan`.
    """
    from engine.compiled_plan import compile_plan
    from engine.history.simulated import simulated_of

    compiled = compile_plan(plan, device.arch)
    predicted = estimate_compiled(variant, plan, compiled, device, calibration_of)
    if predicted.by_machine_code or predicted.latency is None:
        return predicted
    simulated = simulated_of(variant, plan, compiled, device)
    launches = collect(variant, plan.config, [plan.problem])
    if simulated(predicted.passes[0].occupancy.ctas_per_sm, launches) is None:
        return predicted
    return estimate_compiled(variant, plan, compiled, device, calibration_of)
