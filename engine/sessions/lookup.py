"""Find sessions by name: a file on disk, or a snapshot of the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.attention.evaluation import Evaluation
from engine.base import files
from engine.base.errors import InvalidProblem, UnknownName
from engine.base.files import explain_os_error, read, write
from engine.base.schema import file_label
from engine.devices.environment import collect_environment
from engine.sessions.folders import is_snapshot_name
from engine.sessions.importers import ImportOptions, import_measurements
from engine.sessions.session import begin_session, make_snapshot, sources_of
from engine.sessions.snapshot import FORMAT, MAX_BYTES, Snapshot, dumps, loads, text_of
from engine.sessions.store import Store, default_store


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file, at most one byte more than the limit.

    Raises:
        UnknownName: it does not exist, cannot be read, or is a folder, pipe or device.
        StoreError: the disk is at fault.
    """
    with explain_os_error(f"{path} cannot be read", "name another file", named=True):
        return read(path, MAX_BYTES + 1)


def write_file(path: Path, text: str) -> None:
    """Write a report.

    Raises:
        UnknownName: there is no such folder, or none that can be written.
        StoreError: the disk is at fault.
    """
    with explain_os_error(f"{path} cannot be written", "name another file", named=True):
        write(path, text.encode())


def open_session(file: str, store: Store | None = None) -> Snapshot:
    """Return the validated snapshot at a path, or with this name in the store.

    Raises:
        UnknownName: there is neither.
        SnapshotError: its content is invalid.
    """
    path = Path(file)
    if path.exists():
        return loads(read_file(path), name=path.name)
    if is_snapshot_name(file):
        return (store or default_store()).open(file)
    raise UnknownName(
        f"{file_label(file)} is neither a file here nor a snapshot of the store: "
        "`attune sessions` lists those.",
        code="no_file_no_snapshot",
    )


def open_sessions(files: Sequence[str]) -> dict[str, Snapshot]:
    """Return several sessions by displayed name: the file's name, numbered if two are equal."""
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
    """True if a file is a snapshot, not another tool's measurements."""
    text = text_of(data, name=name)
    return text.lstrip()[:1] == "{" and f'"{FORMAT}"' in text


def snapshot_of(data: bytes, *, name: str, options: ImportOptions | None = None) -> Snapshot:
    """Return a snapshot file's content, or a recorded session imported from another format.

    Raises:
        SnapshotError: it is in neither format, or damaged.
    """
    if is_snapshot(data, name=name):
        return loads(data, name=name)
    return import_measurements(data, name=name, options=options)


# Export evaluations for another machine: as a snapshot, or as a session's journal.


def export_evaluations(path: Path, evaluations: Sequence[Evaluation], title: str) -> str:
    """Write a new file; return one sentence that says what it is.

    The suffix `.jsonl` selects a session's journal; other files are snapshots, gzipped if the
    suffix is `.gz`.

    Raises:
        InvalidProblem: the file already exists.
        UnknownName: there is no such folder, or none that can be written.
        StoreError: the disk is at fault.
        SnapshotError: more than a snapshot can hold.
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
    """Check the path before a long measurement. Raises as `export_evaluations`."""
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
    with files.explain_os_error(f"{path} cannot be written", "name another file", named=True):
        try:
            files.create(path, data)
        except FileExistsError:
            raise _exists_already(path) from None
