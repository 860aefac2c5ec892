"""Rungs that the ladder is to get: what a reader of its last page can know of them already."""

from __future__ import annotations

from dataclasses import dataclass

from engine.devices.spec import DeviceSpec
from kernels.ladder import LADDER


@dataclass(frozen=True, slots=True)
class PlannedRung:
    """A rung that has no file yet."""

    id: str
    idea: str


_PLANNED = (PlannedRung("v21", "paged K/V for decoding: a block table"),)


def planned() -> tuple[PlannedRung, ...]:
    """Those that have no file yet."""
    known = {variant.id for variant in LADDER}
    return tuple(rung for rung in _PLANNED if rung.id not in known)


def beyond(device: DeviceSpec) -> str:
    """What this GPU could do that no rung does, nor is planned to; empty where there is nothing."""
    if device.compute_capability[0] == 10:
        return (
            f"tcgen05, the tensor-core instructions of {device.arch} that {device.name} is fast "
            "with, is out of reach: no rung uses or simulates it."
        )
    return ""
