"""`compare`: compare kernels of snapshots. `rerun`: repeat a snapshot's evaluations here.

Exit codes are the gate's. 1: a result became incorrect, less accurate or slower, or its counts
became worse. 3: no verdict on something. 0: otherwise.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from engine.attention.evaluation import Evaluation
from engine.base.errors import InvalidProblem, SnapshotError, Status
from engine.base.schema import file_label
from engine.cli.options import BackendOption, FormatOptions
from engine.cli.output import print_json, print_table
from engine.devices import find_device
from engine.devices.environment import collect_environment
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.sessions.compare import Differences, SessionComparison, compare_sessions, parse_pick
from engine.sessions.compare import formats as output
from engine.sessions.compare.formats import environment_table
from engine.sessions.compare.pairing import Pairing
from engine.sessions.known_times import open_history
from engine.sessions.lookup import open_session, open_sessions
from engine.sessions.rerun import (
    Repeat,
    count_sources,
    foreign_sources,
    label,
    plan_rerun,
    source_of,
    their_source,
    uncounted,
    with_counts,
)
from engine.sessions.session import make_error_map, make_snapshot, sources_of
from engine.sessions.snapshot import Snapshot, Source
from engine.sessions.store import default_store

TIMES = {"cold": "device_cold", "end-to-end": "end_to_end", "warm": "device_warm"}
_FEW = 8  # without --counts, at most this many evaluations are counted


@dataclass(frozen=True)
class CompareOptions(FormatOptions):
    """The options of `compare`."""

    files: list[str]
    baseline: str | None
    by: Pairing
    pair: list[list[str]]
    across: bool
    counts: bool
    time: str


def run(args: CompareOptions) -> int:
    # A pinned baseline may be one of the files or an additional one.
    files = list(args.files)
    if args.baseline is not None and args.baseline not in files:
        files.insert(0, args.baseline)
    if len(files) < 2 and not args.pair:
        raise InvalidProblem(
            "compare takes at least two sessions, or one and --pair BEFORE AFTER.",
            code="compare_needs_two",
        )
    sessions = open_sessions(files)
    labels = dict(zip(reversed(files), reversed(sessions), strict=True))
    pairs = [(parse_pick(a, list(sessions)), parse_pick(b, list(sessions))) for a, b in args.pair]

    def compared(sessions: Mapping[str, Snapshot]) -> SessionComparison:
        return compare_sessions(
            sessions,
            labels.get(args.baseline or ""),
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
            f"The sessions hold no machine code counts of {len(missing):,} evaluations: --counts "
            "compiles their sources and counts them.",
            file=sys.stderr,
        )
    print_comparison(comparison, args)
    return comparison.exit_code


def print_comparison(comparison: SessionComparison, args: CompareOptions | RerunOptions) -> None:
    """Print a comparison in the requested format; tables by default."""
    if args.json:
        print_json(output.to_dict(comparison))
    elif args.markdown:
        sys.stdout.write(output.to_markdown(comparison))
    elif args.csv:
        sys.stdout.write(output.to_csv(comparison))
    else:
        for differences in comparison.differences:
            print(f"\nDifferences of {differences.session} from {comparison.baseline}:")
            _print_differences(differences)
        print()
        for table in output.comparison_tables(comparison):
            print_table(table)
        if not comparison.rows:
            print("Nothing to compare: the sessions share no problem.")


def _print_differences(differences: Differences) -> None:
    """Print differences of environment, flags and sources, one per line, and full diffs."""
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


HERE = "here"


@dataclass(frozen=True)
class RerunOptions(BackendOption, FormatOptions):
    """The options of `rerun`."""

    file: str
    only: str
    gpu: str | None
    use_their_source: bool
    across: bool
    save: bool


def run_rerun(args: RerunOptions) -> int:
    snapshot = open_session(args.file)
    if args.gpu is not None:
        find_device(args.gpu)  # report an unknown GPU once, not for every evaluation
    repeats = plan_rerun(snapshot, only=args.only, gpu=args.gpu, backend=args.backend)
    if not repeats:
        fits = f"no evaluation matches {args.only!r}" if args.only else "it holds no evaluation"
        raise InvalidProblem(f"Nothing to repeat: {fits}.")
    foreign = foreign_sources(snapshot, repeats)
    uses_their_source = bool(foreign) and args.use_their_source
    if uses_their_source and not _confirmed(foreign):
        print("Not compiled: nothing was run.", file=sys.stderr)
        return 1
    if foreign and not uses_their_source:
        names = ", ".join(source.name for source in foreign)
        print(
            f"Note: the snapshot's source of {names} differs from the one here, which is run. "
            "With --use-their-source, the snapshot's is shown and run if you agree.",
            file=sys.stderr,
        )
    outcomes = _repeat(snapshot, repeats, uses_their_source)
    if not outcomes:
        print("Nothing was run.", file=sys.stderr)
        return 1
    here = _snapshot(snapshot, outcomes, uses_their_source)
    if args.save:
        print(f"Saved as {default_store().save(here)}", file=sys.stderr)
    name = file_label(args.file)
    sessions = {name: _matching(snapshot, repeats), HERE: here}
    comparison = compare_sessions(
        sessions, name, pairing="same", across=args.across, measured_now=HERE
    )
    print_comparison(comparison, args)
    worse = comparison.regressions or any(_failed(o.evaluation) for o in outcomes)
    return 1 if worse else 0


def _failed(e: Evaluation) -> bool:
    return e.status not in (Status.PASSED, Status.SKIPPED)


def _confirmed(sources: Iterable[Source]) -> bool:
    """Show the snapshot's source and ask for consent; only a typed "yes" counts."""
    for source in sources:
        print(f"===== {source.name}, SHA-256 {source.sha256} =====", file=sys.stderr)
        print(source.text, file=sys.stderr)
    print(
        "This source comes from the snapshot. Compiling and running it gives it the rights you "
        "have on this machine. Type yes to go on: ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip() == "yes"


def _repeat(snapshot: Snapshot, repeats: list[Repeat], theirs: bool) -> list[EvaluationOutcome]:
    outcomes = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        evaluator = stack.enter_context(Evaluator(open_history()))
        for number, repeat in enumerate(repeats, start=1):
            print(f"{number}/{len(repeats)} {label(repeat.recorded)}", file=sys.stderr)
            if repeat.request is None:
                print(f"  not repeated: {repeat.why_not}", file=sys.stderr)
                continue
            path = None
            if theirs and source_of(snapshot, repeat.recorded) is not None:
                try:
                    path = their_source(snapshot, repeat.recorded, folder)
                except SnapshotError as error:
                    print(f"  not repeated: {error}", file=sys.stderr)
                    continue
            outcome = evaluator.evaluate(repeat.request, source=path)
            print(f"  {outcome.evaluation.status} {outcome.evaluation.reason}", file=sys.stderr)
            outcomes.append(outcome)
    return outcomes


def _snapshot(snapshot: Snapshot, outcomes: list[EvaluationOutcome], theirs: bool) -> Snapshot:
    """Return the repetition as a new session."""
    evaluations = [o.evaluation for o in outcomes]
    sources = {s.sha256: s for e in evaluations for s in sources_of(e)}
    if theirs:
        sources |= {s.sha256: s for s in snapshot.sources}
    return make_snapshot(
        evaluations,
        title=f"Repeated: {snapshot.title}"[:120],
        hypothesis=snapshot.hypothesis,
        target=snapshot.target,
        environment=collect_environment(),
        error_maps=[
            make_error_map(index, error_map)
            for index, outcome in enumerate(outcomes)
            for error_map in outcome.maps
        ],
        sources=sources.values(),
    )


def _matching(snapshot: Snapshot, repeats: list[Repeat]) -> Snapshot:
    """Return the snapshot with only the repeated evaluations, so that others do not count as
    missing."""
    asked = [repeat.recorded for repeat in repeats]
    opened = snapshot.opened()
    kept = tuple(r for r, e in zip(snapshot.evaluations, opened, strict=True) if e in asked)
    return snapshot.model_copy(update={"evaluations": kept})
