"""Sessions by the name a person gives: a file on disk, or a snapshot of the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.attention.evaluation import Evaluation
from engine.base import files
from engine.base.errors import InvalidProblem, UnknownName
from engine.base.files import as_sentence, read, write
from engine.base.schema import file_label
from engine.devices.environment import collect_environment
from engine.sessions.folders import is_snapshot_name
from engine.sessions.importers import ImportOptions, import_measurements
from engine.sessions.session import begin_session, make_snapshot, sources_of
from engine.sessions.snapshot import FORMAT, MAX_BYTES, Snapshot, dumps, loads, text_of
from engine.sessions.store import Store, default_store


def read_file(path: Path) -> bytes:
    """The bytes of an ordinary file, at most one more than is ever accepted.

    Raises:
        UnknownName: it is not there, cannot be read, or is a folder, pipe or device.
        StoreError: the disk is at fault.
    """
    with as_sentence(f"{path} cannot be read", "name another file", named=True):
        return read(path, MAX_BYTES + 1)


def write_file(path: Path, text: str) -> None:
    """Write a report.

    Raises:
        UnknownName: there is no such folder, or none that can be written.
        StoreError: the disk is at fault.
    """
    with as_sentence(f"{path} cannot be written", "name another file", named=True):
        write(path, text.encode())


def open_session(file: str, store: Store | None = None) -> Snapshot:
    """The snapshot at a path, or the one of this name in the store; validated.

    Raises:
        UnknownName: there is neither.
        SnapshotError: its content is at fault.
    """
    path = Path(file)
    if path.exists():
        return loads(read_file(path), name=path.name)
    if is_snapshot_name(file):
        return (store or default_store()).open(file)
    raise UnknownName(
        f"{file_label(file)} is neither a file here nor a snapshot of the store: "
        "`attune sessions` lists those."
    )


def open_sessions(files: Sequence[str]) -> dict[str, Snapshot]:
    """Several sessions by the name they are shown under: the file's, numbered where two agree."""
    opened: dict[str, Snapshot] = {}
    for file in files:
        label = name = file_label(file)
        number = 1
        while label in opened:
            number += 1
            label = f"{name} ({number})"
        opened[label] = open_session(file)
    return opened


def is_snapshot(data: bytes, *, name: str) -> bool:
    """True if a file has the form of a snapshot, rather than of another tool's measurements."""
    text = text_of(data, name=name)
    return text.lstrip()[:1] == "{" and f'"{FORMAT}"' in text


def snapshot_of(data: bytes, *, name: str, options: ImportOptions | None = None) -> Snapshot:
    """A snapshot file as it is, or anything that can be imported as a recorded session.

    Raises:
        SnapshotError: it is neither, or damaged.
    """
    if is_snapshot(data, name=name):
        return loads(data, name=name)
    return import_measurements(data, name=name, options=options)


# Evaluations as a file for another machine: a snapshot, or the journal of a working session.


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
            f"Wrote {path}, a session's journal: attune sessions import turns it into a snapshot."
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
        raise UnknownName(
            f"There is no folder {path.parent}: name another file.", code="folder_missing"
        )


def _exists_already(path: Path) -> InvalidProblem:
    return InvalidProblem(
        f"{path} exists already and is not overwritten: name another file.", code="file_exists"
    )


def _write(path: Path, data: bytes) -> None:
    with files.as_sentence(f"{path} cannot be written", "name another file", named=True):
        try:
            files.create(path, data)
        except FileExistsError:
            raise _exists_already(path) from None
