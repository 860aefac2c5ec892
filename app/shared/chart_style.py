"""The app's style of Plotly figures: axes, margins, colours.

The browser sets the page's font; charts set colours that have a meaning. Text that may come from a
snapshot passes through `plain` first. Figures skip Plotly's validation, which takes longer than all
the rest; tests validate the figures that the app draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, TypeAlias

import plotly.graph_objects as go

from app.shared.palette import Theme
from engine.base.units import format_us

ROW_PX = 34  # height of a bar and its gap
TOOLS_PX = 34  # height of the button bar, which appears on hover and must not cover cells or scales
_FEWEST_TICKS = 2
_MAX_STEPS = 4  # between the ends of a short axis
_MANY_DECADES = 300.0  # a logarithmic axis over a larger range has labels at decades only

Trace: TypeAlias = dict[str, Any]
Part: TypeAlias = dict[str, Any]


def plain(text: str) -> str:
    """Escape text for a figure: Plotly interprets a subset of HTML, and names may be untrusted."""
    return escape(text, quote=False)


def axis(theme: Theme, title: str = "", **options: Any) -> Part:
    """Return an axis in the app's style."""
    return {
        "gridcolor": theme.grid,
        "zeroline": False,
        "automargin": True,
        "ticks": "outside",  # invisible: they keep the labels away from the bars
        "tickcolor": "rgba(0,0,0,0)",
        "title": {"text": title, "font": {"size": 12}},
        **options,
    }


def figure(theme: Theme, height: int, data: Sequence[Trace], **layout: Any) -> go.Figure:
    """Return a figure in the app's style; `layout` adds to the style and overrides it."""
    style: Part = {
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 40},
        "showlegend": False,
        "hoverlabel": {"align": "left"},
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)",
            "color": theme.line,
            "activecolor": theme.accent,
        },
        "bargap": 0.35,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": theme.text},
        "template": {"data": {}},  # none
    }
    style["margin"] |= layout.pop("margin", {})
    return go.Figure(data=list(data), layout={**style, **layout}, _validate=False)


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values from just below `low` to just above `high`: 1, 2, 5, or decades if many.

    If fewer than two of them are within the range, return values in equal steps.
    """
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < _MANY_DECADES else (1,)
    ticks = [m * 10.0**d for d in decades for m in steps if low / 3 < m * 10.0**d < high * 3]
    if low == high or sum(low <= tick <= high for tick in ticks) >= _FEWEST_TICKS:
        return ticks
    least = (high - low) / _MAX_STEPS
    scale = 10.0 ** math.floor(math.log10(least))
    step = scale * next(m for m in (1, 2, 5, 10) if m * scale >= least)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def time_axis(theme: Theme, low_us: float, high_us: float, title: str, **options: Any) -> Part:
    """Return a logarithmic time axis."""
    ticks = log_ticks(low_us, high_us)
    labels = [format_us(t) for t in ticks]
    return axis(theme, title, type="log", tickvals=ticks, ticktext=labels, **options)


def diagonal(low: float, high: float, theme: Theme) -> Trace:
    """Return the dotted line on which both axes have the same value, without a legend entry."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [low, high],
        "y": [low, high],
        "line": {"color": theme.line, "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def vertical(x: float, theme: Theme) -> Part:
    """Return a dotted vertical line over the whole height."""
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "xref": "x",
        "yref": "paper",
        "line": {"color": theme.accent, "width": 1, "dash": "dot"},
    }


def horizontal(y: float, theme: Theme) -> Part:
    """Return a dotted horizontal line over the whole width."""
    return {
        "type": "line",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "xref": "paper",
        "line": {"color": theme.text, "width": 1, "dash": "dot"},
    }


def translucent(color: str, opacity: float) -> str:
    """Return the colour `#rrggbb` with an opacity of 0..1."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
