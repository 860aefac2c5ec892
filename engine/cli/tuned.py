"""`tuned`: the configs that are kept, and forgetting them."""

from __future__ import annotations

import argparse

from engine.base.errors import InvalidProblem
from engine.base.table import Table
from engine.cli.output import print_json, print_table
from engine.config import forget_tuned, load_tuned, tuned_path
from engine.devices import find_device
from engine.names import find_variant
from engine.schema import encode


def run_tuned(args: argparse.Namespace) -> int:
    kept = load_tuned()
    variant, gpu = args.variant, args.gpu
    # What is kept may be of a kernel or GPU that is no more; any other unknown name is a mistake.
    if variant is not None and all(entry.variant != variant for entry in kept):
        variant = find_variant(variant).id
    if gpu is not None and all(entry.gpu != gpu for entry in kept):
        gpu = find_device(gpu).name
    entries = [
        entry
        for entry in kept
        if variant in (None, entry.variant)
        and gpu in (None, entry.gpu)
        and args.problem_class in (None, entry.problem_class)
    ]
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
