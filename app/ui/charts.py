"""Charts: each a pure function of a DataFrame and a theme, returning a Plotly figure.

Fonts and backgrounds come from Streamlit's Plotly template; colours with a meaning are set here.
Text that may come from a snapshot passes through `plain` first.
"""

from __future__ import annotations

import math
from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.ui.palette import LINE_STYLE, MARKER, Theme
from engine.units import format_us

_ROW_PX = 34
WAVES_SHOWN = 12
MAP_DECADES_BELOW = -3  # errors under a thousandth of the tolerance look alike
MAP_TICKS = 10
MANY_DECADES = 300.0  # a logarithmic axis over a larger range is labelled by decades only


def plain(text: str) -> str:
    """Text for a figure: Plotly reads a subset of HTML, and names may come from a stranger."""
    return escape(text, quote=False)


def _figure(theme: Theme, height: int, *, left: int = 8, bottom: int = 40) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        height=height,
        margin={"l": left, "r": 16, "t": 8, "b": bottom},
        showlegend=False,
        hoverlabel={"align": "left"},
        bargap=0.35,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": theme.text},
    )
    figure.update_xaxes(gridcolor=theme.grid, zeroline=False, title_font_size=12, automargin=True)
    figure.update_yaxes(gridcolor=theme.grid, zeroline=False, title_font_size=12, automargin=True)
    return figure


def latency_terms(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """What a predicted latency is made of.

    Columns: `term`, `us` (≥ 0), `binds` (the term that decides), `meaning`.
    """
    figure = _figure(theme, 60 + _ROW_PX * max(len(frame), 1))
    figure.add_bar(
        x=frame["us"].to_numpy(np.float32),
        y=[plain(t) for t in frame["term"]],
        orientation="h",
        marker_color=[theme.accent if b else theme.muted for b in frame["binds"]],
        text=[format_us(v) for v in frame["us"]],
        textposition="outside",
        cliponaxis=False,
        customdata=[plain(m) for m in frame["meaning"]],
        hovertemplate="<b>%{y}</b> %{text}<br>%{customdata}<extra></extra>",
    )
    figure.update_xaxes(title="µs", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(margin_r=72)
    return figure


def latencies(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Latencies with their intervals; the marker and the line say where each came from.

    Columns: `name`, `median_us`, `low_us`, `high_us`, `origin`, `color`.
    """
    figure = _figure(theme, 76 + _ROW_PX * max(len(frame), 1))
    figure.update_layout(margin_t=24)
    for row in frame.itertuples():
        name = plain(str(row.name))
        figure.add_scatter(
            x=[row.low_us, row.high_us],
            y=[name, name],
            mode="lines",
            line={"color": row.color, "width": 2, "dash": LINE_STYLE[row.origin]},
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=[row.median_us],
            y=[name],
            mode="markers+text",
            marker={
                "color": row.color,
                "size": 11,
                "symbol": MARKER[row.origin],
                "line": {"width": 2, "color": row.color},
            },
            text=[format_us(row.median_us)],
            textposition="top center",
            hovertemplate=(
                f"<b>{name}</b><br>{format_us(row.median_us)} {row.origin}<br>"
                f"{format_us(row.low_us)} to {format_us(row.high_us)}<extra></extra>"
            ),
        )
    # Logarithmic: equal distances are equal ratios, which is what one kernel gains over another.
    ticks = log_ticks(frame["low_us"].min(), frame["high_us"].max())
    figure.update_xaxes(
        title="latency (logarithmic)",
        type="log",
        tickvals=ticks,
        ticktext=[format_us(t) for t in ticks],
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def log_ticks(low: float, high: float) -> list[float]:
    """Round values from just below `low` to just above `high`: 1, 2, 5, or decades if many."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < MANY_DECADES else (1,)
    return [m * 10.0**d for d in decades for m in steps if low / 3 < m * 10.0**d < high * 3]


def limiter_bars(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """CTAs per SM that each resource alone would allow; the smallest one limits.

    Columns: `resource`, `ctas_per_sm`, `limits`.
    """
    figure = _figure(theme, 60 + _ROW_PX * max(len(frame), 1))
    figure.add_bar(
        x=frame["ctas_per_sm"],
        y=frame["resource"],
        orientation="h",
        marker_color=[theme.accent if hit else theme.muted for hit in frame["limits"]],
        text=[
            f"{n} limits" if hit else str(n)
            for n, hit in zip(frame["ctas_per_sm"], frame["limits"], strict=True)
        ],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y} alone would allow %{x} CTAs per SM<extra></extra>",
    )
    figure.update_xaxes(title="resident CTAs per SM", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(margin_r=64)
    return figure


def what_if(frame: pd.DataFrame, column: str, axis: str, theme: Theme) -> go.Figure:
    """Occupancy if one resource were different, with the present point marked.

    Columns: `column` (ascending), `occupancy` (0..1), `limiter`, `present` (True in one row).
    """
    figure = _figure(theme, 230)
    x = frame[column].to_numpy()
    percent = 100 * frame["occupancy"].to_numpy(np.float32)
    here = int(frame["present"].to_numpy().argmax())
    figure.add_scatter(
        x=x,
        y=percent,
        mode="lines",
        line={"color": theme.line, "width": 2, "shape": "hv"},
        customdata=frame["limiter"],
        hovertemplate="%{x:,}<br>%{y:.0f} %<br>limited by %{customdata}<extra></extra>",
    )
    figure.add_vline(
        x=x[here],
        line={"color": theme.accent, "width": 1, "dash": "dot"},
        annotation_text=f"{percent[here]:.0f} % now",
        annotation_position="top right" if here < len(frame) // 2 else "top left",
        annotation_font_color=theme.accent,
    )
    figure.add_scatter(
        x=[x[here]],
        y=[percent[here]],
        mode="markers",
        marker={"color": theme.accent, "size": 10},
        hoverinfo="skip",
    )
    figure.update_xaxes(title=axis)
    figure.update_yaxes(title="occupancy, %", range=[0, 112], tickvals=[0, 25, 50, 75, 100])
    return figure


def thread_capacity(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Threads of one launch beside what the whole GPU holds at once.

    Columns: `what`, `threads`, `kind` (`launch` or `capacity`).
    """
    figure = _figure(theme, 60 + _ROW_PX * len(frame))
    figure.add_bar(
        x=frame["threads"],
        y=frame["what"],
        orientation="h",
        marker_color=[theme.accent if k == "launch" else theme.muted for k in frame["kind"]],
        text=[f"{int(t):,}" for t in frame["threads"]],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:,} threads<extra></extra>",
    )
    figure.update_xaxes(title="threads", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(margin_r=72)
    return figure


def waves(frame: pd.DataFrame, capacity: int, theme: Theme) -> go.Figure:
    """CTAs of each wave against what fits at once; the last, incomplete one is the tail.

    Columns: `wave` (label), `ctas`, `is_tail`.
    """
    figure = _figure(theme, 230)
    figure.add_bar(
        x=frame["wave"],
        y=frame["ctas"],
        marker_color=[theme.accent if tail else theme.muted for tail in frame["is_tail"]],
        text=[
            f"{int(n):,}" if tail else ""
            for n, tail in zip(frame["ctas"], frame["is_tail"], strict=True)
        ],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="wave %{x}: %{y:,} CTAs<extra></extra>",
    )
    figure.add_hline(
        y=capacity,
        line={"color": theme.text, "width": 1, "dash": "dot"},
        annotation_text=f"{capacity:,} fit at once",
        annotation_position="top right",
        annotation_font_size=11,
    )
    figure.update_xaxes(title="wave", type="category", showgrid=False)
    figure.update_yaxes(title="CTAs", range=[0, 1.3 * max(capacity, int(frame["ctas"].max()))])
    return figure


def error_map(
    frame: pd.DataFrame,
    compared: np.ndarray,
    axes: tuple[str, str],
    tolerance: float,
    top: float,
    theme: Theme,
    *,
    show_scale: bool,
) -> go.Figure:
    """Largest |out − reference| per cell, as multiples of the tolerance on a logarithmic scale.

    Within the tolerance colours are cool, beyond it warm; `top` is the largest error of all maps
    that share the scale. `frame` is a matrix whose labels are the axes' values (`axes` names rows,
    then columns); NaN cells hold a NaN or infinity of the kernel and get a cross. Cells where
    `compared` is False stay empty.
    """
    y_title, x_title = (plain(a) for a in axes)
    error = frame.to_numpy(np.float64)
    broken = ~np.isfinite(error)
    ratio = np.where(broken | ~compared, 1.0, error) / tolerance
    logs = np.log10(np.maximum(ratio, 10.0**MAP_DECADES_BELOW))
    above = max(1.0, math.ceil(math.log10(max(top / tolerance, 1.0))))
    share = -MAP_DECADES_BELOW / (above - MAP_DECADES_BELOW)  # where the tolerance lies, 0..1
    figure = _figure(theme, 320)
    figure.add_heatmap(
        z=np.where(broken | ~compared, np.nan, logs),
        x=frame.columns.to_numpy(),
        y=frame.index.to_numpy(),
        zmin=MAP_DECADES_BELOW,
        zmax=above,
        colorscale=[
            [0.0, theme.within[0]],
            [share, theme.within[1]],
            [share, theme.beyond[0]],
            [1.0, theme.beyond[1]],
        ],
        customdata=error,
        hovertemplate=(
            f"{y_title} %{{y}}, {x_title} %{{x}}<br>|error| %{{customdata:.3g}}<extra></extra>"
        ),
        showscale=show_scale,
        colorbar={
            "tickvals": list(range(MAP_DECADES_BELOW, int(above) + 1)),
            "ticktext": [
                "tolerance" if k == 0 else f"× {10.0**k:g}"
                for k in range(MAP_DECADES_BELOW, int(above) + 1)
            ],
            "thickness": 10,
            "outlinewidth": 0,
        },
    )
    rows, columns = np.nonzero(broken)
    if rows.size:
        figure.add_scattergl(
            x=frame.columns.to_numpy()[columns],
            y=frame.index.to_numpy()[rows],
            mode="markers",
            marker={"symbol": "x", "color": theme.bad, "size": 7},
            hovertemplate=f"{y_title} %{{y}}, {x_title} %{{x}}<br>NaN or Inf<extra></extra>",
        )
    figure.update_xaxes(title=x_title, showgrid=False, **_whole(frame.columns.to_numpy()))
    figure.update_yaxes(
        title=y_title, autorange="reversed", showgrid=False, **_whole(frame.index.to_numpy())
    )
    return figure


def _whole(labels: np.ndarray) -> dict[str, object]:
    """Axis settings for whole numbers: every one of a few, else Plotly's choice."""
    if len(labels) <= MAP_TICKS:
        return {"tickvals": labels}
    return {"tickformat": ",d"}
