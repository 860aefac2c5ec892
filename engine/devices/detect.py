"""The GPU of this machine, if there is one, and its present state as NVML reports it.

A GPU of the table takes its figures from there, but SMs and L2 from the driver where that knows
them. The boost clock stays the table's, because the rates refer to it. One that is not in the table
gets what the driver says (SMs, clock, memory, bandwidth, L2) and None elsewhere, so that pages say
what is unknown.

NVML numbers GPUs by PCI address and CUDA by speed (`CUDA_DEVICE_ORDER`), so the GPU is CUDA's own
device 0 wherever CuPy can say which that is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from engine.base.errors import ToolMissing, UnknownName
from engine.base.units import format_bytes
from engine.cuda_source.toolkit import make_cupy_folder
from engine.devices.spec import DeviceSpec, find_device, modelled_name

# The present state of a GPU as NVML reports it: clocks, power, temperature, throttling.
#
# Every figure is optional: boards and drivers differ in what they answer. NVML needs the driver but
# no CUDA context, so asking never disturbs a measurement that runs in another process.

T = TypeVar("T")

_SLOW_INTERVAL_S = 0.1  # power and temperature are averages of the board's over as long

# Bits of nvmlDeviceGetCurrentClocksEventReasons that slow the SMs down (nvml.h).
_THROTTLE_BITS = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000010: "sync boost",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "hardware power brake",
}


@dataclass(frozen=True, slots=True)
class GpuState:
    """One reading. None where the board does not say."""

    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    memory_used_bytes: int | None
    throttle_reasons: tuple[str, ...]  # empty when nothing slows the GPU, or NVML does not say


@contextmanager
def session() -> Iterator[Any]:
    """The initialised `pynvml` module, shut down on leaving.

    Raises:
        ToolMissing: nvidia-ml-py is not installed, or there is no NVIDIA driver to talk to.
    """
    nvml = _initialised()
    if isinstance(nvml, str):
        raise ToolMissing(nvml)
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _initialised() -> Any:
    """The module `pynvml`, initialised, or the sentence why it is not: a `str`."""
    try:
        import pynvml
    except ImportError:
        return "No GPU can be found without the package nvidia-ml-py: pip install nvidia-ml-py."
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (
            f"This machine has no NVIDIA GPU that its driver can reach ({error}): choose a target "
            f"GPU by name."
        )
    return pynvml


def ask(nvml: Any, query: Callable[..., T], *args: Any) -> T | None:
    """The answer, or None where this board or driver has none."""
    try:
        return query(*args)
    except nvml.NVMLError:
        return None


def throttle_reasons(bits: int | None) -> tuple[str, ...]:
    """Names of the reasons that are set in NVML's bit field."""
    return tuple(name for bit, name in _THROTTLE_BITS.items() if bits is not None and bits & bit)


class StateReader:
    """Reads the state of one GPU between samples, inside a `session`.

    The clock and the reasons for slowing down come first, while the GPU is still as the sample left
    it. What changes slowly or costs more is read ten times a second, and what never changes once.
    """

    def __init__(self, nvml: Any, handle: Any, now_s: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._handle = handle
        self._now_s = now_s
        self._reasons = self._reasons_query()
        self._max_sm_clock_mhz = self._ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM)
        limit_mw = self._ask(nvml.nvmlDeviceGetPowerManagementLimit)
        self._power_limit_w = None if limit_mw is None else limit_mw / 1000
        self._slow: tuple[int | None, float | None, int | None, int | None] | None = None
        self._slow_at_s = 0.0

    def __call__(self) -> GpuState:
        clock = self._ask(self._nvml.nvmlDeviceGetClockInfo, self._nvml.NVML_CLOCK_SM)
        bits = None if self._reasons is None else self._ask(self._reasons)
        if self._slow is None or self._now_s() - self._slow_at_s >= _SLOW_INTERVAL_S:
            self._slow = self._read_slow()
            self._slow_at_s = self._now_s()
        memory_clock_mhz, power_w, temperature_c, memory_used_bytes = self._slow
        return GpuState(
            sm_clock_mhz=clock,
            max_sm_clock_mhz=self._max_sm_clock_mhz,
            memory_clock_mhz=memory_clock_mhz,
            power_w=power_w,
            power_limit_w=self._power_limit_w,
            temperature_c=temperature_c,
            memory_used_bytes=memory_used_bytes,
            throttle_reasons=throttle_reasons(bits),
        )

    def _read_slow(self) -> tuple[int | None, float | None, int | None, int | None]:
        nvml = self._nvml
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        return (
            self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            None if power_mw is None else power_mw / 1000,
            self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            None if memory is None else int(memory.used),
        )

    def _reasons_query(self) -> Callable[..., int] | None:
        """The query that this driver answers: drivers before 535 know the older name alone, which
        NVIDIA takes away with CUDA 14."""
        query: Callable[..., int] = self._nvml.nvmlDeviceGetCurrentClocksEventReasons
        if self._ask(query) is not None:
            return query
        older = getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        return older if older is not None and self._ask(older) is not None else None

    def _ask(self, query: Callable[..., T], *args: Any) -> T | None:
        return ask(self._nvml, query, self._handle, *args)


def read_state(nvml: Any, handle: Any) -> GpuState:
    """Clocks, power, temperature and throttling of one GPU, inside a `session`."""
    return StateReader(nvml, handle)()


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
    differences: tuple[str, ...] = ()  # where the driver contradicts the table, a sentence each


@dataclass(frozen=True, slots=True)
class _CudaDevice:
    """CUDA's first device, in CUDA's own order and after CUDA_VISIBLE_DEVICES."""

    pci_bus_id: str  # as NVML takes it; of the whole GPU for a MIG slice
    num_sms: int | None
    l2_bytes: int | None


def detect_local() -> DetectedDevice | str:
    """The first GPU that CUDA may use here, or one sentence why there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = None if visible is None else visible.split(",")[0].strip()
    if first is not None and first in ("", "-1", "NoDevFiles"):
        return "CUDA_VISIBLE_DEVICES hides every GPU of this machine: unset it, or choose a target."
    nvml = _initialised()
    if isinstance(nvml, str):  # the usual answer of a laptop, so no exception
        return nvml
    try:
        return _describe(nvml, first)
    finally:
        nvml.nvmlShutdown()


def _describe(api: Any, first: str | None) -> DetectedDevice | str:
    cuda = _cuda_device()
    try:
        handle = _handle(api, first, cuda)
    except api.NVMLError as error:
        wanted = "the first GPU" if first is None else f"CUDA_VISIBLE_DEVICES={first}"
        return f"The driver does not find {wanted} ({error}): choose a target GPU by name."
    name = str(ask(api, api.nvmlDeviceGetName, handle) or "unknown GPU")
    capability = ask(api, api.nvmlDeviceGetCudaComputeCapability, handle)
    if capability is None:
        return f"The driver does not say which compute capability {name} has: choose a target GPU."
    compute_capability = (int(capability[0]), int(capability[1]))
    memory = ask(api, api.nvmlDeviceGetMemoryInfo, handle)
    num_sms = None if cuda is None else cuda.num_sms
    if num_sms is None:
        lanes = ask(api, api.nvmlDeviceGetNumGpuCores, handle)
        per_sm = _LANES_PER_SM.get(compute_capability, _LANES_PER_SM_ELSE)
        num_sms = None if not lanes else int(lanes) // per_sm
    l2_bytes = None if cuda is None else cuda.l2_bytes
    clock_mhz = ask(api, api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_SM)
    try:
        spec = find_device(modelled_name(name))
        in_table = spec.compute_capability == compute_capability
    except UnknownName:
        in_table = False
    differences: tuple[str, ...] = ()
    if in_table:
        differences = _differences(spec, num_sms, l2_bytes, clock_mhz)
        spec = _with_driver_figures(spec, num_sms, l2_bytes)
    else:
        spec = _from_driver(api, handle, name, compute_capability, num_sms, l2_bytes, clock_mhz)
    return DetectedDevice(
        spec=spec,
        in_table=in_table,
        driver_name=name,
        uuid=str(ask(api, api.nvmlDeviceGetUUID, handle) or ""),
        driver_version=str(ask(api, api.nvmlSystemGetDriverVersion) or ""),
        memory_bytes=None if memory is None else int(memory.total),
        differences=differences,
    )


def _differences(
    row: DeviceSpec, num_sms: int | None, l2_bytes: int | None, clock_mhz: int | None
) -> tuple[str, ...]:
    """Where the driver's figures are not the table's, a sentence each."""
    figures = (
        ("SMs", num_sms, row.num_sms, str),
        ("L2", l2_bytes, row.l2_bytes, format_bytes),
        ("Highest SM clock", clock_mhz, row.boost_clock_mhz, "{:,} MHz".format),
    )
    return tuple(
        f"{name}: {shown(driver)} as the driver reports it, {shown(table)} in Attune's table."
        for name, driver, table, shown in figures
        if driver is not None and table is not None and driver != table
    )


def _with_driver_figures(row: DeviceSpec, num_sms: int | None, l2_bytes: int | None) -> DeviceSpec:
    """The row with SMs and L2 as the driver reports them; the row itself where nothing differs."""
    source = row.source
    if num_sms not in (None, row.num_sms):
        source += "; SMs as the driver counts them"
    if l2_bytes not in (None, row.l2_bytes):
        source += "; L2 as the driver reports it"
    if source == row.source:
        return row
    return replace(
        row, num_sms=num_sms or row.num_sms, l2_bytes=l2_bytes or row.l2_bytes, source=source
    )


def _handle(api: Any, first: str | None, cuda: _CudaDevice | None) -> Any:
    """NVML's handle of CUDA's first device; the whole GPU's for a MIG slice.

    Without CuPy nothing says how CUDA orders GPUs, so CUDA_VISIBLE_DEVICES is followed in NVML's
    order.
    """
    if cuda is not None:
        handle = ask(api, api.nvmlDeviceGetHandleByPciBusId, cuda.pci_bus_id)
        if handle is not None:
            return handle
    if first is None or first.isdigit():
        return api.nvmlDeviceGetHandleByIndex(int(first or 0))
    # CUDA takes any beginning of a UUID, NVML whole ones only.
    wanted = first.partition("/")[0].removeprefix("MIG-") if "MIG-GPU-" in first else first
    handles = [gpu for uuid, gpu in _uuids(api) if uuid.startswith(wanted)]
    return handles[0] if handles else api.nvmlDeviceGetHandleByUUID(first)


def _uuids(api: Any) -> Iterator[tuple[str, Any]]:
    """UUIDs of all GPUs and MIG slices, each with the handle of the whole GPU."""
    for index in range(ask(api, api.nvmlDeviceGetCount) or 0):
        gpu = ask(api, api.nvmlDeviceGetHandleByIndex, index)
        if gpu is None:
            continue
        yield str(ask(api, api.nvmlDeviceGetUUID, gpu) or ""), gpu
        for each in range(ask(api, api.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
            mig = ask(api, api.nvmlDeviceGetMigDeviceHandleByIndex, gpu, each)
            if mig is not None:
                yield str(ask(api, api.nvmlDeviceGetUUID, mig) or ""), gpu


def _from_driver(
    api: Any,
    handle: Any,
    name: str,
    compute_capability: tuple[int, int],
    num_sms: int | None,
    l2_bytes: int | None,
    clock: int | None,
) -> DeviceSpec:
    """A row for a GPU that the table lacks; peaks stay None, the driver does not know them."""
    memory = ask(api, api.nvmlDeviceGetMemoryInfo, handle)
    memory_clock = ask(api, api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_MEM)
    bus_bits = ask(api, api.nvmlDeviceGetMemoryBusWidth, handle)
    limit_mw = ask(api, api.nvmlDeviceGetPowerManagementDefaultLimit, handle)
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
        l2_bytes=l2_bytes,
        fp16_tensor_tflops=None,
        bf16_tensor_tflops=None,
        fp32_tflops=fp32,
        power_w=None if limit_mw is None else round(limit_mw / 1000),
        price_usd_per_hour=None,
        source="the driver of this machine; this GPU is not in Attune's table",
    )


def _cuda_device() -> _CudaDevice | None:
    """CUDA's device 0; None without CuPy. Makes no context."""
    make_cupy_folder()
    try:
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(0)
        address = (properties["pciDomainID"], properties["pciBusID"], properties["pciDeviceID"])
        return _CudaDevice(
            pci_bus_id="{:08X}:{:02X}:{:02X}.0".format(*address),
            num_sms=int(properties["multiProcessorCount"]) or None,
            l2_bytes=int(properties["l2CacheSize"]) or None,
        )
    except Exception:
        # CuPy fails in many ways on a half-installed CUDA; unknown is the honest answer.
        return None
