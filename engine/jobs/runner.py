"""Runs the jobs of one server in the worker process, whatever their kinds are.

Single evaluations are served between the points of a sweep and between the samples of a latency
stream: a person who turns a knob does not wait for hours of sweep.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engine.errors import AttuneError, SnapshotError
from engine.jobs.layout import RunDir
from engine.jobs.status import JobKind, JobStatus
from engine.jobs.table import JobTable
from engine.pipeline.evaluate import Evaluator
from engine.records.encoding import decode

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
        except Exception as error:  # a defect of ours: the page gets a sentence, the log the rest
            self.event(
                job.job_id,
                "failed",
                error=f"Attune itself failed ({type(error).__name__}: {error}); see the log.",
                log=traceback.format_exc(),
            )
        self.restart_if_gpu_unusable()

    def restart_if_gpu_unusable(self) -> None:
        """Become a new process when this one can use the GPU no more.

        The process keeps its id, so that it is not taken for dead; a long job is not over and is
        taken up where its journal ends.
        """
        if self.evaluator.gpu_error is None:
            return
        self.evaluator.close()
        os.execv(sys.executable, [sys.executable, "-m", "engine.jobs.worker", str(self.run.root)])

    def _is_long(self, job: JobStatus) -> bool:
        """Unreadable jobs are not: they are dealt with at once."""
        return job.kind in self._types and self._types[job.kind].is_long
