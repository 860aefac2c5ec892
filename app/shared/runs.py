"""Where the page meets the job manager: submit, cancel, and how things stand for one request.

The manager's journal is the only memory of results. A reload, a second tab or a restarted server
therefore shows the same; this module keeps nothing but which compiles it has already asked for.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.evaluation.maps import raw_of_job
from app.shared import working_session
from app.shared.selection import Chosen
from app.tune.watch import source_digest
from engine.compile.sources import read_sources
from engine.errors import AttuneError, CompileError
from engine.evaluation import Evaluation, Status
from engine.jobs.manager import JobStatus, manager
from engine.pipeline.preview import Preview, preview
from engine.pipeline.request import EvaluationRequest
from engine.records.codec import evaluation_from_dict

# A compile takes 50 to 300 ms: waiting this long for it saves the flicker of a second rerun.
COMPILE_WAIT_S = 0.4


@dataclass(frozen=True, slots=True)
class Standing:
    """How one request stands: what is known at once, and the newest run of it."""

    preview: Preview | None
    error: str  # why there is not even a preview
    compiling: JobStatus | None  # under way
    compiled: Evaluation | None  # the outcome of the compile job, where one was needed
    job: JobStatus | None  # the newest run
    evaluation: Evaluation | None  # what the newest finished run found
    evaluation_job: str  # its job's id
    digest: str  # of the source on disk
    is_stale: bool  # the source has changed since the evaluation

    @property
    def is_running(self) -> bool:
        return self.job is not None and not self.job.is_over

    @property
    def token(self) -> tuple[str, str]:
        """Differs from `token_now` when the page should be drawn anew."""
        return _stamp(self.job), _stamp(self.compiling)


def _stamp(job: JobStatus | None) -> str:
    return f"{job.job_id} {job.is_over}" if job else ""


def token_now(chosen: Chosen, then: Standing) -> tuple[str, str]:
    """The token of this moment; a few milliseconds."""
    runs = _jobs_of(chosen.request(execute=True))
    compiling = manager().status(then.compiling.job_id) if then.compiling else None
    return _stamp(runs[0] if runs else None), _stamp(compiling)


def payload_of(request: EvaluationRequest) -> dict[str, Any]:
    """The request as the journal holds it."""
    payload: dict[str, Any] = json.loads(json.dumps(request.to_dict()))
    return payload


def _jobs_of(request: EvaluationRequest) -> list[JobStatus]:
    """Runs of this request, newest first."""
    payload = payload_of(request)
    # A live measurement of it has the same request.
    return [j for j in manager().jobs() if j.kind == "evaluate" and j.request == payload]


def _evaluation(job: JobStatus) -> Evaluation | None:
    return evaluation_from_dict(job.result, name="The result") if job.result else None


def standing(chosen: Chosen) -> Standing:
    """How the chosen request stands. Compiles for the preview are asked for here."""
    request = chosen.request(execute=False)
    digest = source_digest(chosen.variant.source)
    error, seen, compiling, compiled = "", None, None, None
    try:
        seen = preview(request)
        if seen.needs_compile:
            job = _compile(request, digest)
            compiling = None if job is None or job.is_over else job
            compiled = _evaluation(job) if job is not None else None
            if job is not None and job.state in ("failed", "crashed"):
                error = job.error
            seen = preview(request)
    except AttuneError as failure:
        error = str(failure)
    runs = _jobs_of(chosen.request(execute=True))
    finished = [(job, found) for job in runs if (found := _evaluation(job)) is not None]
    # While the source does not compile, the last run that did stays in view.
    good = [pair for pair in finished if pair[1].status is not Status.COMPILE_ERROR]
    job, evaluation = (good or finished or [(None, None)])[0]
    return Standing(
        preview=seen,
        error=error,
        compiling=compiling,
        compiled=compiled,
        job=runs[0] if runs else None,
        evaluation=evaluation,
        evaluation_job=job.job_id if job else "",
        digest=digest,
        is_stale=_is_stale(evaluation, chosen),
    )


def _is_stale(evaluation: Evaluation | None, chosen: Chosen) -> bool:
    if evaluation is None or not evaluation.source_sha256:
        return False
    try:
        return read_sources(chosen.variant.source).source_sha256 != evaluation.source_sha256
    except CompileError:
        return True


def _compile(request: EvaluationRequest, digest: str) -> JobStatus | None:
    """The compile job of this request and source, submitted once per tab and waited for briefly."""
    asked: dict[str, str] = st.session_state.setdefault("compiles", {})
    key = json.dumps([payload_of(request), digest])
    if key not in asked:
        asked[key] = manager().submit(request)
    deadline = time.monotonic() + COMPILE_WAIT_S
    while True:
        job = manager().status(asked[key])
        if job is None:
            del asked[key]
            return None
        if job.is_over or time.monotonic() > deadline:
            return job
        time.sleep(0.01)


def run(request: EvaluationRequest) -> None:
    """Submit a run; the button's callback."""
    try:
        job_id = manager().submit(request)
    except AttuneError as error:
        st.session_state["submit_error"] = str(error)
    else:
        working_session.expect(job_id)


def collect() -> None:
    """Bring finished runs into the working session, whichever tab or server began them."""
    session = working_session.current()
    if session is None or not session.expected:
        return
    jobs = {job.job_id: job for job in manager().jobs()}
    for job_id in session.expected:
        job = jobs.get(job_id)
        if job is None or not job.is_over:  # another server's, or still to come
            continue
        found = _evaluation(job)
        working_session.take(session, job_id, found, raw_of_job(job_id) if found else ())


def cancel(job_id: str) -> None:
    """Cancel a run; the button's callback."""
    manager().cancel(job_id)


def measured_here() -> tuple[Evaluation, ...]:
    """What this server's runs measured on a GPU, newest first."""
    found = (_evaluation(job) for job in manager().jobs() if job.result)
    return tuple(e for e in found if e is not None and e.latency and e.latency.origin == "measured")
