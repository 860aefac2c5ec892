"""A line that says what a queued job waits for, with a button to stop that other job."""

from __future__ import annotations

import streamlit as st

from app.shared.widgets import busy, plain_markdown
from engine.base.schema import decode
from engine.jobs.manager import JobStatus, manager
from engine.pipeline.request import EvaluationRequest


def draw(job: JobStatus, key: str) -> None:
    """Draw the line of a queued job. `key` is the button's key."""
    blocking = _job_ahead(job)
    busy(plain_markdown(_describe(blocking)))
    if blocking is not None and blocking.kind == "live":
        st.button(
            "Stop that measurement",
            key=key,
            icon=":material/stop:",
            on_click=manager().cancel,
            args=(blocking.job_id,),
        )


def _job_ahead(job: JobStatus) -> JobStatus | None:
    """Return the job that runs before this one, else the next in the queue; single runs may
    overtake."""
    ahead = [j for j in manager().jobs() if not j.is_over and j.job_id < job.job_id]
    ahead = [j for j in ahead if not j.is_background]
    long = [j for j in ahead if not j.is_evaluation] or ahead
    running = [j for j in long if j.state == "running"]
    candidates = running or long
    return candidates[-1] if candidates else None


def _describe(blocking: JobStatus | None) -> str:
    if blocking is None:
        return "Waiting for the worker process to start"
    if blocking.kind == "sweep":
        progress = blocking.progress
        done = f" ({progress.done:,} of {progress.total:,} points)" if progress else ""
        return f"Waiting for a running sweep{done}; cancel it on the Sweep page"
    other = decode(EvaluationRequest, blocking.request)
    name = f"{other.variant}, {other.problem.label()}"
    if blocking.kind == "live":
        return f"Waiting for the live measurement of {name}, which runs until it is stopped"
    return f"Waiting for the run of {name}"
