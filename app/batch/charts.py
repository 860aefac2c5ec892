"""Charts of the page "Batch size": pure functions of DataFrames."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.shared.chart_style import (
    Part,
    Trace,
    axis,
    diagonal,
    figure,
    plain,
    time_axis,
    translucent,
    vertical,
)
from app.shared.palette import Theme
from engine.base.units import format_us
from engine.choose.batch.cost import US_PER_HOUR

_MAX_STEPS = 40  # more would be a solid line
# Labels of a logarithmic axis that are closer than these factors would overlap.
_POINTS_APART = 1.25
_POWERS_APART = 1.5
_LOWER_TOP = 0.44  # of the figure's height; the upper panel begins a little above
_UPPER_BOTTOM = 0.56


def curves(
    curve: pd.DataFrame,
    marks: pd.DataFrame,
    measured: pd.DataFrame,
    unit: str,
    color: str,
    theme: Theme,
) -> go.Figure:
    """Return a chart with latency of a launch above and time per unit of work below, over the
    batch.

    Both are shown together because they are easily confused: latency rises while time per unit
    falls.

    Columns of `curve`: `batch`, `latency_us`, `low_us`, `high_us`, `unit_us`, `unit_low_us`,
    `unit_high_us`, `step`, `limited_by`. Of `marks`: `batch`, `label`. Of `measured`: `batch`,
    `latency_us`, `low_us`, `high_us`, `unit_us`, `unit_low_us`, `unit_high_us`, `origin`, `what`
    (`kernel` or `SDPA`).
    """
    data: list[Trace] = []
    for middle, low, high, panel in (
        ("latency_us", "low_us", "high_us", "y"),
        ("unit_us", "unit_low_us", "unit_high_us", "y2"),
    ):
        data += _band(curve, low, high, color, panel)
        data.append(_line(curve, middle, unit, color, panel))
        data.append(_steps(curve, middle, theme, panel))
        data += _measured(measured, (middle, low, high), color, theme, panel)
    ticks = batch_ticks(int(curve["batch"].max()), [*measured["batch"], *marks["batch"]])
    return figure(
        theme,
        520,
        data,
        margin={"t": 28},
        xaxis=axis(
            theme,
            f"{unit} (logarithmic)",
            type="log",
            tickvals=ticks,
            ticktext=[f"{n:,}" for n in ticks],
            anchor="y2",
        ),
        yaxis=time_axis(
            theme,
            float(curve["low_us"].min()),
            float(curve["high_us"].max()),
            "",
            domain=[_UPPER_BOTTOM, 1],
        ),
        yaxis2=time_axis(
            theme,
            float(curve["unit_low_us"].min()),
            float(curve["unit_high_us"].max()),
            "",
            domain=[0, _LOWER_TOP],
            anchor="x",
        ),
        shapes=[vertical(float(batch), theme) for batch in marks["batch"]],
        annotations=[
            _heading("latency of one launch", 1.0, theme),
            _heading("time per unit of work (one head of one batch element)", _LOWER_TOP, theme),
            *_labels(marks, theme),
        ],
    )


def batch_ticks(most: int, points: Iterable[int]) -> list[int]:
    """Return ticks of a logarithmic axis from 1: at the points, and at powers of two between
    them."""
    ticks: list[int] = []
    for wanted, apart in (
        (sorted({int(p) for p in points}), _POINTS_APART),
        ([2**k for k in range(most.bit_length())], _POWERS_APART),
    ):
        for n in wanted:
            if all(max(n, tick) >= apart * min(n, tick) for tick in ticks):
                ticks.append(n)
    return sorted(ticks)


def _heading(text: str, y: float, theme: Theme) -> Part:
    return {
        "text": text,
        "x": 0.5,
        "xref": "paper",
        "xanchor": "center",
        "y": y,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 12, "color": theme.text},
        "bgcolor": theme.paper,
    }


def _labels(marks: pd.DataFrame, theme: Theme) -> list[Part]:
    return [
        {
            "text": plain(str(mark.label)),
            "x": math.log10(mark.batch),
            "xanchor": "left",
            "xshift": 4,
            "y": _LOWER_TOP - 0.07 * (i + 1),
            "yref": "paper",
            "showarrow": False,
            "font": {"size": 11, "color": theme.accent},
            "bgcolor": theme.paper,
        }
        for i, mark in enumerate(marks.itertuples())
    ]


def _band(curve: pd.DataFrame, low: str, high: str, color: str, panel: str) -> list[Trace]:
    common: Trace = {
        "type": "scatter",
        "mode": "lines",
        "x": curve["batch"].to_numpy(),
        "yaxis": panel,
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    return [
        {**common, "y": curve[high].to_numpy(np.float32)},
        {
            **common,
            "y": curve[low].to_numpy(np.float32),
            "fill": "tonexty",
            "fillcolor": translucent(color, 0.14),
        },
    ]


def _line(curve: pd.DataFrame, middle: str, unit: str, color: str, panel: str) -> Trace:
    labels = [format_us(v) for v in curve[middle]]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": curve["batch"].to_numpy(),
        "y": curve[middle].to_numpy(np.float32),
        "yaxis": panel,
        "line": {"color": color, "width": 2, "dash": "dash"},
        "customdata": list(zip(labels, curve["limited_by"], strict=True)),
        "hovertemplate": f"{unit} %{{x:,}}<br>%{{customdata[0]}} predicted<br>"
        "limiter: %{customdata[1]}<extra></extra>",
    }


def _steps(curve: pd.DataFrame, middle: str, theme: Theme, panel: str) -> Trace:
    """Return marks at batches that start another CTA per SM or another wave."""
    steps = curve[curve["step"]].head(_MAX_STEPS)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": steps["batch"].to_numpy(),
        "y": steps[middle].to_numpy(np.float32),
        "yaxis": panel,
        "marker": {
            "symbol": "line-ns-open",
            "size": 10,
            "color": theme.line,
            "line": {"width": 1},
        },
        "hovertemplate": "%{x:,} starts another round of CTAs<extra></extra>",
    }


def _measured(
    measured: pd.DataFrame, names: tuple[str, str, str], color: str, theme: Theme, panel: str
) -> list[Trace]:
    """Return points with their intervals. `names`: columns of the time, its low and high end."""
    traces = []
    for what, hue, symbol in (("kernel", color, "diamond"), ("SDPA", theme.line, "diamond-open")):
        points = measured[measured["what"] == what]
        us, low_us, high_us = (points[name] for name in names)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": points["batch"].to_numpy(),
                "y": us.to_numpy(np.float32),
                "yaxis": panel,
                "marker": {"color": hue, "size": 9, "symbol": symbol},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": (high_us - us).to_numpy(np.float32),
                    "arrayminus": (us - low_us).to_numpy(np.float32),
                    "thickness": 1,
                    "width": 3,
                    "color": hue,
                },
                "customdata": [
                    _interval(*each)
                    for each in zip(us, low_us, high_us, points["origin"], strict=True)
                ],
                "hovertemplate": f"{what} %{{x:,}}<br>%{{customdata}}<extra></extra>",
            }
        )
    return traces


def _interval(us: float, low_us: float, high_us: float, origin: str) -> str:
    """Return `45 µs recorded (44.1 µs – 45.9 µs)`; without the interval if that is the time."""
    text = f"{format_us(us)} {origin}"
    return f"{text} ({format_us(low_us)} – {format_us(high_us)})" if low_us < high_us else text


def traffic(curve: pd.DataFrame, chosen: int, color: str, theme: Theme) -> go.Figure:
    """Return a chart of a day's GPU time over the batch. Columns: `batch`, `gpu_hours`."""
    batches = curve["batch"].to_numpy(np.float32)
    day_us = curve["gpu_hours"].to_numpy() * US_PER_HOUR
    ticks = batch_ticks(int(batches.max()), [chosen])
    line: Trace = {
        "type": "scatter",
        "mode": "lines",
        "x": batches,
        "y": day_us,
        "line": {"color": color, "width": 2, "dash": "dash"},
        "customdata": [format_us(us) for us in day_us],
        "hovertemplate": "B = %{x:,}<br>%{customdata} a day, predicted<extra></extra>",
        "showlegend": False,
    }
    return figure(
        theme,
        280,
        [line],
        xaxis=axis(
            theme,
            "B (logarithmic)",
            type="log",
            tickvals=ticks,
            ticktext=[f"{n:,}" for n in ticks],
        ),
        yaxis=time_axis(theme, float(day_us.min()), float(day_us.max()), "GPU time a day"),
        shapes=[vertical(chosen, theme)],
    )


def waiting(frame: pd.DataFrame, chosen: int, color: str, theme: Theme) -> go.Figure:
    """Return a chart of GPU time per request over the latency that waiting adds for the slowest 5
    %.

    Columns: `batch`, `added_ms`, `per_request_us`, `origin`, `what`. `chosen` is the batch at the
    knee.
    """
    hues = {
        "within the budget": color,
        "over the budget": theme.line,
        "too slow to keep up": theme.bad,
    }
    common: Trace = {"type": "scatter", "showlegend": False}
    line: Trace = {
        **common,
        "mode": "lines",
        "x": frame["added_ms"].to_numpy(np.float32),
        "y": frame["per_request_us"].to_numpy(np.float32),
        "line": {"color": theme.line, "width": 1, "dash": "dash"},
        "hoverinfo": "skip",
    }
    points: Trace = {
        **common,
        "mode": "markers",
        "x": frame["added_ms"].to_numpy(np.float32),
        "y": frame["per_request_us"].to_numpy(np.float32),
        "marker": {"size": 8, "color": [hues[what] for what in frame["what"]]},
        "customdata": list(
            zip(
                frame["batch"],
                [format_us(us) for us in frame["per_request_us"]],
                frame["what"],
                frame["origin"],
                strict=True,
            )
        ),
        "hovertemplate": "collect %{customdata[0]:,}<br>+%{x:.3g} ms for the slowest 5 %<br>"
        "%{customdata[1]} of GPU time per request, %{customdata[3]}<br>%{customdata[2]}"
        "<extra></extra>",
    }
    knee = frame[frame["batch"] == chosen].iloc[0]
    return figure(
        theme,
        300,
        [line, points],
        xaxis=axis(theme, "added latency at the 95th percentile, ms", rangemode="tozero"),
        yaxis=time_axis(
            theme,
            float(frame["per_request_us"].min()),
            float(frame["per_request_us"].max()),
            "GPU time per request",
        ),
        shapes=[vertical(float(knee["added_ms"]), theme)],
        annotations=[
            {
                "text": f"B = {chosen:,}: waiting longer saves almost nothing",
                "x": float(knee["added_ms"]),
                "xanchor": "left",
                "xshift": 4,
                "y": 0.98,
                "yref": "paper",
                "showarrow": False,
                "font": {"size": 11, "color": theme.accent},
                "bgcolor": theme.paper,
            }
        ],
    )


def validation(frame: pd.DataFrame, color: str, theme: Theme) -> go.Figure:
    """Return a chart of predicted over measured times; on the diagonal they agree.

    Columns: `name`, `predicted_us`, `low_us`, `high_us`, `measured_us`, `inside`.
    """
    low = float(frame[["low_us", "measured_us"]].min().min())
    high = float(frame[["high_us", "measured_us"]].max().max())
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": frame["measured_us"].to_numpy(np.float32),
        "y": frame["predicted_us"].to_numpy(np.float32),
        "marker": {
            "size": 9,
            "symbol": "circle-open",
            "color": [color if hit else theme.bad for hit in frame["inside"]],
            "line": {"width": 2},
        },
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": (frame["high_us"] - frame["predicted_us"]).to_numpy(np.float32),
            "arrayminus": (frame["predicted_us"] - frame["low_us"]).to_numpy(np.float32),
            "thickness": 1,
            "width": 3,
            "color": theme.line,
        },
        "text": [plain(n) for n in frame["name"]],
        "hovertemplate": "<b>%{text}</b><br>measured %{x:.4g} µs, predicted %{y:.4g} µs"
        "<extra></extra>",
    }
    return figure(
        theme,
        360,
        [diagonal(low, high, theme), points],
        xaxis=time_axis(theme, low, high, "measured or recorded"),
        yaxis=time_axis(theme, low, high, "predicted"),
    )
