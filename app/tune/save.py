"""Save the evaluation that is shown as a snapshot."""

from __future__ import annotations

import streamlit as st

from app.shared import saving
from app.shared.runs import error_maps_of
from app.tune.run_state import RunState
from engine.environment import collect_environment
from engine.evaluation import Evaluation
from engine.records.snapshot import Snapshot
from engine.sessions.build import make_error_map, make_snapshot
from engine.sessions.session import sources_of

_TITLE = "save_title"
_NOTES = "save_notes"


def _snapshot_of(evaluation: Evaluation, job_id: str) -> Snapshot:
    """A snapshot of one evaluation, with its source and its error maps."""
    label = f"{evaluation.variant} on {evaluation.problem.label()}"
    return make_snapshot(
        [evaluation],
        environment=collect_environment(),
        title=st.session_state.get(_TITLE, "") or label,
        notes=st.session_state.get(_NOTES, ""),
        error_maps=[make_error_map(0, error_map) for error_map in error_maps_of(job_id)],
        sources=sources_of(evaluation),
    )


def button(state: RunState, placeholder: str) -> None:
    """The Save button with its small form."""
    evaluation = state.evaluation
    with st.popover(
        "Save",
        icon=":material/save:",
        disabled=evaluation is None,
        help="Nothing to save yet: press Run first." if evaluation is None else None,
    ):
        st.text_input("Title", key=_TITLE, placeholder=placeholder, max_chars=120)
        st.text_area("Notes", key=_NOTES, height=80, placeholder="What was tried, and why")
        st.button(
            "Save snapshot",
            key="save",
            type="primary",
            on_click=lambda: saving.save(lambda: _snapshot_of(evaluation, state.evaluation_job)),
            disabled=evaluation is None,
        )
