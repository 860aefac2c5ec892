"""A list of summaries that can be thrown away: what makes a store of 10,000 files list at once.

One SQLite file per store in the user's cache folder, keyed by name, size and stamp. Whatever is
wrong with it (damaged, locked, read-only), the answer is only slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.base import files
from engine.cuda_source.cache import cache_root
from engine.sessions.store.folders import Entry

_SCHEMA = "CREATE TABLE IF NOT EXISTS info (name TEXT PRIMARY KEY, key TEXT, json TEXT)"
_TIMEOUT_S = 2.0


class Index:
    """name → JSON text of a store's entries, valid while size and stamp stay the same."""

    def __init__(self, store_url: str, layout: str, folder: Path | None = None) -> None:
        """`layout` names the form of the JSON; entries of another form are never read."""
        key = hashlib.sha256(f"{layout}\n{store_url}".encode()).hexdigest()[:24]
        self._path = (folder or cache_root() / "sessions") / f"index-{key}.sqlite"

    def known(self) -> dict[tuple[str, str], str]:
        """(name, key) → JSON text; empty when there is no usable index."""
        try:
            with contextlib.closing(self._connect()) as db:
                rows = db.execute("SELECT name, key, json FROM info")
                return {(name, key): text for name, key, text in rows}
        except sqlite3.OperationalError:  # locked or read-only
            return {}
        except (sqlite3.Error, OSError):
            self._discard()
            return {}

    def update(self, fresh: Mapping[Entry, str], gone: Iterable[str]) -> None:
        """Add what was read anew and drop what is no longer there."""
        rows = [(entry.name, key_of(entry), text) for entry, text in fresh.items()]
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
