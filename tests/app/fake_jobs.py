"""A job manager whose answers a test sets, for states that a real one rarely reaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from verdicts import RIGHT

from engine.attention.evaluation import Evaluation, Finding
from engine.base.errors import Status
from engine.base.schema import encode
from engine.jobs.layout import Task
from engine.jobs.manager import JobStatus
from engine.pipeline.request import EvaluationRequest

CORRECT = replace(
    RIGHT,
    reason="The largest error is within the tolerance.",
    max_abs_err=2e-4,
    tolerance=6e-4,
    baseline_name="PyTorch SDPA",
)
WRONG = replace(
    CORRECT,
    passed=False,
    reason="512 elements are further off than 0.0006.",
    max_abs_err=0.3,
    bad_count=512,
    first_bad_index=(0, 2, 64, 0),
    findings=(Finding("one_head", "Only head 2 is wrong: look at its stride.", 0.99),),
)


def maps(kernel_is_wrong: bool = False) -> dict[str, Any]:
    """Return error maps as a job writes them; with one NaN if the kernel is wrong."""
    tile = np.full((2, 2), 1e-4)
    rows = np.full((128, 64), 1e-4)
    if kernel_is_wrong:
        tile[1, 0] = 0.3
        rows[64:, :] = 0.3
        rows[70, 3] = np.nan
    return {
        "batch_by_head": np.full((1, 4), 1e-4),
        "query_tile_by_key_tile": tile,
        "row_by_column": rows,
        "per_cell": np.ones((3, 2), dtype=np.intp),
    }


class FakeManager:
    """Answers every run with `answer` and every compile with `compile_answer`."""

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.answer: dict[str, Any] = {"state": "queued"}
        self.compile_answer: dict[str, Any] = {"state": "queued"}
        self.arrays: dict[str, Any] | None = None

    def submit(self, request: EvaluationRequest, task: Task = "evaluate") -> str:
        if task == "simulate":
            return task
        self.submitted.append(encode(request))
        return f"job-{len(self.submitted)}"

    def jobs(self) -> list[JobStatus]:
        found = [self.status(f"job-{i + 1}") for i in range(len(self.submitted))]
        return [job for job in reversed(found) if job is not None]

    def status(self, job_id: str) -> JobStatus | None:
        if job_id == "simulate":
            return JobStatus(job_id, "done", {})
        request = self.submitted[int(job_id.removeprefix("job-")) - 1]
        answer = self.answer if request["execute"] else self.compile_answer
        if job_id in self.cancelled:
            answer = {"state": "cancelled", "error": "Cancelled before it finished."}
        return JobStatus(job_id, request=request, started=1.0, ended=3.5, **answer)

    def wait(self, job_id: str, _: float) -> JobStatus | None:
        return self.status(job_id)

    def maps(self, _: str) -> dict[str, Any] | None:
        return self.arrays

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)


def done(evaluation: Evaluation) -> dict[str, Any]:
    """Return the answer of a job that ended with this evaluation."""
    return {"state": "done", "result": encode(evaluation)}


def failed(base: Evaluation, status: Status, reason: str, log: str = "") -> dict[str, Any]:
    return done(replace(base, status=status, reason=reason, log=log))
