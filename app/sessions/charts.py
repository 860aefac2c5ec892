"""Charts of the Sessions page: PyTorch's attention, and predictions against times."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from app.shared.chart_style import Trace, axis, diagonal, figure, plain, time_axis
from app.shared.palette import CATEGORICAL, Theme, color_of
from engine.attention.evaluation import baseline_label
from engine.base.units import format_us

_ROW_PX = 20
MAX_PROBLEMS = 60  # more are in the table
_SQUARE_PX = 420


def baselines(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a chart with a row per problem, a marker per backend, and a logarithmic time axis.

    Columns: `problem`, `backend`, `us`, `origin` (`app.sessions.frames.baselines`).
    """
    problems = list(dict.fromkeys(frame["problem"]))[:MAX_PROBLEMS]
    shown = frame[frame["problem"].isin(problems)]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": plain(baseline_label(str(backend))),
            "x": list(group["us"]),
            "y": [plain(p) for p in group["problem"]],
            "marker": {"color": CATEGORICAL[i % len(CATEGORICAL)], "size": 8, "symbol": "diamond"},
            "text": [
                f"{format_us(us)} {origin}"
                for us, origin in zip(group["us"], group["origin"], strict=True)
            ],
            "hovertemplate": "<b>%{y}</b><br>%{fullData.name}: %{text}<extra></extra>",
        }
        for i, (backend, group) in enumerate(shown.groupby("backend", sort=False))
    ]
    return figure(
        theme,
        90 + _ROW_PX * len(problems),
        data,
        showlegend=True,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        margin={"t": 28},
        xaxis=time_axis(
            theme, float(shown["us"].min()), float(shown["us"].max()), "time (logarithmic)"
        ),
        yaxis=axis(
            theme,
            autorange="reversed",
            type="category",
            dtick=1,
            categoryorder="array",
            categoryarray=[plain(p) for p in problems],
        ),
    )


def ledger(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a chart of predicted over measured times on logarithmic axes, with the line of
    equality.

    Columns: `variant`, `name`, `measured_us`, `predicted_us`, `low_us`, `high_us`, `counts`
    (`app.sessions.frames.ledger`).
    """
    low = float(frame[["measured_us", "predicted_us"]].min().min()) / 1.5
    high = float(frame[["measured_us", "predicted_us"]].max().max()) * 1.5
    data: list[Trace] = [diagonal(low, high, theme)]
    for variant, group in frame.groupby("variant", sort=False):
        color = color_of(str(variant))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(str(variant)),
                "x": list(group["measured_us"]),
                "y": list(group["predicted_us"]),
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": list(group["high_us"] - group["predicted_us"]),
                    "arrayminus": list(group["predicted_us"] - group["low_us"]),
                    "thickness": 1,
                    "width": 3,
                },
                "marker": {
                    "color": color,
                    "size": 9,
                    "symbol": ["circle" if c else "circle-open" for c in group["counts"]],
                },
                "text": [
                    f"{plain(n)}<br>predicted {format_us(p)}, time {format_us(m)}"
                    for n, p, m in zip(
                        group["name"], group["predicted_us"], group["measured_us"], strict=True
                    )
                ],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return figure(
        theme,
        _SQUARE_PX,
        data,
        showlegend=True,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        margin={"t": 28},
        xaxis=time_axis(theme, low, high, "measured or recorded time (logarithmic)"),
        yaxis=time_axis(theme, low, high, "predicted (logarithmic)"),
    )
