"""Charts of one evaluation: each a pure function of a DataFrame and a theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.shared.chart_style import (
    ROW_PX,
    TOOLS_PX,
    Part,
    Trace,
    axis,
    figure,
    horizontal,
    plain,
    time_axis,
    vertical,
)
from app.shared.palette import LINE_STYLE, MARKER, Theme
from engine.base.units import format_us

_MAP_DECADES_BELOW = -3  # errors under a thousandth of the tolerance look alike
_MAP_TICKS = 10
_MIN_TOLERANCE = 1e-12
_LARGEST = float(np.finfo(np.float32).max)


def _bars(
    theme: Theme,
    values: Any,
    names: Sequence[str],
    highlighted: Sequence[bool],
    labels: Sequence[str],
    title: str,
    hover: str,
    notes: Sequence[str] = (),
) -> go.Figure:
    """Return horizontal bars, the first on top, with the important ones highlighted."""
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": [plain(name) for name in names],
        "marker": {"color": [theme.accent if hit else theme.muted for hit in highlighted]},
        "text": list(labels),
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": list(notes) or None,
        "hovertemplate": hover + "<extra></extra>",
    }
    return figure(
        theme,
        56 + ROW_PX * max(len(names), 1),
        [bars],
        margin={"r": 72},
        minreducedwidth=10,  # of the bars in a narrow window, so that names are not cut
        # Each bar shows its value, so narrow charts need no scale.
        xaxis=axis(theme, title, rangemode="tozero", showticklabels=False, showgrid=False),
        yaxis=axis(theme, autorange="reversed", showgrid=False),
    )


def latency_terms(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a chart of the terms of a predicted latency.

    Columns: `term`, `us` (≥ 0), `limits` (True for the limiting term), `meaning`.
    """
    return _bars(
        theme,
        frame["us"].to_numpy(np.float32),
        list(frame["term"]),
        frame["limits"],
        [format_us(v) for v in frame["us"]],
        "predicted time, µs",
        "<b>%{y}</b> %{text}<br>%{customdata}",
        [plain(m) for m in frame["meaning"]],
    )


def limiter_bars(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a chart of the CTAs per SM that each resource alone would allow; the smallest limits.

    Columns: `resource`, `ctas_per_sm`, `limits`.
    """
    pairs = zip(frame["ctas_per_sm"], frame["limits"], strict=True)
    return _bars(
        theme,
        frame["ctas_per_sm"].to_numpy(),
        list(frame["resource"]),
        frame["limits"],
        [f"{n} limits" if hit else str(n) for n, hit in pairs],
        "resident CTAs per SM",
        "%{y} alone would allow %{x} CTAs per SM",
    )


def thread_capacity(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a chart of a launch's threads beside the threads that the whole GPU holds at once.

    Columns: `what`, `threads`, `kind` (`launch` or `capacity`).
    """
    return _bars(
        theme,
        frame["threads"].to_numpy(np.float64),
        list(frame["what"]),
        frame["kind"] == "launch",
        [f"{int(t):,}" for t in frame["threads"]],
        "threads",
        "%{y}: %{x:,} threads",
    )


def latencies(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a chart of latencies with their intervals; marker and line style show the origin.

    Columns: `name`, `median_us`, `low_us`, `high_us`, `origin`, `color`.
    """
    data: list[Trace] = []
    for row in frame.itertuples():
        name = plain(str(row.name))
        line = {"color": row.color, "width": 2, "dash": LINE_STYLE[row.origin]}
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [row.low_us, row.high_us],
                "y": [name, name],
                "line": line,
                "hoverinfo": "skip",
            }
        )
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": [row.median_us],
                "y": [name],
                "marker": {
                    "color": row.color,
                    "size": 11,
                    "symbol": MARKER[row.origin],
                    "line": {"width": 2, "color": row.color},
                },
                "text": [format_us(row.median_us)],
                "textposition": "top center",
                "cliponaxis": False,
                "hovertemplate": f"<b>{name}</b><br>{format_us(row.median_us)} {row.origin}<br>"
                f"{format_us(row.low_us)} to {format_us(row.high_us)}<extra></extra>",
            }
        )
    low, high = float(frame["low_us"].min()), float(frame["high_us"].max())
    return figure(
        theme,
        76 + ROW_PX * max(len(frame), 1),
        data,
        margin={"t": 24},
        xaxis=time_axis(theme, low, high, "latency (logarithmic)"),
        yaxis=axis(theme, autorange="reversed", showgrid=False),
    )


def what_if(frame: pd.DataFrame, column: str, title: str, theme: Theme) -> go.Figure:
    """Return a chart of occupancy over one resource, with the present point marked.

    Columns: `column` (ascending), `occupancy` (0..1), `limiter`, `present` (True in one row).
    """
    x = frame[column].to_numpy()
    percent = 100 * frame["occupancy"].to_numpy(np.float32)
    here = int(frame["present"].to_numpy().argmax())
    curve = {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": percent,
        "line": {"color": theme.line, "width": 2, "shape": "hv"},
        "customdata": frame["limiter"].to_numpy(),
        "hovertemplate": "%{x:,}<br>%{y:.0f}%<br>limited by %{customdata}<extra></extra>",
    }
    now = {
        "type": "scatter",
        "mode": "markers",
        "x": [x[here]],
        "y": [percent[here]],
        "marker": {"color": theme.accent, "size": 10},
        "hoverinfo": "skip",
    }
    return figure(
        theme,
        230,
        [curve, now],
        shapes=[vertical(x[here], theme)],
        annotations=[
            {
                "x": x[here],
                "y": 1,
                "yref": "paper",
                "yanchor": "top",
                "xanchor": "left" if here < len(frame) // 2 else "right",
                "text": f"{percent[here]:.0f}% now",
                "showarrow": False,
                "font": {"color": theme.accent},
            }
        ],
        xaxis=axis(theme, title),
        yaxis=axis(theme, "occupancy, %", range=[0, 112], tickvals=[0, 25, 50, 75, 100]),
    )


def residencies(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a chart of the launch's simulated time by CTAs per SM.

    Columns: `name`, `us`, `label`, `is_now`.
    """
    bars = {
        "type": "bar",
        "x": [
            f"{name} now" if now else name
            for name, now in zip(frame["name"], frame["is_now"], strict=True)
        ],
        "y": frame["us"].to_numpy(),
        "marker": {"color": [theme.accent if now else theme.muted for now in frame["is_now"]]},
        "text": list(frame["label"]),
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "CTAs per SM %{x}: %{text}<extra></extra>",
    }
    return figure(
        theme,
        230,
        [bars],
        xaxis=axis(theme, "CTAs per SM", type="category", showgrid=False),
        yaxis=axis(theme, "µs, simulated", range=[0, 1.25 * float(frame["us"].max())]),
    )


def waves(frame: pd.DataFrame, capacity: int, theme: Theme) -> go.Figure:
    """Return a chart of the CTAs of each wave and of those that fit at once; the last, partial wave
    is the tail.

    Columns: `wave` (label), `ctas`, `is_tail`.
    """
    pairs = list(zip(frame["ctas"], frame["is_tail"], strict=True))
    bars = {
        "type": "bar",
        "x": list(frame["wave"]),
        "y": frame["ctas"].to_numpy(),
        "marker": {"color": [theme.accent if tail else theme.muted for _, tail in pairs]},
        "text": [f"{int(n):,}" if tail else "" for n, tail in pairs],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "wave %{x}: %{y:,} CTAs<extra></extra>",
    }
    top = 1.3 * max(capacity, int(frame["ctas"].max()))
    return figure(
        theme,
        230,
        [bars],
        shapes=[horizontal(capacity, theme)],
        annotations=[
            {
                "x": 1,
                "xref": "paper",
                "xanchor": "right",
                "y": capacity,
                "yanchor": "bottom",
                "text": f"{capacity:,} fit at once",
                "showarrow": False,
                "font": {"size": 11},
            }
        ],
        xaxis=axis(theme, "wave", type="category", showgrid=False),
        yaxis=axis(theme, "CTAs", range=[0, top]),
    )


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
    """Return a map of the largest |out − reference| of each cell, as multiples of the tolerance,
    log scale.

    Colours are cool within the tolerance and warm beyond it; `top` is the largest error of all maps
    that share the scale. `frame` is a matrix whose labels are the axes' values (`axes` names rows,
    then columns); NaN cells hold a NaN or infinity of the kernel and get a cross. Cells where
    `compared` is False stay empty.
    """
    y_title, x_title = (plain(a) for a in axes)
    error = frame.to_numpy(np.float64)
    tolerance = max(_MIN_TOLERANCE, tolerance)  # replaces NaN, too: an import without tolerance
    broken = ~np.isfinite(error)
    ratio = np.where(broken | ~compared, 1.0, error) / tolerance
    logs = np.log10(np.maximum(ratio, 10.0**_MAP_DECADES_BELOW))
    above = max(1, math.ceil(math.log10(max(top / tolerance, 1.0))))
    share = -_MAP_DECADES_BELOW / (above - _MAP_DECADES_BELOW)  # where the tolerance lies, 0..1
    decades = range(_MAP_DECADES_BELOW, above + 1)
    columns, index = frame.columns.to_numpy(), frame.index.to_numpy()
    cell = f"{y_title} %{{y}}, {x_title} %{{x}}<br>"
    data: list[Trace] = [
        {
            "type": "heatmap",
            "z": np.where(broken | ~compared, np.nan, logs).astype(np.float32),
            "x": columns,
            "y": index,
            "zmin": _MAP_DECADES_BELOW,
            "zmax": above,
            "colorscale": [
                [0.0, theme.within[0]],
                [share, theme.within[1]],
                [share, theme.beyond[0]],
                [1.0, theme.beyond[1]],
            ],
            "customdata": np.clip(error, None, _LARGEST).astype(np.float32),
            "hovertemplate": cell + "|error| %{customdata:.3g}<extra></extra>",
            "showscale": show_scale,
            "colorbar": {
                "tickvals": list(decades),
                "ticktext": ["tolerance" if k == 0 else f"× {10.0**k:g}" for k in decades],
                "thickness": 10,
                "outlinewidth": 0,
            },
        }
    ]
    broken_rows, broken_columns = np.nonzero(broken)
    if broken_rows.size:
        data.append(
            {
                "type": "scattergl",
                "mode": "markers",
                "x": columns[broken_columns],
                "y": index[broken_rows],
                "marker": {"symbol": "x", "color": theme.bad, "size": 7},
                "hovertemplate": cell + "NaN or Inf<extra></extra>",
            }
        )
    return figure(
        theme,
        320,
        data,
        margin={"t": TOOLS_PX},
        xaxis=axis(theme, x_title, showgrid=False, **_whole(columns)),
        yaxis=axis(theme, y_title, autorange="reversed", showgrid=False, **_whole(index)),
    )


def _whole(labels: np.ndarray) -> Part:
    """Return axis settings for whole numbers: a tick at each if there are few, else Plotly's
    choice."""
    return {"tickvals": labels} if len(labels) <= _MAP_TICKS else {"tickformat": ",d"}
