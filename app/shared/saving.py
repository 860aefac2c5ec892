"""Save what a page shows as a snapshot, and say where it is."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.shared import notices
from engine.sessions.snapshot import Snapshot
from engine.sessions.store import default_store

_SAVED = "saved_snapshot"


def save(make: Callable[[], Snapshot]) -> None:
    """Make a snapshot and store it; a button's callback."""
    with notices.errors_to("saving"):
        st.session_state[_SAVED] = default_store().save(make())


def draw_outcome() -> None:
    """What the last save came to: a link to the snapshot, or why it failed."""
    notices.draw("saving")
    name = st.session_state.pop(_SAVED, "")
    if not name:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.success(f"Saved as `{name}`.", icon=":material/check:")
        st.page_link(
            "app_pages/sessions.py",
            label="Open it",
            icon=":material/folder_open:",
            query_params={"session": name},
        )
