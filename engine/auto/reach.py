"""Instructions that one architecture alone has and is fast with, and which rungs use them."""

from __future__ import annotations

from engine.devices.spec import DeviceSpec
from kernels.ladder import LADDER
from kernels.variant import Variant

_BY_MAJOR = {
    9: "wgmma and TMA, Hopper's own tensor-core instructions",
    10: "tcgen05, Blackwell's own tensor-core instructions",
}


def own_instructions(device: DeviceSpec) -> str:
    """What they are, with their name; empty where the GPU's architecture has none of its own."""
    return _BY_MAJOR.get(device.compute_capability[0], "")


def own_rungs(device: DeviceSpec) -> list[Variant]:
    """The rungs that use them."""
    capability = device.compute_capability
    return [v for v in LADDER if v.arch_specific and v.min_compute_capability == capability]


def out_of_reach(device: DeviceSpec) -> str:
    """Which of them no rung uses, as a sentence; empty where there is nothing."""
    own = own_instructions(device)
    if not own or own_rungs(device):
        return ""
    return f"Out of reach on {device.name}: {own}, which no rung uses or simulates."
