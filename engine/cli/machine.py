"""`devices`: the GPU table and what is in this machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from engine.base.table import Table
from engine.cli.output import print_figures, print_json, print_table
from engine.devices import all_devices, find_device
from engine.devices.detect import detect_local


def run_devices(args: argparse.Namespace) -> int:
    if args.name is not None:
        spec = find_device(args.name)
        if args.json:
            print_json(asdict(spec))
        else:
            rows = asdict(spec).items()
            print_figures(spec.name, ((k, "unknown" if v is None else v) for k, v in rows))
        return 0
    local = detect_local()
    reason = local if isinstance(local, str) else ""
    if args.json:
        print_json(
            {
                "local": None if isinstance(local, str) else asdict(local),
                "local_reason": reason,
                "devices": [asdict(d) for d in all_devices()],
            }
        )
        return 0
    print(f"This machine: {reason or (local.spec.name if not isinstance(local, str) else '')}")
    for difference in () if isinstance(local, str) else local.differences:
        print(f"  {difference}")
    records = (
        {
            "GPU": d.name,
            "arch": d.arch,
            "SMs": d.num_sms,
            "FP16 TFLOP/s": d.fp16_tensor_tflops,
            "FP32 TFLOP/s": d.fp32_tflops,
            "GB/s": d.memory_gb_per_s,
            "memory": d.memory,
            "$/h": d.price_usd_per_hour,
            "rented for it": d.price_basis,
        }
        for d in all_devices()
    )
    print_table(Table.of("Known GPUs (dense rates, FP32 accumulation)", records))
    return 0
