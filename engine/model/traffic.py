"""Which bytes of a launch reach DRAM, by the order in which its CTAs start."""

from __future__ import annotations

from dataclasses import replace

from engine.devices.spec import DeviceSpec
from engine.plan import LaunchPlan
from engine.problem import Problem
from engine.sass.timing.constants import kept_l2_bytes
from engine.sass.timing.traffic import KvOrder, Traffic, traffic
from kernels.variant import Variant


def traffic_by_order(
    variant: Variant, plan: LaunchPlan, device: DeviceSpec, resident: int
) -> Traffic | None:
    """Bytes beyond L2 of one warm launch.

    Args:
        resident: CTAs of the main pass on an SM.

    Returns:
        None where the order is not known: a grid whose axes do not say which CTAs share keys, or a
        GPU whose L2 or SMs are not known.
    """
    if device.l2_bytes is None or device.num_sms is None:
        return None
    kept_bytes = kept_l2_bytes(device.arch, device.l2_bytes)
    if plan.device_bytes <= kept_bytes:
        return Traffic(0.0, 0.0, 0.0)
    if (shares := _kv_shares(variant, plan)) is None:
        return None
    order = KvOrder(plan.passes[0].grid, shares)
    kv_bytes = 2 * plan.problem.kv_bytes
    return traffic(
        order,
        kv_bytes / order.num_heads,
        plan.device_bytes - kv_bytes,
        resident * device.num_sms,
        kept_bytes,
    )


def _kv_shares(variant: Variant, plan: LaunchPlan) -> tuple[int, int, int] | None:
    """Along each axis of the grid, how many neighbours read the same keys; None if unclear.

    An axis that grows with the number of queries walks over query tiles, one that grows with heads
    or batch over heads.
    """
    problem, grid = plan.problem, plan.passes[0].grid
    group = problem.head_group
    small = replace(
        problem,
        batch=1,
        num_heads=group,
        num_heads_kv=1,
        seqlen=64,
        seqlen_kv=problem.num_keys,
        causal=False,
    )

    def grows(larger: Problem) -> tuple[bool, ...]:
        at = (variant.passes[0].grid(p, plan.config) for p in (small, larger))
        return tuple(x != y for x, y in zip(*at, strict=True))

    over_queries = grows(replace(small, seqlen=4096))
    over_heads = grows(replace(small, num_heads=2 * group, num_heads_kv=2))
    over_batch = grows(replace(small, batch=2))
    shares = []
    for axis in range(3):
        by_head = over_heads[axis] or over_batch[axis]
        if grid[axis] > 1 and by_head == over_queries[axis]:
            return None  # a persistent grid, or tiles and heads on one axis
        shares.append(grid[axis] if not by_head else group if over_heads[axis] else 1)
    return shares[0], shares[1], shares[2]
