"""The worker process of one server: started when there is work, killed with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from engine.base import files
from engine.base.errors import AttuneError, SnapshotError
from engine.base.schema import decode
from engine.jobs.layout import JobKind, JobStatus, RunDir
from engine.pipeline.evaluate import Evaluator

_REPOSITORY = Path(__file__).resolve().parents[2]
_STARTUP_S = 30.0  # a worker that has not started after this long counts as dead
_MAX_FAILED_STARTS = 3  # consecutive failures without a started job
_DEATH_S = 5.0  # a killed process that still exists then is blocked in the operating system
_LOG_TAIL_BYTES = 4000


class Supervisor:
    """Starts and kills the worker, and gives up if it repeatedly fails to start."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._spawned_at = 0.0
        self._failed_starts = 0

    @property
    def is_up(self) -> bool:
        """True if a worker serves the folder, whoever started it."""
        return self._run.live_worker() is not None

    @property
    def is_starting(self) -> bool:
        """Return True if a worker was started recently and does not serve yet."""
        return (
            self._process is not None
            and self._process.poll() is None
            and time.monotonic() - self._spawned_at < _STARTUP_S
        )

    @property
    def has_given_up(self) -> bool:
        """True if several consecutive workers ended before they started a job."""
        return self._failed_starts >= _MAX_FAILED_STARTS

    def ensure(self) -> None:
        """Start a worker unless one exists or is starting."""
        if self.is_starting or self.is_up or self.has_given_up:
            return
        with self._run.worker_log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.jobs.worker", str(self._run.root)],
                cwd=_REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._spawned_at = time.monotonic()

    def note_started_job(self) -> None:
        """Record that a worker has started a job, so that its death is not a failed start."""
        self._failed_starts = 0

    def note_death(self) -> None:
        """Record that the worker has died or failed to start."""
        if self._process is None:
            return
        # A worker that finds the folder held by another one exits with 0.
        if self._process.poll() != 0:
            self._failed_starts += 1
        self.kill()

    def reset(self) -> None:
        """Allow starts again after a user's request, because the cause may be fixed."""
        if self.has_given_up:
            self._failed_starts = 0

    def kill(self) -> None:
        """Kill the worker's session, including its children, and wait for it."""
        if self._process is not None:
            if self._process.poll() is None:
                _kill_session(self._process.pid)
            self._process.wait()
            self._process = None
        pid = self._run.live_worker()  # started by an earlier server
        if pid is not None:
            _kill_session(pid)
            deadline = time.monotonic() + _DEATH_S
            while self.is_up and time.monotonic() < deadline:
                time.sleep(0.005)

    def is_outdated(self) -> bool:
        """True if the folder's worker was started with another version of the code."""
        return self.is_up and self._run.worker_code() != code_stamp()

    def log_tail(self) -> str:
        """Return the end of the workers' log."""
        try:
            return self._run.worker_log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def code_stamp() -> str:
    """Return a stamp that changes with the Python code that a worker runs. Takes 2 ms."""
    newest, count = 0, 0
    for package in ("engine", "kernels"):
        for path in (_REPOSITORY / package).rglob("*.py"):
            newest, count = max(newest, path.stat().st_mtime_ns), count + 1
    return f"{_REPOSITORY} {newest} {count}"


# All jobs of one server, computed from the server's journal.
#
# The journal is also the queue: a job's first event queues it, and a later event ends it. The
# manager and the worker each have their own table and read the same file.


class JobTable:
    """The jobs in the journal. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.jobs: dict[str, JobStatus] = {}
        self.unfinished: dict[str, JobStatus] = {}  # of `jobs`, oldest first
        self._path = path
        self._offset = 0

    def append(self, job_id: str, event: str, **fields: Any) -> None:
        """Write one event.

        Raises:
            StoreError: the journal cannot be written.
        """
        line = {"job": job_id, "event": event, "t": time.time(), **fields}
        files.append_event(self._path, line)

    def poll(self) -> list[dict[str, Any]]:
        """Read and return the events written since the last call."""
        events, self._offset = files.read_events(self._path, self._offset)
        for event in events:
            # Events of other versions of Attune are ignored.
            with contextlib.suppress(KeyError, TypeError, ValueError, SnapshotError):
                self._take(event)
        return events

    def _take(self, event: dict[str, Any]) -> None:
        job_id = str(event["job"])
        known = self.jobs.get(job_id)
        if known is not None:
            job = known.after(event)
        elif event["event"] == "queued":
            job = JobStatus.queued(event)
        else:
            return
        self.jobs[job_id] = job
        if job.is_over:
            self.unfinished.pop(job_id, None)
        else:
            self.unfinished[job_id] = job


# Runs the jobs of one server in the worker process.
#
# Single evaluations are served between points of a sweep and samples of a latency stream, so that
# the user does not wait for a long job.


_UNREADABLE = (
    "The job cannot be read (damaged, or written by another version of Attune): start it again."
)

Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class JobType(Generic[Request]):
    """How the worker runs jobs of one kind.

    Args:
        request: type of the job's request.
        run: runs the job and writes its end to the journal.
        is_long: the job takes long, serves evaluations in between, and is continued by the next
            worker if this one dies.
    """

    request: type[Request]
    run: Callable[[JobRunner, JobStatus, Request], None]
    is_long: bool


class JobRunner:
    """Runs the jobs of one folder with one set of backends.

    Args:
        serves: true for the jobs of this runner, if another runner of the folder serves others.
    """

    def __init__(
        self,
        run: RunDir,
        evaluator: Evaluator,
        types: Mapping[JobKind, JobType[Any]],
        serves: Callable[[JobStatus], bool] = lambda _: True,
    ) -> None:
        self.run = run
        self.evaluator = evaluator
        self._types = types
        self._serves = serves
        self._table = JobTable(run.journal)

    def event(self, job_id: str, event: str, **fields: Any) -> None:
        """Write one event to the journal."""
        self._table.append(job_id, event, **fields)

    def waiting(self) -> list[JobStatus]:
        """Return jobs to run, oldest first; long ones until they have ended.

        A started evaluation without an end killed its worker and is not retried.
        """
        self._table.poll()
        jobs = filter(self._serves, self._table.unfinished.values())
        return [job for job in jobs if job.state == "queued" or self._is_long(job)]

    def waiting_evaluations(self) -> list[JobStatus]:
        """Return queued single evaluations, oldest first."""
        return [job for job in self.waiting() if not self._is_long(job)]

    def has_next_long_job(self) -> bool:
        """True if a sweep or latency stream waits behind the running long job."""
        return sum(self._is_long(job) for job in self.waiting()) > 1

    def serve_waiting_evaluations(self) -> None:
        """Run the single evaluations that were queued while a long job runs."""
        for job in self.waiting_evaluations():
            if not self.is_cancelled(job.job_id):
                self.serve(job)

    def is_cancelled(self, job_id: str) -> bool:
        """True if a running job was ended by another process."""
        self._table.poll()
        return job_id not in self._table.unfinished

    def serve(self, job: JobStatus) -> None:
        """Run one job. Every outcome is an event in the journal."""
        try:
            job_type = self._types[job.kind]
            request = decode(job_type.request, job.request)
        except (KeyError, TypeError, SnapshotError):
            self.event(job.job_id, "failed", error=_UNREADABLE)
            return
        except AttuneError as error:
            self.event(job.job_id, "failed", error=str(error))
            return
        self.event(job.job_id, "started", pid=os.getpid())
        try:
            job_type.run(self, job, request)
        except AttuneError as error:
            self.event(job.job_id, "failed", error=str(error))
        except Exception as error:  # a bug of Attune: the page gets a sentence, the log the details
            self.event(
                job.job_id,
                "failed",
                error=f"Attune itself failed ({type(error).__name__}: {error}); see the log.",
                log=traceback.format_exc(),
            )
        self.restart_if_gpu_unusable()

    def restart_if_gpu_unusable(self) -> None:
        """Replace this process by a new one if it cannot use the GPU any more.

        The process keeps its id and so does not count as dead; a long job continues where its
        journal ends.
        """
        if self.evaluator.gpu_error is None:
            return
        self.evaluator.close()
        os.execv(sys.executable, [sys.executable, "-m", "engine.jobs.worker", str(self.run.root)])

    def _is_long(self, job: JobStatus) -> bool:
        """True for long jobs; unreadable jobs count as short and are handled at once."""
        return job.kind in self._types and self._types[job.kind].is_long
