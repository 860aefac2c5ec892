"""The worker process: takes job files one after another and writes what happens to the journal.

Started by `engine.jobs.manager` as `python -m engine.jobs.worker RUN_DIR`, in a session of its own,
so that a crash or an endless kernel ends this process and not the app, and so that it outlives a
restart of the app. It owns the CUDA context and the CPU backend's child.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from engine.errors import AttuneError
from engine.evaluate import Evaluator
from engine.jobs import journal
from engine.jobs.layout import RunDir
from engine.request import EvaluationRequest

POLL_S = 0.02
ORPHAN_IDLE_S = 300.0  # an orphan waits this long for a restarted server to take it over


def main(argv: list[str]) -> int:
    run = RunDir(Path(argv[0]))
    lock = os.open(run.worker_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another worker already serves this folder
    run.write_worker(os.getpid())
    idle_since = time.monotonic()
    with Evaluator() as evaluator:
        while True:
            job_file = run.next_request()
            if job_file is not None:
                _serve(run, evaluator, job_file)
                idle_since = time.monotonic()
            elif os.getppid() == 1 and time.monotonic() - idle_since > ORPHAN_IDLE_S:
                return 0
            else:
                time.sleep(POLL_S)


def _serve(run: RunDir, evaluator: Evaluator, job_file: Path) -> None:
    """Run one job. Every way out of it is an event in the journal."""
    job_id = job_file.stem

    def event(kind: str, **fields: Any) -> None:
        journal.append(run.journal, {"job": job_id, "event": kind, "t": time.time(), **fields})

    try:
        payload = json.loads(job_file.read_text())
    except FileNotFoundError:
        return  # cancelled while it was queued
    event("started", pid=os.getpid())
    job_file.unlink(missing_ok=True)
    try:
        request = EvaluationRequest.from_dict(payload)
        outcome = evaluator.evaluate(request, lambda stage: event("stage", stage=stage))
        if outcome.maps is not None:
            run.write_maps(job_id, outcome.maps)
        event("finished", result=outcome.evaluation.to_dict())
    except AttuneError as error:
        event("failed", error=str(error))
    except Exception as error:  # a defect of ours: the page gets a sentence, the log the traceback
        event(
            "failed",
            error=f"Attune itself failed ({type(error).__name__}: {error}); see the log.",
            log=traceback.format_exc(),
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
