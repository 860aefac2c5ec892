"""`compare`: snapshots beside each other; exit code 1 when something got slower or broke."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from engine.cli.output import print_json, print_table
from engine.units import format_us

if TYPE_CHECKING:
    from engine.sessions.compare.comparison import ComparedRow, SessionComparison
    from engine.sessions.compare.environment import Differences

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
    from engine.sessions.compare.comparison import compare_sessions
    from engine.sessions.files import comparable, open_sessions

    # A pinned baseline may be one of the files, or one more.
    files = list(args.files)
    if args.baseline is not None and args.baseline not in files:
        files.insert(0, args.baseline)
    if len(files) < 2:
        print("error: compare takes at least two sessions.", file=sys.stderr)
        return 2
    opened = open_sessions(files)
    labels = dict(zip(reversed(files), reversed(opened), strict=True))
    comparison = compare_sessions(
        {name: comparable(snapshot) for name, snapshot in opened.items()},
        labels.get(args.baseline),
        across=args.across,
        kind=_KINDS[args.time],
    )
    show(comparison, args)
    return 1 if comparison.regressions else 0


def show(comparison: SessionComparison, args: argparse.Namespace) -> None:
    """Print a comparison in the form that was asked for; tables by default."""
    from engine.sessions.compare import output

    if args.json:
        print_json(output.to_dict(comparison))
    elif args.markdown:
        sys.stdout.write(output.to_markdown(comparison))
    elif args.csv:
        sys.stdout.write(output.to_csv(comparison))
    else:
        print_comparison(comparison)


def print_comparison(comparison: SessionComparison) -> None:
    """What differs, regressions first, all rows, the winner map."""
    from engine.sessions.compare.output import winners_frame

    for found in comparison.differences:
        print(f"\nWhat differs in {found.session}, against {comparison.baseline}:")
        for line in difference_lines(found) or ["nothing in environment, flags and sources"]:
            print(f"  {line}")
    print()
    columns = ("session", "variant", "config", "problem", "time", "speed-up", "verdict", "why")
    for title, rows in (
        ("Slower or broken", comparison.regressions),
        ("Evaluations, the baseline's time over the session's", comparison.rows),
    ):
        if rows:
            print_table(title, columns, map(_cells, rows))
    if comparison.winners:
        winners = winners_frame(comparison)
        shown = ["problem", "device", "winner", "config", "median_us", "origin", "tied"]
        shown += ["runner_up", "speedup", "speedup_over_sdpa"]
        cells = winners[shown].astype(object).where(winners[shown].notna(), None)
        titles = [name.replace("_", " ") for name in shown]
        print_table("Fastest variant", titles, cells.itertuples(index=False))
    if comparison.unmatched:
        print(f"{len(comparison.unmatched):,} evaluations stand in one session only.")
    if not comparison.rows:
        print("Nothing to compare: no variant, config and problem stands in both sessions.")


def difference_lines(found: Differences) -> list[str]:
    """What differs in environment, flags and sources, a line each; diffs in full."""
    lines = [
        f"{e.field}: {_known(e.baseline)} → {_known(e.other)}{' (no verdict)' * e.decisive}"
        for e in found.environment
    ]
    lines += [
        f"flags of {f.source}: −[{' '.join(f.removed)}] +[{' '.join(f.added)}]" for f in found.flags
    ]
    for source in found.sources:
        lines.append(f"{source.name}: +{source.added_lines} −{source.removed_lines} lines")
        lines += [f"  {line}" for line in source.diff.splitlines()]
    return [*lines, *found.remarks]


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)


def _cells(row: ComparedRow) -> tuple[str | None, ...]:
    time = None if row.time_us is None else f"{format_us(row.time_us)} {row.origin}"
    speedup = None if row.speedup is None else f"{row.speedup:.3g}×"
    if row.speedup_low is not None and row.speedup_high is not None:
        speedup = f"{speedup} ({row.speedup_low:.3g} to {row.speedup_high:.3g})"
    verdict = "BROKEN" if row.broken else str(row.verdict or "") or None
    where = (row.session, row.variant, row.config_label, row.problem_label)
    return (*where, time, speedup, verdict, row.reason)
