"""Charts of the page "Batch size": pure functions of DataFrames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.ui.charts import log_ticks, plain
from app.ui.palette import Theme
from engine.units import format_us

MAX_STEPS = 40  # more would be a solid line


def curves(
    curve: pd.DataFrame,
    marks: pd.DataFrame,
    measured: pd.DataFrame,
    axis: str,
    color: str,
    theme: Theme,
) -> go.Figure:
    """Latency of a launch above, time per unit of work below, over the same batches.

    Both readings stand together because they were once mistaken for each other: the one rises
    while the other falls.

    Columns of `curve`: `batch`, `latency_us`, `low_us`, `high_us`, `unit_us`, `unit_low_us`,
    `unit_high_us`, `step`, `binds`. Of `marks`: `batch`, `label`. Of `measured`: `batch`,
    `latency_us`, `unit_us`, `what` (`kernel` or `SDPA`).
    """
    figure = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.09,
        subplot_titles=("latency of one launch", "time per unit of work (one head of one batch)"),
    )
    for row, prefix in ((1, ""), (2, "unit_")):
        middle = "latency_us" if row == 1 else "unit_us"
        _band(figure, curve, f"{prefix}low_us", f"{prefix}high_us", color, row)
        figure.add_scatter(
            x=curve["batch"].to_numpy(),
            y=curve[middle].to_numpy(np.float32),
            mode="lines",
            line={"color": color, "width": 2, "dash": "dash"},
            customdata=np.stack([[format_us(v) for v in curve[middle]], curve["binds"]], axis=1),
            hovertemplate=f"{axis} %{{x:,}}<br>%{{customdata[0]}} predicted<br>"
            "%{customdata[1]} binds<extra></extra>",
            row=row,
            col=1,
        )
        _steps(figure, curve, middle, theme, row)
        _measured(figure, measured, middle, color, theme, row)
        ticks = log_ticks(
            float(curve[f"{prefix}low_us"].min()), float(curve[f"{prefix}high_us"].max())
        )
        figure.update_yaxes(
            type="log",
            tickvals=ticks,
            ticktext=[format_us(t) for t in ticks],
            gridcolor=theme.grid,
            row=row,
            col=1,
        )
    _marks(figure, marks, theme)
    powers = [2**k for k in range(int(curve["batch"].max()).bit_length())]
    figure.update_xaxes(
        type="log", gridcolor=theme.grid, tickvals=powers, ticktext=[f"{n:,}" for n in powers]
    )
    figure.update_xaxes(title=f"{axis} (logarithmic)", row=2, col=1)
    figure.update_annotations(font_size=12, font_color=theme.text)
    figure.update_layout(
        height=520,
        margin={"l": 8, "r": 16, "t": 28, "b": 40},
        showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": theme.text},
    )
    return figure


def _band(
    figure: go.Figure, curve: pd.DataFrame, low: str, high: str, color: str, row: int
) -> None:
    x = curve["batch"].to_numpy()
    common: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(x=x, y=curve[high].to_numpy(np.float32), row=row, col=1, **common)
    figure.add_scatter(
        x=x,
        y=curve[low].to_numpy(np.float32),
        fill="tonexty",
        fillcolor=f"rgba{(*(int(color[i : i + 2], 16) for i in (1, 3, 5)), 0.14)}",
        row=row,
        col=1,
        **common,
    )


def _steps(figure: go.Figure, curve: pd.DataFrame, y: str, theme: Theme, row: int) -> None:
    """The first batches that start another CTA per SM or wave."""
    steps = curve[curve["step"]].head(MAX_STEPS)
    figure.add_scatter(
        x=steps["batch"].to_numpy(),
        y=steps[y].to_numpy(np.float32),
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 10, "color": theme.line, "line": {"width": 1}},
        hovertemplate="%{x:,} starts another round of CTAs<extra></extra>",
        row=row,
        col=1,
    )


def _measured(
    figure: go.Figure, measured: pd.DataFrame, y: str, color: str, theme: Theme, row: int
) -> None:
    for what, hue, symbol in (("kernel", color, "diamond"), ("SDPA", theme.line, "diamond-open")):
        points = measured[measured["what"] == what]
        figure.add_scatter(
            x=points["batch"].to_numpy(),
            y=points[y].to_numpy(np.float32),
            mode="markers",
            marker={"color": hue, "size": 9, "symbol": symbol},
            customdata=[format_us(v) for v in points[y]],
            hovertemplate=f"{what} %{{x:,}}<br>%{{customdata}} recorded<extra></extra>",
            row=row,
            col=1,
        )


def _marks(figure: go.Figure, marks: pd.DataFrame, theme: Theme) -> None:
    for i, mark in enumerate(marks.itertuples()):
        for row in (1, 2):
            figure.add_vline(
                x=mark.batch,
                line={"color": theme.accent, "width": 1, "dash": "dot"},
                row=row,
                col=1,
            )
        figure.add_annotation(
            x=np.log10(mark.batch),
            y=1 - 0.16 * (i + 1),
            xref="x2",
            yref="y2 domain",
            text=plain(str(mark.label)),
            showarrow=False,
            xanchor="left",
            xshift=4,
            font={"size": 11, "color": theme.accent},
            bgcolor=theme.paper,
        )


def validation(frame: pd.DataFrame, color: str, theme: Theme) -> go.Figure:
    """Predicted against measured; on the diagonal they agree.

    Columns: `name`, `predicted_us`, `low_us`, `high_us`, `measured_us`, `inside`.
    """
    low = float(frame[["low_us", "measured_us"]].min().min())
    high = float(frame[["high_us", "measured_us"]].max().max())
    ticks = log_ticks(low, high)
    figure = go.Figure()
    figure.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": theme.line, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=frame["measured_us"].to_numpy(np.float32),
        y=frame["predicted_us"].to_numpy(np.float32),
        mode="markers",
        marker={
            "size": 9,
            "symbol": "circle-open",
            "color": [color if hit else theme.bad for hit in frame["inside"]],
            "line": {"width": 2},
        },
        error_y={
            "type": "data",
            "symmetric": False,
            "array": (frame["high_us"] - frame["predicted_us"]).to_numpy(np.float32),
            "arrayminus": (frame["predicted_us"] - frame["low_us"]).to_numpy(np.float32),
            "thickness": 1,
            "width": 3,
            "color": theme.line,
        },
        text=[plain(n) for n in frame["name"]],
        hovertemplate="<b>%{text}</b><br>measured %{x:.4g} µs, predicted %{y:.4g} µs"
        "<extra></extra>",
    )
    axis = {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [format_us(t) for t in ticks],
        "gridcolor": theme.grid,
    }
    figure.update_xaxes(title="measured or recorded", **axis)
    figure.update_yaxes(title="predicted", **axis)
    figure.update_layout(
        height=360,
        margin={"l": 8, "r": 16, "t": 10, "b": 40},
        showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": theme.text},
    )
    return figure
