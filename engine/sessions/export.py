"""Evaluations as a file for another machine: a snapshot, or the journal of a working session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.environment import collect_environment
from engine.errors import InvalidProblem, UnknownName
from engine.evaluation import Evaluation
from engine.records import files
from engine.records.codec import dumps
from engine.sessions.build import make_snapshot
from engine.sessions.session import begin_session, sources_of


def export_evaluations(path: Path, evaluations: Sequence[Evaluation], title: str) -> str:
    """Write a new file and say in one sentence what it is.

    `.jsonl` asks for a session's journal; any other name gets a snapshot, gzipped when it is `.gz`.

    Raises:
        InvalidProblem: the file is there already.
        UnknownName: there is no such folder, or none that can be written.
        StoreError: the disk is at fault.
        SnapshotError: more than one snapshot may hold.
    """
    if path.suffix == ".jsonl":
        _write(path, b"")
        session = begin_session(path, title=title)
        for evaluation in evaluations:
            session.add(evaluation)
        return (
            f"Wrote {path}: a session's journal, which python -m engine sessions import makes a "
            "snapshot of."
        )
    sources = {(s.name, s.sha256): s for e in evaluations for s in sources_of(e)}
    snapshot = make_snapshot(
        evaluations, title=title, environment=collect_environment(), sources=sources.values()
    )
    _write(path, dumps(snapshot, compress=path.suffix == ".gz"))
    return f"Wrote {path}: a snapshot."


def check_new(path: Path) -> None:
    """Ask before measuring for an hour: raises as `export_evaluations`."""
    if path.exists():
        raise _exists_already(path)
    if not path.parent.is_dir():
        raise UnknownName(f"There is no folder {path.parent}: name another file.")


def _exists_already(path: Path) -> InvalidProblem:
    return InvalidProblem(f"{path} exists already and is not overwritten: name another file.")


def _write(path: Path, data: bytes) -> None:
    with files.as_sentence(f"{path} cannot be written", "name another file", named=True):
        try:
            files.create(path, data)
        except FileExistsError:
            raise _exists_already(path) from None
