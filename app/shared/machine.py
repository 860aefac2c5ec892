"""The GPU of this machine, looked up once per server because asking the driver is slow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from engine.devices import find_device
from engine.devices.spec import DeviceSpec, detect_local, is_software


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """The GPU of this machine. Without one, `spec` is None and `why` gives the reason."""

    spec: DeviceSpec | None
    name: str
    why: str
    differences: tuple[str, ...] = ()  # sentences on where the driver contradicts the table
    in_software: bool = False  # runs kernels, but does not time them

    @property
    def label(self) -> str:
        """Return the GPU's name in a menu."""
        return f"{self.name} ({'in software, not timed' if self.in_software else 'this machine'})"


@lru_cache(maxsize=1)
def local_gpu() -> LocalGpu:
    """Return the GPU of this machine as the driver reports it."""
    detected = detect_local()
    if isinstance(detected, str):
        return LocalGpu(None, "", detected)
    return LocalGpu(
        detected.spec,
        detected.spec.name,
        "",
        detected.differences,
        is_software(detected.driver_name),
    )


def device_of(gpu: str | None) -> DeviceSpec | None:
    """Return the GPU with this name; None returns this machine's GPU, if there is one.

    As `engine.devices.target_gpu`, without asking the driver again.
    """
    local = local_gpu().spec
    if gpu is None:
        return local
    named = find_device(gpu)
    return local if local is not None and local.name == named.name else named
