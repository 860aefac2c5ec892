"""Sweep: many problems, variants and configs. Which wins where, and what decides it?"""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.ui import sidebar, sweep_inputs, sweep_jobs
from app.ui.machine import local_gpu
from app.ui.state import Chosen
from app.ui.sweep_plan import plan
from app.ui.views import sweep as results
from app.ui.views import sweep_progress
from app.ui.widgets import problem
from engine.errors import AttuneError
from engine.jobs.manager import JobStatus

_RUNNING_S = 0.5
_IDLE_S = 2.0


def page() -> None:
    chosen = sidebar.draw()
    token = sweep_jobs.token()
    found = sweep_jobs.sweeps()
    job, why = sweep_jobs.shown(found)
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.markdown(f"### Sweep  :small[:gray[on {chosen.gpu_name}]]", width="stretch")
        buttons = st.container(horizontal=True, width="content")
    for sentence in filter(None, (sweep_jobs.trouble(), why)):
        problem(sentence)
    wrong = st.container()  # seen with the axes folded away, too
    with st.expander("What to try", icon=":material/tune:", expanded=job is None):
        _ask(chosen, buttons, wrong)
    with buttons:
        _go_on(job)
    if job is None:
        sweep_progress.nothing_yet()
        _watch(token, None)
        return
    sweep_jobs.select(found, job)
    _watch(token, job)
    _results(job)


def _ask(chosen: Chosen, buttons: DeltaGenerator, wrong: DeltaGenerator) -> None:
    """Axes, plan, start."""
    wanted = None
    try:
        wanted = sweep_inputs.wanted(chosen)
        sweep_progress.draw_plan(plan(wanted.spec))
    except AttuneError as error:
        wanted = None
        with wrong:
            problem(str(error))
    if local_gpu().spec is None:
        st.caption(
            f":material/info: No NVIDIA GPU here: latencies are predicted for {chosen.gpu_name}."
        )
    buttons.button(
        "Start",
        key="sweep_start",
        type="primary",
        icon=":material/play_arrow:",
        on_click=sweep_jobs.start,
        args=(wanted.spec, wanted.cluster) if wanted else (),
        disabled=wanted is None,
    )


def _go_on(job: JobStatus | None) -> None:
    """Cancel what runs, or resume what ended early."""
    if job is None or sweep_jobs.is_file(job):
        return
    if not job.is_over:
        st.button(
            "Cancel",
            key="sweep_cancel",
            icon=":material/stop:",
            on_click=sweep_jobs.cancel,
            args=(job.job_id,),
        )
    elif sweep_jobs.can_resume(job):
        st.button(
            "Resume",
            key="sweep_resume",
            icon=":material/resume:",
            on_click=sweep_jobs.resume,
            args=(job.job_id,),
        )


def _watch(token: tuple[tuple[str, str], ...], job: JobStatus | None) -> None:
    """Progress that ticks; the whole page runs again when any sweep begins or ends."""

    @st.fragment(run_every=_RUNNING_S if job is not None and not job.is_over else _IDLE_S)
    def poll() -> None:
        if sweep_jobs.token() != token:
            st.rerun()
        now = sweep_jobs.status(job) if job is not None else None
        if now is not None:
            sweep_progress.draw(now)

    poll()


def _results(job: JobStatus) -> None:
    """What was found; drawn again every two seconds while it grows."""

    @st.fragment(run_every=None if job.is_over else _IDLE_S)
    def draw() -> None:
        found = sweep_jobs.found_of(job)
        results.draw(
            found, sweep_jobs.finals(job), job.journal, job.request["strategy"], is_over=job.is_over
        )

    draw()


page()
