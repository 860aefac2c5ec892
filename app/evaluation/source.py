"""The source tab: the kernel as it is compiled, its flags, log and per-pass resources."""

from __future__ import annotations

import streamlit as st

from app.evaluation.view import EvaluationView
from app.shared import tables
from app.shared.widgets import empty, plain_markdown, show_log
from engine.backends.executed import LEGEND, format_ranges, marked_source
from engine.evaluation import LineCoverage
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
    st.code(view.source_path or view.source_name, language=None)
    source = view.source
    coverage = view.evaluation.line_coverage if view.evaluation is not None else ()
    if coverage:
        source = marked_source(source, coverage[0])
        st.caption(LEGEND)
        _headers(coverage)
    elif not view.is_recorded:
        st.caption("Run it in the check build to see which lines ran.")
    st.code(source, language="cpp", line_numbers=True, height=620)


def _headers(coverage: tuple[LineCoverage, ...]) -> None:
    for header in coverage[1:]:
        parts = [
            f"{what} {', '.join(format_ranges(ranges))}"
            for what, ranges in (
                ("ran no time:", header.not_run),
                ("ran in part:", header.partly_run),
                ("not compiled:", header.not_compiled),
            )
            if ranges
        ]
        if parts:
            st.caption(f"{plain_markdown(header.file)}: {plain_markdown('; '.join(parts))}")
