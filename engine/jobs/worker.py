"""The worker process: takes job files one after another and writes what happens to the journal.

Started by `engine.jobs.manager` as `python -m engine.jobs.worker RUN_DIR`, in a session of its own,
so that a crash or an endless kernel ends this process and not the app, and so that it outlives a
restart of the app. It owns the CUDA context and the CPU backend's child.

Single evaluations are served between the points of a sweep and between a live job's samples: a
person who turns a knob does not wait for hours of sweep.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, get_args

from engine.errors import AttuneError
from engine.jobs.layout import RunDir
from engine.jobs.status import JobKind
from engine.jobs.supervisor import code_stamp
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest
from engine.records import journal

POLL_S = 0.02
_UNREADABLE = (
    "The job's file cannot be read (damaged, or written by another version of Attune): start it "
    "again."
)
IDLE_CHECK_S = 300.0  # an idle worker looks this often whether any server still wants it


def main(argv: list[str]) -> int:
    run = RunDir(Path(argv[0]))
    lock = os.open(run.worker_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another worker already serves this folder
    run.write_worker(os.getpid(), code_stamp())
    idle_since = time.monotonic()
    with Evaluator() as evaluator:
        worker = Worker(run, evaluator)
        while True:
            waiting = run.waiting_requests()
            if waiting:
                worker.serve(waiting[0])
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > IDLE_CHECK_S:
                if run.is_abandoned():
                    return 0
                idle_since = time.monotonic()
            else:
                time.sleep(POLL_S)


class Worker:
    """Serves the jobs of one folder with one set of backends."""

    def __init__(self, run: RunDir, evaluator: Evaluator) -> None:
        self.run = run
        self.evaluator = evaluator

    def event(self, job_id: str, kind: str, **fields: Any) -> None:
        journal.append(self.run.journal, {"job": job_id, "event": kind, "t": time.time(), **fields})

    def serve(self, job_file: Path) -> None:
        """Run one job. Every way out of it is an event in the journal."""
        job_id = job_file.stem
        try:
            payload = read_payload(job_file)
        except FileNotFoundError:
            return  # cancelled while it was queued
        except (ValueError, KeyError, TypeError):
            self.event(job_id, "failed", error=_UNREADABLE)
            self.run.drop_request(job_id)
            return
        kind = payload["kind"]
        self.event(job_id, "started", pid=os.getpid())
        if kind == "evaluate":
            # One that takes the worker with it is not tried again.
            job_file.unlink(missing_ok=True)
        try:
            if kind == "evaluate":
                self._evaluate(job_id, payload)
            elif kind == "sweep":
                from engine.jobs.sweep.job import run_sweep_job

                run_sweep_job(self, job_id, payload)
            else:
                from engine.jobs.latency_stream.job import run_live_job

                run_live_job(self, job_id, payload)
        except AttuneError as error:
            self.event(job_id, "failed", error=str(error))
        except Exception as error:  # a defect of ours: the page gets a sentence, the log the rest
            self.event(
                job_id,
                "failed",
                error=f"Attune itself failed ({type(error).__name__}: {error}); see the log.",
                log=traceback.format_exc(),
            )
        self.run.drop_request(job_id)
        self.restart_if_lost()

    def serve_waiting_evaluations(self) -> None:
        """Serve the single evaluations that came in while a long job runs."""
        for job_file in self.waiting_evaluations():
            self.serve(job_file)

    def waiting_evaluations(self) -> list[Path]:
        """Queued single evaluations, oldest first."""
        waiting = self.run.waiting_requests()
        # Mostly the long job's own request is the only one.
        return [path for path in waiting if _is_evaluation(path)] if len(waiting) > 1 else []

    def long_job_waits(self) -> bool:
        """Whether a sweep or a live job waits behind the long job that runs."""
        return len(self.run.waiting_requests()) - len(self.waiting_evaluations()) > 1

    def is_cancelled(self, job_id: str) -> bool:
        """The manager takes a long job's request away to end it."""
        return not self.run.has_request(job_id)

    def restart_if_lost(self) -> None:
        """Become a new process when this one can use the GPU no more.

        The process keeps its id, so that nobody takes it for dead; a long job's request is still
        there and is taken up where its journal ends.
        """
        if self.evaluator.lost is None:
            return
        self.evaluator.close()
        os.execv(sys.executable, [sys.executable, "-m", "engine.jobs.worker", str(self.run.root)])

    def _evaluate(self, job_id: str, payload: dict[str, Any]) -> None:
        request = EvaluationRequest.from_dict(payload["request"])
        outcome = self.evaluator.evaluate(request, lambda s: self.event(job_id, "stage", stage=s))
        if outcome.maps is not None:
            self.run.write_maps(job_id, outcome.maps)
        self.event(job_id, "finished", result=outcome.evaluation.to_dict())


def read_payload(job_file: Path) -> dict[str, Any]:
    """What a job's file asks for.

    Raises:
        FileNotFoundError: the job was cancelled.
        ValueError, KeyError, TypeError: damaged, or of another version of Attune.
    """
    payload: dict[str, Any] = json.loads(job_file.read_text())
    if payload["kind"] not in get_args(JobKind):
        raise ValueError(payload["kind"])
    return payload


def _is_evaluation(job_file: Path) -> bool:
    """An unreadable file is one, too: it is dealt with at once."""
    try:
        return bool(read_payload(job_file)["kind"] == "evaluate")
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
