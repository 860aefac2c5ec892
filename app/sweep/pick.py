"""Tables and charts of a sweep whose points lead to the Tune page."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.shared import plot, selection, url_state
from app.shared.widgets import plain_markdown
from app.sweep.filtered import Part
from engine.search.sweep.rows import SweepRow
from engine.units import format_us


def chart(figure: go.Figure, key: str, part: Part, *shows: str) -> str | None:
    """Draw a chart whose zoom outlives updates, but not another choice; the point clicked."""
    figure.layout.uirevision = "|".join((part.name, part.problem or "", *part.variants, *shows))
    return plot.draw(figure, key)


def row_of(frame: pd.DataFrame, key: str) -> str | None:
    """Draw a table whose index is the point; the point of the chosen row."""
    numbers = {
        name: st.column_config.NumberColumn(format="%.4g")
        for name in frame.columns
        if frame[name].dtype.kind == "f"
    }
    event = st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height="content" if len(frame) <= 10 else 380,
        key=key,
        on_select="rerun",
        selection_mode="single-row",
        placeholder="",
        column_config=numbers,
    )
    rows = event["selection"]["rows"]
    return str(frame.index[rows[0]]) if rows and rows[0] < len(frame) else None


def pick(point: str | None, rows: list[SweepRow], key: str) -> None:
    """The chosen point in words, and the way to it on the Tune page."""
    row = next((r for r in rows if r.point == point), None)
    if row is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", key=f"sweep_picked_{key}"):
        time = f", {format_us(row.median_us)} {row.origin}" if row.median_us is not None else ""
        st.text(f"{row.label()}  {row.problem.label()} on {row.device}{time}")
        # A link, which the browser follows by itself: after `st.switch_page` a last tick of this
        # page's polling fragments can come in, and the browser would clear the new page for it.
        st.page_link(
            "app_pages/tune.py",
            label="Take to Tune",
            icon=":material/tune:",
            query_params=url_state.marked(
                selection.coordinates(row.variant, row.config, row.problem, row.device)
            ),
        )
    if row.reason and row.median_us is None:
        st.caption(plain_markdown(row.reason))
