"""Tune: one variant, one problem, one GPU. Is it right, what does it occupy, how fast is it?"""

from __future__ import annotations

import streamlit as st

from app.evaluation import maps, metrics, tabs
from app.evaluation.view import Shown, from_standing
from app.shared import sidebar, url_state, working_session
from app.shared.machine import local_gpu
from app.shared.runs import Standing, cancel, collect, run, standing
from app.shared.selection import Chosen
from app.shared.terms import TERMS
from app.shared.widgets import failure, plain_markdown, problem
from app.tune import latency_stream, progress, save
from engine.evaluation import Status
from engine.pipeline.request import EvaluationRequest


def page() -> None:
    chosen = sidebar.draw()
    for note in st.session_state.get("link_notes", []):
        st.warning(plain_markdown(note), icon=":material/link_off:")
    if chosen.problem is None:
        st.markdown(f"### {chosen.variant.id}  {chosen.variant.title}")
        problem(chosen.why)
        return
    now = standing(chosen)
    if st.session_state.get("live"):
        now = progress.run_if_new(chosen, now)
    collect()
    shown = from_standing(chosen, chosen.problem, now, maps.of_job(now.evaluation_job))
    _header(chosen, now, shown)
    save.outcome()
    _banner(chosen)
    progress.tick(chosen, now)
    _trouble(now)
    metrics.draw(shown, waiting=now.compiling is not None, stale=now.is_stale)
    more = {"Live latency": lambda _: latency_stream.draw(*_live(chosen, now))}
    tabs.draw(shown, "tab", bind="query-params", more=more)


def _live(chosen: Chosen, now: Standing) -> tuple[EvaluationRequest, str]:
    """What would be measured live, and why it cannot be."""
    seen = now.preview
    why_not = now.error or (seen.unsupported or seen.memory if seen is not None else "")
    return chosen.request(execute=True), why_not or ""


def _header(chosen: Chosen, now: Standing, shown: Shown) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.markdown(
            f"### {chosen.variant.id}  {chosen.variant.title}  "
            f":small[:gray[{shown.problem.label()} on {chosen.gpu_name}]]",
            width="stretch",
        )
        if now.is_running and now.job is not None:
            st.button(
                "Cancel",
                key="cancel",
                icon=":material/stop:",
                on_click=cancel,
                args=(now.job.job_id,),
            )
        else:
            st.button(
                "Run",
                key="run",
                type="primary",
                icon=":material/play_arrow:",
                on_click=run,
                args=(chosen.request(execute=True),),
                help="Execute the kernel and check its output.",
                disabled=bool(now.error or (now.preview and now.preview.unsupported)),
            )
        url_state.toggle(st, "Rerun on change", "live", help=TERMS["live"])
        save.button(shown, now)


def _banner(chosen: Chosen) -> None:
    if local_gpu().spec is not None:
        return
    st.info(
        "No NVIDIA GPU here: kernels run on the CPU, so correctness is real; registers and "
        f"occupancy are those of the real compile for {chosen.gpu_name}; latency is predicted or "
        "recorded.",
        icon=":material/info:",
    )


def _trouble(now: Standing) -> None:
    """Whatever stands in the way, the most fundamental first; then how the last run ended."""
    if lost := working_session.trouble():
        st.warning(plain_markdown(lost), icon=":material/warning:")
    submit_error = st.session_state.pop("submit_error", "")
    seen, compiled = now.preview, now.compiled
    if submit_error or now.error:
        problem(submit_error or now.error)
    elif seen is not None and seen.unsupported:
        failure(Status.SKIPPED, seen.unsupported)
    elif seen is not None and seen.memory:
        failure(Status.OUT_OF_MEMORY, seen.memory)
    elif compiled is not None and compiled.status is Status.COMPILE_ERROR:
        failure(compiled.status, compiled.reason, compiled.log)
        if now.evaluation is not None:
            st.caption("Correctness below is that of the last source that compiled.")
    for note in compiled.notes if compiled else ():
        st.caption(f":material/info: {plain_markdown(note)}")
    job = now.job
    if job is not None and job.state == "cancelled":
        failure(Status.CANCELLED, job.error)
    elif job is not None and job.state in ("failed", "crashed"):
        problem(job.error, job.log)


page()
