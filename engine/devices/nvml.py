"""The present state of a GPU from NVML: clocks, power, temperature, throttling.

Every figure is optional, because boards and drivers report different ones. NVML needs the driver
but no CUDA context, so queries do not disturb measurements in other processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.base.errors import ToolMissing
from engine.devices.spec import T, initialised_nvml, query_nvml

_SLOW_INTERVAL_S = 0.1  # the board reports power and temperature as averages over this time

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
    """One reading of the GPU's state; None for values that the board does not report."""

    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    memory_used_bytes: int | None
    throttle_reasons: tuple[str, ...]  # empty if nothing slows the GPU, or NVML does not report it


@contextmanager
def session() -> Iterator[Any]:
    """Yield the initialised `pynvml` module, and shut it down afterwards.

    Raises:
        ToolMissing: nvidia-ml-py or an NVIDIA driver is not installed.
    """
    nvml = initialised_nvml()
    if isinstance(nvml, str):
        raise ToolMissing(nvml)
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def throttle_reasons(bits: int | None) -> tuple[str, ...]:
    """Return the names of the reasons that are set in NVML's bit field."""
    return tuple(name for bit, name in _THROTTLE_BITS.items() if bits is not None and bits & bit)


class StateReader:
    """Reader of one GPU's state between samples, inside a `session`.

    The clock and the throttle reasons are read first, before the state after a sample changes.
    Values that change slowly or take long to read are read ten times a second, constant ones once.
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
        """Return the query for throttle reasons that this driver supports.

        Drivers before 535 only support the old name, which CUDA 14 removes.
        """
        query: Callable[..., int] = self._nvml.nvmlDeviceGetCurrentClocksEventReasons
        if self._ask(query) is not None:
            return query
        older = getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        return older if older is not None and self._ask(older) is not None else None

    def _ask(self, query: Callable[..., T], *args: Any) -> T | None:
        return query_nvml(self._nvml, query, self._handle, *args)


def read_state(nvml: Any, handle: Any) -> GpuState:
    """Return clocks, power, temperature and throttling of one GPU, inside a `session`."""
    return StateReader(nvml, handle)()
