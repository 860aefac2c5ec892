"""The worker process of one server: started when there is work, killed with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from engine.base import files
from engine.base.errors import AttuneError, SnapshotError
from engine.base.schema import decode
from engine.jobs.layout import JobKind, JobStatus, RunDir
from engine.pipeline.evaluate import Evaluator

_REPOSITORY = Path(__file__).resolve().parents[2]
_STARTUP_S = 30.0  # a worker that has not come up after this long is taken for dead
_MAX_FAILED_STARTS = 3  # in a row, with no job begun in between
_DEATH_S = 5.0  # a killed process that is not gone by then waits for the kernel
_LOG_TAIL_BYTES = 4000


class Supervisor:
    """Starts and kills the worker, and gives up on one that never comes up."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._spawned_at = 0.0
        self._failed_starts = 0

    @property
    def is_up(self) -> bool:
        """Whether a worker serves the folder, whoever started it."""
        return self._run.live_worker() is not None

    @property
    def is_starting(self) -> bool:
        return (
            self._process is not None
            and self._process.poll() is None
            and time.monotonic() - self._spawned_at < _STARTUP_S
        )

    @property
    def has_given_up(self) -> bool:
        """Whether workers end before they begin a job, one after another."""
        return self._failed_starts >= _MAX_FAILED_STARTS

    def ensure(self) -> None:
        """Start a worker unless there is one, or one is starting."""
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
        """A worker began a job: the next death says nothing about starting."""
        self._failed_starts = 0

    def note_death(self) -> None:
        """The worker is gone, or never came up."""
        if self._process is None:
            return
        # One that came while another still held the folder ends with 0.
        if self._process.poll() != 0:
            self._failed_starts += 1
        self.kill()

    def reset(self) -> None:
        """Start workers again after a person's request, because the cause may be fixed."""
        if self.has_given_up:
            self._failed_starts = 0

    def kill(self) -> None:
        """Kill the worker's whole session (it has children of its own) and wait for it."""
        if self._process is not None:
            if self._process.poll() is None:
                _kill_session(self._process.pid)
            self._process.wait()
            self._process = None
        pid = self._run.live_worker()  # another server's, that ran before this one
        if pid is not None:
            _kill_session(pid)
            deadline = time.monotonic() + _DEATH_S
            while self.is_up and time.monotonic() < deadline:
                time.sleep(0.005)

    def is_outdated(self) -> bool:
        """Whether the worker that serves the folder was started from other code than this."""
        return self.is_up and self._run.worker_code() != code_stamp()

    def log_tail(self) -> str:
        """The end of what workers wrote to their log."""
        try:
            return self._run.worker_log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def code_stamp() -> str:
    """Changes with every change of the Python code that a worker runs; 2 ms."""
    newest, count = 0, 0
    for package in ("engine", "kernels"):
        for path in (_REPOSITORY / package).rglob("*.py"):
            newest, count = max(newest, path.stat().st_mtime_ns), count + 1
    return f"{_REPOSITORY} {newest} {count}"


# All jobs of one server, folded from the server's journal.
#
# The journal is the queue as well: a job is queued by its first event and waits until an event
# ends it. The manager and the worker each hold a table of their own and read the same file.


class JobTable:
    """The jobs that the journal tells of. Not thread-safe."""

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
        """Take in the events that were written since the last call, and return them."""
        events, self._offset = files.read_events(self._path, self._offset)
        for event in events:
            # One of another version of Attune changes nothing.
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


# Runs the jobs of one server in the worker process, whatever their kinds are.
#
# Single evaluations are served between the points of a sweep and between the samples of a latency
# stream: a person who turns a knob does not wait for hours of sweep.


_UNREADABLE = (
    "The job cannot be read (damaged, or written by another version of Attune): start it again."
)

Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class JobType(Generic[Request]):
    """What the worker does with jobs of one kind.

    Args:
        request: what the job was asked for.
        run: does the job and writes its end to the journal.
        is_long: goes on for long, serves evaluations in between, and is taken up again by the
            next worker when this one dies.
    """

    request: type[Request]
    run: Callable[[JobRunner, JobStatus, Request], None]
    is_long: bool


class JobRunner:
    """Serves the jobs of one folder with one set of backends.

    Args:
        others: kinds that another runner of the folder serves.
    """

    def __init__(
        self,
        run: RunDir,
        evaluator: Evaluator,
        types: Mapping[JobKind, JobType[Any]],
        others: Container[str] = (),
    ) -> None:
        self.run = run
        self.evaluator = evaluator
        self._types = types
        self._others = others
        self._table = JobTable(run.journal)

    def event(self, job_id: str, event: str, **fields: Any) -> None:
        """Write one event to the journal."""
        self._table.append(job_id, event, **fields)

    def waiting(self) -> list[JobStatus]:
        """Jobs to serve, oldest first; long ones until they are over.

        An evaluation that has been started took a worker with it and is not tried again.
        """
        self._table.poll()
        jobs = (job for job in self._table.unfinished.values() if job.kind not in self._others)
        return [job for job in jobs if job.state == "queued" or self._is_long(job)]

    def waiting_evaluations(self) -> list[JobStatus]:
        """Queued single evaluations, oldest first."""
        return [job for job in self.waiting() if not self._is_long(job)]

    def has_next_long_job(self) -> bool:
        """Whether a sweep or a latency stream waits behind the long job that runs."""
        return sum(self._is_long(job) for job in self.waiting()) > 1

    def serve_waiting_evaluations(self) -> None:
        """Serve the single evaluations that came in while a long job runs."""
        for job in self.waiting_evaluations():
            if not self.is_cancelled(job.job_id):
                self.serve(job)

    def is_cancelled(self, job_id: str) -> bool:
        """Whether a job that has not ended by itself is over all the same."""
        self._table.poll()
        return job_id not in self._table.unfinished

    def serve(self, job: JobStatus) -> None:
        """Run one job. Every way out of it is an event in the journal."""
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
        except Exception as error:  # our own bug: the page gets a sentence, the log the rest
            self.event(
                job.job_id,
                "failed",
                error=f"Attune itself failed ({type(error).__name__}: {error}); see the log.",
                log=traceback.format_exc(),
            )
        self.restart_if_gpu_unusable()

    def restart_if_gpu_unusable(self) -> None:
        """Replace this process by a new one if it cannot use the GPU any more.

        The process keeps its id, so that it is not taken for dead; a long job continues where its
        journal ends.
        """
        if self.evaluator.gpu_error is None:
            return
        self.evaluator.close()
        os.execv(sys.executable, [sys.executable, "-m", "engine.jobs.worker", str(self.run.root)])

    def _is_long(self, job: JobStatus) -> bool:
        """Unreadable jobs are not: they are dealt with at once."""
        return job.kind in self._types and self._types[job.kind].is_long
