"""The GPU of this machine, if there is one.

A GPU of the table takes its figures from there. One that is not in the table gets what the driver
says (SMs, clock, memory, bandwidth, L2) and None elsewhere, so that pages say what is unknown.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from engine.devices import nvml
from engine.devices.spec import DeviceSpec
from engine.devices.table import find_device
from engine.errors import ToolMissing, UnknownName

# FP32 lanes per SM: NVML counts lanes ("GPU cores"), the table counts SMs.
_LANES_PER_SM = {(7, 5): 64, (8, 0): 64}
_LANES_PER_SM_ELSE = 128


@dataclass(frozen=True, slots=True)
class DetectedDevice:
    """The local GPU that CUDA would use first."""

    spec: DeviceSpec
    in_table: bool
    driver_name: str
    uuid: str
    driver_version: str
    memory_bytes: int | None  # what the driver reports, a little under the nominal size


def detect_local() -> DetectedDevice | str:
    """The first GPU that CUDA may use here, or one sentence why there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = None if visible is None else visible.split(",")[0].strip()
    if first is not None and first in ("", "-1", "NoDevFiles"):
        return "CUDA_VISIBLE_DEVICES hides every GPU of this machine: unset it, or choose a target."
    try:
        with nvml.session() as api:
            return _describe(api, first)
    except ToolMissing as error:
        return str(error)


def _describe(api: Any, first: str | None) -> DetectedDevice | str:
    try:
        handle = _handle(api, first)
    except api.NVMLError as error:
        wanted = "the first GPU" if first is None else f"CUDA_VISIBLE_DEVICES={first}"
        return f"The driver does not find {wanted} ({error}): choose a target GPU by name."
    name = str(nvml.ask(api, api.nvmlDeviceGetName, handle) or "unknown GPU")
    capability = nvml.ask(api, api.nvmlDeviceGetCudaComputeCapability, handle)
    if capability is None:
        return f"The driver does not say which compute capability {name} has: choose a target GPU."
    compute_capability = (int(capability[0]), int(capability[1]))
    memory = nvml.ask(api, api.nvmlDeviceGetMemoryInfo, handle)
    lanes = nvml.ask(api, api.nvmlDeviceGetNumGpuCores, handle)
    per_sm = _LANES_PER_SM.get(compute_capability, _LANES_PER_SM_ELSE)
    num_sms = None if not lanes else int(lanes) // per_sm
    try:
        spec = find_device(name)
        in_table = spec.compute_capability == compute_capability
    except UnknownName:
        in_table = False
    if not in_table:
        spec = _from_driver(api, handle, name, compute_capability, num_sms, memory)
    elif num_sms is not None and num_sms != spec.num_sms:
        spec = replace(spec, num_sms=num_sms, source=f"{spec.source}; SMs as the driver counts")
    return DetectedDevice(
        spec=spec,
        in_table=in_table,
        driver_name=name,
        uuid=str(nvml.ask(api, api.nvmlDeviceGetUUID, handle) or ""),
        driver_version=str(nvml.ask(api, api.nvmlSystemGetDriverVersion) or ""),
        memory_bytes=None if memory is None else int(memory.total),
    )


def _handle(api: Any, first: str | None) -> Any:
    """By UUID or index as CUDA_VISIBLE_DEVICES names it, else the first."""
    if first is not None and not first.isdigit():
        return api.nvmlDeviceGetHandleByUUID(first)
    return api.nvmlDeviceGetHandleByIndex(int(first or 0))


def _from_driver(
    api: Any,
    handle: Any,
    name: str,
    compute_capability: tuple[int, int],
    num_sms: int | None,
    memory: Any,
) -> DeviceSpec:
    """A row for a GPU that the table lacks; peaks stay None, the driver does not know them."""
    clock = nvml.ask(api, api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_SM)
    memory_clock = nvml.ask(api, api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_MEM)
    bus_bits = nvml.ask(api, api.nvmlDeviceGetMemoryBusWidth, handle)
    limit_mw = nvml.ask(api, api.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    bandwidth = None
    if memory_clock and bus_bits:
        bandwidth = 2 * memory_clock * 1e6 * bus_bits / 8 / 1e9  # two transfers per clock
    fp32 = None
    if num_sms and clock:
        lanes = num_sms * _LANES_PER_SM.get(compute_capability, _LANES_PER_SM_ELSE)
        fp32 = round(2 * lanes * clock * 1e6 / 1e12, 1)
    return DeviceSpec(
        name=name,
        aliases=(),
        compute_capability=compute_capability,
        num_sms=num_sms,
        boost_clock_mhz=clock,
        memory_bytes=None if memory is None else int(memory.total),
        memory_gb_per_s=bandwidth,
        l2_bytes=_l2_bytes(),
        fp16_tensor_tflops=None,
        bf16_tensor_tflops=None,
        fp32_tflops=fp32,
        power_w=None if limit_mw is None else round(limit_mw / 1000),
        price_usd_per_hour=None,
        source="the driver of this machine; this GPU is not in Attune's table",
    )


def _l2_bytes() -> int | None:
    """L2 of CUDA's first device; NVML does not report it. None without CuPy."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceProperties(0)["l2CacheSize"]) or None
    except Exception:
        # CuPy fails in many ways on a half-installed CUDA; an unknown L2 is the honest answer.
        return None
