"""`occupancy`: the calculator on its own, no kernel needed."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from engine.cli.output import print_figures, print_json
from engine.devices import find_device, limits_for
from engine.evaluation import Occupancy
from engine.model.occupancy import occupancy


def run(args: argparse.Namespace) -> int:
    device = find_device(args.gpu)
    result = occupancy(
        limits_for(device.compute_capability),
        device.num_sms,
        max(1, args.cluster) if args.ctas is None else args.ctas,
        args.threads,
        args.registers,
        args.smem,
        cluster_size=args.cluster,
    )
    if args.json:
        print_json({"device": device.name, "threads": args.threads, **asdict(result)})
    else:
        print_figures(f"Occupancy on {device.name}", occupancy_rows(result))
        print(result.reason)
    return 0 if result.ctas_per_sm > 0 else 1


def occupancy_rows(result: Occupancy) -> list[tuple[str, object]]:
    """The figures in reading order, for a two-column table."""
    limits = ", ".join(f"{name} {count}" for name, count in result.limits.items())
    return [
        ("CTAs", result.ctas),
        *([("CTAs with keys to visit", result.useful_ctas)] if result.idle_ctas else []),
        ("CTAs per SM", result.ctas_per_sm),
        ("limiter", f"{result.limited_by()} (CTAs per SM each would allow: {limits})"),
        ("active warps per SM", f"{result.active_warps_per_sm} of {result.max_warps_per_sm}"),
        ("occupancy", f"{result.occupancy:.1%}"),
        ("waves", result.waves),
        ("tail CTAs", result.tail_ctas),
        ("wave efficiency", _percent(result.wave_efficiency)),
        ("SM fill", _percent(result.sm_fill)),
        ("thread fill", _percent(result.thread_fill)),
        ("CTAs to fill the GPU's threads", result.ctas_to_fill),
    ]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
