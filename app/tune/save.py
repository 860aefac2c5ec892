"""Save what is shown as a snapshot."""

from __future__ import annotations

import streamlit as st

from app.evaluation.maps import raw_of_job
from app.evaluation.view import Shown
from app.shared.runs import Standing
from app.shared.widgets import plain_markdown
from engine.environment import collect_environment
from engine.errors import AttuneError
from engine.evaluation import Evaluation
from engine.records.snapshot import Snapshot
from engine.sessions.build import make_error_map, make_snapshot
from engine.sessions.session import sources_of
from engine.sessions.store.store import default_store

TITLE_KEY = "save_title"
NOTES_KEY = "save_notes"
_OUTCOME = "save_outcome"


def snapshot_of(evaluation: Evaluation, job_id: str, title: str, notes: str) -> Snapshot:
    """A snapshot of one evaluation, with its source and the maps its job left."""
    return make_snapshot(
        [evaluation],
        environment=collect_environment(),
        title=title or f"{evaluation.variant} on {evaluation.problem.label()}",
        notes=notes,
        error_maps=[make_error_map(0, found) for found in raw_of_job(job_id)],
        sources=sources_of(evaluation),
    )


def _save(evaluation: Evaluation, job_id: str) -> None:
    """The button's callback."""
    state = st.session_state
    title, notes = state.get(TITLE_KEY, ""), state.get(NOTES_KEY, "")
    try:
        name = default_store().save(snapshot_of(evaluation, job_id, title, notes))
    except AttuneError as error:
        state[_OUTCOME] = ("", str(error))
    else:
        state[_OUTCOME] = (name, "")


def button(shown: Shown, now: Standing) -> None:
    """The Save button with its small form."""
    missing = now.evaluation is None
    with st.popover(
        "Save",
        icon=":material/save:",
        disabled=missing,
        help="Run it first: there is nothing to save yet." if missing else None,
    ):
        st.text_input("Title", key=TITLE_KEY, placeholder=shown.problem.label(), max_chars=120)
        st.text_area("Notes", key=NOTES_KEY, height=80, placeholder="What was tried, and why")
        st.button(
            "Save snapshot",
            key="save",
            type="primary",
            on_click=_save,
            args=(now.evaluation, now.evaluation_job),
        )


def outcome() -> None:
    """What the last save came to: where it is, or why it failed."""
    if _OUTCOME not in st.session_state:
        return
    name, error = st.session_state.pop(_OUTCOME)
    if error:
        st.error(plain_markdown(error), icon=":material/error:")
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.success(f"Saved as `{name}`.", icon=":material/check:")
        st.page_link(
            "app_pages/sessions.py",
            label="Open it",
            icon=":material/folder_open:",
            query_params={**st.query_params.to_dict(), "session": name},
        )
