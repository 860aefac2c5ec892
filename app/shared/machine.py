"""What this machine has: looked up once per server, because asking the driver is slow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from engine.devices.detect import detect_local
from engine.devices.spec import DeviceSpec


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """The GPU of this machine; `spec` is None when there is none, and `why` then says so."""

    spec: DeviceSpec | None
    name: str
    why: str


@lru_cache(maxsize=1)
def local_gpu() -> LocalGpu:
    """The GPU of this machine, as the driver names it."""
    found = detect_local()
    if isinstance(found, str):
        return LocalGpu(None, "", found)
    return LocalGpu(found.spec, found.spec.name, "")
