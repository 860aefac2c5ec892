"""Launches that a GPU takes, and their occupancy: CTAs per SM, their limiter, clusters per GPU.

All CTAs of a cluster run on one GPC. The result of `cudaOccupancyMaxActiveClusters` depends on
which SMs of a chip are disabled. The maximum number of SMs per GPC is published: 18 on GH100 and 16
on GB202 (NVIDIA's whitepapers), 20 on GB100 (CUTLASS). Assumed is the smallest number of GPCs that
has the GPU's SMs, spread evenly in pairs. On one H100 SXM 15 clusters of 8 were seen to run at
once, where this counts 16 (github.com/accel-sim/gpu-app-collection, pull request 87).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.evaluation import Limiter, Occupancy
from engine.attention.plan import (
    FIRST_WITH_CLUSTERS,
    MAX_CLUSTER,
    MAX_SMEM_BYTES,
    LaunchPlan,
    capability_reason,
    dynamic_smem_bytes,
    make_plan,
    most_smem_bytes,
    no_clusters,
)
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidProblem
from engine.devices.spec import DeviceSpec, SmLimits
from engine.machine_code.cubin_files import why_no_cubin
from kernels.variant import Variant

if TYPE_CHECKING:
    import pandas as pd


_SMS_OF_GPC = {9: 18, 10: 20, 12: 16}  # maximum, by major compute capability


def sms_of_gpcs(compute_capability: tuple[int, int], num_sms: int) -> tuple[int, ...]:
    """Return the assumed SMs of each GPC; one GPC with all SMs if nothing is known."""
    if (most := _SMS_OF_GPC.get(compute_capability[0])) is None:
        return (num_sms,)
    gpcs = -(-num_sms // most)
    pairs, more = divmod(num_sms // 2, gpcs)
    sizes = [2 * (pairs + (number < more)) for number in range(gpcs)]
    sizes[-1] += num_sms % 2
    return tuple(sizes)


def max_active_clusters(
    compute_capability: tuple[int, int], num_sms: int, ctas_per_sm: int, cluster_size: int
) -> int:
    """Return the clusters that run at once on a GPU.

    Args:
        ctas_per_sm: CTAs that an SM holds.
        cluster_size: CTAs of a cluster.

    Raises:
        InvalidProblem: such GPUs do not support clusters.
    """
    if cluster_size > 1 and compute_capability < FIRST_WITH_CLUSTERS:
        raise no_clusters(compute_capability)
    return sum(
        sms * ctas_per_sm // cluster_size for sms in sms_of_gpcs(compute_capability, num_sms)
    )


# CTAs per SM, the limiting resource, and how full a launch makes the GPU.
#
# The rules are NVIDIA's (`cuda_occupancy.h`, CUDA Toolkit 13): warps are whole; registers are
# allocated per warp in units and per sub-partition; shared memory is rounded up and has a reserve
# per CTA.


IntArray: TypeAlias = npt.NDArray[np.int64]

WARP_SIZE = 32
_MAX_CTAS = (2**31 - 1) * 65_535**2  # a grid's three sizes

# Of equally limiting resources, one that the kernel cannot change is named first.
RESOURCES: tuple[Limiter, ...] = ("warps", "ctas", "registers", "shared memory")


@dataclass(frozen=True, slots=True)
class CtasPerSm:
    """CTAs per SM that each resource alone would allow; arrays of one broadcast shape.

    A resource that the kernel does not use allows as many CTAs as the SM has slots.
    """

    warps: IntArray
    ctas: IntArray
    registers: IntArray
    smem: IntArray

    @property
    def resident(self) -> IntArray:
        """Return the resident CTAs: the smallest of the four."""
        least: IntArray = np.minimum.reduce([self.warps, self.ctas, self.registers, self.smem])
        return least


def _round_up(value: IntArray, unit: int) -> IntArray:
    return -(-value // unit) * unit


def ctas_per_sm(
    limits: SmLimits,
    threads: npt.ArrayLike,
    registers: npt.ArrayLike,
    smem_bytes: npt.ArrayLike,
) -> CtasPerSm:
    """Return CTAs per SM; inputs broadcast and must be valid (`occupancy` checks them).

    Args:
        limits: the SM.
        threads: threads per CTA, 1..1024.
        registers: registers per thread, 0..255.
        smem_bytes: static + dynamic shared memory per CTA.
    """
    threads_, registers_, smem_ = (
        np.asarray(x, dtype=np.int64) for x in np.broadcast_arrays(threads, registers, smem_bytes)
    )
    slots = np.full_like(threads_, limits.max_ctas_per_sm)
    warps_per_cta = -(-threads_ // WARP_SIZE)
    by_warps = np.where(
        threads_ > limits.max_threads_per_cta, 0, limits.max_warps_per_sm // warps_per_cta
    )

    registers_per_warp = _round_up(registers_ * WARP_SIZE, limits.register_allocation_unit)
    registers_per_partition = limits.registers_per_sm // limits.num_sub_partitions
    warps_per_partition = registers_per_partition // np.maximum(registers_per_warp, 1)
    by_registers = warps_per_partition * limits.num_sub_partitions // warps_per_cta
    checked = registers_per_warp * _round_up(warps_per_cta, limits.warp_allocation_granularity)
    by_registers = np.where(checked > limits.max_registers_per_cta, 0, by_registers)
    by_registers = np.where(registers_ == 0, slots, by_registers)

    allocated = _round_up(
        smem_ + limits.reserved_smem_per_cta_bytes, limits.smem_allocation_unit_bytes
    )
    most = limits.smem_per_cta_optin_bytes + limits.reserved_smem_per_cta_bytes
    by_smem = np.where(allocated == 0, slots, limits.smem_per_sm_bytes // np.maximum(allocated, 1))
    by_smem = np.where(allocated > most, 0, by_smem)
    return CtasPerSm(warps=by_warps, ctas=slots, registers=by_registers, smem=by_smem)


def check_launch(limits: SmLimits, threads: int, registers: int, smem_bytes: int) -> None:
    """Reject launches that no CUDA device supports.

    Raises:
        InvalidProblem: threads outside 1..1024, registers outside 0..255, or shared memory beyond
            an int's range.
    """
    for name, value in (
        ("threads per CTA", threads),
        ("registers per thread", registers),
        ("shared memory bytes", smem_bytes),
    ):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InvalidProblem(
                f"{name} must be a whole number, not {value!r}.", code="launch_no_whole_number"
            )
    if not 1 <= threads <= limits.max_threads_per_cta:
        raise InvalidProblem(
            f"A CTA has 1 to {limits.max_threads_per_cta:,} threads, not {threads:,}.",
            code="cta_threads_range",
        )
    if not 0 <= registers <= limits.max_registers_per_thread:
        raise InvalidProblem(
            f"A thread has 0 to {limits.max_registers_per_thread} registers, not {registers:,}.",
            code="thread_registers_range",
        )
    if not 0 <= smem_bytes <= MAX_SMEM_BYTES:
        raise InvalidProblem(
            f"A CTA has 0 to {MAX_SMEM_BYTES:,} bytes of shared memory, not {smem_bytes:,}.",
            code="cta_smem_range",
        )


def occupancy(
    limits: SmLimits,
    num_sms: int | None,
    ctas: int,
    threads: int,
    registers: int,
    smem_bytes: int,
    idle_ctas: int = 0,
    cluster_size: int = 1,
) -> Occupancy:
    """Return the occupancy of one launch.

    Args:
        limits: of the target's compute capability.
        num_sms: SMs of the target; None leaves waves, tail and fills None.
        ctas: CTAs launched.
        threads: threads per CTA.
        registers: registers per thread.
        smem_bytes: static + dynamic shared memory per CTA.
        idle_ctas: launched CTAs without keys to visit, which end at once. Waves and fills count the
            others.
        cluster_size: CTAs of a cluster, which run on one GPC.

    Raises:
        InvalidProblem: the launch is invalid (see `check_launch`), has no CTA, no SM, or clusters
            that the GPU does not support.
    """
    check_launch(limits, threads, registers, smem_bytes)
    if isinstance(ctas, bool) or not isinstance(ctas, int | np.integer) or ctas < 1:
        raise InvalidProblem(f"A launch has at least one CTA, not {ctas!r}.", code="launch_empty")
    if ctas > _MAX_CTAS:
        raise InvalidProblem(f"A launch has at most {_MAX_CTAS:,} CTAs, not {ctas:,}.")
    if not 1 <= cluster_size <= MAX_CLUSTER:
        raise InvalidProblem(
            f"A cluster has 1 to {MAX_CLUSTER} CTAs, not {cluster_size:,}.",
            code="cluster_size_range",
        )
    if ctas % cluster_size:
        raise InvalidProblem(
            f"Clusters of {cluster_size:,} CTAs do not divide a launch of {ctas:,} CTAs: name a "
            f"multiple of {cluster_size:,}.",
            code="clusters_divide",
        )
    if num_sms is not None and num_sms < 1:
        raise InvalidProblem(f"A GPU has at least one SM, not {num_sms:,}.", code="gpu_sms_range")

    useful = ctas - idle_ctas
    per_sm = ctas_per_sm(limits, threads, registers, smem_bytes)
    allowed: dict[str, int] = {
        "warps": int(per_sm.warps),
        "ctas": int(per_sm.ctas),
        "registers": int(per_sm.registers),
        "shared memory": int(per_sm.smem),
    }
    resident = min(allowed.values())
    limiting = [name for name in RESOURCES if allowed[name] == resident]
    warps_per_cta = -(-threads // WARP_SIZE)
    active_warps = resident * warps_per_cta

    waves: float | None = None
    tail: int | None = None
    sm_fill: float | None = None
    thread_fill: float | None = None
    ctas_to_fill: int | None = None
    if num_sms is not None:
        capacity = num_sms * limits.max_threads_per_sm
        thread_fill = useful * threads / capacity
        ctas_to_fill = -(-capacity // threads)
        clusters = max_active_clusters(limits.compute_capability, num_sms, resident, cluster_size)
        per_wave = clusters * cluster_size
        sm_fill = min(useful, num_sms, per_wave) / num_sms
        if per_wave:
            waves = useful / per_wave
            tail = useful % per_wave

    reason = _reason(limits, limiting, resident, warps_per_cta, registers, smem_bytes)
    if resident and cluster_size > 1 and num_sms is not None:
        reason += _cluster_sentence(limits, num_sms, resident, cluster_size)
    return Occupancy(
        ctas=int(ctas),
        ctas_per_sm=resident,
        active_warps_per_sm=active_warps,
        max_warps_per_sm=limits.max_warps_per_sm,
        limits=allowed,
        num_sms=num_sms,
        waves=waves,
        tail_ctas=tail,
        sm_fill=sm_fill,
        thread_fill=thread_fill,
        ctas_to_fill=ctas_to_fill,
        reason=reason,
        idle_ctas=int(idle_ctas),
    )


def _cluster_sentence(limits: SmLimits, num_sms: int, resident: int, cluster_size: int) -> str:
    capability = limits.compute_capability
    clusters = max_active_clusters(capability, num_sms, resident, cluster_size)
    gpcs = len(sms_of_gpcs(capability, num_sms))
    held, slots = clusters * cluster_size, num_sms * resident
    return (
        f" The {cluster_size} CTAs of a cluster stay on one GPC: {clusters:,} clusters, {held:,} "
        f"CTAs in {slots:,} places, run at once if the {num_sms} SMs are spread evenly over {gpcs} "
        "GPCs, which is assumed."
    )


def _reason(
    limits: SmLimits,
    limiting: list[Limiter],
    resident: int,
    warps_per_cta: int,
    registers: int,
    smem_bytes: int,
) -> str:
    """Return one sentence on what limits the CTAs per SM and what would help."""
    if resident == 0:
        if "shared memory" in limiting:
            return (
                f"It does not fit: a CTA asks for {smem_bytes:,} bytes of shared memory and may "
                f"have {limits.smem_per_cta_optin_bytes:,}; use smaller tiles."
            )
        return (
            f"It does not fit: {warps_per_cta} warps at {registers} registers per thread exceed "
            f"the {limits.max_registers_per_cta:,} registers of a CTA; use fewer threads or "
            f"registers."
        )
    fits = f"{resident} CTA{'s' if resident > 1 else ''} of {warps_per_cta} warp"
    fits += f"{'s' if warps_per_cta > 1 else ''} fit{'' if resident > 1 else 's'} on an SM"
    used = resident * warps_per_cta
    if used == limits.max_warps_per_sm:
        return f"{fits}, all {used} warps it can hold: occupancy is full."
    if len(limiting) > 1:
        words = {
            "warps": f"its {limits.max_warps_per_sm} warps",
            "ctas": "its CTA slots",
            "registers": f"registers ({registers} per thread)",
            "shared memory": f"shared memory ({smem_bytes:,} bytes per CTA)",
        }
        together = " and ".join(words[name] for name in limiting)
        return f"{fits}, limited equally by {together}: reducing only one of them does not help."
    if limiting[0] == "warps":
        return (
            f"{fits}; another would exceed its {limits.max_warps_per_sm} warps, and "
            f"{limits.max_warps_per_sm - used} stay unused: a CTA size that divides "
            f"{limits.max_warps_per_sm} warps would fill it."
        )
    if limiting[0] == "ctas":
        return f"{fits}, all the CTA slots it has; more warps per CTA would raise occupancy."
    if limiting[0] == "registers":
        return (
            f"{fits}, limited by registers ({registers} per thread); fewer registers per thread "
            f"would let more CTAs in."
        )
    return (
        f"{fits}, limited by shared memory ({smem_bytes:,} bytes per CTA); smaller tiles would "
        f"let more CTAs in."
    )


# Why a GPU does not take a launch.


def configs_of(variant: Variant) -> Iterator[dict[str, int]]:
    """Return every combination of the tunables' values, without checking constraints."""
    names = [t.name for t in variant.tunables]
    for values in product(*(t.values for t in variant.tunables)):
        yield dict(zip(names, values, strict=True))


@lru_cache(maxsize=256)
def named_obstacle(variant: Variant, problem: Problem, device: DeviceSpec, why: str) -> str:
    """Return why no config runs a problem, given why one config does not.

    Args:
        why: the sentence of that constraint.

    Returns:
        `why` itself if another config runs the problem, or if it applies to all; else a sentence
        that none does, because of shared memory if that is the reason.
    """
    reasons, asked = set(), []
    try:
        most = most_smem_bytes(device)
        for config in configs_of(variant):
            if (reason := variant.unsupported(problem, config)) is not None:
                reasons.add(reason)
            else:
                asked.append(dynamic_smem_bytes(variant, problem, config))
    except AttuneError:  # `why` already explains an invalid launch
        return why
    if not asked:
        none = f"No config of {variant.id} takes this problem: choose another variant."
        return why if reasons == {why} else f"{none} With this config: {why}"
    if min(asked) <= most:
        return why
    return (
        f"No config of {variant.id} runs this problem on {device.name}: the smallest needs "
        f"{min(asked):,} bytes of shared memory per CTA, and {device.name} has {most:,}: choose "
        "another variant or GPU."
    )


@dataclass(frozen=True, slots=True)
class ConfiguredVariant:
    """A variant with a config, and the GPU that it is for, if that is known.

    The base of `engine.model.kernel.Kernel`, whose GPU is known.
    """

    variant: Variant
    values: tuple[tuple[str, int], ...]  # the config
    device: DeviceSpec | None  # None leaves compute capability and shared memory unchecked

    @property
    def config(self) -> dict[str, int]:
        """Return the config, in the order of `values`."""
        return dict(self.values)

    def unsupported(self, problem: Problem) -> str | None:
        """Return a sentence on the first constraint that variant, config, problem and GPU violate,
        or None."""
        variant, device = self.variant, self.device
        # First, constraints that no config can meet.
        if device is not None:
            if (why := capability_reason(variant, problem.dtype, device)) is not None:
                return why
            if variant.cubins and (why := why_no_cubin(variant.cubins, device.arch)) is not None:
                return why
        why = variant.unsupported(problem, self.config)
        if why is None or device is None:
            return why
        return named_obstacle(variant, problem, device, why)

    def plan(self, problem: Problem) -> LaunchPlan:
        """Return the launch plan of a problem that variant, config and GPU support.

        Raises:
            InvalidProblem: a constraint, the compute capability or CUDA's grid limits forbid it.
        """
        if (why := self.unsupported(problem)) is not None:
            raise InvalidProblem(why, code="launch_not_taken")
        plan, device = make_plan(self.variant, problem, self.config), self.device
        has_clusters = any(prod(p.cluster) > 1 for p in plan.passes)
        if device is not None and has_clusters and device.compute_capability < FIRST_WITH_CLUSTERS:
            raise no_clusters(device.compute_capability)
        return plan


# What-if curves: CTAs per SM and occupancy over threads, registers or shared memory.

SMEM_STEP_BYTES = 1024


def whatif(
    limits: SmLimits, threads: int, registers: int, smem_bytes: int
) -> dict[str, pd.DataFrame]:
    """Return three curves through the present point, each varying one figure.

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
        InvalidProblem: no CUDA device supports the launch.
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
    """Return the values, including the present one, ascending."""
    return np.union1d(values, [present])


def _curve(
    name: str,
    axis: IntArray,
    present: int,
    launch: Mapping[str, Any],
    limits: SmLimits,
) -> pd.DataFrame:
    """Return one curve. `launch` has threads, registers and smem_bytes; one of them is the axis."""
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
