"""Sweeps of the command line as read-only jobs: the journals in `cache_root()/sweeps`.

They have the format of the worker's journals, so pages show them, too, also while the command runs.
Nothing here writes; `sweep --resume` continues a sweep.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.base import files
from engine.base.errors import AttuneError
from engine.jobs.layout import JobProgress, JobState, JobStatus
from engine.search.ranking import SweepRow
from engine.search.sweep.journal import SweepCounts, SweepJournal, Tally

PREFIX = "cli-"  # of the ids of these jobs
_MAX_JOURNALS = 50  # newest journals of a folder
_MAX_HEAD_BYTES = 64 << 20  # a million problems
_TAIL_BYTES = 4096
_ACTIVE_S = 10.0  # a journal modified this recently is being written
_RATE_ROWS = 20


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of a journal: the sweep's spec and date."""

    spec: Mapping[str, Any]
    began: float


class SweepFiles:
    """The journals of one folder. Thread-safe.

    Args:
        probed_s: seconds for which the answer whether a journal is locked is reused.
    """

    def __init__(self, folder: Path, probed_s: float = 5.0) -> None:
        self._probed_s = probed_s
        self._folder = folder
        self._lock = threading.RLock()
        self._heads: dict[tuple[str, int], _Head | None] = {}  # by name and inode
        self._held: dict[str, tuple[float, bool]] = {}  # by name: time and result of the probe
        self._opened: dict[str, _Opened] = {}  # by name, most recently used last

    def listed(self) -> list[JobStatus]:
        """Return every sweep, newest first, without its progress."""
        with self._lock:
            return [job for path in self._paths() if (job := self._job(path)) is not None]

    def status(self, job_id: str) -> JobStatus | None:
        """Return the status of the sweep, or None if there is none with this id."""
        with self._lock:
            path = self.path(job_id)
            job = self._job(path)
            if job is None:
                return None
            opened = self._open(path)
            progress = opened.progress(job)
            return replace(
                job,
                progress=progress,
                progressed=opened.progressed,
                started=opened.began or job.submitted,
            )

    def rows(self, job_id: str) -> list[SweepRow]:
        """Return the rows so far, in the order in which points were first evaluated."""
        with self._lock:
            opened = self._open(self.path(job_id))
            opened.poll()
            return list(opened.journal.rows.values())

    def path(self, job_id: str) -> Path:
        """Return the file for `sweep --resume`."""
        return self._folder / f"{Path(job_id.removeprefix(PREFIX)).name}.jsonl"

    def _paths(self) -> list[Path]:
        stamps = []
        for path in self._folder.glob("*.jsonl"):
            try:
                stamps.append((path.stat().st_mtime, path))
            except OSError:  # removed meanwhile
                continue
        return [path for _, path in sorted(stamps, reverse=True)[:_MAX_JOURNALS]]

    def _job(self, path: Path) -> JobStatus | None:
        try:
            stat = path.stat()
            head = self._head(path, stat.st_ino)
            if head is None:
                return None
            ended = _ending(path, stat.st_size)
        except OSError:
            return None
        state: JobState = "done" if ended in ("finished", "budget") else "cancelled"
        if not ended and self._is_held(path, stat.st_mtime):
            state = "running"
        return JobStatus(
            job_id=PREFIX + path.stem,
            state=state,
            request=dict(head.spec),
            submitted=head.began,
            started=head.began,
            ended=None if state == "running" else stat.st_mtime,
            kind="sweep",
            end=ended if state == "done" else "",
            journal=PREFIX + path.stem,
        )

    def _head(self, path: Path, inode: int) -> _Head | None:
        key = (path.name, inode)
        if self._heads.get(key) is None:  # an incomplete head is read again
            self._heads[key] = _read_head(path)
        return self._heads[key]

    def _is_held(self, path: Path, written_at: float) -> bool:
        """True if a process runs this sweep.

        Probing takes the lock briefly, during which a command would be refused it. Therefore a
        growing journal counts as held, and others are rarely probed.
        """
        if time.time() - written_at < _ACTIVE_S:
            return True
        probed_at, held = self._held.get(path.name, (float("-inf"), False))
        if time.monotonic() - probed_at > self._probed_s:
            held = files.is_locked(path)
            self._held[path.name] = (time.monotonic(), held)
        return held

    def _open(self, path: Path) -> _Opened:
        opened = self._opened.pop(path.name, None)
        if opened is None:
            opened = _Opened(SweepJournal(path))
        self._opened[path.name] = opened
        while len(self._opened) > 3:
            del self._opened[next(iter(self._opened))]
        return opened


class _Opened:
    """An open journal, and its progress."""

    def __init__(self, journal: SweepJournal) -> None:
        self.journal = journal
        self.began: float | None = None  # the last run of it
        self._tally = Tally()
        self._history: deque[tuple[float, int]] = deque(maxlen=_RATE_ROWS)  # (when, rows)

    def poll(self) -> None:
        if self.began is None:
            self.began = _last_begin(self.journal.path)
        if self.journal.poll() or not self._history:
            self._tally = Tally()  # repeated points count once
            for row in self.journal.rows.values():
                self._tally.add(row)
            self._history.append((time.monotonic(), self._tally.done))

    @property
    def progressed(self) -> float | None:
        """Return the Unix time of the last row read while the journal was open here."""
        if not self._history:
            return None
        return time.time() - (time.monotonic() - self._history[-1][0])

    def progress(self, job: JobStatus) -> JobProgress:
        self.poll()
        tally = self._tally
        total = tally.done if job.state == "done" else max(self._expected(), tally.done)
        per_minute = self._per_minute() if job.state == "running" else None
        counts = SweepCounts(
            done=tally.done,
            total=total,
            passed=tally.passed,
            skipped=tally.skipped,
            failed=tally.failed,
            resumed=0,
            elapsed_s=job.elapsed_s,
            per_minute=per_minute,
            eta_s=60 * (total - tally.done) / per_minute if per_minute else None,
        )
        return JobProgress.of(counts, tally.best.values())

    def _expected(self) -> int:
        try:
            spec = self.journal.spec
            count, limit = spec.space.count(spec.options.gpu), spec.budget.evaluations
        except (ValueError, AttuneError):  # from another version of Attune or of its table of GPUs
            return 0
        return count if limit is None else min(count, self._tally.skipped + limit)

    def _per_minute(self) -> float | None:
        if len(self._history) < 2:
            return None
        (first_at, first), (last_at, last) = self._history[0], self._history[-1]
        return 60 * (last - first) / (last_at - first_at) if last > first else None


def _read_head(path: Path) -> _Head | None:
    """Return the first line's content; None if it is not (yet) that of a sweep."""
    with files.open_regular(path) as file:
        for _ in range(4):  # a journal has empty lines between its lines
            line = file.readline(_MAX_HEAD_BYTES)
            if not line.strip():
                continue
            try:
                event = json.loads(line)
                spec = event["spec"]
                options, space = spec["options"], spec["space"]
                if event["event"] == "sweep" and len(space["problems"]) and "gpu" in options:
                    return _Head(spec, float(event["t"]))
            except (ValueError, KeyError, TypeError):
                return None
    return None


def _ending(path: Path, size: int) -> str:
    """Return how the last run ended: `finished`, `budget` or `cancelled`; empty if it has not."""
    with files.open_regular(path) as file:
        file.seek(max(0, size - _TAIL_BYTES))
        lines = [line for line in file.read().splitlines() if line.strip()]
    try:
        event = json.loads(lines[-1])
        return str(event["state"]) if event["event"] == "end" else ""
    except (ValueError, KeyError, TypeError, IndexError):
        return ""


def _last_begin(path: Path) -> float | None:
    """Return when the last run began."""
    try:
        with files.open_regular(path) as file:
            data = file.read()
        start = data.rfind(b'{"event":"sweep"')
        return float(json.loads(data[start : data.index(b"\n", start)])["t"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


_files: dict[Path, SweepFiles] = {}
_files_lock = threading.Lock()


def sweep_files() -> SweepFiles:
    """Return the sweeps that this user ran on the command line."""
    from engine.base.files import cache_root

    folder = cache_root() / "sweeps"
    with _files_lock:
        return _files.setdefault(folder, SweepFiles(folder))
