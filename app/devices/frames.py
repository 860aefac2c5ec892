"""The GPU table as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from engine.base.table import Table
from engine.base.units import format_bytes
from engine.devices.spec import DeviceSpec


def devices(specs: Iterable[DeviceSpec], wanted: str = "") -> pd.DataFrame:
    """Return a row per GPU whose name or alias contains `wanted`; unknown figures are NaN."""
    rows = [
        {
            "GPU": d.name,
            "compute capability": ".".join(map(str, d.compute_capability)),
            "SMs": d.num_sms,
            "boost MHz": d.boost_clock_mhz,
            "memory": d.memory,
            "$/hour": d.price_usd_per_hour,
            "price basis": d.price_basis or "no list price",
            "memory GB/s": d.memory_gb_per_s,
            "L2": format_bytes(d.l2_bytes) if d.l2_bytes else "unknown",
            "FP16 tensor TFLOP/s": d.fp16_tensor_tflops,
            "BF16 tensor TFLOP/s": _bf16(d),
            "FP32 TFLOP/s": d.fp32_tflops,
            "power W": d.power_w,
            "price from": d.price_source or "no list price",
            "source": d.source,
        }
        for d in specs
        if wanted.casefold().strip() in " ".join((d.name, *d.aliases)).casefold()
    ]
    return Table.of("GPUs", rows).frame(dashes=False)


def _bf16(device: DeviceSpec) -> str:
    """Return the BF16 rate; None for Turing, whose tensor cores have no BF16."""
    if device.bf16_tensor_tflops is not None:
        return f"{device.bf16_tensor_tflops:,.4g}"
    return "none" if device.compute_capability < (8, 0) else "unknown"
