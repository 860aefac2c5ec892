"""`compare`: kernels of snapshots beside each other, problem by problem.

Exit code 1: something is wrong that was right, further off, or slower. 3: only resources got worse
(spills, registers, occupancy). 0: neither.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from engine.cli.output import print_json, print_table

if TYPE_CHECKING:
    from engine.sessions.compare import Differences, SessionComparison

_KINDS = {"warm": "device_warm", "cold": "device_cold", "end-to-end": "end_to_end"}


def add_parser(commands: Any) -> None:
    p = commands.add_parser(
        "compare",
        help="compare kernels of snapshots; exit code 1 when a kernel became slower or incorrect",
        description="Compare kernels of snapshots, problem by problem. Exit code 1: a result "
        "became incorrect, less accurate or slower; 3: only spills, registers or occupancy got "
        "worse; 0: neither.",
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="snapshot files, or names in the store")
    p.add_argument("--baseline", metavar="FILE", help="compare with this one (default: the first)")
    which = p.add_mutually_exclusive_group()
    which.add_argument(
        "--by",
        choices=("auto", "same", "best"),
        default="auto",
        help="on a problem, compare the same variant and config, the best of each session, or the "
        "same where both have it and else the best (auto, the default)",
    )
    which.add_argument(
        "--pair",
        nargs=2,
        action="append",
        default=[],
        metavar=("BEFORE", "AFTER"),
        help="compare these two kernels, for instance --pair v01 v05,num_splits=4; 2:v05 is that "
        "of the second file; repeatable, and one file is enough",
    )
    p.add_argument(
        "--across",
        action="store_true",
        help="give verdicts across different GPUs, drivers and clocks too, and label them",
    )
    p.add_argument(
        "--time", choices=sorted(_KINDS), default="warm", help="which time to compare (warm)"
    )
    add_format_options(p)
    p.set_defaults(run=run)


def add_format_options(p: argparse.ArgumentParser) -> None:
    """How a comparison is printed; see `print_comparison`."""
    formats = p.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print one JSON object")
    formats.add_argument("--markdown", action="store_true", help="print Markdown")
    formats.add_argument("--csv", action="store_true", help="print the rows as CSV")


def run(args: argparse.Namespace) -> int:
    from engine.sessions.compare import compare_sessions, parse_pick
    from engine.sessions.files import open_sessions

    # A pinned baseline may be one of the files, or one more.
    files = list(args.files)
    if args.baseline is not None and args.baseline not in files:
        files.insert(0, args.baseline)
    if len(files) < 2 and not args.pair:
        print(
            "error: compare takes at least two sessions, or one and --pair BEFORE AFTER.",
            file=sys.stderr,
        )
        return 2
    sessions = open_sessions(files)
    labels = dict(zip(reversed(files), reversed(sessions), strict=True))
    comparison = compare_sessions(
        sessions,
        labels.get(args.baseline),
        pairing=args.by,
        pairs=[
            (parse_pick(a, list(sessions)), parse_pick(b, list(sessions))) for a, b in args.pair
        ],
        across=args.across,
        kind=_KINDS[args.time],
    )
    print_comparison(comparison, args)
    return comparison.exit_code


def print_comparison(comparison: SessionComparison, args: argparse.Namespace) -> None:
    """Print a comparison in the format that was asked for; tables by default."""
    from engine.sessions.compare import output

    if args.json:
        print_json(output.to_dict(comparison))
    elif args.markdown:
        sys.stdout.write(output.to_markdown(comparison))
    elif args.csv:
        sys.stdout.write(output.to_csv(comparison))
    else:
        for differences in comparison.differences:
            print(f"\nWhat differs in {differences.session}, against {comparison.baseline}:")
            _print_differences(differences)
        print()
        for table in output.comparison_tables(comparison):
            print_table(table)
        if not comparison.rows:
            print("Nothing to compare: the sessions share no problem.")


def _print_differences(differences: Differences) -> None:
    """Environment, flags and sources, a line each; diffs in full."""
    from engine.sessions.compare.output import environment_table

    if differences.nothing:
        print("  nothing in environment, flags and sources")
    for field, before, after, effect in environment_table(differences).rows:
        print(f"  {field}: {before} → {after}{f' ({effect})' if effect else ''}")
    for flags in differences.flags:
        removed, added = " ".join(flags.removed), " ".join(flags.added)
        print(f"  flags of {flags.source}: −[{removed}] +[{added}]")
    for source in differences.sources:
        print(f"  {source.name}: +{source.added_lines} −{source.removed_lines} lines")
        for line in source.diff.splitlines():
            print(f"    {line}")
    for remark in differences.remarks:
        print(f"  {remark}")
