"""Hardware limits of one SM per compute capability.

Source: CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per
Compute Capability", and `cuda_occupancy.h` of CUDA Toolkit 13 for the allocation units. A test
compiles that header and compares every answer of `engine.model.occupancy` with it.
"""

from __future__ import annotations

from engine.devices.spec import SmLimits
from engine.devices.units import KIB
from engine.errors import UnknownName


def _sm_limits(
    compute_capability: tuple[int, int],
    *,
    max_warps: int,
    max_ctas: int,
    smem_per_sm_kib: int,
    smem_optin_kib: int,
    smem_unit_bytes: int = 128,
    reserved_kib: int = 1,
) -> SmLimits:
    """Fill in what has been the same on every SM since Turing."""
    return SmLimits(
        compute_capability=compute_capability,
        max_threads_per_sm=32 * max_warps,
        max_warps_per_sm=max_warps,
        max_ctas_per_sm=max_ctas,
        max_threads_per_cta=1024,
        registers_per_sm=64 * KIB,
        max_registers_per_cta=64 * KIB,
        max_registers_per_thread=255,
        register_allocation_unit=256,
        # The launch check assumes warps spread over all four sub-partitions.
        warp_allocation_granularity=4,
        num_sub_partitions=4,
        smem_per_sm_bytes=smem_per_sm_kib * KIB,
        smem_per_cta_bytes=48 * KIB,
        smem_per_cta_optin_bytes=smem_optin_kib * KIB,
        smem_allocation_unit_bytes=smem_unit_bytes,
        reserved_smem_per_cta_bytes=reserved_kib * KIB,
    )


_ROWS = (
    # Turing reserves no shared memory per CTA and allocates it in 256-byte units.
    _sm_limits(
        (7, 5),
        max_warps=32,
        max_ctas=16,
        smem_per_sm_kib=64,
        smem_optin_kib=64,
        smem_unit_bytes=256,
        reserved_kib=0,
    ),
    _sm_limits((8, 0), max_warps=64, max_ctas=32, smem_per_sm_kib=164, smem_optin_kib=163),
    _sm_limits((8, 6), max_warps=48, max_ctas=16, smem_per_sm_kib=100, smem_optin_kib=99),
    _sm_limits((8, 7), max_warps=48, max_ctas=16, smem_per_sm_kib=164, smem_optin_kib=163),
    _sm_limits((8, 8), max_warps=48, max_ctas=16, smem_per_sm_kib=100, smem_optin_kib=99),
    _sm_limits((8, 9), max_warps=48, max_ctas=24, smem_per_sm_kib=100, smem_optin_kib=99),
    _sm_limits((9, 0), max_warps=64, max_ctas=32, smem_per_sm_kib=228, smem_optin_kib=227),
    _sm_limits((10, 0), max_warps=64, max_ctas=32, smem_per_sm_kib=228, smem_optin_kib=227),
    _sm_limits((10, 3), max_warps=64, max_ctas=32, smem_per_sm_kib=228, smem_optin_kib=227),
    _sm_limits((11, 0), max_warps=48, max_ctas=24, smem_per_sm_kib=228, smem_optin_kib=227),
    _sm_limits((12, 0), max_warps=48, max_ctas=24, smem_per_sm_kib=100, smem_optin_kib=99),
    _sm_limits((12, 1), max_warps=48, max_ctas=24, smem_per_sm_kib=100, smem_optin_kib=99),
)

SM_LIMITS: dict[tuple[int, int], SmLimits] = {row.compute_capability: row for row in _ROWS}


def limits_for(compute_capability: tuple[int, int]) -> SmLimits:
    """The SM limits of one compute capability, for instance `(8, 9)`.

    Raises:
        UnknownName: the compute capability is not in the list.
    """
    major, minor = compute_capability
    if (limits := SM_LIMITS.get((major, minor))) is not None:
        return limits
    known = ", ".join(f"{a}.{b}" for a, b in SM_LIMITS)
    raise UnknownName(
        f"Occupancy rules for compute capability {major}.{minor} are not known: known are {known}."
    )
