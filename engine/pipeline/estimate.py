"""The estimate of a compiled kernel: one for previews, evaluations and machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.devices.spec import DeviceSpec
from engine.model.estimate import CalibrationOf, Estimate, estimate
from engine.plan import LaunchPlan
from kernels.variant import Variant

if TYPE_CHECKING:
    from engine.cuda_source import CompiledKernel


def estimate_compiled(
    variant: Variant,
    plan: LaunchPlan,
    compiled: CompiledKernel,
    device: DeviceSpec,
    calibration_of: CalibrationOf | None = None,
) -> Estimate:
    """Resources, occupancy and predicted latency.

    By machine code where the kernel was simulated before; nothing is simulated here.

    Args:
        compiled: `plan`'s kernel for `device`.
        calibration_of: what the prediction is calibrated on; None uses the priors.
    """
    from engine.compiled_plan import resources
    from engine.history.simulated import known_simulated_of

    used, known = resources(plan, compiled), known_simulated_of(variant, plan, compiled, device)
    by_priors = estimate(variant, plan, used, device, None, known)
    if calibration_of is None:
        return by_priors
    calibration = calibration_of(
        variant, plan.config, device, plan.problem.dtype, by_priors.by_machine_code
    )
    if calibration is None:
        return by_priors
    return estimate(variant, plan, used, device, calibration, known)
