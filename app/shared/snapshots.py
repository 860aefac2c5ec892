"""Snapshots of the store, parsed once and cached."""

from __future__ import annotations

from functools import lru_cache

from engine.sessions.snapshot import Snapshot, loads
from engine.sessions.store import Store


@lru_cache(maxsize=8)
def _parsed(data: bytes, name: str) -> Snapshot:
    return loads(data, name=name)


def open_snapshot(store: Store, name: str) -> Snapshot:
    """Return the snapshot with this name.

    Raises:
        UnknownName, SnapshotError: It does not exist, or it is damaged.
    """
    return _parsed(store.read(name), name)
