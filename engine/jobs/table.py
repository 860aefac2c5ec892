"""All jobs of one server, folded from the server's journal.

The journal is the queue as well: a job is queued by its first event and waits until an event ends
it. The manager and the worker each hold a table of their own and read the same file.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from engine.errors import SnapshotError
from engine.jobs.status import JobStatus
from engine.records import journal


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
        journal.append(self._path, line)

    def poll(self) -> list[dict[str, Any]]:
        """Take in the events that were written since the last call, and return them."""
        events, self._offset = journal.read_from(self._path, self._offset)
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
