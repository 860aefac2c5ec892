"""Save a page's content as a snapshot, and show where it is."""

from __future__ import annotations

import time
from collections.abc import Callable

import streamlit as st

from app.shared import notices
from engine.sessions.snapshot import Snapshot
from engine.sessions.store import default_store

_SAVED = "saved_snapshot"
_SHOWN_S = 15.0  # an arriving prediction redraws the page; the link must survive that


def save(page: str, make: Callable[[], Snapshot]) -> None:
    """Make a snapshot and store it; a button's callback."""
    st.session_state.pop(_SAVED, None)
    with notices.errors_to("saving"):
        st.session_state[_SAVED] = page, default_store().save(make()), time.monotonic()


def draw_outcome(page: str) -> None:
    """Draw the result of the page's last save: a link to the snapshot, or the error."""
    notices.draw("saving")
    saved_on, name, when = st.session_state.get(_SAVED, ("", "", 0.0))
    if saved_on != page or time.monotonic() - when > _SHOWN_S:
        st.session_state.pop(_SAVED, None)
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.success(f"Saved as `{name}`.", icon=":material/check:")
        st.page_link(
            "app_pages/sessions.py",
            label="Open it",
            icon=":material/folder_open:",
            query_params={"session": name},
        )
