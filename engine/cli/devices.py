"""`devices`: the GPU table and what is in this machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from engine.cli.output import print_json, print_table
from engine.devices import all_devices, find_device
from engine.devices.detect import detect_local


def add_parser(commands: Any) -> None:
    p = commands.add_parser("devices", help="the GPUs Attune knows, and the one in this machine")
    p.add_argument("name", nargs="?", help="show one GPU with every figure and its source")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.name is not None:
        spec = find_device(args.name)
        if args.json:
            print_json(asdict(spec))
        else:
            rows = [(k, v if v is not None else "unknown") for k, v in asdict(spec).items()]
            print_table(spec.name, ("figure", "value"), rows)
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
    print_table(
        "Known GPUs (dense rates, FP32 accumulation)",
        (
            "GPU",
            "arch",
            "SMs",
            "FP16 TFLOP/s",
            "FP32 TFLOP/s",
            "GB/s",
            "memory",
            "$/h",
            "rented for it",
        ),
        (
            (
                d.name,
                d.arch,
                d.num_sms,
                d.fp16_tensor_tflops,
                d.fp32_tflops,
                d.memory_gb_per_s,
                d.memory,
                d.price_usd_per_hour,
                d.price_basis,
            )
            for d in all_devices()
        ),
    )
    return 0
