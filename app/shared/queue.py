"""What a job that is not yet its turn waits for, in words, and a way to end that."""

from __future__ import annotations

import streamlit as st

from app.shared.widgets import plain_markdown
from engine.jobs.manager import JobStatus, manager
from engine.pipeline.request import EvaluationRequest


def draw(job: JobStatus | None, key: str) -> None:
    """One line for a job that waits; None: it is not even queued. `key` is the widget's."""
    blocking = in_the_way(job) if job is not None else None
    st.markdown(
        f":material/progress_activity: {plain_markdown(_sentence(blocking))}", width="content"
    )
    if blocking is not None and blocking.kind == "live":
        st.button(
            "Stop that one",
            key=key,
            icon=":material/stop:",
            on_click=manager().cancel,
            args=(blocking.job_id,),
        )


def in_the_way(job: JobStatus) -> JobStatus | None:
    """The job that runs before this one, else the next in line; single runs go in between."""
    ahead = [j for j in manager().jobs() if not j.is_over and j.job_id < job.job_id]
    long = [j for j in ahead if j.kind != "evaluate"] or ahead
    running = [j for j in long if j.state == "running"]
    found = running or long
    return found[-1] if found else None


def _sentence(blocking: JobStatus | None) -> str:
    if blocking is None:
        return "Waiting for the worker process to start"
    if blocking.kind == "sweep":
        done = blocking.progress
        far = f" ({done.done:,} of {done.total:,} points)" if done else ""
        return f"Waiting for the sweep that runs before it{far}; the Sweep page can cancel it"
    other = EvaluationRequest.from_dict(blocking.request)
    name = f"{other.variant}, {other.problem.label()}"
    if blocking.kind == "live":
        return f"Waiting for the live measurement of {name}, which goes on until it is stopped"
    return f"Waiting for the run of {name}"
