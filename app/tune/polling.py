"""The polling part of the page: progress of a run, jobs of other tabs, files on disk."""

from __future__ import annotations

import streamlit as st

from app.shared.runs import may_rerun, run
from app.shared.selection import Selection
from app.shared.widgets import busy, plain_markdown
from app.tune.run_state import RunState, has_changed, run_state
from app.tune.source_watch import SourceWatch, source_digest
from engine.jobs.manager import manager

_RUNNING_S = 0.4  # each poll takes a tenth of a second of one core in the browser
_RERUN_ON_CHANGE_S = 0.5
_IDLE_S = 2.0


def rerun_on_change(selection: Selection, state: RunState) -> RunState:
    """Run again if something changed since this tab's last run, after any current run has ended.

    A restored file counts as changed: the last run used the edited one.
    """
    if not state.is_previewed or state.compiling or state.is_running:
        return state
    request = selection.request(execute=True)
    submitted: dict[str, str] = st.session_state.setdefault("rerun_submitted", {})
    if submitted.get(repr(request)) == state.digest:
        return state
    submitted[repr(request)] = state.digest
    run(request)
    return run_state(selection)


def poll(selection: Selection, state: RunState) -> None:
    """Draw progress and watch for changes; rerun the whole page once on a change."""
    period = _IDLE_S
    if state.is_running or state.compiling is not None or state.simulating is not None:
        period = _RUNNING_S
    elif st.session_state.get("live"):
        period = _RERUN_ON_CHANGE_S
    st.session_state["watch"] = SourceWatch.start(state.digest)

    @st.fragment(run_every=period)
    def poll_once() -> None:
        digest = source_digest(selection.variant)
        watch, is_settled = st.session_state["watch"].poll(digest)
        st.session_state["watch"] = watch
        if (is_settled or has_changed(selection, state)) and may_rerun():
            st.rerun()
        _progress(selection, state)

    # An own container: a late poll must not draw over the output of a later run of the page.
    with st.container():
        poll_once()


def _progress(selection: Selection, state: RunState) -> None:
    if state.job is None or not state.is_running:
        return
    job = manager().status(state.job.job_id) or state.job
    stage = job.stage or ("Starting" if job.state == "running" else "Waiting in the queue")
    elapsed = f"{job.elapsed_s:.1f} s, at most {selection.timeout_s:.0f} s"
    busy(f"**{plain_markdown(stage)}** :gray[{elapsed}]")
