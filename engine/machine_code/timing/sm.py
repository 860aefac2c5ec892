"""One SM of a GPU with a program on it: everything the cycle loop needs but the CTAs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.base.errors import InvalidProblem
from engine.devices.spec import DeviceSpec, limits_for
from engine.machine_code.instruction import Program
from engine.machine_code.timing.constants import SmConstants, kept_l2_bytes, sm_constants
from engine.machine_code.timing.native import Kernel, MachineRow
from engine.machine_code.timing.ops import ops_of

# What the loads of a CTA find, and who else asks: "alone" few SMs work and L2 holds the data,
# "shared" all of them do, "streaming" all do and the data comes from DRAM.
Regime: TypeAlias = Literal["alone", "shared", "streaming"]

_PARTITIONS = 4
_SHARED_BYTES_PER_CYCLE = 128.0
_SECTOR_BYTES = 32
_LINE_BYTES = 128
# Tensor peaks of Hopper are quoted at a lower clock than the FP32 peak (see engine.devices.spec).
_HOPPER_FMAS_PER_CYCLE = 512.0


@dataclass(frozen=True, slots=True)
class GpuRates:
    """The rates of one GPU that the timing model takes from the table of devices."""

    name: str
    constants: SmConstants
    num_sms: int
    cycles_per_us: float
    tensor_fmas_per_cycle: float  # FP16 multiply-adds of one partition
    dram_bytes_per_us: float  # as achieved
    kept_bytes: int  # by L2


def gpu_rates(device: DeviceSpec, arch: str | None = None) -> GpuRates:
    """The device's rates.

    Args:
        arch: of the program, where it is not the device's own (sm_80 code on an A10).

    Raises:
        InvalidProblem: its row lacks a figure; the text names it.
        UnknownName: the timing model does not know the arch.
    """
    constants = sm_constants(arch or device.arch)
    sms = _known(device, device.num_sms, "number of SMs")
    clock = _known(device, device.boost_clock_mhz, "clock")
    tflops = _known(device, device.fp16_tensor_tflops, "FP16 tensor peak")
    if device.compute_capability == (9, 0):
        fmas = _HOPPER_FMAS_PER_CYCLE
    else:
        fmas = tflops * 1e6 / (2 * sms * clock * _PARTITIONS)
    return GpuRates(
        name=device.name,
        constants=constants,
        num_sms=int(sms),
        cycles_per_us=clock,
        tensor_fmas_per_cycle=fmas,
        dram_bytes_per_us=_known(device, device.memory_gb_per_s, "memory bandwidth")
        * 1e3
        * device.memory_efficiency,
        kept_bytes=kept_l2_bytes(device.arch, int(_known(device, device.l2_bytes, "L2 size"))),
    )


def _known(device: DeviceSpec, figure: float | None, name: str) -> float:
    if figure is None:
        raise InvalidProblem(
            f"The table of GPUs gives no {name} for {device.name}, and a simulated time needs it: "
            "choose another GPU."
        )
    return float(figure)


def sm_kernel(
    program: Program,
    gpu: GpuRates,
    regime: Regime,
    smem_bytes: int,
    fetches_code: bool,
    miss_share: float = 1.0,
) -> Kernel:
    """The program on one SM.

    Args:
        smem_bytes: shared memory of all resident CTAs; L1 has the rest.
        fetches_code: whether the code is still to come, as in the first CTAs of a launch.
        miss_share: of what L1 lacks, how much comes from DRAM where it streams: what a load waits
            is the mean of both.
    """
    c = gpu.constants
    from_dram = miss_share if regime == "streaming" else 0.0
    l1_bytes = max(0, c.l1_kib * 1024 - smem_bytes)
    per_cycle = c.l2_bytes_per_cycle if regime == "alone" else c.l2_share_bytes_per_cycle
    machine = MachineRow(
        fma_units=c.fma_units,
        operand_window=c.operand_window,
        queue_depth=c.queue_depth,
        dispatch_cycles=c.dispatch_cycles,
        barrier_cycles=c.barrier_cycles,
        l1_cycles=c.l1_cycles,
        l2_cycles=round(c.l2_cycles + from_dram * (c.dram_cycles - c.l2_cycles)),
        l1_lines=l1_bytes // _LINE_BYTES,
        fetch_cycles=c.fetch_cycles if fetches_code else 0,
        cta_start_cycles=c.cta_start_cycles,
        bulk_copy_cycles=c.bulk_copy_cycles,
        registers=program.registers,
        warpgroup_cycles=c.warpgroup_cycles,
        cycles_per_sector=_SECTOR_BYTES / per_cycle,
        shared_bytes_per_cycle=_SHARED_BYTES_PER_CYCLE,
    )
    return Kernel(ops_of(program, c, gpu.tensor_fmas_per_cycle), machine)


def allocated_smem(device: DeviceSpec, smem_bytes: int) -> int:
    """Bytes that one CTA takes of an SM's shared memory."""
    limits = limits_for(device.compute_capability)
    unit = limits.smem_allocation_unit_bytes
    return -(-(smem_bytes + limits.reserved_smem_per_cta_bytes) // unit) * unit
