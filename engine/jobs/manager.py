"""Submits jobs to the worker process, watches it, and says how each job stands.

One manager per server, module-level (`manager()`), shared by every tab. The journal is the truth: a
restarted server claims the same folder and finds every job, the running one too.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from engine.errors import StoreError
from engine.jobs import journal
from engine.jobs.layout import RunDir
from engine.request import EvaluationRequest

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled", "crashed"]
ENDED: frozenset[str] = frozenset({"done", "failed", "cancelled", "crashed"})
_REPOSITORY = Path(__file__).resolve().parents[2]
_STARTUP_S = 30.0  # a worker that has not come up after this long is taken for dead


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How one job stands. `result` is `Evaluation.to_dict()` once it is done."""

    job_id: str
    state: JobState
    request: dict[str, Any]
    stage: str = ""
    submitted: float = 0.0  # Unix time
    started: float | None = None
    ended: float | None = None
    result: dict[str, Any] | None = None
    error: str = ""
    log: str = ""

    @property
    def elapsed_s(self) -> float:
        if self.started is None:
            return 0.0
        return (self.ended or time.time()) - self.started

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


def _apply(status: JobStatus, event: dict[str, Any]) -> JobStatus:
    """The next state of a job. The first end wins: a result that crosses a cancel is dropped."""
    kind, when = event.get("event"), float(event.get("t", 0.0))
    if status.is_over:
        return status
    if kind == "started":
        return replace(status, state="running", started=when)
    if kind == "stage":
        return replace(status, stage=str(event.get("stage", "")))
    if kind == "finished":
        return replace(status, state="done", ended=when, result=event.get("result"))
    if kind in ("failed", "crashed", "cancelled"):
        state: JobState = kind
        error, log = str(event.get("error", "")), str(event.get("log", ""))
        return replace(status, state=state, ended=when, error=error, log=log)
    return status


class JobManager:
    """Jobs of one server. Thread-safe; every method returns quickly."""

    def __init__(self, root: Path) -> None:
        self._run, self._slot_lock = _claim_slot(root)
        self._lock = threading.RLock()
        self._jobs: dict[str, JobStatus] = {}
        self._offset = 0
        self._worker: subprocess.Popen[bytes] | None = None
        self._spawned_at = 0.0
        self._serial = 0
        if self._run.live_worker() is None:
            self._run.tidy()
        self._refresh()

    # -- what pages call

    def submit(self, request: EvaluationRequest) -> str:
        """Queue an evaluation and return the job's id.

        Raises:
            StoreError: the jobs folder cannot be written.
        """
        with self._lock:
            self._serial += 1
            job_id = f"{time.time_ns():020d}-{os.getpid()}-{self._serial}"
            payload = request.to_dict()
            self._append({"job": job_id, "event": "queued", "request": payload})
            try:
                self._run.put_request(job_id, payload)
            except OSError as error:
                raise StoreError(
                    f"The job cannot be queued ({error.strerror}): free some disk space or point "
                    "ATTUNE_CACHE_DIR at a folder that can be written."
                ) from error
            self._ensure_worker()
            self._refresh()
        return job_id

    def status(self, job_id: str) -> JobStatus | None:
        """How the job stands, or None when there is no such job (any more)."""
        with self._lock:
            self._refresh()
            self._notice_dead_worker()
            return self._jobs.get(job_id)

    def maps(self, job_id: str) -> dict[str, Any] | None:
        """The job's error maps as named arrays, or None."""
        return self._run.read_maps(job_id)

    def jobs(self) -> list[JobStatus]:
        """Every known job, newest first."""
        with self._lock:
            self._refresh()
            self._notice_dead_worker()
            return sorted(self._jobs.values(), key=lambda j: j.job_id, reverse=True)

    def cancel(self, job_id: str) -> None:
        """Stop the job: dropped from the queue, or its worker killed and the next one started."""
        with self._lock:
            self._refresh()
            job = self._jobs.get(job_id)
            if job is None or job.is_over:
                return
            self._append(
                {"job": job_id, "event": "cancelled", "error": "Cancelled before it finished."}
            )
            self._run.drop_request(job_id)
            if job.state == "running":
                self._kill_worker()
            self._refresh()
            if any(not j.is_over for j in self._jobs.values()):
                self._ensure_worker()

    def close(self) -> None:
        """End the worker and give the folder free. Queued jobs stay queued for the next manager."""
        with self._lock:
            self._kill_worker()
            os.close(self._slot_lock)

    # -- the journal

    def _append(self, event: dict[str, Any]) -> None:
        journal.append(self._run.journal, {"t": time.time(), **event})

    def _refresh(self) -> None:
        events, self._offset = journal.read_from(self._run.journal, self._offset)
        for event in events:
            job_id = str(event.get("job", ""))
            if event.get("event") == "queued":
                self._jobs.setdefault(
                    job_id,
                    JobStatus(
                        job_id,
                        "queued",
                        event.get("request") or {},
                        submitted=float(event.get("t", 0.0)),
                    ),
                )
            elif job_id in self._jobs:
                self._jobs[job_id] = _apply(self._jobs[job_id], event)

    # -- the worker

    def _ensure_worker(self) -> None:
        starting = (
            self._worker is not None
            and self._worker.poll() is None
            and time.monotonic() - self._spawned_at < _STARTUP_S
        )
        if starting or self._run.live_worker() is not None:
            return
        with self._run.worker_log.open("ab") as log:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "engine.jobs.worker", str(self._run.root)],
                cwd=_REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._spawned_at = time.monotonic()

    def _kill_worker(self) -> None:
        """Kill the worker's whole session (it has children of its own) and wait for it."""
        pids = {self._run.live_worker(), self._worker.pid if self._worker else None} - {None}
        for pid in pids:
            if pid is not None and (self._worker is None or self._worker.poll() is None):
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        if self._worker is not None:
            self._worker.wait()
            self._worker = None

    def _notice_dead_worker(self) -> None:
        """A job whose worker died is over; the jobs behind it get a new worker."""
        waiting = [j for j in self._jobs.values() if not j.is_over]
        if not waiting or self._run.live_worker() is not None:
            return
        if self._worker is not None and self._worker.poll() is None:
            if time.monotonic() - self._spawned_at < _STARTUP_S:
                return
            self._kill_worker()
        self._refresh()  # it may have finished the job with its last breath
        for job in self._jobs.values():
            if job.state == "running":
                self._append(
                    {
                        "job": job.job_id,
                        "event": "crashed",
                        "error": "The worker process died while it ran this job (a crash of the "
                        "compiler or driver, or out of memory); the log has its last words.",
                        "log": self._last_words(),
                    }
                )
        self._refresh()
        if any(not j.is_over for j in self._jobs.values()):
            self._ensure_worker()

    def _last_words(self) -> str:
        try:
            return self._run.worker_log.read_bytes()[-4000:].decode(errors="replace")
        except OSError:
            return ""


def _claim_slot(root: Path) -> tuple[RunDir, int]:
    """The first folder below `root` that no other running server holds, and the lock on it."""
    for slot in range(64):
        run = RunDir(root / f"server{slot}")
        try:
            run.create()
            fd = os.open(run.manager_lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"The jobs folder {run.root} cannot be written ({error.strerror}): point "
                "ATTUNE_CACHE_DIR at a folder that can."
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        return run, fd
    raise StoreError("64 Attune servers already run for this user: end some of them first.")


_manager: JobManager | None = None
_manager_lock = threading.Lock()


def manager() -> JobManager:
    """This process's job manager, started on first use."""
    global _manager
    with _manager_lock:
        if _manager is None:
            from engine.compile.cache import cache_root

            _manager = JobManager(cache_root() / "jobs")
        return _manager
