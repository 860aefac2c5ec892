"""The pages' calls of the job manager: submit, compile, cancel, collect.

Only the manager's journal stores results, so a reload, a second tab and a restarted server show the
same. This module only stores which compiles this tab has submitted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import streamlit as st

from app.shared import notices, working_session
from engine.attention.evaluation import Evaluation
from engine.base.schema import decode, encode
from engine.correctness.output_error import ErrorMap, maps_from_arrays
from engine.gate.commits import KernelHistory
from engine.jobs.layout import Task
from engine.jobs.manager import JobStatus, manager
from engine.pipeline.request import EvaluationRequest

# A compile takes 50 to 300 ms: waiting this long avoids the flicker of a second rerun.
COMPILE_WAIT_S = 0.4

_COMPILES = "compiles"  # in the tab's state: job ids by request


def payload_of(request: EvaluationRequest) -> dict[str, Any]:
    """Return the request as stored in the journal."""
    payload: dict[str, Any] = encode(request)
    return payload


def runs_of(request: EvaluationRequest) -> list[JobStatus]:
    """Return the runs of this request, newest first."""
    payload = payload_of(request)
    # A latency stream has the same request but is not a run.
    return [j for j in manager().jobs() if j.is_evaluation and j.request == payload]


def evaluation_of(job: JobStatus) -> Evaluation | None:
    """Return the result of a job; None if there is none (yet)."""
    return decode(Evaluation, job.result, name="The result") if job.result else None


def part_of(job: JobStatus) -> Evaluation | None:
    """Return the evaluation of a run's first few CTAs; None if not known (yet)."""
    return decode(Evaluation, job.part, name="The result of a part") if job.part else None


@lru_cache(maxsize=16)
def error_maps_of(job_id: str) -> tuple[ErrorMap, ...]:
    """Return the error maps of a finished job, which never change; empty if it has none."""
    arrays = manager().maps(job_id) if job_id else None
    if arrays is None:
        return ()
    try:
        return maps_from_arrays(arrays)
    except KeyError:
        return ()  # written by another version


def run(request: EvaluationRequest) -> None:
    """Submit a run; a button's callback."""
    with notices.errors_to("run"):
        working_session.expect(manager().submit(request))


def cancel(job_id: str) -> None:
    """Cancel a run; a button's callback."""
    manager().cancel(job_id)


def compile_job(
    request: EvaluationRequest, version: str = "", *, wait: bool = False
) -> JobStatus | None:
    """Submit the job that compiles this request, once per tab and `version` of its source.

    Returns:
        The job; None if the journal no longer holds it: the next call submits it again.
    """
    return _job_of("evaluate", request, version, COMPILE_WAIT_S if wait else 0.0)


def simulate_job(request: EvaluationRequest, version: str = "") -> JobStatus | None:
    """Submit the job that simulates this request's kernel, once as in `compile_job`."""
    return _job_of("simulate", request, version)


def machine_code_job(request: EvaluationRequest, version: str = "") -> JobStatus | None:
    """Submit the job that reads this request's machine code, once as in `compile_job`.

    Queued jobs that this tab submitted for other requests are cancelled.
    """
    key = _key("machine_code", request, version)
    _cancel_queued(lambda other: other.startswith('["machine_code"') and other != key)
    return _job_of("machine_code", request, version)


def is_machine_code_asked(request: EvaluationRequest, version: str = "") -> bool:
    """True if this tab has requested the machine code and it is not read yet."""
    submitted: dict[str, str] = st.session_state.get(_COMPILES, {})
    job_id = submitted.get(_key("machine_code", request, version))
    return job_id is not None and _is_open(job_id)


def rung_job(request: EvaluationRequest, version: str = "") -> JobStatus | None:
    """Submit the job that compiles, simulates and counts this request, once as in `compile_job`."""
    return _job_of("rung", request, version)


def ask_invariance(request: EvaluationRequest, version: str) -> None:
    """Submit the job that checks batch-invariance; a button's callback."""
    with notices.errors_to("run"):
        _job_of("invariance", request, version)


def invariance_job(request: EvaluationRequest, version: str) -> JobStatus | None:
    """Return the job of `ask_invariance`; None if this tab has not submitted it, or cancelled
    it."""
    submitted: dict[str, str] = st.session_state.get(_COMPILES, {})
    job_id = submitted.get(_key("invariance", request, version))
    job = manager().status(job_id) if job_id is not None else None
    if job is not None and job.state == "cancelled":
        del submitted[_key("invariance", request, version)]
        return None
    return job


def history_job(request: EvaluationRequest, commit: str) -> JobStatus | None:
    """Submit the job that evaluates the kernel's last commits, once as in `compile_job`.

    Args:
        commit: the repository's current commit.
    """
    return _job_of("history", request, commit)


def stage_of(job_id: str) -> str:
    """Return the current stage of a job, in words."""
    job = manager().status(job_id)
    if job is None or job.state == "queued":
        return "Waiting for the worker process"
    return job.stage or "Compiling and simulating the versions of the kernel"


def forget_history(request: EvaluationRequest, commit: str) -> None:
    """Make the next `history_job` start again; a button's callback."""
    st.session_state.get(_COMPILES, {}).pop(_key("history", request, commit), None)


def history_of(job: JobStatus) -> KernelHistory:
    """Return the result of a finished `history_job`."""
    return decode(KernelHistory, job.result, name="The result")


def _job_of(
    task: Task,
    request: EvaluationRequest,
    version: str,
    wait_s: float = 0.0,
) -> JobStatus | None:
    submitted: dict[str, str] = st.session_state.setdefault(_COMPILES, {})
    key = _key(task, request, version)
    # A callback of the tab may cancel meanwhile in another thread, and remove the key.
    if (job_id := submitted.get(key)) is None:
        job_id = submitted[key] = manager().submit(request, task)
    job = manager().wait(job_id, wait_s)
    again = f"again {key}"
    if job is not None and job.state == "crashed" and task != "evaluate" and again not in submitted:
        # Cancelling a run also ends the worker's other jobs, which are then submitted again once.
        job_id = submitted[again] = submitted[key] = manager().submit(request, task)
        job = manager().wait(job_id, wait_s)
    if job is None:
        submitted.pop(key, None)
    return job


def _key(task: Task, request: EvaluationRequest, version: str) -> str:
    return json.dumps([task, payload_of(request), version], sort_keys=True)


def cancel_queued_compiles() -> None:
    """Cancel this tab's queued compiles; finished ones stay in the cache."""
    _cancel_queued(lambda _: True)


def _cancel_queued(is_meant: Callable[[str], bool]) -> None:
    """Cancel this tab's queued compiles whose key satisfies `is_meant`."""
    submitted: dict[str, str] = st.session_state.get(_COMPILES, {})
    for key, job_id in list(submitted.items()):
        job = manager().status(job_id) if is_meant(key) else None
        if job is not None and job.state == "queued":
            manager().cancel(job_id)
            submitted.pop(key, None)


DIALOG_OPEN = "add_kernel_open"  # in the session's state


def may_rerun() -> bool:
    """True if the page may rerun by itself. A rerun would rebuild an open dialog and lose the
    files dropped into it; the page catches up when the dialog closes."""
    return not st.session_state.get(DIALOG_OPEN)


def rerun_as_jobs_end(
    jobs: Sequence[JobStatus],
    period_s: float,
    draw: Callable[[int], None] = lambda _: None,
) -> None:
    """Poll, and rerun the page when one of the jobs has ended.

    At every poll, `draw` is called with the number of unfinished jobs.
    """
    if not jobs:
        return

    @st.fragment(run_every=period_s)
    def poll() -> None:
        still_open = sum(_is_open(job.job_id) for job in jobs)
        if still_open < len(jobs) and may_rerun():
            st.rerun()
        draw(still_open)

    poll()


def _is_open(job_id: str) -> bool:
    job = manager().status(job_id)
    return job is not None and not job.is_over


def collect() -> None:
    """Add finished runs to the working session, started by any tab or server."""
    session = working_session.current()
    if session is None or not session.expected:
        return
    jobs = {job.job_id: job for job in manager().jobs()}
    for job_id in session.expected:
        job = jobs.get(job_id)
        if job is None or not job.is_over:  # another server's job, or unfinished
            continue
        evaluation = evaluation_of(job)
        maps = error_maps_of(job_id) if evaluation else ()
        working_session.keep(session, job_id, evaluation, maps)


def measured_here() -> tuple[Evaluation, ...]:
    """Return the evaluations that this server measured on a GPU, newest first."""
    runs = (job for job in manager().jobs() if job.is_evaluation and job.result)
    results = map(evaluation_of, runs)
    return tuple(
        e for e in results if e is not None and e.latency and e.latency.origin == "measured"
    )
