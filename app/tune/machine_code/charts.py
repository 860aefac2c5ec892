"""Charts of machine code: each a pure function of a DataFrame and a theme."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from app.shared.chart_style import ROW_PX, TOOLS_PX, axis, figure, horizontal, plain, translucent
from app.shared.palette import Theme


def shares(frame: pd.DataFrame, title: str, theme: Theme) -> go.Figure:
    """Return bars in per cent, with the limiting one highlighted.

    Columns: `name`, `percent`, `limits` (True for the limiting one).
    """
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": frame["percent"].to_numpy(),
        "y": [plain(name) for name in frame["name"]],
        "marker": {"color": [theme.accent if hit else theme.muted for hit in frame["limits"]]},
        "text": [
            f"{percent:.0f}%{', the limit' if hit else ''}"
            for percent, hit in zip(frame["percent"], frame["limits"], strict=True)
        ],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{x:.1f}%<extra></extra>",
    }
    return figure(
        theme,
        56 + (ROW_PX - 8) * max(len(frame), 1),
        [bars],
        margin={"r": 72},
        xaxis=axis(theme, title, rangemode="tozero", range=[0, 100]),
        yaxis=axis(theme, autorange="reversed", showgrid=False),
    )


def live_registers(
    frame: pd.DataFrame, allocated: int, loops: Sequence[tuple[int, int]], theme: Theme
) -> go.Figure:
    """Return live registers along the code, with loops shaded and the registers of a thread dotted.

    Columns: `instruction`, `live`, `text`.
    """
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": frame["instruction"].to_numpy(),
        "y": frame["live"].to_numpy(),
        "line": {"color": theme.accent, "width": 1.5, "shape": "hv"},
        "customdata": [plain(text) for text in frame["text"]],
        "hovertemplate": "%{y} alive at instruction %{x}<br>%{customdata}<extra></extra>",
    }
    shades = [
        {
            "type": "rect",
            "x0": first,
            "x1": last,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "fillcolor": translucent(theme.line, 0.18),
            "line": {"width": 0},
            "layer": "below",
        }
        for first, last in loops
    ]
    return figure(
        theme,
        240,
        [line],
        margin={"t": TOOLS_PX},
        shapes=[*shades, horizontal(allocated, theme)],
        annotations=[
            {
                "x": 1,
                "xref": "paper",
                "xanchor": "right",
                "y": allocated,
                "yanchor": "bottom",
                "text": f"{allocated} per thread",
                "showarrow": False,
                "font": {"size": 11},
            }
        ],
        xaxis=axis(theme, "instruction"),
        yaxis=axis(theme, "registers alive", rangemode="tozero"),
    )
