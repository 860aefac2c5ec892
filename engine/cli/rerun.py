"""`rerun`: repeat a snapshot's evaluations here and compare."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from engine.base.errors import InvalidProblem, SnapshotError, Status
from engine.cli.compare import print_comparison
from engine.devices import find_device
from engine.environment import collect_environment
from engine.evaluation import Evaluation
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.schema import file_label
from engine.sessions.build import make_error_map, make_snapshot
from engine.sessions.compare import compare_sessions
from engine.sessions.files import open_session
from engine.sessions.known_times import open_history
from engine.sessions.rerun import (
    Repeat,
    foreign_sources,
    label,
    plan_rerun,
    source_of,
    their_source,
)
from engine.sessions.session import sources_of
from engine.sessions.snapshot import Snapshot, Source
from engine.sessions.store import default_store

HERE = "here"


def run_rerun(args: argparse.Namespace) -> int:
    snapshot = open_session(args.file)
    if args.gpu is not None:
        find_device(args.gpu)  # one mistake, not one of every evaluation
    repeats = plan_rerun(snapshot, only=args.only, gpu=args.gpu, backend=args.backend)
    if not repeats:
        fits = f"no evaluation matches {args.only!r}" if args.only else "it holds no evaluation"
        raise InvalidProblem(f"Nothing to repeat: {fits}.")
    foreign = foreign_sources(snapshot, repeats)
    theirs = bool(foreign) and args.use_their_source
    if theirs and not _agreed(foreign):
        print("Not compiled: nothing was run.", file=sys.stderr)
        return 1
    if foreign and not theirs:
        names = ", ".join(source.name for source in foreign)
        print(
            f"Note: {names} of the snapshot differs from the one here. The one here is run; "
            "--use-their-source shows theirs and asks.",
            file=sys.stderr,
        )
    outcomes = _repeat(snapshot, repeats, theirs)
    if not outcomes:
        print("Nothing was run.", file=sys.stderr)
        return 1
    here = _snapshot(snapshot, outcomes, theirs)
    if args.save:
        print(f"Saved as {default_store().save(here)}", file=sys.stderr)
    name = file_label(args.file)
    sessions = {name: _only(snapshot, repeats), HERE: here}
    comparison = compare_sessions(
        sessions, name, pairing="same", across=args.across, measured_now=HERE
    )
    print_comparison(comparison, args)
    worse = comparison.regressions or any(_failed(o.evaluation) for o in outcomes)
    return 1 if worse else 0


def _failed(e: Evaluation) -> bool:
    return e.status not in (Status.PASSED, Status.SKIPPED)


def _agreed(sources: Iterable[Source]) -> bool:
    """Show the snapshot's source and ask; only a typed "yes" is one."""
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
    """The repetition as a session of its own."""
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


def _only(snapshot: Snapshot, repeats: list[Repeat]) -> Snapshot:
    """The snapshot reduced to what was asked for, so that nothing else counts as missing here."""
    asked = [repeat.recorded for repeat in repeats]
    opened = snapshot.opened()
    kept = tuple(r for r, e in zip(snapshot.evaluations, opened, strict=True) if e in asked)
    return snapshot.model_copy(update={"evaluations": kept})
