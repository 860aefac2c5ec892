"""The charts of a session's report, as the objects that Plotly.js draws.

Plotly reads a little HTML in its texts, so every name from the file is escaped here.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engine.evaluation import Evaluation
from engine.records.snapshot import Snapshot, StoredErrorMap

MAX_POINTS = 200
MAX_MAPS = 24
_SYMBOLS = {"measured": "circle", "recorded": "square", "predicted": "diamond-open"}
_ROW_HEIGHT_PX = 22


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart: its heading, `{"data": …, "layout": …}` for Plotly.js, and a remark or nothing."""

    title: str
    plot: dict[str, Any]
    remark: str = ""


def report_figures(snapshot: Snapshot) -> list[Figure]:
    """Every chart that has something to show."""
    evaluations = snapshot.opened()
    maps = [_map(stored) for stored in snapshot.error_maps[:MAX_MAPS]]
    return [*_latencies(evaluations), *_occupancies(evaluations), *maps]


def _latencies(evaluations: Iterable[Evaluation]) -> list[Figure]:
    """Medians with their intervals on a logarithmic axis, baselines beside the variants."""
    points = []
    for index, e in enumerate(evaluations):
        label = html.escape(f"{index} · {e.problem.label()}")
        against = [(f"baseline {b.name}", b.latency) for b in e.baselines]
        timed = [(e.variant, e.latency), *against]
        points += [(label, name, latency) for name, latency in timed if latency is not None]
    shown = points[:MAX_POINTS]
    if not shown:
        return []
    traces = []
    for name in dict.fromkeys(name for _, name, _ in shown):
        mine = [(label, latency) for label, who, latency in shown if who == name]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": html.escape(name),
                "x": [latency.median_us for _, latency in mine],
                "y": [label for label, _ in mine],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [latency.high_us - latency.median_us for _, latency in mine],
                    "arrayminus": [latency.median_us - latency.low_us for _, latency in mine],
                },
                "text": [latency.origin for _, latency in mine],
                "marker": {"symbol": [_SYMBOLS[x.origin] for _, x in mine], "size": 8},
                "hovertemplate": "%{y}<br>%{x:.4g} µs, %{text}",
            }
        )
    layout = _rows_layout(len({label for label, _, _ in shown})) | {
        "xaxis": {
            "type": "log",
            "title": {"text": "µs (square: recorded, open diamond: predicted)"},
        },
        "showlegend": True,
    }
    return [_figure("Latency", traces, layout, _left_out(points, shown))]


def _occupancies(evaluations: Iterable[Evaluation]) -> list[Figure]:
    rows = [
        (
            html.escape(f"{index}.{number} · {e.variant} · {p.resources.entry}"),
            100 * p.occupancy.occupancy,
        )
        for index, e in enumerate(evaluations)
        for number, p in enumerate(e.passes, start=1)
    ]
    shown = rows[:MAX_POINTS]
    if not shown:
        return []
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [share for _, share in shown],
        "y": [label for label, _ in shown],
        "hovertemplate": "%{y}<br>%{x:.0f} %<extra></extra>",
    }
    axis = {"range": [0, 100], "title": {"text": "active warps, % of the SM's maximum"}}
    layout = _rows_layout(len(shown)) | {"xaxis": axis}
    return [_figure("Occupancy of every pass", [bars], layout, _left_out(rows, shown))]


def _map(stored: StoredErrorMap) -> Figure:
    logs = [_log(value) for value in stored.values]
    heatmap = {
        "type": "heatmap",
        "z": [logs[r * stored.columns : (r + 1) * stored.columns] for r in range(stored.rows)],
        "x": [c * stored.columns_per_cell for c in range(stored.columns)],
        "y": [r * stored.rows_per_cell for r in range(stored.rows)],
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "log₁₀ |error|"}},
        "hovertemplate": "%{y}, %{x}<br>10^%{z:.2f}<extra></extra>",
    }
    layout = {
        "height": 420,
        "margin": {"t": 20},
        "xaxis": {"title": {"text": html.escape(stored.column_axis)}, "zeroline": False},
        "yaxis": {
            "title": {"text": html.escape(stored.row_axis)},
            "autorange": "reversed",
            "zeroline": False,
        },
    }
    title = f"Error map {stored.name} of evaluation {stored.evaluation}"
    return _figure(title, [heatmap], layout, "Gaps: no error, not compared, or not finite.")


def _log(value: float | None) -> float | None:
    """log₁₀ of an error; a gap where it is 0, was not compared (−1) or was not finite."""
    return math.log10(value) if value is not None and value > 0 else None


def _rows_layout(rows: int) -> dict[str, Any]:
    """One labelled row per entry, the first on top."""
    return {
        "height": 140 + _ROW_HEIGHT_PX * rows,
        "margin": {"l": 240, "t": 20, "b": 50},
        "yaxis": {"autorange": "reversed", "type": "category", "dtick": 1},
    }


def _figure(title: str, data: list[dict[str, Any]], layout: dict[str, Any], remark: str) -> Figure:
    return Figure(title, {"data": data, "layout": layout}, remark)


def _left_out(points: list[Any], shown: list[Any]) -> str:
    if len(shown) == len(points):
        return ""
    return f"The first {len(shown):,} of {len(points):,}; the tables hold all of them."
