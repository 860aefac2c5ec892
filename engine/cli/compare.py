"""`compare`: kernels of snapshots beside each other, problem by problem.

Exit codes are the gate's. 1: something is wrong that was right, further off, slower, or its machine
code is counted worse. 3: something could not be judged. 0: neither.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from engine.base.errors import InvalidProblem
from engine.cli.output import print_json, print_table
from engine.sessions.compare import (
    Differences,
    SessionComparison,
    compare_sessions,
    output,
    parse_pick,
)
from engine.sessions.compare.machine_code import count_sources, uncounted, with_counts
from engine.sessions.compare.output import environment_table
from engine.sessions.files import open_sessions
from engine.sessions.snapshot import Snapshot

TIMES = {"cold": "device_cold", "end-to-end": "end_to_end", "warm": "device_warm"}
_FEW = 8  # evaluations that are counted without being asked to


def run(args: argparse.Namespace) -> int:
    # A pinned baseline may be one of the files, or one more.
    files = list(args.files)
    if args.baseline is not None and args.baseline not in files:
        files.insert(0, args.baseline)
    if len(files) < 2 and not args.pair:
        raise InvalidProblem("compare takes at least two sessions, or one and --pair BEFORE AFTER.")
    sessions = open_sessions(files)
    labels = dict(zip(reversed(files), reversed(sessions), strict=True))
    pairs = [(parse_pick(a, list(sessions)), parse_pick(b, list(sessions))) for a, b in args.pair]

    def compared(sessions: Mapping[str, Snapshot]) -> SessionComparison:
        return compare_sessions(
            sessions,
            labels.get(args.baseline),
            pairing=args.by,
            pairs=pairs,
            across=args.across,
            kind=TIMES[args.time],
        )

    comparison = compared(sessions)
    missing = uncounted(comparison, sessions)
    if missing and (args.counts or len(missing) <= _FEW):
        found = count_sources(missing, sessions)
        comparison = compared(with_counts(sessions, found))
        for why in (text for text in found.values() if isinstance(text, str)):
            print(why, file=sys.stderr)
    elif missing:
        print(
            f"The machine code of {len(missing):,} evaluations is not counted, as their sessions "
            "do not hold its counts: --counts compiles their sources and counts it.",
            file=sys.stderr,
        )
    print_comparison(comparison, args)
    return comparison.exit_code


def print_comparison(comparison: SessionComparison, args: argparse.Namespace) -> None:
    """Print a comparison in the format that was asked for; tables by default."""
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
