"""Check whether a sequence gets the same bits in every batch."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.batch.question import Question
from app.shared import runs, tables
from app.shared.terms import TERMS
from app.shared.widgets import busy, plain_markdown
from engine.base.errors import CompileError
from engine.base.schema import decode
from engine.choose.batch.types import BatchResult
from engine.jobs.manager import JobStatus
from engine.model.kernel import variant_sources
from engine.pipeline.invariance import BatchInvariance
from engine.pipeline.request import EvaluationRequest
from kernels.variant import Variant


def draw(question: Question, result: BatchResult) -> tuple[JobStatus, ...]:
    """Draw the button that starts the check, its progress, or its result.

    Returns:
        The job that is running, if any.
    """
    request = _request(question, result)
    version = _source(question.selection.variant)
    job = runs.invariance_job(request, version)
    if job is None:
        st.button(
            "Check batch-invariance",
            key="invariance",
            icon=":material/equal:",
            help=TERMS["invariance"],
            on_click=runs.ask_invariance,
            args=(request, version),
        )
    elif not job.is_over:
        with st.container(horizontal=True, vertical_alignment="center"):
            busy(f"{job.stage or 'Waiting in the queue'}.")
            st.button("Stop", key="stop_invariance", on_click=runs.cancel, args=(job.job_id,))
        return (job,)
    elif job.result is None:
        st.caption(plain_markdown(f"Batch-invariance is not known: {job.error}"))
    else:
        _found(decode(BatchInvariance, job.result, name="The result"))
    return ()


def _request(question: Question, result: BatchResult) -> EvaluationRequest:
    """Return the request for the recommended batch, executed on the CPU."""
    request = question.selection.request(execute=True)
    problem = replace(result.problem, batch=result.recommended.batch)
    return replace(
        request,
        variant=result.variant,
        config=result.config,
        problem=problem,
        backend="cpu",
        check=False,
    )


def _found(found: BatchInvariance) -> None:
    icon = ":material/equal:" if found.is_invariant else ":material/shuffle:"
    st.markdown(f"{icon} {plain_markdown(found.sentence)}")
    with st.expander("Every execution that was compared"):
        tables.draw(found.to_frame(), placeholder="–")


def _source(variant: Variant) -> str:
    """Return a key that changes with the kernel's source, so that no older result is reused."""
    try:
        return variant_sources(variant).source_sha256
    except CompileError:
        return ""
