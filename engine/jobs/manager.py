"""Submits jobs to the worker process, watches it, and reports each job's status.

There is one manager per server (`manager()`), shared by all tabs. The journal holds all state, so a
restarted server claims the same folder and finds every job, including the running one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base import files
from engine.base.errors import StoreError
from engine.base.schema import decode, encode
from engine.jobs.latency_series import StreamPart, mark_seen, read_samples
from engine.jobs.layout import ENDED, JobKind, JobStatus, RunDir, Task
from engine.jobs.supervisor import JobTable, Supervisor
from engine.pipeline.request import EvaluationRequest
from engine.search.autotune import ProblemResult, problem_results
from engine.search.ranking import SweepRow
from engine.search.sweep.journal import SweepJournal, SweepSpec

if TYPE_CHECKING:
    from filelock import FileLock

__all__ = ["ENDED", "JobManager", "JobStatus", "manager"]

_MAX_DEATHS = 3  # consecutive deaths of workers without a new row of the sweep
_ACTIVE_S = 2.0  # a stream with a sample this recent notices its cancellation by itself


class JobManager:
    """Jobs of one server. Thread-safe; every method returns quickly.

    Methods that queue a job raise `StoreError` if the jobs folder cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self._run, self._slot_lock = _claim_slot(root)
        self._lock = threading.RLock()
        self._table = JobTable(self._run.journal)
        self._worker = Supervisor(self._run)
        self._serial = 0
        self._sweeps: dict[str, SweepJournal] = {}
        # By sweep: (consecutive deaths, rows at the last).
        self._deaths: dict[str, tuple[int, int]] = {}
        if not self._worker.is_up:
            self._run.tidy()
        self._refresh()
        self._replace_outdated_worker()

    # -- called by pages

    def start_worker(self) -> None:
        """Start the worker before the first job, so that it can prepare."""
        with self._lock:
            self._worker.ensure()

    def submit(self, request: EvaluationRequest, task: Task = "evaluate") -> str:
        """Queue a single job and return its id. It is served before sweeps and streams.

        Args:
            task: "evaluate" runs the evaluation; "invariance" executes a sequence alone and in
                batches, and its result is a `BatchInvariance`. The others fill caches: "simulate"
                with the CTA time of the request's kernel, "machine_code" with what
                `engine.pipeline.simulated_launches` makes, "rung" with the figures of
                `engine.kernel_figures`, "history" with those of the kernel's last commits
                (`engine.gate.commits`).
        """
        return self._submit("single", encode(request), task=task)

    def submit_sweep(self, spec: SweepSpec, cluster: str = "") -> str:
        """Queue a sweep and return the job's id, or that of an equal sweep that has not ended, as a
        page may deliver one click twice.

        Args:
            cluster: address of the Dask scheduler whose workers evaluate, for instance
                `tcp://host:8786`; empty for this machine.
        """
        request = encode(spec)
        with self._lock:
            same = self._unfinished_sweep(lambda j: (j.request, j.cluster) == (request, cluster))
            return same or self._submit("sweep", request, journal="", cluster=cluster)

    def resume_sweep(self, job_id: str, cluster: str | None = None) -> str | None:
        """Resume a sweep that ended early, without repeating evaluated points.

        Args:
            cluster: as in `submit_sweep`; None: where it ran before.

        Returns:
            The new job's id, its own id while it still runs, that of a job that resumes it already,
            or None if there is no such sweep.
        """
        job = self.status(job_id)
        if job is None or job.kind != "sweep":
            return None
        if not job.is_over:
            return job_id
        where = job.cluster if cluster is None else cluster
        with self._lock:
            same = self._unfinished_sweep(lambda other: other.journal == job.journal)
            return same or self._submit("sweep", job.request, journal=job.journal, cluster=where)

    def _unfinished_sweep(self, matches: Callable[[JobStatus], bool]) -> str | None:
        self._refresh()
        unfinished = (j for j in self._table.jobs.values() if j.kind == "sweep" and not j.is_over)
        return next((job.job_id for job in unfinished if matches(job)), None)

    def submit_stream(self, request: EvaluationRequest) -> str:
        """Queue a latency stream, which runs until it is cancelled; return the job's id."""
        return self._submit("live", encode(request))

    def _submit(self, kind: JobKind, request: dict[str, Any], **fields: str) -> str:
        with self._lock:
            self._serial += 1
            job_id = f"{time.time_ns():020d}-{os.getpid()}-{self._serial}"
            if kind == "sweep":
                fields["journal"] = fields["journal"] or job_id
            self._table.append(job_id, "queued", kind=kind, request=request, **fields)
            self._worker.reset()
            self._worker.ensure()
            self._refresh()
        return job_id

    def status(self, job_id: str) -> JobStatus | None:
        """Return the status of the job, or None if there is no such job (any more)."""
        with self._lock:
            self._refresh()
            self._notice_dead_worker()
            return self._table.jobs.get(job_id)

    def wait(self, job_id: str, seconds: float) -> JobStatus | None:
        """Return `status` after the job has ended, or after this many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            job = self.status(job_id)
            if job is None or job.is_over or time.monotonic() > deadline:
                return job
            time.sleep(0.01)

    def maps(self, job_id: str) -> dict[str, Any] | None:
        """Return the job's error maps as named arrays, or None."""
        return self._run.read_maps(job_id)

    def rows(self, job_id: str) -> list[SweepRow]:
        """Return a sweep's rows so far, including those of the run that it resumes."""
        with self._lock:
            self._refresh()
            sweep = self._sweep(job_id)
            return list(sweep.rows.values()) if sweep is not None else []

    def results(self, job_id: str) -> list[ProblemResult]:
        """Return the result of every problem of a sweep: from its final round on a GPU, else
        from its rows."""
        job = self.status(job_id)
        if job is not None and job.final:
            return [decode(ProblemResult, result) for result in job.final]
        return problem_results(self.rows(job_id))

    def read_stream(self, job_id: str, after: int = 0) -> StreamPart:
        """Return a stream's samples after `after`: 0 at first, then the last part's `after`.

        A stream without readers ends by itself.
        """
        path = self._run.stream(job_id)
        mark_seen(path)
        return read_samples(path, after)

    def jobs(self) -> list[JobStatus]:
        """Return every known job, newest first."""
        with self._lock:
            self._refresh()
            self._notice_dead_worker()
            return sorted(self._table.jobs.values(), key=lambda j: j.job_id, reverse=True)

    def cancel(self, job_id: str) -> None:
        """Cancel a job: remove it from the queue, or kill its worker and start another.

        A sweep's results are kept, and it can be resumed.
        """
        with self._lock:
            self._refresh()
            job = self._table.unfinished.get(job_id)
            if job is None:
                return
            self._table.append(job_id, "cancelled", error="Cancelled before it finished.")
            self._refresh()
            if job.state == "running" and not self._ends_by_itself(job):
                self._kill_worker()
            if self._table.unfinished:
                self._worker.ensure()

    def _ends_by_itself(self, job: JobStatus) -> bool:
        """True if a running job will soon notice its cancellation, so that the worker need not
        be killed."""
        others = self._table.unfinished.values()
        if not job.is_evaluation and any(other.state == "running" for other in others):
            return True  # a single evaluation is being served in between, which must not be killed
        if job.kind != "live":
            return False
        try:
            return time.time() - self._run.stream(job.job_id).stat().st_mtime < _ACTIVE_S
        except OSError:
            return False

    def close(self) -> None:
        """End the worker and release the folder. Queued jobs stay queued for the next manager."""
        with self._lock:
            self._kill_worker()
            self._slot_lock.release()

    # -- the journal

    def _refresh(self) -> None:
        if any(event.get("event") == "started" for event in self._table.poll()):
            self._worker.note_started_job()

    def _sweep(self, job_id: str) -> SweepJournal | None:
        """Return the journal of a sweep, read up to its end."""
        job = self._table.jobs.get(job_id)
        if job is None or not job.journal:
            return None
        path = self._run.sweep_journal(job.journal)
        sweep = self._sweeps.setdefault(job.journal, SweepJournal(path))
        sweep.poll()
        return sweep

    # -- the worker

    def _kill_worker(self) -> None:
        """Kill the worker, without counting its death against the point being evaluated."""
        self._worker.kill()
        for job in self._table.jobs.values():
            if job.journal:
                self._run.in_flight(job.journal).unlink(missing_ok=True)

    def _replace_outdated_worker(self) -> None:
        """Replace a worker that runs old code after an update of Attune."""
        if not self._worker.is_outdated():
            return
        self._kill_worker()
        for job in self._table.unfinished.values():
            if job.state == "running" and job.is_evaluation:
                self._end(job, "Attune was updated while this job ran: run it again.")
        self._refresh()

    def _notice_dead_worker(self) -> None:
        """End the job of a dead worker; a sweep is continued by a new worker."""
        if not self._table.unfinished or self._worker.is_up or self._worker.is_starting:
            return
        self._worker.note_death()
        self._refresh()  # the job may have finished just before
        for job in self._table.unfinished.values():
            if job.state == "running" and not self._goes_on(job):
                self._end(
                    job,
                    "The worker process died while it ran this job (a crash of the compiler or "
                    "driver, or out of memory); the log holds its last output.",
                )
        self._refresh()
        if self._table.unfinished:
            self._worker.ensure()
        if self._worker.has_given_up:
            for job in self._table.unfinished.values():
                self._end(
                    job,
                    "The worker process ends as soon as it is started; the log holds its last "
                    "output. Fix what it names, then run this again.",
                )
            self._refresh()

    def _end(self, job: JobStatus, error: str) -> None:
        self._table.append(job.job_id, "crashed", error=error, log=self._worker.log_tail())

    def _goes_on(self, job: JobStatus) -> bool:
        """True if a new worker continues the job. False after several deaths without a new row."""
        sweep = self._sweep(job.job_id)
        if sweep is None:
            return False
        count, rows = self._deaths.get(job.job_id, (0, -1))
        count = count + 1 if rows == len(sweep.rows) else 1
        self._deaths[job.job_id] = (count, len(sweep.rows))
        return count < _MAX_DEATHS


def _claim_slot(root: Path) -> tuple[RunDir, FileLock]:
    """Return the first folder below `root` that no other running server holds, and its lock."""
    for slot in range(64):
        run = RunDir(root / f"server{slot}")
        remedy = "point ATTUNE_CACHE_DIR at a folder that can"
        with files.explain_os_error(f"The jobs folder {run.root} cannot be written", remedy):
            run.create()
            lock = files.try_lock(run.manager_lock)
        if lock is not None:
            return run, lock
    raise StoreError("64 Attune servers already run for this user: end some of them first.")


_manager: JobManager | None = None
_manager_lock = threading.Lock()


def use_manager(other: JobManager | None) -> JobManager | None:
    """Replace the manager that `manager` returns; None makes it start its own again.

    Returns:
        The previous manager, which is not closed; None if there was none.
    """
    global _manager
    with _manager_lock:
        _manager, before = other, _manager
        return before


def manager() -> JobManager:
    """Return this process's job manager, started on first use."""
    global _manager
    with _manager_lock:
        if _manager is None:
            from engine.base.files import cache_root

            _manager = JobManager(cache_root() / "jobs")
        return _manager
