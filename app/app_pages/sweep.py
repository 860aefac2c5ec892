"""Sweep: many problems, variants and configs. Which wins where, and what decides it?

Progress and results are two fragments that look for themselves what there is to show. The page as a
whole never runs again because a sweep begins or ends: under load, a tick of a fragment that falls
into the end of such a run can make Streamlit lose a part of the page.
"""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.shared import sidebar
from app.shared.machine import local_gpu
from app.shared.selection import Chosen
from app.shared.widgets import problem
from app.sweep import inputs, jobs, progress
from app.sweep import results as results
from app.sweep.plan import plan
from engine.errors import AttuneError
from engine.jobs.manager import JobStatus

_PROGRESS_S = 1.0
_RESULTS_S = 2.0


def page() -> None:
    chosen = sidebar.draw()
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.markdown(f"### Sweep  :small[:gray[on {chosen.gpu_name}]]", width="stretch")
        start = st.container(width="content")
    wrong = st.container()  # seen with the axes folded away, too
    with st.expander("What to try", icon=":material/tune:", expanded=not jobs.sweeps()):
        _ask(chosen, start, wrong)
    _progress()
    _results()


def _ask(chosen: Chosen, start: DeltaGenerator, wrong: DeltaGenerator) -> None:
    """Axes, plan, start."""
    wanted = None
    try:
        wanted = inputs.wanted(chosen)
        progress.draw_plan(plan(wanted.spec))
    except AttuneError as error:
        wanted = None
        with wrong:
            problem(str(error))
    if local_gpu().spec is None:
        st.caption(
            f":material/info: No NVIDIA GPU here: latencies are predicted for {chosen.gpu_name}."
        )
    start.button(
        "Start",
        key="sweep_start",
        type="primary",
        icon=":material/play_arrow:",
        on_click=jobs.start,
        args=(wanted.spec, wanted.cluster) if wanted else (),
        disabled=wanted is None,
    )


@st.fragment(run_every=_PROGRESS_S)
def _progress() -> None:
    """Which sweep, how it stands, and what can be done about it."""
    found = jobs.sweeps()
    job, why = jobs.shown(found)
    for sentence in filter(None, (jobs.trouble(), why)):
        problem(sentence)
    if job is None:
        progress.nothing_yet()
        return
    with st.container(horizontal=True, vertical_alignment="center", key="sweep_which"):
        jobs.select(found, job)
        _go_on(job)
    now = jobs.status(job)
    if now is not None:
        progress.draw(now)


def _go_on(job: JobStatus) -> None:
    """Cancel what runs, or resume what ended early."""
    if jobs.is_file(job):
        return
    if not job.is_over:
        st.button(
            "Cancel",
            key="sweep_cancel",
            icon=":material/stop:",
            on_click=jobs.cancel,
            args=(job.job_id,),
        )
    elif jobs.can_resume(job):
        st.button(
            "Resume",
            key="sweep_resume",
            icon=":material/resume:",
            on_click=jobs.resume,
            args=(job.job_id,),
        )


@st.fragment(run_every=_RESULTS_S)
def _results() -> None:
    """What was found, up to now."""
    job, _ = jobs.shown(jobs.sweeps())
    if job is None:
        return
    found = jobs.found_of(job)
    results.draw(
        found,
        jobs.finals(job),
        job.journal,
        job.request["strategy"],
        is_over=job.is_over,
    )


page()
