"""What-if curves: CTAs per SM and occupancy as one of threads, registers, shared memory varies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.devices.spec import SmLimits
from engine.model.occupancy import (
    RESOURCES,
    WARP_SIZE,
    IntArray,
    check_launch,
    ctas_per_sm,
)

if TYPE_CHECKING:
    import pandas as pd

SMEM_STEP_BYTES = 1024


def whatif(
    limits: SmLimits, threads: int, registers: int, smem_bytes: int
) -> dict[str, pd.DataFrame]:
    """Three curves through the present point, each varying one figure and keeping the others.

    Args:
        limits: the SM.
        threads: threads per CTA, 1..1024.
        registers: registers per thread, 0..255.
        smem_bytes: static + dynamic shared memory per CTA.

    Returns:
        `threads`, `registers` and `smem_bytes` → a DataFrame with a column of that name (the value
        varied, ascending), `ctas_per_sm`, `active_warps`, `occupancy` (0..1), `limiter`, and
        `present` (True in exactly one row: where the kernel is now).

    Raises:
        InvalidProblem: a launch no CUDA device takes.
    """
    check_launch(limits, threads, registers, smem_bytes)
    threads_axis = _axis(np.arange(WARP_SIZE, limits.max_threads_per_cta + 1, WARP_SIZE), threads)
    registers_axis = _axis(np.arange(16, limits.max_registers_per_thread + 1), registers)
    smem_axis = _axis(
        np.arange(0, limits.smem_per_cta_optin_bytes + 1, SMEM_STEP_BYTES), smem_bytes
    )
    present = {"threads": threads, "registers": registers, "smem_bytes": smem_bytes}
    axes = {"threads": threads_axis, "registers": registers_axis, "smem_bytes": smem_axis}
    return {
        name: _curve(name, axis, present[name], {**present, name: axis}, limits)
        for name, axis in axes.items()
    }


def _axis(values: IntArray, present: int) -> IntArray:
    """The values with the present one among them, ascending."""
    return np.union1d(values, [present])


def _curve(
    name: str,
    axis: IntArray,
    present: int,
    launch: Mapping[str, Any],
    limits: SmLimits,
) -> pd.DataFrame:
    """`launch`: threads, registers and smem_bytes, one of them the axis."""
    import pandas as pd

    per_sm = ctas_per_sm(limits, *launch.values())
    resident = per_sm.resident
    active_warps = resident * -(-launch["threads"] // WARP_SIZE)
    by_resource = np.stack([per_sm.warps, per_sm.ctas, per_sm.registers, per_sm.smem])
    limiter = np.array(RESOURCES, dtype=object)[np.argmin(by_resource, axis=0)]
    return pd.DataFrame(
        {
            name: axis,
            "ctas_per_sm": resident,
            "active_warps": active_warps,
            "occupancy": active_warps / limits.max_warps_per_sm,
            "limiter": np.where(resident == 0, "does not fit", limiter),
            "present": axis == present,
        }
    )
