"""The store of snapshots: list, open, save, remove and restore them; its index.

It lists two sources: the user's folder (any fsspec URL), and the read-only `sessions/` folder with
recorded sessions that ships. Nothing is ever overwritten.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias, TypeVar

from pydantic import Field, ValidationError

from engine.base import files
from engine.base.errors import (
    AttuneError,
    BadInput,
    InvalidStore,
    SnapshotError,
    StoreError,
    UnknownName,
)
from engine.base.files import cache_root, collector_paused, data_folder, shipped_sessions
from engine.history.known_time import KnownTime, times_of
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
    MAX_BYTES,
    SCHEMA_VERSION,
    Record,
    Snapshot,
    Summary,
    dumps,
    loads,
    summarise,
)

# A disposable cache of what the files of a store hold: their summaries, so that 10,000 files are
# listed at once, and their times.
#
# One SQLite file per store in the user's cache folder, keyed by name, size and stamp. If it is
# damaged, locked or read-only, files are decoded again. Another release has a file of its own.

INDEX_LAYOUT = f"schema {SCHEMA_VERSION}, index 4"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS info (name TEXT PRIMARY KEY, key TEXT, listed TEXT, times TEXT)"
)
_TIMEOUT_S = 2.0
_MAX_ASKED = 500  # names in one query
_ROWS_AT_ONCE = 100  # files read between two writes
_MAX_UNCHANGED_S = 90 * 86_400.0  # age of the indexes of former stores and releases


class Row(NamedTuple):
    """What the index has of a file."""

    name: str
    key: str
    listed: str  # JSON of `_Listed`
    times: str | None  # `packed`; None if it has none that can be stored


class Index:
    """The rows of a store's files, valid while size and stamp stay the same."""

    def __init__(self, store_url: str, folder: Path | None = None) -> None:
        key = hashlib.sha256(f"{INDEX_LAYOUT}\n{store_url}".encode()).hexdigest()[:24]
        self._path = (folder or cache_root() / "sessions") / f"index-{key}.sqlite"

    def listed(self) -> dict[tuple[str, str], str]:
        """Return (name, key) → `Row.listed`; empty without a usable index."""
        return self._rows("SELECT name, key, listed FROM info", ())

    def times(self, names: Sequence[str]) -> dict[tuple[str, str], str | None]:
        """Return (name, key) → `Row.times` of some files."""
        found: dict[tuple[str, str], str | None] = {}
        for begin in range(0, len(names), _MAX_ASKED):
            asked = tuple(names[begin : begin + _MAX_ASKED])
            marks = ", ".join("?" * len(asked))
            query = f"SELECT name, key, times FROM info WHERE name IN ({marks})"
            found |= self._rows(query, asked)
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

    def update(self, rows: Iterable[Row], gone: Iterable[str] = ()) -> None:
        """Add new rows, and drop rows of removed files."""
        try:
            with contextlib.closing(self._connect()) as db, db:
                db.executemany("DELETE FROM info WHERE name = ?", ((name,) for name in gone))
                db.executemany("INSERT OR REPLACE INTO info VALUES (?, ?, ?, ?)", rows)
        except (sqlite3.Error, OSError):
            return

    def _connect(self) -> sqlite3.Connection:
        files.make_folder(self._path.parent)
        if not self._path.exists():
            self._remove_former()
        db = sqlite3.connect(self._path, timeout=_TIMEOUT_S)
        db.execute("PRAGMA synchronous = OFF")  # a lost index is rebuilt
        db.execute(_SCHEMA)
        return db

    def _remove_former(self) -> None:
        oldest = time.time() - _MAX_UNCHANGED_S
        for path in self._path.parent.glob("index-*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


def key_of(entry: Entry) -> str:
    """Return a key that changes with the file's content."""
    return f"{entry.size_bytes} {entry.stamp}"


SETTING = "ATTUNE_SESSIONS"
SHIPPED = shipped_sessions()


class _Listed(Record):
    """A file's summary, or why there is none; neither if the file has not been read yet."""

    summary: Summary | None = None
    damage: str = ""


class CachedTimes(Record):
    """Times in a cache."""

    times: Annotated[tuple[KnownTime, ...], Field(strict=False)]


_AnyCached = TypeVar("_AnyCached", bound=CachedTimes)


def packed(cached: CachedTimes) -> str:
    """Compress times, because the times of a file are repetitive and an index of 10,000 files is
    300 MB. Raises ValueError for values that JSON does not have."""
    return base64.b85encode(zlib.compress(cached.model_dump_json().encode(), 1)).decode()


def unpacked(kind: type[_AnyCached], text: str) -> _AnyCached | None:
    """Return what `packed` compressed; None if it is damaged."""
    try:
        return kind.model_validate_json(zlib.decompress(base64.b85decode(text)))
    except (ValueError, zlib.error):  # a ValidationError is a ValueError
        return None


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One line of the list. If the file cannot be read, `summary` is None and `damage` says why; it
    is empty if the file has not been read yet."""

    name: str
    shipped: bool
    size_bytes: int
    summary: Summary | None
    damage: str = ""
    key: str = ""  # changes with the file's content; empty if it could not be read this time

    @property
    def is_read(self) -> bool:
        """True if the file was read, be it in vain."""
        return self.summary is not None or bool(self.damage)

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

    def list(self, most_s: float | None = None) -> Infos:
        """Return every snapshot, newest first, including damaged files.

        Args:
            most_s: seconds to spend reading files that are not in the index, those with the last
                names first. The rest has neither summary nor damage: later calls continue. None:
                read all.
        """
        shipped = self._listing(self._shipped, shipped=True, most_s=most_s)
        own = self._listing(self._own, shipped=False, most_s=most_s)
        last = _last_sorted.get(self.url)
        if last is None or last[0] is not shipped or last[1] is not own:
            infos = {info.name: info for info in (*shipped, *own)}
            newest = sorted(infos.values(), key=lambda i: (i.updated, i.name), reverse=True)
            _last_sorted[self.url] = last = (shipped, own, newest)
        return last[2].copy()

    def growing_list(self, step_s: float) -> Iterator[Infos]:
        """Yield the list each `step_s` seconds until every file is read: for a progress bar."""
        infos = self.list(step_s)
        while not all(info.is_read for info in infos):
            yield infos
            infos = self.list(step_s)
        yield infos

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
                    self._index_saved(name, snapshot)
                    return name
        raise StoreError(
            f"{self.url} has a thousand sessions of this name and second: save again later."
        )

    def times(
        self, infos: Sequence[SnapshotInfo]
    ) -> Iterator[tuple[SnapshotInfo, tuple[KnownTime, ...]]]:
        """Yield each of these files with its times, those that ship last. A file that cannot be
        read has none."""
        for folder, shipped in ((self._own, False), (self._shipped, True)):
            mine = [info for info in infos if info.shipped == shipped]
            if folder is None or not mine:
                continue
            index, fresh = Index(folder.url, self._index_folder), []
            known = index.times([info.name for info in mine])
            for info in mine:
                cached = unpacked(CachedTimes, known.get((info.name, info.key)) or "")
                times = cached.times if cached is not None else ()
                if cached is None:  # the index was damaged or removed after the list was made
                    with suppress(AttuneError):
                        row, times = _row(info.name, info.key, self.open(info.name), shipped)
                        fresh.append(row)
                yield info, times
            if fresh:
                index.update(fresh)

    def _index_saved(self, name: str, snapshot: Snapshot) -> None:
        """Add a file that was just written, so that the list need not read it."""
        with suppress(OSError):
            row, _ = _row(name, key_of(self._own.entry(name)), snapshot, shipped=False)
            Index(self._own.url, self._index_folder).update([row])

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
    def _listing(self, folder: Folder | None, *, shipped: bool, most_s: float | None) -> Infos:
        if folder is None:
            return _NOTHING
        with _sentences(folder, "read"):
            entries = [e for e in folder.entries() if is_snapshot_name(e.name)]
        last = _last_listings.get((folder.url, shipped))
        if last is not None and last[0] == entries and all(i.is_read and i.key for i in last[1]):
            return last[1]
        # What an unfinished list has read, as an index that cannot be written does not keep it.
        before = {(i.name, i.key): i for i in last[1] if i.is_read} if last is not None else {}
        infos = []
        index = Index(folder.url, self._index_folder)
        known = index.listed()
        fresh: list[Row] = []
        until, num_read = time.monotonic() + (inf if most_s is None else most_s), 0
        for entry in sorted(entries, key=lambda e: e.name, reverse=True):
            key = key_of(entry)
            if (read := before.get((entry.name, key))) is not None:
                infos.append(read)
                continue
            listed = _from_index(known.get((entry.name, key)))
            if listed is None and num_read and time.monotonic() > until:
                listed = _Listed()
            if listed is None:
                num_read += 1
                try:
                    listed, row = _read(folder, entry, shipped)
                    fresh.append(row)
                except FileNotFoundError:  # removed since the folder was listed
                    continue
                except OSError as error:  # not caused by the content: retry next time
                    listed = _Listed(damage=f"{entry.name} cannot be read: {error.strerror}.")
                    key = ""
            if len(fresh) == _ROWS_AT_ONCE:  # all that a killed process has read is not lost
                index.update(fresh)
                fresh.clear()
            infos.append(
                SnapshotInfo(
                    entry.name, shipped, entry.size_bytes, listed.summary, listed.damage, key
                )
            )
        gone = {name for name, _ in known} - {e.name for e in entries}
        if fresh or gone:
            index.update(fresh, gone)
        if len(infos) == len(entries):
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


def _read(folder: Folder, entry: Entry, shipped: bool) -> tuple[_Listed, Row]:
    """Return a file's list entry, and its row of the index."""
    key = key_of(entry)
    try:
        snapshot = loads(folder.read(entry.name, MAX_BYTES + 1), name=entry.name)
    except SnapshotError as error:
        listed = _Listed(damage=str(error))
        return listed, Row(entry.name, key, listed.model_dump_json(), None)
    row, _ = _row(entry.name, key, snapshot, shipped)
    return _Listed.model_validate_json(row.listed), row


def _row(
    name: str, key: str, snapshot: Snapshot, shipped: bool
) -> tuple[Row, tuple[KnownTime, ...]]:
    """Return the index's row of a file with this content, and the times in it."""
    times: tuple[KnownTime, ...] = ()
    stored = None
    with suppress(AttuneError, ValueError):  # values that the index cannot store
        times = times_of(
            snapshot.opened(),
            session=snapshot.title,
            file=name,
            shipped=shipped,
            since=snapshot.created,
        )
        stored = packed(CachedTimes(times=times))
    listed = _Listed(summary=summarise(snapshot))
    return Row(name, key, listed.model_dump_json(), stored), times


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
