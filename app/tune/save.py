"""Save the shown evaluation as a snapshot, for the present source."""

from __future__ import annotations

import streamlit as st

from app.shared import saving
from app.shared.runs import error_maps_of
from app.tune.run_state import RunState, shown_evaluation
from engine.base.errors import StoreError
from engine.devices.environment import collect_environment
from engine.sessions.session import make_error_map, make_snapshot, missing_sources, sources_of
from engine.sessions.snapshot import Snapshot

_TITLE = "save_title"
_NOTES = "save_notes"


def _snapshot_of(state: RunState) -> Snapshot:
    """Return a snapshot of the shown evaluation with its source, and error maps of that source.

    Raises:
        StoreError: nothing is known of the present source yet.
    """
    evaluation = shown_evaluation(state)
    if evaluation is None:
        raise StoreError(
            "The source has changed and is not compiled yet: save again when its registers are "
            "shown."
        )
    sources = sources_of(evaluation)
    maps = () if state.is_stale else error_maps_of(state.evaluation_job)
    return make_snapshot(
        [evaluation],
        environment=collect_environment(),
        title=st.session_state.get(_TITLE, "")
        or f"{evaluation.variant} on {evaluation.problem.label()}",
        notes=st.session_state.get(_NOTES, ""),
        error_maps=[make_error_map(0, error_map) for error_map in maps],
        sources=sources,
        log=missing_sources([evaluation], sources),
    )


def button(state: RunState, placeholder: str) -> None:
    """Draw the Save button with its form."""
    evaluation = state.evaluation
    with st.popover(
        "Save",
        icon=":material/save:",
        disabled=evaluation is None,
        help="Nothing to save yet: press Run first." if evaluation is None else None,
    ):
        if evaluation is None:  # a disabled button costs a step of a slider nothing
            return
        st.text_input(
            "Title",
            key=_TITLE,
            placeholder=placeholder,
            max_chars=120,
            persist_state="session",
        )
        st.text_area(
            "Notes",
            key=_NOTES,
            height=80,
            placeholder="What you tried, and why",
            persist_state="session",
        )
        st.button(
            "Save snapshot",
            key="save",
            type="primary",
            on_click=lambda: saving.save("tune", lambda: _snapshot_of(state)),
        )
