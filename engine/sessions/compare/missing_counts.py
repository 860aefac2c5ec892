"""Count the machine code of evaluations without counts, from sources in their snapshots.

Sources are compiled in processes with limits and are not executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.attention.evaluation import CodeCounts, Evaluation
from engine.base.errors import AttuneError
from engine.sessions.compare.comparison import SessionComparison
from engine.sessions.compare.pairing import key_of
from engine.sessions.rerun import source_of, their_source
from engine.sessions.snapshot import Snapshot
from engine.versions.figures import counts_of
from engine.versions.workers import DEFAULT_MEMORY_GIB, DEFAULT_SECONDS, Failed, Workers


@dataclass(frozen=True, slots=True)
class Uncounted:
    """An evaluation of a comparison whose machine code can be counted from its source."""

    session: str
    index: int  # into the snapshot's evaluations
    evaluation: Evaluation


def uncounted(
    comparison: SessionComparison, sessions: Mapping[str, Snapshot]
) -> tuple[Uncounted, ...]:
    """Return evaluations in rows of one GPU without counts whose source is in the snapshot."""
    asked = {
        side
        for row in comparison.rows
        if row.device == row.baseline_device
        for side in (
            (row.session, row.variant, tuple(sorted(row.config.items())), row.problem, row.device),
            (
                row.baseline_session,
                row.baseline_variant,
                tuple(sorted(row.baseline_config.items())),
                row.problem,
                row.device,
            ),
        )
    }
    return tuple(
        Uncounted(name, index, e)
        for name, snapshot in sessions.items()
        for index, e in enumerate(snapshot.evaluations)
        if (name, *key_of(e), e.device) in asked
        and e.counts is None
        and e.main_pass is not None
        and source_of(snapshot, e) is not None
    )


def count_sources(
    missing: Sequence[Uncounted], sessions: Mapping[str, Snapshot]
) -> dict[tuple[str, int], CodeCounts | str]:
    """Return (session, index) → counts, or a sentence why there are none."""
    found: dict[tuple[str, int], CodeCounts | str] = {}
    tasks: list[tuple[Uncounted, Path]] = []
    with TemporaryDirectory(prefix="attune-compare-") as folder:
        for number, each in enumerate(missing):
            place = Path(folder, str(number))
            place.mkdir()
            try:
                source = their_source(sessions[each.session], each.evaluation, place)
                tasks.append((each, source))
            except AttuneError as error:
                found[each.session, each.index] = _remark(each, str(error))
        workers = Workers(_count, DEFAULT_SECONDS, DEFAULT_MEMORY_GIB)
        results = workers.run([(path, each.evaluation) for each, path in tasks])
    for (each, _), result in zip(tasks, results, strict=True):
        if not isinstance(result, CodeCounts):
            result = _remark(each, result.sentence if isinstance(result, Failed) else result)
        found[each.session, each.index] = result
    return found


def with_counts(
    sessions: Mapping[str, Snapshot], found: Mapping[tuple[str, int], CodeCounts | str]
) -> dict[str, Snapshot]:
    """Return the sessions with the found counts added to their evaluations."""
    together: dict[str, Snapshot] = {}
    for name, snapshot in sessions.items():
        evaluations = list(snapshot.evaluations)
        for index, e in enumerate(evaluations):
            if isinstance(counts := found.get((name, index)), CodeCounts):
                evaluations[index] = replace(e, counts=counts)
        together[name] = snapshot.model_copy(update={"evaluations": tuple(evaluations)})
    return together


def _count(task: tuple[Path, Evaluation]) -> CodeCounts | str:
    """Count one side's instructions; runs in a worker process."""
    path, e = task
    try:
        return counts_of(path, e.problem, e.device, e.config)
    except AttuneError as error:
        return str(error)


def _remark(each: Uncounted, why: str) -> str:
    e = each.evaluation
    return f"{e.variant} on {e.problem.label()} of {each.session} is not counted: {why}"
