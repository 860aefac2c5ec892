"""What the engine knows about one GPU model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One GPU model; `None` where no source gives the figure (pages then say so).

    Limits are per SM unless the name says otherwise. Rates are dense (no sparsity), with FP32
    accumulation, at the boost clock.
    """

    name: str  # "L4"
    aliases: tuple[str, ...]  # how the driver and people name it: "NVIDIA L4"
    compute_capability: tuple[int, int]
    num_sms: int | None
    boost_clock_mhz: int | None
    memory_bytes: int | None
    memory_gb_per_s: float | None  # 10^9 bytes per second
    l2_bytes: int | None
    fp16_tensor_tflops: float | None
    bf16_tensor_tflops: float | None
    fp32_tflops: float | None
    power_w: int | None
    price_usd_per_hour: float | None  # a list price; editable where it is used
    source: str  # where the row's figures come from
    price_source: str = ""

    @property
    def arch(self) -> str:
        """`sm_89`."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"


@dataclass(frozen=True, slots=True)
class SmLimits:
    """Hardware limits of one compute capability (CUDA programming guide, compute capabilities)."""

    compute_capability: tuple[int, int]
    max_threads_per_sm: int
    max_warps_per_sm: int
    max_ctas_per_sm: int
    max_threads_per_cta: int
    registers_per_sm: int
    max_registers_per_cta: int
    max_registers_per_thread: int
    register_allocation_unit: int  # registers, per warp
    warp_allocation_granularity: int  # warps, per CTA
    num_sub_partitions: int
    smem_per_sm_bytes: int
    smem_per_cta_bytes: int  # without opt-in
    smem_per_cta_optin_bytes: int
    smem_allocation_unit_bytes: int
    reserved_smem_per_cta_bytes: int
