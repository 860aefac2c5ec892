"""`variants`: the ladder and own kernels."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from engine.cli.output import print_json, print_table
from engine.names import unknown
from engine.own_kernels.registry import OWN, all_variants, forget_kernel, keep_kernel, kept_kernels
from kernels.ladder import LADDER


def add_parser(commands: Any) -> None:
    p = commands.add_parser("variants", help="list the kernel variants and their tunables")
    p.add_argument(
        "--add",
        type=Path,
        metavar="FILE",
        help="use this .cu file as a variant from now on, on the pages too",
    )
    p.add_argument("--forget", metavar="NAME", help="take an added kernel off the list again")
    p.add_argument("--json", action="store_true", help="print one JSON list")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.add is not None:
        keep_kernel(args.add)
    if args.forget is not None:
        _forget(args.forget)
    mistakes = (*LADDER.errors, *OWN.errors)
    variants = all_variants()
    for mistake in mistakes:
        print(f"error: {mistake}", file=sys.stderr)
    if args.json:
        print_json(
            [
                {
                    "id": v.id,
                    "name": v.name,
                    "title": v.title,
                    "idea": v.idea,
                    "head_dims": list(v.head_dims),
                    "dtypes": list(v.dtypes),
                    "min_compute_capability": list(v.min_compute_capability),
                    "passes": [p.entry for p in v.passes],
                    "tunables": [
                        {
                            "name": t.name,
                            "values": list(t.values),
                            "default": t.default,
                            "meaning": t.meaning,
                        }
                        for t in v.tunables
                    ],
                }
                for v in variants
            ]
        )
        return 1 if mistakes else 0
    print_table(
        "Variants",
        ("variant", "idea", "head_dim", "tunables (default)"),
        (
            (
                v.name,
                v.idea,
                " ".join(map(str, v.head_dims)),
                ", ".join(f"{t.name}={t.default}" for t in v.tunables) or "none",
            )
            for v in variants
        ),
    )
    return 1 if mistakes else 0


def _forget(name: str) -> None:
    known = [path.stem for path in kept_kernels()]
    if name not in known:
        raise unknown("added kernel", name, known)
    forget_kernel(name)
