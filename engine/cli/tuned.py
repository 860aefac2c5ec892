"""`tuned`: the configs that are kept, and forgetting them."""

from __future__ import annotations

import argparse

from engine.cli.output import print_json, print_table
from engine.devices import find_device
from engine.errors import InvalidProblem
from engine.names import find_variant
from engine.records.encoding import encode
from engine.table import Table
from engine.tuned import TunedConfig, forget_tuned, load_tuned, tuned_path


def run(args: argparse.Namespace) -> int:
    if args.variant is not None:
        find_variant(args.variant)  # an unknown one is a mistake, also where nothing is kept
    entries = [entry for entry in load_tuned() if _is_wanted(entry, args)]
    if args.forget:
        if args.variant is None and args.gpu is None and args.problem_class is None:
            raise InvalidProblem(
                "--forget takes a variant, --gpu or --class, so that nothing is deleted by "
                f"accident; to delete everything remove {tuned_path()}."
            )
        entries = [entry for entry in entries if forget_tuned(entry)]
    if args.json:
        print_json([encode(entry) for entry in entries])
        return 0
    if not entries:
        which = " like that" if args.variant or args.gpu or args.problem_class else ""
        print(f"No tuned config{which} is kept in {tuned_path()}: `sweep --keep` keeps the best.")
        return 0
    records = (
        {
            "variant": entry.variant,
            "GPU": entry.gpu,
            "class of problems": entry.problem_class,
            "config": entry.values(),
            "tuned for": entry.describe(),
            "by": f"{entry.strategy}, {entry.evaluations:,} tried",
            "when": entry.when,
        }
        for entry in entries
    )
    print_table(Table.of("Forgotten" if args.forget else "Tuned configs", records))
    return 0


def _is_wanted(entry: TunedConfig, args: argparse.Namespace) -> bool:
    return (
        (args.variant is None or entry.variant == find_variant(args.variant).id)
        and (args.gpu is None or entry.gpu in (args.gpu, find_device(args.gpu).name))
        and args.problem_class in (None, entry.problem_class)
    )
