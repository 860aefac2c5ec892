"""How a GPU in software calls itself: by this, so that nothing of it is taken for a measurement."""

from __future__ import annotations

SOFTWARE = "software "


def is_software(driver_name: str) -> bool:
    """Whether the driver's name for a GPU is one of engine/software_gpu: "software L4"."""
    return driver_name.startswith(SOFTWARE)


def modelled_name(driver_name: str) -> str:
    """The GPU that it stands for: "L4" of "software L4"; any other name as it is."""
    return driver_name.removeprefix(SOFTWARE)
