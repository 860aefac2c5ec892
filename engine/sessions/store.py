"""The store of snapshots: list, open, save, remove and restore them; its index.

It lists two sources: the user's folder (any fsspec URL), and the read-only `sessions/` folder with
recorded sessions that ships. Nothing is ever overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from engine.base import files
from engine.base.errors import BadInput, InvalidStore, SnapshotError, StoreError, UnknownName
from engine.base.files import cache_root, collector_paused, data_folder, shipped_sessions
from engine.sessions.folders import (
    Entry,
    Folder,
    LocalFolder,
    checked_name,
    is_snapshot_name,
    names_for,
    open_folder,
)
from engine.sessions.snapshot import (
    HEAD_BYTES,
    MAX_BYTES,
    SCHEMA_VERSION,
    Record,
    Snapshot,
    Summary,
    dumps,
    loads,
    summarise,
    summary_text,
)

# A disposable cache of data read from a store's files, so that 10,000 files are listed at once.
#
# One SQLite file per store and layout in the user's cache folder, keyed by name, size and stamp. If
# it is damaged, locked or read-only, queries are only slower.

_SCHEMA = "CREATE TABLE IF NOT EXISTS info (name TEXT PRIMARY KEY, key TEXT, json TEXT)"
_TIMEOUT_S = 2.0
_MAX_ASKED = 500  # names in one query


class Index:
    """name → text of a store's entries, valid while size and stamp stay the same."""

    def __init__(self, store_url: str, layout: str, folder: Path | None = None) -> None:
        """`layout` names the format of the text; entries of other formats are never read."""
        key = hashlib.sha256(f"{layout}\n{store_url}".encode()).hexdigest()[:24]
        self._path = (folder or cache_root() / "sessions") / f"index-{key}.sqlite"

    def known(self) -> dict[tuple[str, str], str]:
        """Return (name, key) → text; empty without a usable index."""
        return self._rows("SELECT name, key, json FROM info", ())

    def of(self, names: Sequence[str]) -> dict[tuple[str, str], str]:
        """Return `known` for some files."""
        found: dict[tuple[str, str], str] = {}
        for begin in range(0, len(names), _MAX_ASKED):
            asked = tuple(names[begin : begin + _MAX_ASKED])
            marks = ", ".join("?" * len(asked))
            found |= self._rows(f"SELECT name, key, json FROM info WHERE name IN ({marks})", asked)
        return found

    def _rows(self, query: str, asked: tuple[str, ...]) -> dict[tuple[str, str], str]:
        try:
            with contextlib.closing(self._connect()) as db:
                return {(name, key): text for name, key, text in db.execute(query, asked)}
        except sqlite3.OperationalError:  # locked or read-only
            return {}
        except (sqlite3.Error, OSError):
            self._discard()
            return {}

    def update(self, fresh: Mapping[tuple[str, str], str], gone: Iterable[str] = ()) -> None:
        """Add new entries, (name, key) → text, and drop entries of removed files."""
        rows = [(name, key, text) for (name, key), text in fresh.items()]
        try:
            with contextlib.closing(self._connect()) as db, db:
                db.executemany("DELETE FROM info WHERE name = ?", ((name,) for name in gone))
                db.executemany("INSERT OR REPLACE INTO info VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError):
            return

    def _connect(self) -> sqlite3.Connection:
        files.make_folder(self._path.parent)
        db = sqlite3.connect(self._path, timeout=_TIMEOUT_S)
        db.execute("PRAGMA synchronous = OFF")  # a lost index is rebuilt
        db.execute(_SCHEMA)
        return db

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


def key_of(entry: Entry) -> str:
    """Return a key that changes with the file's content."""
    return f"{entry.size_bytes} {entry.stamp}"


SETTING = "ATTUNE_SESSIONS"
SHIPPED = shipped_sessions()
_LAYOUT = f"schema {SCHEMA_VERSION}, listing 3"


class _Listed(Record):
    """Index entry of one file: its summary, or why there is none."""

    summary: Summary | None = None
    damage: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One line of the list. If the file cannot be read, `summary` is None and `damage` says why."""

    name: str
    shipped: bool
    size_bytes: int
    summary: Summary | None
    damage: str = ""
    key: str = ""  # changes with the file's content

    @property
    def title(self) -> str:
        """Return the session's title; the file's name if it cannot be read."""
        return self.summary.title if self.summary else self.name

    @property
    def updated(self) -> str:
        """Return the date, UTC, ISO 8601; empty if the file cannot be read."""
        return self.summary.updated if self.summary else ""


Infos: TypeAlias = list[SnapshotInfo]  # `Store.list` hides the type's own name


# Cached listings by folder and whether it is the shipped one, because pages list the store often.
_last_listings: dict[tuple[str, bool], tuple[Sequence[Entry], Infos]] = {}
_NOTHING: Infos = []
# By store: its two listings, and their sorted union.
_last_sorted: dict[str, tuple[Infos, Infos, Infos]] = {}


class Store:
    """Snapshots at `url` (a path or any fsspec URL), and those that ship.

    Every method raises `StoreError` if the folder cannot be read or written, `UnknownName` if it
    has no file with the name, and `SnapshotError` if a file's content is invalid.
    """

    def __init__(
        self, url: str, *, shipped: Path | None = SHIPPED, index_folder: Path | None = None
    ) -> None:
        try:
            self._own = open_folder(url)
        except OSError as error:
            raise InvalidStore(
                f"The sessions store {url} cannot be opened: {error.strerror}. Check {SETTING}, "
                "and that the package for this kind of URL is installed.",
                code="store_not_opened",
            ) from None
        self._shipped: Folder | None = None
        if shipped is not None and shipped.is_dir() and str(shipped) != self._own.url:
            self._shipped = LocalFolder(shipped)
        self._index_folder = index_folder

    @property
    def url(self) -> str:
        """Return the URL of the user's snapshots."""
        return self._own.url

    def list(self) -> Infos:
        """Return every snapshot, newest first, including damaged files."""
        shipped = self._listing(self._shipped, shipped=True)
        own = self._listing(self._own, shipped=False)
        last = _last_sorted.get(self.url)
        if last is None or last[0] is not shipped or last[1] is not own:
            infos = {info.name: info for info in (*shipped, *own)}
            newest = sorted(infos.values(), key=lambda i: (i.updated, i.name), reverse=True)
            _last_sorted[self.url] = last = (shipped, own, newest)
        return last[2].copy()

    def read(self, name: str) -> bytes:
        """Return the bytes of a snapshot file, for a download."""
        folder = self._folder_of(checked_name(name))
        with _sentences(folder, "read", name):
            return folder.read(name, MAX_BYTES + 1)

    def open(self, name: str) -> Snapshot:
        """Return a validated snapshot."""
        return loads(self.read(name), name=name)

    def save(self, snapshot: Snapshot) -> str:
        """Write a new file and return its name. Saving the same snapshot again changes nothing."""
        data = dumps(snapshot)
        with _sentences(self._own, "written"):
            for name in names_for(snapshot):
                try:
                    self._own.create(name, data)
                except FileExistsError:
                    # Another server may remove it between the two calls.
                    with suppress(FileNotFoundError):
                        if self._own.read(name, MAX_BYTES + 1) == data:
                            return name
                else:
                    return name
        raise StoreError(
            f"{self.url} has a thousand sessions of this name and second: save again later."
        )

    def index(self, layout: str, *, shipped: bool) -> Index:
        """Return an index for other data read from the snapshots' files."""
        folder = self._shipped if shipped and self._shipped is not None else self._own
        return Index(folder.url, layout, self._index_folder)

    def remove(self, name: str) -> str:
        """Move a snapshot of the user to the trash folder, and return its name there."""
        folder = self._folder_of(checked_name(name))
        if folder is not self._own:
            raise BadInput(
                f"{name} ships with Attune and cannot be removed.", code="shipped_snapshot"
            )
        with _sentences(folder, "written", name):
            return folder.trash(name)

    def restore(self, kept_as: str, name: str) -> None:
        """Restore a removed snapshot; `kept_as` is its name in the trash folder."""
        checked_name(kept_as)
        checked_name(name)
        with _sentences(self._own, "written", kept_as):
            try:
                self._own.restore(kept_as, name)
            except FileExistsError:
                raise StoreError(
                    f"{name} already exists: the removed one stays in the trash folder.",
                    code="snapshot_exists",
                ) from None

    def _folder_of(self, name: str) -> Folder:
        for folder in (self._own, self._shipped):
            if folder is not None and self._has(folder, name):
                return folder
        raise _gone(self._own, name)

    def _has(self, folder: Folder, name: str) -> bool:
        try:
            folder.read(name, 1)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # it exists; reading it reports the error
        return True

    @collector_paused()
    def _listing(self, folder: Folder | None, *, shipped: bool) -> Infos:
        if folder is None:
            return _NOTHING
        with _sentences(folder, "read"):
            entries = [e for e in folder.entries() if is_snapshot_name(e.name)]
        last = _last_listings.get((folder.url, shipped))
        if last is not None and last[0] == entries:
            return last[1]
        infos, is_lasting = [], True
        index = Index(folder.url, _LAYOUT, self._index_folder)
        known = index.known()
        fresh: dict[tuple[str, str], str] = {}
        for entry in entries:
            key = key_of(entry)
            listed = _from_index(known.get((entry.name, key)))
            if listed is None:
                try:
                    listed, text = _read_listed(folder, entry)
                    fresh[entry.name, key] = text
                except FileNotFoundError:  # removed since the folder was listed
                    continue
                except OSError as error:  # not caused by the content: retry next time
                    listed = _Listed(damage=f"{entry.name} cannot be read: {error.strerror}.")
                    is_lasting = False
            infos.append(
                SnapshotInfo(
                    entry.name, shipped, entry.size_bytes, listed.summary, listed.damage, key
                )
            )
        gone = {name for name, _ in known} - {e.name for e in entries}
        if fresh or gone:
            index.update(fresh, gone)
        if is_lasting and len(infos) == len(entries):
            _last_listings[folder.url, shipped] = entries, infos
        return infos


def default_store() -> Store:
    """Return the store of `ATTUNE_SESSIONS`, or of the user's data folder."""
    url = os.environ.get(SETTING, "").strip()
    return Store(url or str(data_folder() / "sessions"), shipped=SHIPPED)


def search(
    infos: Iterable[SnapshotInfo],
    *,
    text: str = "",
    gpu: str = "",
    variant: str = "",
    problem: str = "",
    since: str = "",
    until: str = "",
) -> Infos:
    """Return the infos that match all given filters. Texts match anywhere, in any case.

    `text` searches name, title, hypothesis and notes; `since` and `until` are inclusive dates or
    times in UTC (`2026-11-21`). One label must contain every word of `problem` ("S128 D64").
    """

    def fits(info: SnapshotInfo) -> bool:
        s = info.summary
        if s is None:
            return not (gpu or variant or problem or since or until) and _in(text, [info.name])
        return (
            _in(text, [info.name, s.title, s.hypothesis, s.notes])
            and _in(gpu, s.devices)
            and _in(variant, s.variants)
            and (not words or any(words <= _words(label) for label in s.problems))
            and (not since or s.updated[: len(since)] >= since)
            and (not until or s.updated[: len(until)] <= until)
        )

    words = _words(problem)
    if not any((text, gpu, variant, words, since, until)):
        return list(infos)
    return [info for info in infos if fits(info)]


def _words(text: str) -> set[str]:
    return set(text.casefold().split())


def _in(needle: str, texts: Iterable[str]) -> bool:
    wanted = needle.casefold().strip()
    return not wanted or any(wanted in text.casefold() for text in texts)


@lru_cache(maxsize=1 << 14)  # a page lists the store at every rerun
def _from_index(text: str | None) -> _Listed | None:
    if text is None:
        return None
    try:
        return _Listed.model_validate_json(text)
    except ValidationError:
        return None


def _read_listed(folder: Folder, entry: Entry) -> tuple[_Listed, str]:
    """Return a file's list entry, and the text that the index stores for it."""
    text = summary_text(folder.read(entry.name, HEAD_BYTES))
    if text is not None:
        text = f'{{"summary":{text}}}'
        with suppress(ValidationError):
            return _Listed.model_validate_json(text), text
    try:
        data = folder.read(entry.name, MAX_BYTES + 1)
        listed = _Listed(summary=summarise(loads(data, name=entry.name)))
    except SnapshotError as error:
        listed = _Listed(damage=str(error))
    return listed, listed.model_dump_json()


def _gone(folder: Folder, name: str) -> UnknownName:
    return UnknownName(
        f"There is no session {name} in {folder.url}: it may have been removed.",
        code="snapshot_gone",
    )


@contextmanager
def _sentences(folder: Folder, done: str, name: str = "") -> Iterator[None]:
    """Convert an OSError to a StoreError with one sentence: what, why, what to do."""
    try:
        yield
    except OSError as error:
        if name and isinstance(error, FileNotFoundError):
            raise _gone(folder, name) from None
        remedies = {
            errno.ENOSPC: "the disk is full: free some space and try again",
            errno.EDQUOT: "your disk quota is used up: free some space and try again",
            errno.EROFS: "it is on a read-only disk: choose another folder",
            errno.EACCES: "you have no permission there: choose another folder",
            errno.EPERM: "you have no permission there: choose another folder",
            errno.ENOTDIR: "it is a file, or lies below one: choose another folder",
            errno.ENOENT: "it does not exist: check that its disk is mounted",
        }
        why = remedies.get(error.errno or 0) or (error.strerror or type(error).__name__).lower()
        kind = InvalidStore if isinstance(error, NotADirectoryError) else StoreError
        raise kind(
            f"The sessions folder {folder.url} cannot be {done}: {why} (the setting {SETTING} "
            "names the folder).",
            code="store_failed",
        ) from None
