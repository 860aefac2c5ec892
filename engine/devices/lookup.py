"""Find a device by any of its names."""

from __future__ import annotations

import difflib
import re

from engine.devices.spec import DeviceSpec
from engine.devices.table import DEVICES
from engine.errors import UnknownName


def _key(name: str) -> str:
    """Letters and digits only, lower case, without the vendor's name: `NVIDIA L4` → `l4`."""
    key = re.sub(r"[^a-z0-9]+", "", name.lower())
    for vendor in ("nvidia", "geforce", "tesla"):
        key = key.removeprefix(vendor)
    return key


_BY_KEY: dict[str, DeviceSpec] = {
    _key(alias): device for device in DEVICES for alias in (device.name, *device.aliases)
}


def all_devices() -> tuple[DeviceSpec, ...]:
    """Every row of the table, in order of generation."""
    return DEVICES


def find_device(name: str) -> DeviceSpec:
    """The row whose name or alias this is; case, spaces and the vendor's name do not matter.

    Raises:
        UnknownName: no such row; the text offers the nearest names.
    """
    if (device := _BY_KEY.get(_key(name))) is not None:
        return device
    keys = difflib.get_close_matches(_key(name), _BY_KEY, n=6, cutoff=0.5)
    near = list(dict.fromkeys(_BY_KEY[key].name for key in keys))[:3]
    if not near:
        near = [device.name for device in DEVICES]
    raise UnknownName(f"There is no GPU named {name!r} in the table: try {', '.join(near)}.")
