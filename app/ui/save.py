"""Save what is shown as a snapshot."""

from __future__ import annotations

import numpy as np
import streamlit as st

from app.ui.runs import Standing
from app.ui.shown import Shown
from app.ui.widgets import plain_markdown
from engine.environment import collect_environment
from engine.errors import AttuneError
from engine.sessions.build import make_error_map, make_snapshot, make_source
from engine.sessions.schema import Snapshot
from engine.sessions.store import default_store

TITLE_KEY = "save_title"
NOTES_KEY = "save_notes"
_OUTCOME = "save_outcome"


def snapshot_of(shown: Shown, title: str, notes: str) -> Snapshot:
    """A snapshot of the one evaluation shown, with its source and its maps."""
    if shown.evaluation is None:
        raise AttuneError("There is nothing to save yet: press Run first.")
    maps = [
        make_error_map(
            0,
            view.name,
            np.where(view.compared, view.frame.to_numpy(), 0.0),
            row_axis=view.row_axis,
            column_axis=view.column_axis,
        )
        for view in shown.maps
    ]
    sources = [make_source(shown.source_name, shown.source, shown.flags)] if shown.source else []
    return make_snapshot(
        [shown.evaluation],
        environment=collect_environment(),
        title=title,
        notes=notes,
        error_maps=maps,
        sources=sources,
    )


def _save(shown: Shown) -> None:
    """The button's callback."""
    state = st.session_state
    try:
        name = default_store().save(
            snapshot_of(shown, state.get(TITLE_KEY, ""), state.get(NOTES_KEY, ""))
        )
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
        st.button("Save snapshot", key="save", type="primary", on_click=_save, args=(shown,))


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
