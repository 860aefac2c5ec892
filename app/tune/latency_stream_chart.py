"""The chart of a latency stream: latency over time; below it clock, power and throttling of the
GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from app.shared.chart_style import Part, Trace, axis, figure, plain, translucent
from app.shared.palette import CATEGORICAL, Theme
from engine.base.units import format_us, time_unit
from engine.jobs.latency_series import (
    Curve,
    History,
    Span,
    StreamKind,
    StreamSummary,
    StreamView,
)

_TIMES_PX, _STATE_PX, _LANE_PX, _HEAD_PX, _FOOT_PX = 300, 110, 40, 26, 52
_GAP_PX = 34  # between panels: room for the lower panel's title
# One colour per panel; all panels share the time axis.
_CLOCK_COLOR, _POWER_COLOR = CATEGORICAL[2], CATEGORICAL[1]
_MAX_SHADED = 60
_NUMBER = ",~r"


def latency_stream(view: StreamView, revision: str, theme: Theme) -> go.Figure:
    """Return panels over one time axis, without panels that have no data.

    The zoom is kept as long as `revision` is the same.
    """
    assert view.summary is not None
    assert view.times is not None
    assert view.history is not None
    assert view.dropped is not None
    unit, scale = time_unit(float(view.history.median_us[0]))
    panels: list[tuple[str, int, list[Trace], Part]] = [
        (
            _title(view.kind, view.summary, unit),
            _TIMES_PX,
            [
                *_median(view.history, scale, unit, theme),
                *_points(view.times, view.dropped, scale, unit, theme),
            ],
            {"tickformat": _NUMBER, "autorangeoptions": _usual(view.summary, scale)},
        )
    ]
    for title, curve, unit, color in (
        ("SM clock", view.clock, "MHz", _CLOCK_COLOR),
        ("Power", view.power, "W", _POWER_COLOR),
    ):
        if curve is not None:
            traces = [_line(curve, unit, color)]
            options = {"tickformat": _NUMBER, "autorangeoptions": _around(curve)}
            panels.append((f"{title}, {unit}", _STATE_PX, traces, options))
    if view.has_gpu_state:
        reasons = list(dict.fromkeys(span.reason for span in view.spans))
        lanes = {
            "autorange": "reversed",
            "fixedrange": True,
            "showgrid": False,
            "showticklabels": False,  # labels beside the panel would narrow all panels
        }
        if not reasons:
            lanes |= {"visible": False}
        height = _LANE_PX * len(reasons) or _LANE_PX // 2
        traces = [_lane(view.spans, reason, theme) for reason in reasons]
        title = "Throttled by" if reasons else "Throttled by: nothing so far"
        panels.append((title, height, traces or [_nothing()], lanes))
    return _stack(panels, view.spans, revision, theme)


def _title(kind: StreamKind | None, summary: StreamSummary, unit: str) -> str:
    name = "CPU execution time" if kind == "cpu_execution" else "Latency"
    if not summary.far_out:
        return f"{name}, {unit}"
    count = "1 sample" if summary.far_out == 1 else f"{summary.far_out:,} samples"
    return f"{name}, {unit} (out of view: {count}, up to {format_us(summary.slowest_us)})"


def _usual(summary: StreamSummary, scale: float) -> Part:
    """Return an axis' initial range settings. A fixed `range` would undo the zoom."""
    low, high = (us / scale for us in summary.usual_us)
    margin = 0.05 * (high - low) or 0.01 * high
    return {"clipmin": low - margin, "clipmax": high + margin}


def _label(text: str, yref: str, y: float | str, **options: Any) -> Part:
    """Return text at the left edge, above `y`."""
    place = {"x": 0, "xref": "paper", "xanchor": "left", "y": y, "yref": yref, "yanchor": "bottom"}
    return {"text": text, "showarrow": False, **place, **options}


def _around(curve: Curve) -> Part:
    """Return a range with room above and below, so that a steady value looks steady."""
    known = curve.values[~np.isnan(curve.values)]
    return {"include": [0.98 * float(known.min()), 1.02 * float(known.max())]}


def _stack(
    panels: list[tuple[str, int, list[Trace], Part]],
    spans: tuple[Span, ...],
    revision: str,
    theme: Theme,
) -> go.Figure:
    """Stack the panels, each below its title, over one time axis."""
    inner = sum(height for _, height, _, _ in panels) + _GAP_PX * (len(panels) - 1)
    data: list[Trace] = []
    layout: Part = {"annotations": []}
    top = float(inner)
    for i, (title, height, traces, options) in enumerate(panels):
        name = "y" if i == 0 else f"y{i + 1}"
        domain = [max(0.0, (top - height) / inner), min(1.0, top / inner)]
        layout[name.replace("y", "yaxis")] = axis(theme, domain=domain, nticks=6, **options)
        layout["annotations"].append(
            _label(f"<b>{plain(title)}</b>", "paper", domain[1], yshift=4, font={"size": 12})
        )
        layout["annotations"] += [
            _label(trace["name"], name, trace["y"][0], font={"size": 11})
            for trace in traces
            if trace["type"] == "bar"
        ]
        data += [{**trace, "yaxis": name} for trace in traces]
        top -= height + _GAP_PX
    layout["xaxis"] = axis(
        theme,
        "time since the first sample, s",
        anchor="y" if len(panels) == 1 else f"y{len(panels)}",
        tickformat=_NUMBER,
        nticks=8,
        rangemode="nonnegative",
        showspikes=True,
        spikemode="across",
        spikethickness=1,
        spikedash="dot",
        spikecolor=theme.line,
    )
    # Many short spans would be unreadable and slow to draw; the lanes of their reasons show them.
    layout["shapes"] = [_shade(span, theme) for span in spans[:_MAX_SHADED]]
    return figure(
        theme,
        _HEAD_PX + inner + _FOOT_PX,
        data,
        margin={"t": _HEAD_PX, "b": _FOOT_PX, "l": 56, "r": 12},
        uirevision=revision,
        hovermode="closest",
        dragmode="zoom",
        hoverlabel={"bgcolor": theme.paper, "font": {"color": theme.text}},
        **layout,
    )


def _median(history: History, scale: float, unit: str, theme: Theme) -> list[Trace]:
    """Return the median so far, with its interval as a band."""
    at = history.at_s
    edge = {"type": "scatter", "mode": "lines", "x": at, "hoverinfo": "skip", "line": {"width": 0}}
    return [
        {**edge, "y": history.low_us / scale},
        {
            **edge,
            "y": history.high_us / scale,
            "fill": "tonexty",
            "fillcolor": translucent(theme.accent, 0.22),
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "median so far",
            "x": at,
            "y": history.median_us / scale,
            "customdata": np.stack([history.low_us, history.high_us], axis=1) / scale,
            "line": {"color": theme.accent, "width": 2},
            "hovertemplate": f"median so far %{{y:,.4~r}} {unit}<br>95 %: %{{customdata[0]:,.4~r}} "
            f"to %{{customdata[1]:,.4~r}} {unit}<extra></extra>",
        },
    ]


def _points(
    times: Curve, dropped: np.ndarray, scale: float, unit: str, theme: Theme
) -> list[Trace]:
    """Return the samples: valid ones, and in the warning colour those that were left out."""

    def cloud(mask: np.ndarray, marker: Part, note: str) -> Trace:
        return {
            "type": "scatter",
            "mode": "markers",
            "x": times.at_s[mask],
            "y": times.values[mask] / scale,
            "marker": marker,
            "hovertemplate": f"%{{y:,.4~r}} {unit}{note}<br>at %{{x:,.2f}} s<extra></extra>",
        }

    traces = [cloud(~dropped, {"color": theme.line, "size": 4, "opacity": 0.75}, "")]
    if dropped.any():
        mark = {"color": theme.bad, "size": 6, "symbol": "x-thin-open"}
        traces.append(cloud(dropped, mark, ", left out"))
    return traces


def _line(curve: Curve, unit: str, color: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": curve.at_s,
        "y": curve.values,
        "line": {"color": color, "width": 1.5, "shape": "hv"},
        "hovertemplate": f"%{{y:,.4~r}} {unit}<br>at %{{x:,.2f}} s<extra></extra>",
    }


def _lane(spans: tuple[Span, ...], reason: str, theme: Theme) -> Trace:
    """Return a bar for each span of time in which the reason held."""
    own = [span for span in spans if span.reason == reason]
    lane = plain(reason)
    return {
        "type": "bar",
        "name": lane,
        "orientation": "h",
        "base": [span.start_s for span in own],
        "x": [span.end_s - span.start_s for span in own],
        "y": [lane] * len(own),
        "offset": 0.1,
        "width": 0.35,
        "marker": {"color": theme.bad, "line": {"width": 0}},
        "hovertemplate": f"{lane}<extra></extra>",
    }


def _nothing() -> Trace:
    return {"type": "scatter", "x": [], "y": []}


def _shade(span: Span, theme: Theme) -> Part:
    """Return the shading of a span over all panels."""
    return {
        "type": "rect",
        "layer": "below",
        "x0": span.start_s,
        "x1": span.end_s,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "fillcolor": translucent(theme.bad, 0.08),
        "line": {"width": 0},
    }
