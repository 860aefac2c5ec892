"""Charts of a snapshot: PyTorch's attention, backend beside backend."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from app.shared.figures import axis, figure, plain, time_axis
from app.shared.palette import CATEGORICAL, Theme
from app.shared.terms import baseline_label
from engine.units import format_us

_ROW_PX = 20
MAX_PROBLEMS = 60  # more are in the table


def baselines(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """A row per problem, a marker per backend, time on a logarithmic axis.

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
