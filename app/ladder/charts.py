"""Charts of the ladder's times and of a kernel's history. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd
import plotly.graph_objects as go

from app.shared.chart_style import ROW_PX, TOOLS_PX, Trace, figure, plain, time_axis
from app.shared.chart_style import axis as plain_axis
from app.shared.palette import MARKER, Theme
from engine.base.table import Table
from engine.base.units import format_us
from engine.kernel_figures import Rung


def times_frame(rungs: Iterable[Rung], chosen: str) -> pd.DataFrame:
    """Return a row for each rung with a simulated time; `chosen` is the id of the highlighted
    rung."""
    rows = [
        {
            "rung": f"{rung.variant.id} {rung.variant.title}",
            "median_us": rung.latency.median_us,
            "low_us": rung.latency.low_us,
            "high_us": rung.latency.high_us,
            "known_us": rung.known.latency.median_us if rung.known is not None else None,
            "known_origin": rung.known.latency.origin if rung.known is not None else "",
            "is_chosen": rung.variant.id == chosen,
        }
        for rung in rungs
        if rung.latency is not None and rung.is_simulated
    ]
    return Table.of("Predicted times", rows).frame(dashes=False)


def times(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a chart of each rung's predicted time with its 90 % interval, and known times as
    markers.

    Columns: as `times_frame`.
    """
    label_of = {
        name: f"{plain(name)}  {format_us(us)}"
        for name, us in zip(frame["rung"], frame["median_us"], strict=True)
    }
    labels = [label_of[name] for name in frame["rung"]]
    low, high = float(frame["low_us"].min()), float(frame["high_us"].max())
    taken = frame[frame["known_us"].notna()]
    if len(taken):
        low = min(low, float(taken["known_us"].min()))
        high = max(high, float(taken["known_us"].max()))
    bars: Trace = {
        "type": "bar",
        "orientation": "h",
        "showlegend": False,
        "x": list(frame["median_us"]),
        "y": labels,
        "marker": {"color": [theme.accent if hit else theme.muted for hit in frame["is_chosen"]]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": list(frame["high_us"] - frame["median_us"]),
            "arrayminus": list(frame["median_us"] - frame["low_us"]),
            "color": theme.line,
            "thickness": 1.5,
        },
        "hovertemplate": "<b>%{y}</b> predicted<extra></extra>",
    }
    data: list[Trace] = [bars]
    if len(taken):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "measured or recorded",
                "x": list(taken["known_us"]),
                "y": [label_of[name] for name in taken["rung"]],
                "marker": {
                    "symbol": [MARKER[origin] for origin in taken["known_origin"]],
                    "size": 11,
                    "color": theme.text,
                },
                "customdata": list(taken["known_origin"]),
                "hovertemplate": "<b>%{y}</b><br>%{x:.4g} µs %{customdata}<extra></extra>",
            }
        )
    return figure(
        theme,
        TOOLS_PX + 76 + ROW_PX * len(frame),
        data,
        margin={"t": TOOLS_PX},
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        xaxis=time_axis(theme, low, high, "time of one launch, logarithmic"),
        yaxis=plain_axis(theme, autorange="reversed", showgrid=False),
        uirevision="ladder",
    )


_FLAT_LABELS = 12  # with more commits, labels are slanted
_HISTORY_PX = 150  # height of one figure's panel
# Column → axis title.
_OVER_COMMITS = {
    "simulated_us": "simulated µs",
    "registers": "registers per thread",
    "instructions": "warp instructions",
}


def history(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a chart of simulated time, registers and instructions over commits.

    Columns: as `engine.gate.commits.history_frame`.
    """
    colors = [theme.bad if worse else theme.accent for worse in frame["is_worse"]]
    told = [
        f"{plain(commit)} {day}<br>{plain(subject)}<br>{plain(verdicts)}"
        for commit, day, subject, verdicts in zip(
            frame["commit"], frame["day"], frame["subject"], frame["verdicts"], strict=True
        )
    ]
    data: list[Trace] = []
    axes: dict[str, Trace] = {}
    count = len(_OVER_COMMITS)
    for number, (column, title) in enumerate(_OVER_COMMITS.items()):
        suffix = str(number + 1) if number else ""
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": list(range(len(frame))),
                "y": [None if math.isnan(value) else value for value in frame[column]],
                "yaxis": f"y{suffix}",
                "connectgaps": False,
                "line": {"color": theme.line, "width": 1.5, "shape": "hv"},
                "marker": {"color": colors, "size": 9},
                "text": told,
                "hovertemplate": f"%{{text}}<br><b>%{{y:,.4~g}}</b> {title}<extra></extra>",
            }
        )
        top = 1 - number / count
        axes[f"yaxis{suffix}"] = plain_axis(
            theme, title, domain=[top - 0.84 / count, top], rangemode="tozero", nticks=4
        )
    return figure(
        theme,
        TOOLS_PX + 40 + _HISTORY_PX * count,
        data,
        xaxis=plain_axis(
            theme,
            tickvals=list(range(len(frame))),
            ticktext=list(frame["commit"]),
            tickangle=-45 if len(frame) > _FLAT_LABELS else 0,
            anchor=f"y{count}",
            showgrid=False,
        ),
        uirevision="history",
        **axes,
    )
