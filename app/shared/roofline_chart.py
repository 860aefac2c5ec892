"""Rooflines: TFLOP/s over FLOP a byte beneath the GPU's roofs. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.shared.chart_style import Part, Trace, axis, figure, log_ticks, plain
from app.shared.palette import MARKER, Theme
from engine.base.units import format_us
from engine.model.roofline import Level, Roofs

_ROOM = 4.0  # margin beyond the outermost points and ridges, as a factor
_MANY_POINTS = 2000
_DASH: dict[Level, str] = {"L2": "dash", "DRAM": "solid"}  # L2's: the sum over all SMs
_TEXT_AT: dict[Level, str] = {"L2": "top center", "DRAM": "bottom center"}


def roofline(
    frame: pd.DataFrame,
    roofs: Sequence[Roofs],
    levels: Sequence[Level],
    colors: Mapping[str, str],
    theme: Theme,
) -> go.Figure:
    """Return a chart of points and their roofs, both axes logarithmic.

    Columns: `variant`, `label`, `problem`, `level`, `intensity` (FLOP/B), `tflops`, `roof_tflops`,
    `share` (0..1), `time_us`, `origin`, and `point`, which a click returns.

    Args:
        roofs: of one GPU, one for each math unit and number format.
        levels: memories whose bandwidth is drawn; with two, labels of points name theirs.
    """
    low_x, high_x = _range([*frame["intensity"], *(r.ridge(x) for r in roofs for x in levels)])
    tops = [r.math_tflops for r in roofs]
    low_y, high_y = _range([*frame["tflops"], *tops])
    data = [*_roofs(roofs, levels, (low_x, high_x), theme)]
    shown = frame[frame["level"].isin(levels)]
    groups = shown.groupby(["variant", "level", "origin"], sort=True)
    for (variant, level, origin), group in groups:
        several = len(levels) > 1
        color = colors[str(variant)]
        data.append(
            {
                "type": "scattergl" if len(frame) > _MANY_POINTS else "scatter",
                "mode": "markers+text" if several else "markers",
                "name": f"{plain(str(variant))} {origin}",
                "x": group["intensity"].to_numpy(np.float64),
                "y": group["tflops"].to_numpy(np.float64),
                "text": [f"{level}, {origin}"] * len(group) if several else None,
                "textposition": _TEXT_AT[level],  # labels at one intensity would overlap
                "cliponaxis": False,
                "marker": {
                    "color": color,
                    "size": 10,
                    "symbol": MARKER[origin],
                    "line": {"width": 2, "color": color},
                },
                "customdata": group["point"].to_list(),
                "hovertext": [_hover(row) for row in group.to_dict("records")],
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    return figure(
        theme,
        420,
        data,
        showlegend=len(levels) == 1,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"t": 36},
        clickmode="event+select",
        annotations=_names(roofs, levels, (low_x, high_x), theme),
        xaxis=_axis(theme, "arithmetic intensity, FLOP/B (logarithmic)", low_x, high_x),
        yaxis=_axis(theme, "TFLOP/s (logarithmic)", low_y, high_y),
    )


def _range(values: Iterable[float]) -> tuple[float, float]:
    values = list(values)
    return min(values) / _ROOM, max(values) * _ROOM


def _axis(theme: Theme, title: str, low: float, high: float) -> Part:
    ticks = log_ticks(low, high)
    return axis(
        theme,
        title,
        type="log",
        range=[np.log10(low), np.log10(high)],
        tickvals=ticks,
        ticktext=[f"{tick:,g}" for tick in ticks],
    )


def _roofs(
    roofs: Sequence[Roofs], levels: Sequence[Level], x: tuple[float, float], theme: Theme
) -> Iterable[Trace]:
    """Return each memory's slope up to the highest math roof, and each math unit's horizontal
    line."""
    highest = max(roofs, key=lambda r: r.math_tflops)
    lines = [
        (_DASH[level], [x[0], ridge], [highest.attainable_tflops(level, v) for v in (x[0], ridge)])
        for level in levels
        for ridge in [highest.ridge(level)]
    ]
    for each in {r.math_name: r for r in roofs}.values():
        nearest = min(each.ridge(level) for level in levels)
        lines.append(("solid", [nearest, x[1]], [each.math_tflops] * 2))
    for dash, xs, ys in lines:
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": xs,
            "y": ys,
            "line": {"color": theme.line, "width": 2, "dash": dash},
            "hoverinfo": "skip",
            "showlegend": False,
        }


def _names(
    roofs: Sequence[Roofs], levels: Sequence[Level], x: tuple[float, float], theme: Theme
) -> list[Part]:
    """Return a label at each roof."""
    labels = []
    for each in {r.math_name: r for r in roofs}.values():
        text = f"{each.math_name} {each.math_tflops:,.3g} TFLOP/s"
        labels.append((x[1], each.math_tflops, text, "right"))
    for level in levels:
        rate = roofs[0].gb_per_s(level)
        at = x[0] * 1.2
        labels.append((at, at * rate / 1e3, f"{level} {rate:,.0f} GB/s", "left"))
    return [
        {
            "x": float(np.log10(at)),  # annotations on a logarithmic axis take exponents
            "y": float(np.log10(height)),
            "text": text,
            "showarrow": False,
            "xanchor": side,
            "yanchor": "bottom" if side == "right" else "top",
            "xshift": 0 if side == "right" else 14,
            "font": {"size": 11, "color": theme.text},
        }
        for at, height, text, side in labels
    ]


def _hover(row: Mapping[str, object]) -> str:
    return (
        f"<b>{plain(str(row['label']))}</b><br>{row['problem']}<br>"
        f"{format_us(float(row['time_us']))} {row['origin']}<br>"  # type: ignore[arg-type]
        f"{row['tflops']:.3g} TFLOP/s at {row['intensity']:,.3g} FLOP/B from {row['level']}<br>"
        f"{row['share']:.1%} of the roof there, {row['roof_tflops']:.3g} TFLOP/s"
    )
