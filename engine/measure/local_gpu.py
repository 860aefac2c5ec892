"""This machine's GPU while it is measured: held against others, and watched through NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from engine.devices import nvml
from engine.devices.detect import detect_local
from engine.devices.nvml import GpuState
from engine.errors import ToolMissing
from engine.measure.device_lock import device_lock

# A driver without NVML: nothing is known, and what is unknown drops no sample.
_UNKNOWN = GpuState(None, None, None, None, None, None, None, ())


def gpu_lock(
    purpose: str, on_wait: Callable[[str], None] = lambda _: None
) -> AbstractContextManager[None]:
    """The lock of the GPU that CUDA uses first. See `device_lock`."""
    return device_lock(_uuid() or "gpu", purpose, on_wait)


@contextmanager
def measuring(
    purpose: str, on_wait: Callable[[str], None] = lambda _: None
) -> Iterator[Callable[[], GpuState]]:
    """Hold that GPU and read its state, as every measurement does. Not to be nested."""
    with gpu_lock(purpose, on_wait), gpu_states() as read_state:
        yield read_state


@contextmanager
def gpu_states() -> Iterator[Callable[[], GpuState]]:
    """A function that reads clocks, power, temperature and throttle reasons of that GPU."""
    uuid = _uuid()
    try:
        with nvml.session() as api:
            handle = nvml.ask(api, api.nvmlDeviceGetHandleByUUID, uuid) if uuid else None
            if handle is None:
                yield lambda: _UNKNOWN
            else:
                yield nvml.StateReader(api, handle)
    except ToolMissing:
        yield lambda: _UNKNOWN


def _uuid() -> str:
    local = detect_local()
    return "" if isinstance(local, str) else local.uuid
