"""Which configs of a variant a GPU can launch a problem with."""

from __future__ import annotations

from engine.devices.spec import DeviceSpec
from engine.errors import AttuneError
from engine.model.estimate import capability_reason, launch_plan
from engine.model.shared_memory import asked_smem_bytes, configs_of, most_smem_bytes
from engine.problem import Problem
from kernels.variant import Config, Variant


def fits(variant: Variant, problem: Problem, config: Config, device: DeviceSpec | None) -> bool:
    """Whether constraints, compute capability, clusters and shared memory of a CTA allow it.

    Args:
        device: None leaves out what depends on the GPU.
    """
    try:
        plan = launch_plan(variant, problem, config, device)
        return device is None or asked_smem_bytes(plan) <= most_smem_bytes(device)
    except AttuneError:
        return False


def fitting_config(
    variant: Variant, problem: Problem, device: DeviceSpec | None
) -> dict[str, int] | None:
    """Of the configs that fit, one that differs from the default in fewest values; None without."""
    default = variant.default_config(device.num_sms if device is not None else None)
    if fits(variant, problem, default, device):
        return default
    if device is not None and capability_reason(variant, problem.dtype, device) is not None:
        return None
    by_distance = sorted(
        configs_of(variant), key=lambda c: sum(c[name] != default[name] for name in default)
    )
    return next((c for c in by_distance if fits(variant, problem, c, device)), None)
