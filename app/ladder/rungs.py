"""The ladder's rungs on the selected problem, from caches or computed by the job worker."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.shared import known_times, runs
from app.shared.selection import Selection
from engine.attention.config import variants_for
from engine.choose.auto.candidates import code_digest
from engine.jobs.manager import JobStatus
from engine.kernel_figures import Rung, known_rung
from engine.kernel_figures.rung import request_of

_STOPPED = "kernels_stopped"  # in the tab's state: the user cancelled


def of(selection: Selection) -> tuple[list[Rung], list[JobStatus]]:
    """Return the known figures of every rung, and the running jobs for the others.

    The selected variant has the sidebar's config, the others their defaults.
    """
    problem = selection.problem
    assert problem is not None
    history = known_times.history()
    rungs: list[Rung] = []
    waiting: list[JobStatus] = []
    for variant in variants_for(problem):
        config = selection.config if variant.id == selection.variant.id else None
        request = request_of(variant, problem, selection.gpu, config)
        rung = known_rung(variant, request, history)
        if not rung.is_complete and not is_stopped():
            job = runs.rung_job(request, code_digest(variant))
            if job is not None and job.is_over:
                rung = replace(rung, why_not=rung.why_not or job.error, is_complete=True)
            elif job is not None:
                waiting.append(job)
        rungs.append(rung)
    return rungs, waiting


def is_stopped() -> bool:
    """True if the user cancelled and has not resumed."""
    return bool(st.session_state.get(_STOPPED))


def stop() -> None:
    """Cancel queued jobs; a button's callback."""
    st.session_state[_STOPPED] = True
    runs.cancel_queued_compiles()


def resume() -> None:
    """Compute the remaining rungs; a button's callback."""
    st.session_state[_STOPPED] = False
