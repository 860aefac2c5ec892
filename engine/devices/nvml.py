"""What NVML says about a GPU right now: clocks, power, temperature, reasons for throttling.

Every figure is optional: boards and drivers differ in what they answer. NVML needs the driver but
no CUDA context, so asking never disturbs a measurement that runs in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.errors import ToolMissing

T = TypeVar("T")

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
    try:
        import pynvml
    except ImportError:
        raise ToolMissing(
            "No GPU can be found without the package nvidia-ml-py: pip install nvidia-ml-py."
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ToolMissing(
            f"This machine has no NVIDIA GPU that its driver can reach ({error}): choose a target "
            f"GPU by name."
        ) from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def ask(nvml: Any, query: Callable[..., T], *args: Any) -> T | None:
    """The answer, or None where this board or driver has none."""
    try:
        return query(*args)
    except nvml.NVMLError:
        return None


def throttle_reasons(bits: int | None) -> tuple[str, ...]:
    """Names of the reasons that are set in NVML's bit field."""
    return tuple(name for bit, name in _THROTTLE_BITS.items() if bits is not None and bits & bit)


def read_state(nvml: Any, handle: Any) -> GpuState:
    """Clocks, power, temperature and throttling of one GPU, inside a `session`."""
    power_mw = ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    limit_mw = ask(nvml, nvml.nvmlDeviceGetPowerManagementLimit, handle)
    memory = ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    bits = ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return GpuState(
        sm_clock_mhz=ask(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        max_sm_clock_mhz=ask(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        power_w=None if power_mw is None else power_mw / 1000,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        temperature_c=ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        memory_used_bytes=None if memory is None else int(memory.used),
        throttle_reasons=throttle_reasons(bits),
    )
