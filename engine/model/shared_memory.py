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
def named_obstacle(variant: Variant, problem: Problem, device: DeviceSpec, why: str) -> str:
    """What stands in the way of a problem, where a constraint refuses one config.

    Args:
        why: the sentence of that constraint.

    Returns:
        The same where another config runs the problem, or where all are refused by that sentence;
        else that none does, and shared memory where it is that.
    """
    reasons, asked = set(), []
    try:
        most = most_smem_bytes(device)
        for config in configs_of(variant):
            if (reason := variant.unsupported(problem, config)) is not None:
                reasons.add(reason)
            else:
                asked.append(asked_smem_bytes(make_plan(variant, problem, config)))
    except AttuneError:  # a launch that cannot exist says why itself
        return why
    if not asked:
        none = f"No config of {variant.id} takes this problem: choose another variant."
        return why if reasons == {why} else f"{none} With this one: {why}"
    if min(asked) <= most:
        return why
    return (
        f"No config of {variant.id} runs this problem on {device.name}: of those that take it, the "
        f"smallest asks for {min(asked):,} bytes of shared memory a CTA, and {device.name} gives "
        f"it {most:,}: choose another variant or GPU."
    )
