"""The taken times that shipped and own snapshots and the sessions being worked on hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from engine.base.errors import AttuneError
from engine.history.history import History
from engine.history.known_time import KnownTime, times_of
from engine.problem import Problem
from engine.sessions.session import Session, working_folder
from engine.sessions.store.store import SnapshotInfo, Store, default_store

# More kernels than a snapshot's summary lists may be in it all the same.
_SUMMARY_DEVICES = 8
_LEAST_S = 1.0  # between two looks at the folders
_SHARE = 0.05  # of the time that looking may take


def open_history() -> History:
    """All that is known of times on this machine.

    Without times of sessions on a machine that can only measure, or cannot read them.
    """
    try:
        return History(KnownTimes())
    except (ImportError, AttuneError):
        return History()


class KnownTimes:
    """The times of a store and of the open sessions; each file is read once.

    The folders are looked at again about once a second, when times are asked for. Calls from
    several threads are safe. A file that cannot be read has no times.
    """

    def __init__(self, store: Store | None = None, working: Path | None = None) -> None:
        self._store = store or default_store()
        self._working = working or working_folder()
        self._infos: list[SnapshotInfo] = []
        self._snapshots: dict[str, tuple[KnownTime, ...]] = {}
        self._sessions: dict[Path, tuple[Session, tuple[KnownTime, ...]]] = {}
        self._lock = threading.Lock()
        self._next_look = 0.0

    def refresh(self) -> None:
        """Take in at once what was saved, removed or run since."""
        with self._lock:
            begin = time.monotonic()
            try:
                infos = self._store.list()
            except AttuneError:
                infos = []
            # Removed and saved again under one name is another file.
            kept = {(i.name, i.size_bytes, i.updated) for i in self._infos}
            same = {i.name for i in infos if (i.name, i.size_bytes, i.updated) in kept}
            self._snapshots = {n: t for n, t in self._snapshots.items() if n in same}
            self._infos = infos
            paths = sorted(self._working.glob("*.jsonl"))
            self._sessions = {p: s for p, s in self._sessions.items() if p in paths}
            for path in paths:
                self._refresh_session(path)
            took = time.monotonic() - begin
            self._next_look = begin + max(_LEAST_S, took / _SHARE)

    def _look(self) -> None:
        if time.monotonic() > self._next_look:
            self.refresh()

    def all(self) -> tuple[KnownTime, ...]:
        """Every time there is; opens every snapshot with times."""
        self._look()
        with self._lock:
            return self._times(self._infos)

    def on(self, device: str) -> tuple[KnownTime, ...]:
        """The times of one GPU."""
        self._look()
        with self._lock:
            times = self._times(i for i in self._infos if _may_hold(i, device))
        return tuple(t for t in times if t.device == device)

    def at(self, problem: Problem, device: str) -> tuple[KnownTime, ...]:
        """The times of one problem on one GPU, kernels and PyTorch's attention."""
        return tuple(t for t in self.on(device) if t.problem == problem)

    def _times(self, infos: Iterable[SnapshotInfo]) -> tuple[KnownTime, ...]:
        known: list[KnownTime] = []
        for info in infos:
            if info.summary is None or info.summary.origins in ((), ("predicted",)):
                continue
            if info.name not in self._snapshots:
                self._snapshots[info.name] = self._read(info)
            known += self._snapshots[info.name]
        for _, times in self._sessions.values():
            known += times
        return tuple(known)

    def _read(self, info: SnapshotInfo) -> tuple[KnownTime, ...]:
        try:
            snapshot = self._store.open(info.name)
        except AttuneError:
            return ()
        return times_of(
            snapshot.opened(),
            session=info.title,
            file=info.name,
            shipped=info.shipped,
            since=snapshot.created,
        )

    def _refresh_session(self, path: Path) -> None:
        try:
            if path in self._sessions:
                session, times = self._sessions[path]
                before = len(session.evaluations)
                session.refresh()
                if len(session.evaluations) == before:
                    return
            else:
                session = Session(path)
            times = times_of(session.evaluations, session=session.title or "Untitled session")
            self._sessions[path] = session, times
        except AttuneError:
            self._sessions.pop(path, None)


def _may_hold(info: SnapshotInfo, device: str) -> bool:
    s = info.summary
    return s is not None and (device in s.devices or len(s.devices) >= _SUMMARY_DEVICES)
