"""The source tab: the kernel as it is compiled, its flags, log and per-pass resources."""

from __future__ import annotations

import streamlit as st

from app.evaluation.view import EvaluationView
from app.shared import tables
from app.shared.widgets import empty, show_log
from engine.sessions.tables import passes_table


def draw(view: EvaluationView) -> None:
    if view.passes:
        tables.draw(passes_table(view.passes).frame())
    if view.flags:
        st.markdown("**Compile flags**")
        st.code(" ".join(view.flags), language=None, wrap_lines=True)
    show_log(view.log, "Compiler log")
    if not view.source:
        empty("nothing yet", "No source", "This evaluation has no kernel source.")
        return
    st.markdown("**Source**")
    if not view.is_recorded:
        st.caption(
            "Edit this file in your editor. With Rerun on change switched on, every save is "
            "compiled and run."
        )
    st.text(view.source_name)
    st.code(view.source, language="cpp", line_numbers=True, height=620)
