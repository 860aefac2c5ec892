"""What was read of a store's files, kept to be thrown away: 10,000 of them are listed at once.

One SQLite file per store and layout in the user's cache folder, keyed by name, size and stamp.
Whatever is wrong with it (damaged, locked, read-only), the answer is only slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from engine.base import files
from engine.cuda_source.cache import cache_root
from engine.sessions.store.folders import Entry

_SCHEMA = "CREATE TABLE IF NOT EXISTS info (name TEXT PRIMARY KEY, key TEXT, json TEXT)"
_TIMEOUT_S = 2.0
_MOST_ASKED = 500  # names in one query


class Index:
    """name → text of a store's entries, valid while size and stamp stay the same."""

    def __init__(self, store_url: str, layout: str, folder: Path | None = None) -> None:
        """`layout` names the form of the text; entries of another form are never read."""
        key = hashlib.sha256(f"{layout}\n{store_url}".encode()).hexdigest()[:24]
        self._path = (folder or cache_root() / "sessions") / f"index-{key}.sqlite"

    def known(self) -> dict[tuple[str, str], str]:
        """(name, key) → text; empty when there is no usable index."""
        return self._rows("SELECT name, key, json FROM info", ())

    def of(self, names: Sequence[str]) -> dict[tuple[str, str], str]:
        """`known` of some files alone."""
        found: dict[tuple[str, str], str] = {}
        for begin in range(0, len(names), _MOST_ASKED):
            asked = tuple(names[begin : begin + _MOST_ASKED])
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
        """Add what was read anew, (name, key) → text, and drop what is no longer there."""
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
        db.execute("PRAGMA synchronous = OFF")  # losing it costs a rebuild, nothing else
        db.execute(_SCHEMA)
        return db

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


def key_of(entry: Entry) -> str:
    return f"{entry.size_bytes} {entry.stamp}"
