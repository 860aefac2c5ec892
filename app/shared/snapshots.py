"""Snapshots of the store: their list, and each parsed once and cached."""

from __future__ import annotations

from functools import lru_cache

import streamlit as st

from engine.sessions.snapshot import Snapshot, loads
from engine.sessions.store import Infos, Store

_STEP_S = 1.0  # between two steps of the progress bar


@lru_cache(maxsize=8)
def _parsed(data: bytes, name: str) -> Snapshot:
    return loads(data, name=name)


def open_snapshot(store: Store, name: str) -> Snapshot:
    """Return the snapshot with this name.

    Raises:
        UnknownName, SnapshotError: It does not exist, or it is damaged.
    """
    return _parsed(store.read(name), name)


def listed(store: Store) -> Infos:
    """Return every snapshot, newest first, with a progress bar while files are read for the first
    time.

    Raises:
        StoreError: the folder cannot be read.
    """
    place = st.empty()
    infos: Infos = []
    for infos in store.growing_list(_STEP_S):
        num_read = sum(info.is_read for info in infos)
        if num_read < len(infos):
            place.progress(
                num_read / len(infos),
                f"Reading saved sessions for the first time: {num_read:,} of {len(infos):,}",
            )
    place.empty()
    return infos
