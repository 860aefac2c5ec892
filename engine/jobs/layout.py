"""The files that a job manager and its worker share: one folder per running server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.records import files

if TYPE_CHECKING:
    from engine.correctness import ErrorMap


_MAX_WORKER_BYTES = 65_536


class RunDir:
    """The files of one server's jobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = root / "journal.jsonl"
        self.results = root / "results"
        self.sweeps = root / "sweeps"
        self.streams = root / "streams"
        self.worker_log = root / "worker.log"
        self.worker_lock = root / "worker.lock"
        self.manager_lock = root / "manager.lock"
        self._worker_file = root / "worker.json"

    def create(self) -> None:
        for folder in (self.root, self.results, self.sweeps, self.streams):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    # -- sweeps and latency streams write files of their own

    def sweep_journal(self, name: str) -> Path:
        """The journal of a sweep; `name` is the id of the job that started it."""
        return self.sweeps / f"{Path(name).name}.jsonl"

    def in_flight(self, name: str) -> Path:
        """Which point of the sweep is being evaluated; there while one is."""
        return self.sweeps / f"{Path(name).name}.inflight"

    def stream(self, job_id: str) -> Path:
        return self.streams / f"{Path(job_id).name}.jsonl"

    # -- the worker's identity: a pid alone may be another process's by now

    def write_worker(self, pid: int, code: str) -> None:
        """Record who serves this folder; `code` tells one version of the program from another."""
        import psutil

        data = {"pid": pid, "created": psutil.Process(pid).create_time(), "code": code}
        files.write(self._worker_file, json.dumps(data).encode(), durable=False)

    def is_abandoned(self) -> bool:
        """Whether no server holds this folder. A restarted one would have claimed it again."""
        return not (self.manager_lock.exists() and files.is_locked(self.manager_lock))

    def live_worker(self) -> int | None:
        """The pid of the worker that serves this folder, or None. A zombie is not alive."""
        import psutil

        try:
            data = self._worker()
            process = psutil.Process(data["pid"])
            same = abs(process.create_time() - data["created"]) <= 1.0
            return process.pid if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, psutil.Error):
            return None

    def worker_code(self) -> str:
        """The `code` of the worker that was started last."""
        try:
            return str(self._worker()["code"])
        except (OSError, ValueError, KeyError):
            return ""

    def _worker(self) -> dict[str, Any]:
        data = json.loads(files.read(self._worker_file, _MAX_WORKER_BYTES))
        if not isinstance(data, dict):
            raise ValueError("not a worker's identity")
        return data

    # -- results too large for a journal line

    def write_maps(self, job_id: str, maps: Iterable[ErrorMap]) -> None:
        from engine.correctness import maps_to_arrays

        arrays = maps_to_arrays(maps)
        files.write_with(
            self.results / f"{job_id}.npz",
            lambda file: np.savez(file, allow_pickle=False, **arrays),
            durable=False,
        )

    def read_maps(self, job_id: str) -> dict[str, Any] | None:
        """The error maps of a job as named arrays, or None when it has none."""
        try:
            with np.load(self.results / f"{job_id}.npz", allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError):
            return None

    def tidy(self, keep: int = 200, max_age_s: float = 7 * 86400.0) -> None:
        """Drop old maps and streams, and start a new journal when the old one has grown large.

        Journals of sweeps stay: they hold measurements.
        """
        for stream in self.streams.iterdir():
            if time.time() - stream.stat().st_mtime > max_age_s:
                stream.unlink(missing_ok=True)
        results = sorted(self.results.iterdir(), reverse=True)
        for old in results[keep:]:
            if time.time() - old.stat().st_mtime > max_age_s or len(results) > 2 * keep:
                old.unlink(missing_ok=True)
        if self.journal.exists() and self.journal.stat().st_size > 64 << 20:
            self.journal.replace(self.journal.with_suffix(".old.jsonl"))
