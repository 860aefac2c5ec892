"""Whether the CTAs of a launch fit in the shared memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from engine.devices.spec import DeviceSpec, limits_for
from engine.errors import AttuneError
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from kernels.variant import Variant


def most_smem_bytes(device: DeviceSpec) -> int:
    """What a CTA may ask for. Raises UnknownName for a compute capability without figures."""
    return limits_for(device.compute_capability).smem_per_cta_optin_bytes


def asked_smem_bytes(plan: LaunchPlan) -> int:
    """The most dynamic shared memory that a pass asks for."""
    return max(p.dynamic_smem_bytes for p in plan.passes)


def configs_of(variant: Variant) -> Iterator[dict[str, int]]:
    """Every combination of the tunables' values, constraints not looked at."""
    names = [t.name for t in variant.tunables]
    for values in product(*(t.values for t in variant.tunables)):
        yield dict(zip(names, values, strict=True))


@lru_cache(maxsize=256)
def why_none_fits(variant: Variant, problem: Problem, device: DeviceSpec) -> str | None:
    """Why no config of the variant runs the problem, where shared memory forbids all of them.

    Returns:
        None where one fits, or where it is the variant's constraints that none meets.
    """
    try:
        most = most_smem_bytes(device)
        asked = [
            asked_smem_bytes(make_plan(variant, problem, config))
            for config in configs_of(variant)
            if variant.unsupported(problem, config) is None
        ]
    except AttuneError:  # a launch that cannot exist says why itself
        return None
    least = min(asked, default=0)
    if least <= most:
        return None
    return (
        f"No config of {variant.id} runs this problem on {device.name}: of those that take it, the "
        f"smallest asks for {least:,} bytes of shared memory a CTA, and {device.name} gives it "
        f"{most:,}: choose another variant or GPU."
    )
