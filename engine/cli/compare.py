"""`compare`: snapshots beside each other; exit code 1 when something got slower or broke."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from engine.cli.output import print_json, print_table

if TYPE_CHECKING:
    from engine.sessions.compare import SessionComparison

_KINDS = {"warm": "device_warm", "cold": "device_cold", "end-to-end": "end_to_end"}


def add_parser(commands: Any) -> None:
    p = commands.add_parser(
        "compare", help="compare snapshots; exit code 1 when something got slower"
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="snapshot files, or names in the store")
    p.add_argument("--baseline", metavar="FILE", help="compare with this one (default: the first)")
    p.add_argument(
        "--across",
        action="store_true",
        help="give verdicts across different GPUs, drivers and clocks too, and label them",
    )
    p.add_argument("--time", choices=sorted(_KINDS), default="warm", help="which time (warm)")
    forms = p.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print one JSON object")
    forms.add_argument("--markdown", action="store_true", help="print Markdown")
    forms.add_argument("--csv", action="store_true", help="print the rows as CSV")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from engine.sessions.compare import compare_sessions
    from engine.sessions.explain import file_label
    from engine.sessions.files import comparable, open_sessions

    # A pinned baseline may be one of the files, or one more.
    files = list(args.files)
    if args.baseline is not None and args.baseline not in files:
        files.insert(0, args.baseline)
    if len(files) < 2:
        print("error: compare takes at least two sessions.", file=sys.stderr)
        return 2
    opened = open_sessions(files)
    labels = dict(zip(files, opened, strict=True)) if len(set(files)) == len(files) else {}
    baseline = labels.get(args.baseline, file_label(args.baseline)) if args.baseline else None
    comparison = compare_sessions(
        {name: comparable(snapshot) for name, snapshot in opened.items()},
        baseline,
        across=args.across,
        kind=_KINDS[args.time],
    )
    show(comparison, args)
    return 1 if comparison.regressions else 0


def show(comparison: SessionComparison, args: argparse.Namespace) -> None:
    """Print a comparison in the form that was asked for; tables by default."""
    from engine.sessions import compare_output

    if args.json:
        print_json(compare_output.to_dict(comparison))
    elif args.markdown:
        sys.stdout.write(compare_output.to_markdown(comparison))
    elif args.csv:
        sys.stdout.write(compare_output.to_csv(comparison))
    else:
        print_comparison(comparison)


def print_comparison(comparison: SessionComparison) -> None:
    """What differs, regressions first, all rows, the winner map."""
    from engine.sessions import compare_output

    others = ", ".join(comparison.sessions)
    print(f"{others} against {comparison.baseline}\n")
    for found in comparison.differences:
        print(f"What differs in {found.session}:")
        lines = compare_output.difference_lines(found)
        print("\n".join(f"  {line}" for line in lines), end="\n\n")
    columns = ("session", "variant", "config", "problem", "time", "speed-up", "verdict", "why")
    for title, rows in (
        ("Regressions", comparison.regressions),
        ("Evaluations", comparison.rows),
    ):
        if rows:
            print_table(title, columns, map(compare_output.row_cells, rows))
    if comparison.winners:
        columns = ("problem", "device", "fastest", "time", "tied with", "next", "against SDPA")
        cells = map(compare_output.winner_cells, comparison.winners)
        print_table("Fastest variant", columns, cells)
    if comparison.unmatched:
        print(f"{len(comparison.unmatched):,} evaluations have no counterpart.")
    if not comparison.rows:
        print("Nothing to compare: the sessions have no variant, config and problem in common.")
