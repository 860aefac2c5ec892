"""Sweep: evaluate many problems, variants and configs, and show which is fastest where and why.

Progress and results are two fragments that poll. The start or end of a sweep never reruns the whole
page: under load, a fragment's tick at the end of such a run can make Streamlit lose a part of the
page.
"""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.shared import sidebar
from app.shared.selection import Selection
from app.shared.widgets import problem
from app.sweep import inputs, jobs, progress, results
from app.sweep.cost_estimate import estimate
from engine.base.errors import AttuneError

_PROGRESS_S = 1.0
_RESULTS_S = 2.0


def page() -> None:
    selection = sidebar.draw_target()
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.markdown(f"# Sweep  :small[:gray[on {selection.gpu_name}]]", width="stretch")
        start = st.container(width="content")
    jobs.confirm_cluster()
    errors = st.container()  # visible while the axes are folded, too
    with st.expander("What to try", icon=":material/tune:", expanded=not jobs.sweeps()):
        _request(selection, start, errors)
    _progress()
    _results()


def _request(selection: Selection, start: DeltaGenerator, errors: DeltaGenerator) -> None:
    """Draw the axes, the estimate and the Start button."""
    request = None
    try:
        described = inputs.draw(selection)
        progress.draw_estimate(estimate(described.spec))
        request = described
    except AttuneError as error:
        with errors:
            problem(str(error))
    start.button(
        "Start",
        key="sweep_start",
        type="primary",
        icon=":material/play_arrow:",
        on_click=jobs.start,
        args=(request.spec, request.cluster) if request else (),
        disabled=request is None,
    )


@st.fragment(run_every=_PROGRESS_S)
def _progress() -> None:
    """Draw the choice of the sweep, its state, and the buttons to cancel or resume it."""
    sweeps = jobs.sweeps()
    job = jobs.selected(sweeps)
    jobs.draw_notices()
    if job is None:
        progress.nothing_yet()
        return
    with st.container(horizontal=True, vertical_alignment="center", key="sweep_which"):
        jobs.select(sweeps, job)
        jobs.action_buttons(job)
    status = jobs.status(job)
    if status is not None:
        progress.draw(status)


@st.fragment(run_every=_RESULTS_S)
def _results() -> None:
    """Draw the results so far."""
    job = jobs.selected(jobs.sweeps())
    if job is not None:
        results.draw(
            jobs.result_rows(job),
            jobs.final_round(job),
            job.journal,
            job.request["strategy"],
            is_over=job.is_over,
        )


page()
