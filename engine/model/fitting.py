"""Which configs of a variant a GPU can launch a problem with."""

from __future__ import annotations

from itertools import product

from engine.devices.spec import DeviceSpec, limits_for
from engine.errors import AttuneError
from engine.model.estimate import capability_reason, launch_plan
from engine.problem import Problem
from kernels.variant import Config, Variant


def fits(variant: Variant, problem: Problem, config: Config, device: DeviceSpec | None) -> bool:
    """Whether constraints, compute capability, clusters and shared memory of a CTA allow it.

    Args:
        device: None leaves out what depends on the GPU.
    """
    try:
        plan = launch_plan(variant, problem, config, device)
        if device is None:
            return True
        most = limits_for(device.compute_capability).smem_per_cta_optin_bytes
    except AttuneError:
        return False
    return all(p.dynamic_smem_bytes <= most for p in plan.passes)


def fitting_config(
    variant: Variant, problem: Problem, device: DeviceSpec | None
) -> dict[str, int] | None:
    """Of the configs that fit, one that differs from the default in fewest values; None without."""
    default = variant.default_config()
    if fits(variant, problem, default, device):
        return default
    if device is not None and capability_reason(variant, problem.dtype, device) is not None:
        return None
    configs = (
        dict(zip(default, values, strict=True))
        for values in product(*(t.values for t in variant.tunables))
    )
    by_distance = sorted(configs, key=lambda c: sum(c[name] != default[name] for name in default))
    return next((c for c in by_distance if fits(variant, problem, c, device)), None)
