"""Storage of snapshot files: a local folder (crash-safe) or any fsspec file system.

Both create files atomically, never replace one, and move removed ones to `trash/`. Failures are
raised as `OSError`; `engine.sessions.store` turns them into sentences.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from engine.base import files
from engine.base.errors import UnknownName
from engine.base.schema import file_label
from engine.sessions.snapshot import Snapshot

TRASH = "trash"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the store. `stamp` changes whenever its content does.

    For a local file it is its mtime and its ctime, which no program can set.
    """

    name: str
    size_bytes: int
    stamp: str


class Folder(Protocol):
    """Interface of the folder or bucket in which a store keeps its files."""

    @property
    def url(self) -> str: ...

    def entries(self) -> list[Entry]:
        """Return all files, unordered; empty if the folder does not exist yet."""
        ...

    def entry(self, name: str) -> Entry:
        """Return one file as `entries` does."""
        ...

    def read(self, name: str, limit: int) -> bytes:
        """Return the first `limit` bytes of a file."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Create a file with this content. Raises FileExistsError, without changes, if it
        exists."""
        ...

    def trash(self, name: str) -> str:
        """Move a file to the trash folder; return its name there."""
        ...

    def restore(self, kept_as: str, name: str) -> None:
        """Move a file out of the trash. Raises FileExistsError if its name is taken."""
        ...


class LocalFolder:
    """A folder of this machine. A crash at any moment leaves the old state or the complete new
    file."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    @property
    def url(self) -> str:
        return str(self.path)

    def entries(self) -> list[Entry]:
        found = []
        try:
            with os.scandir(self.path) as listing:
                for file in listing:
                    if file.name.startswith("."):
                        continue
                    with contextlib.suppress(OSError):  # removed meanwhile, or a dangling link
                        status = file.stat()
                        if stat.S_ISREG(status.st_mode):
                            found.append(_entry(file.name, status))
        except FileNotFoundError:
            return []
        return found

    def entry(self, name: str) -> Entry:
        return _entry(name, (self.path / name).stat())

    def read(self, name: str, limit: int) -> bytes:
        return files.read(self.path / name, limit)

    def create(self, name: str, data: bytes) -> None:
        try:
            files.make_folder(self.path)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", self.url) from None
        if (self.path / name).exists():  # checked again, atomically, when the file is complete
            raise FileExistsError(errno.EEXIST, "exists", name)
        files.remove_leftovers(self.path)
        files.create(self.path / name, data)

    def trash(self, name: str) -> str:
        folder = self.path / TRASH
        if not folder.is_dir():
            files.make_folder(folder)
        for kept_as in _trash_names(name):
            with contextlib.suppress(FileExistsError):
                files.move(self.path / name, folder / kept_as)
                files.sync_folder(self.path)
                return kept_as
        raise FileExistsError(errno.EEXIST, "the trash folder is full of this name", name)

    def restore(self, kept_as: str, name: str) -> None:
        files.move(self.path / TRASH / kept_as, self.path / name)
        files.sync_folder(self.path)


class FsspecFolder:
    """Any file system that fsspec supports. Objects appear when their upload is complete."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self._url = url.rstrip("/")
        with _os_errors():
            self._fs, root = url_to_fs(self._url)
        self._root = str(root).rstrip("/")

    @property
    def url(self) -> str:
        return self._url

    def entries(self) -> list[Entry]:
        try:
            with _os_errors():
                self._fs.invalidate_cache(self._root)
                listed: list[dict[str, Any]] = self._fs.ls(self._root, detail=True)
        except FileNotFoundError:
            return []
        return [_object(info) for info in listed if info.get("type") == "file"]

    def entry(self, name: str) -> Entry:
        with _os_errors():
            self._fs.invalidate_cache(self._root)
            return _object(self._fs.ls(f"{self._root}/{name}", detail=True)[0])

    def read(self, name: str, limit: int) -> bytes:
        with _os_errors():
            return bytes(self._fs.cat_file(f"{self._root}/{name}", start=0, end=limit))

    def create(self, name: str, data: bytes) -> None:
        with _os_errors():
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(f"{self._root}/{name}", data, mode="create")

    def trash(self, name: str) -> str:
        folder = f"{self._root}/{TRASH}"
        with _os_errors():
            self._fs.makedirs(folder, exist_ok=True)
            for kept_as in _trash_names(name):
                if not self._fs.exists(f"{folder}/{kept_as}"):
                    self._fs.mv(f"{self._root}/{name}", f"{folder}/{kept_as}")
                    return kept_as
        raise FileExistsError(errno.EEXIST, "the trash folder is full of this name", name)

    def restore(self, kept_as: str, name: str) -> None:
        with _os_errors():
            if self._fs.exists(f"{self._root}/{name}"):
                raise FileExistsError(errno.EEXIST, "exists", name)
            self._fs.mv(f"{self._root}/{TRASH}/{kept_as}", f"{self._root}/{name}")


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Convert the exceptions of cloud libraries to OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise OSError(errno.EIO, lines[0][:200]) from error


def open_folder(url: str) -> Folder:
    """Return the folder at a path, a `file://` URL or any other fsspec URL."""
    if url.startswith("file://"):
        return LocalFolder(Path(url.removeprefix("file://")))
    return FsspecFolder(url) if "://" in url else LocalFolder(Path(url))


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(name, status.st_size, f"{status.st_mtime_ns} {status.st_ctime_ns}")


def _object(info: dict[str, Any]) -> Entry:
    return Entry(info["name"].rsplit("/", 1)[-1], int(info.get("size") or 0), _stamp(info))


def _stamp(info: dict[str, Any]) -> str:
    """Return a stamp of this file system that changes with the content."""
    for key in ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created"):
        if info.get(key):
            return str(info[key])
    return ""


def _trash_names(name: str) -> Iterable[str]:
    yield name
    for number in range(2, 1_000):
        yield f"{number}-{name}"


# Names of snapshot files: they sort by time, describe the content, and are safe path parts.
#
# `20261121T024500Z_l4_v05_b1-h1-s128-d64.json.gz`


MAX_NAME = 160
SUFFIX = ".json.gz"

# Files that a user put into the folder are listed, too, if their names are plain.
_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+=@,()-]*\.json(\.gz)?")


def is_snapshot_name(name: str) -> bool:
    """True if `name` is one path part that may be a snapshot: no separators, no hidden files."""
    return len(name) <= MAX_NAME and _ALLOWED.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """Return `name`. Raises UnknownName unless it can be a file of the store."""
    if not is_snapshot_name(name):
        raise UnknownName(
            f"{file_label(name)} is not the name of a snapshot: take one from the list.",
            code="snapshot_name",
        )
    return name


def names_for(snapshot: Snapshot) -> Iterator[str]:
    """Yield names for this snapshot; the first that is free is used."""
    stem = _stem(snapshot)
    yield stem + SUFFIX
    for number in range(2, 1_000):
        yield f"{stem}_{number}{SUFFIX}"


def _stem(snapshot: Snapshot) -> str:
    when = datetime.fromisoformat(snapshot.updated).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    devices = list(dict.fromkeys(r.device for r in snapshot.evaluations if r.device))
    variants = list(dict.fromkeys(r.variant for r in snapshot.evaluations))
    problems = snapshot.problems
    parts = [
        when,
        _slug(devices[0]) if len(devices) == 1 else _counted(len(devices), "gpus"),
        _slug(variants[0]) if len(variants) == 1 else _counted(len(variants), "variants"),
        _counted(len(problems), "problems"),
    ]
    if len(problems) == 1:
        p = problems[0]
        shape = f"b{p.batch} {p.heads_label()} {p.lengths_label()} d{p.head_dim}"
        parts[-1] = shape.lower().replace(" ", "-")
    return "_".join(part for part in parts if part)


def _counted(count: int, noun: str) -> str:
    return f"{count}-{noun}" if count else ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:32].strip("-")
