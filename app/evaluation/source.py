"""The source tab: the kernel as it is compiled, its flags, log and per-pass resources."""

from __future__ import annotations

import streamlit as st

from app.evaluation import frames
from app.evaluation.view import Shown
from app.shared.widgets import empty, show_log


def draw(shown: Shown) -> None:
    if shown.passes:
        st.dataframe(frames.passes(shown.passes), hide_index=True, width="stretch")
    if shown.flags:
        st.markdown("**Compile flags**")
        st.code(" ".join(shown.flags), language=None, wrap_lines=True)
    show_log(shown.log, "Compiler log")
    if not shown.source:
        empty("nothing yet", "No source", "This evaluation holds no kernel source.")
        return
    st.markdown("**Source**")
    if not shown.is_recorded:
        st.caption(
            "Edit this file with the editor you like; with Live on, every save is compiled and run."
        )
    st.text(shown.source_name)
    st.code(shown.source, language="cpp", line_numbers=True, height=620)
