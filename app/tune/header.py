"""The top of the Tune page: title, buttons, and what is wrong."""

from __future__ import annotations

import streamlit as st

from app.evaluation import metrics
from app.shared import known_times, notices, pinned, sidebar, url_state, working_session
from app.shared.runs import cancel, run
from app.shared.selection import Selection, variant_label
from app.shared.terms import TERMS
from app.shared.widgets import failure, plain_markdown, problem
from app.tune import add_kernel, save
from app.tune.run_state import RunState, pinnable
from engine.base.errors import Status


def draw(selection: Selection, state: RunState) -> None:
    """Draw the title, Run or Cancel, the Rerun switch, Pin, Save, Add a kernel and Fork."""
    assert selection.problem is not None
    label = selection.problem.label()
    with st.container(
        horizontal=True,
        horizontal_alignment="right",
        vertical_alignment="center",
        gap="xsmall",
        key="header",
    ):
        st.markdown(
            f"# {plain_markdown(variant_label(selection.variant))}  "
            f":small[:gray[{label} on {selection.gpu_name}]]",
            width="stretch",
        )
        if state.is_running and state.job is not None:
            st.button(
                "Cancel",
                key="cancel",
                icon=":material/stop:",
                on_click=cancel,
                args=(state.job.job_id,),
            )
        else:
            st.button(
                "Run",
                key="run",
                type="primary",
                icon=":material/play_arrow:",
                on_click=_run_what_is_selected,
                help="Execute the kernel and check its output.",
                shortcut="Mod+Enter",
                disabled=bool(state.error or (state.preview and state.preview.unsupported)),
            )
        url_state.toggle(st, "Rerun on change", "live", help=TERMS["rerun_on_change"])
        pinned.button(
            lambda: pinnable(state), disabled=not (state.preview and state.preview.passes)
        )
        save.button(state, label)
        add_kernel.button(selection)
        add_kernel.fork_button(selection)


def _run_what_is_selected() -> None:
    """Run the selection at the time of the click.

    A button drawn before the page has followed a change would hold the old problem.
    """
    selection = sidebar.selection_before_drawing()
    if selection.problem is not None:
        run(selection.request(execute=True))


def problems(state: RunState) -> None:
    """Draw the most fundamental problem, then how the last run ended.

    The verdict line says what to do.
    """
    working_session.draw_notices()
    notices.draw("run")
    seen, compiled, job = state.preview, state.compiled, state.job
    if state.error:
        problem(state.error)
    elif seen is not None and seen.unsupported:
        failure(Status.SKIPPED, seen.unsupported, says_next=False)
    elif seen is not None and seen.memory:
        failure(Status.OUT_OF_MEMORY, seen.memory, says_next=False)
    elif compiled is not None and compiled.status is Status.COMPILE_ERROR:
        failure(compiled.status, compiled.reason, compiled.log, says_next=False)
        if state.evaluation is not None:
            st.caption("Correctness below belongs to the last version of the source that compiled.")
    else:
        _without_verdict(state)
    if said := known_times.unread():
        st.caption(f":material/hourglass: {said}")
    metrics.draw_notes(compiled.notes if compiled else ())
    if job is not None and job.state == "cancelled":
        failure(Status.CANCELLED, job.error)
    elif job is not None and job.state in ("failed", "crashed"):
        problem(job.error, job.log)


def _without_verdict(state: RunState) -> None:
    """Draw why the last run has no verdict. The Correctness tab shows it too, with the log."""
    run = state.evaluation
    if run is None or run.correctness is not None or state.is_stale or state.is_running:
        return
    if st.session_state.get("tab") != "Correctness":
        failure(run.status, run.reason, says_next=False)
