"""Tables and charts of a sweep whose points link to the Tune page."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.shared import plot, tables, url_state
from app.shared.selection import coordinates
from app.shared.widgets import plain_markdown
from app.sweep.filtered_rows import FilteredRows
from engine.base.units import format_us

_CONFIG_PX = 350  # "v12 num_warps=4 row_warps=1 keys_per_warp=16 row_tiles=1"


def chart(figure: go.Figure, key: str, rows: FilteredRows, *shows: str) -> str | None:
    """Draw a chart that keeps its zoom until the filters change; return the clicked point."""
    figure.layout.uirevision = "|".join((rows.name, rows.problem or "", *rows.variants, *shows))
    return plot.draw(figure, key)


def table(frame: pd.DataFrame, key: str) -> str | None:
    """Draw a table whose index is the point; return the point of the selected row."""
    event = tables.draw(
        frame,
        rows=10,
        numbers="%.4g",
        # Fixed, because the table measures the width only with its first rows.
        columns={"variant and config": st.column_config.TextColumn(width=_CONFIG_PX)},
        key=key,
        on_select="rerun",
        selection_mode="single-row",
    )
    selected = event["selection"]["rows"]
    if not selected or selected[0] >= len(frame):
        return None
    return str(frame.index[selected[0]])


def draw(point: str | None, rows: FilteredRows, key: str) -> None:
    """Draw the selected point as text, with a link that opens it on the Tune page."""
    row = next((r for r in rows.rows if r.point == point), None)
    if row is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", key=f"sweep_picked_{key}"):
        time = f", {format_us(row.median_us)} {row.origin}" if row.median_us is not None else ""
        st.text(f"{row.label()}  {row.problem.label()} on {row.device}{time}")
        # A plain link: after `st.switch_page`, a late tick of this page's polling fragments would
        # make the browser clear the new page.
        st.page_link(
            "app_pages/tune.py",
            label="Open in Tune",
            icon=":material/tune:",
            query_params=url_state.link_params(
                coordinates(row.variant, row.config, row.problem, row.device)
            ),
        )
    if row.reason and row.median_us is None:
        st.caption(plain_markdown(row.reason))
