"""The GPUs of `gpus.toml`, and finding one by any of its names."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any

from engine.devices.spec import DeviceSpec
from engine.errors import UnknownName

_TABLE = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))


def _device(line: list[Any]) -> DeviceSpec:
    """One line of the table."""
    known: list[Any] = [None if cell == "-" else cell for cell in line]
    name, capability, sms, mhz, gib, gb_per_s, l2_mib, fp16, fp32, watts, price, _, rate = known
    major, minor = (int(part) for part in capability.split("."))
    priced = _TABLE["prices"][line[11]]
    return DeviceSpec(
        name=name,
        aliases=tuple(_TABLE["aliases"].get(name, [f"NVIDIA {name}"])),
        compute_capability=(major, minor),
        num_sms=sms,
        boost_clock_mhz=mhz,
        memory_bytes=_TABLE["usable_mib"].get(name, gib << 10) << 20,
        memory_gb=gib,
        memory_gb_per_s=float(gb_per_s),
        l2_bytes=int(l2_mib * (1 << 20)),
        fp16_tensor_tflops=float(fp16),
        bf16_tensor_tflops=None if (major, minor) == (7, 5) else float(fp16),
        fp32_tflops=float(fp32),
        power_w=watts,
        price_usd_per_hour=price,
        source=_TABLE["sources"][name],
        price_basis=priced["basis"],
        price_source=priced["source"].format(rate),
    )


DEVICES: tuple[DeviceSpec, ...] = tuple(map(_device, _TABLE["figures"]))


def all_devices() -> tuple[DeviceSpec, ...]:
    """Every GPU of the table, in order of generation."""
    return DEVICES


def find_device(name: str) -> DeviceSpec:
    """The GPU with this name or alias; case, spaces and the vendor's name do not matter.

    Raises:
        UnknownName: no such GPU; the text offers the nearest names.
    """
    if (device := _BY_KEY.get(_key(name))) is not None:
        return device
    keys = difflib.get_close_matches(_key(name), _BY_KEY, n=6, cutoff=0.5)
    near = list(dict.fromkeys(_BY_KEY[key].name for key in keys))[:3]
    if not near:
        near = [device.name for device in DEVICES]
    raise UnknownName(f"There is no GPU named {name!r} in the table: try {', '.join(near)}.")


def _key(name: str) -> str:
    """Letters and digits only, lower case, without the vendor's name: `NVIDIA L4` → `l4`."""
    key = re.sub(r"[^a-z0-9]+", "", name.lower())
    for vendor in ("nvidia", "geforce", "tesla"):
        key = key.removeprefix(vendor)
    return key


_BY_KEY = {_key(alias): device for device in DEVICES for alias in (device.name, *device.aliases)}
