"""The charts of a session's report, as SVG that stands in the page: no script, nothing to fetch.

Colours, markers, lines and scales are those of the app. Every text of the session passes through
Markup's escaping.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from engine.evaluation import Evaluation, Latency, Status, baseline_label
from engine.palette import CATEGORICAL, LIGHT
from engine.records.snapshot import Snapshot, StoredErrorMap
from engine.units import format_us
from kernels.ladder import LADDER

MAX_POINTS = 200
MAX_MAPS = 24
_ROW_PX = 26
_LABEL_PX = 330
_PLOT_PX = 620
_END_PX = 90  # room for the figure at a row's end
_MAP_PX = 384
_DECADES_BELOW = -3  # errors under a thousandth of the tolerance look alike
_DASH = {"measured": "", "recorded": "2 3", "predicted": "7 5"}
_GRAYS = ("#7b8790", "#98a2a9", "#5f6b73", "#aeb6bb")


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart: its heading, the SVG, and a remark or nothing."""

    title: str
    svg: Markup
    remark: str = ""


def report_figures(snapshot: Snapshot, *, maps: bool = False) -> list[Figure]:
    """Every chart that has something to show.

    Args:
        maps: error maps of results that passed, too; those of wrong ones are always there.
    """
    evaluations = snapshot.opened()
    shown = [
        stored
        for stored in snapshot.error_maps
        if maps or evaluations[stored.evaluation].status is Status.INCORRECT
    ]
    drawn = [_map(stored, evaluations[stored.evaluation]) for stored in shown[:MAX_MAPS]]
    return [*_latencies(evaluations), *_occupancies(evaluations), *drawn]


def _latencies(evaluations: Iterable[Evaluation]) -> list[Figure]:
    """Medians with their intervals on a logarithmic axis, baselines beside the variants."""
    points: list[tuple[str, str, Latency]] = []
    for index, e in enumerate(evaluations):
        at = f"{index} · {e.problem.label()}"
        if e.latency is not None:
            points.append((f"{at} · {e.variant}", _color(e.variant), e.latency))
        points += [
            (f"{at} · {baseline_label(b.name)}", _GRAYS[i % len(_GRAYS)], b.latency)
            for i, b in enumerate(e.baselines)
            if b.latency is not None
        ]
    shown = points[:MAX_POINTS]
    if not shown:
        return []
    low = min(x.low_us for _, _, x in shown) / 1.3
    high = max(x.high_us for _, _, x in shown) * 1.3
    rows, lines = [], _grid(_ticks(low, high), low, high, len(shown))
    for row, (label, color, latency) in enumerate(shown):
        y = _ROW_PX * (row + 0.5)
        x0, x, x1 = (
            _x(us, low, high) for us in (latency.low_us, latency.median_us, latency.high_us)
        )
        rows.append(_label(label, y))
        rows.append(
            Markup(
                '<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{}" stroke-width="2" '
                'stroke-dasharray="{}"></line>{}'
            ).format(
                _px(x0), y, _px(x1), y, color, _DASH[latency.origin], _mark(latency, x, y, color)
            )
        )
        rows.append(
            Markup('<text x="{}" y="{}" class="end">{}</text>').format(
                _px(_LABEL_PX + _PLOT_PX + 6), y + 4, format_us(latency.median_us)
            )
        )
    remark = "Filled circle and solid line: measured; diamond and dotted: recorded; open circle "
    remark += f"and dashed: predicted. Logarithmic. {_left_out(points, shown)}"
    return [Figure("Latency", _svg(lines + Markup("").join(rows), len(shown)), remark.strip())]


def _occupancies(evaluations: Iterable[Evaluation]) -> list[Figure]:
    bars = [
        (f"{index}.{number} · {e.variant} · {p.resources.entry}", p.occupancy.occupancy)
        for index, e in enumerate(evaluations)
        for number, p in enumerate(e.passes, start=1)
    ]
    shown = bars[:MAX_POINTS]
    if not shown:
        return []
    rows = []
    for row, (label, share) in enumerate(shown):
        y = _ROW_PX * (row + 0.5)
        rows.append(_label(label, y))
        rows.append(
            Markup(
                '<rect x="{}" y="{}" width="{}" height="14" fill="{}"></rect>'
                '<text x="{}" y="{}" class="end">{}</text>'
            ).format(
                _LABEL_PX,
                y - 7,
                _px(_PLOT_PX * share),
                LIGHT.accent,
                _px(_LABEL_PX + _PLOT_PX * share + 6),
                y + 4,
                f"{share:.0%}",
            )
        )
    remark = f"Active warps of the most that an SM holds. {_left_out(bars, shown)}".strip()
    title = "Occupancy of every pass"
    return [Figure(title, _svg(Markup("").join(rows), len(shown)), remark)]


def _map(stored: StoredErrorMap, evaluation: Evaluation) -> Figure:
    """Errors as multiples of the tolerance: cool within it, warm beyond, as in the app."""
    known = evaluation.correctness
    largest = max((v for v in stored.values if v is not None), default=0.0)
    tolerance = known.tolerance if known is not None and known.tolerance else largest or 1.0
    above = max(1, math.ceil(math.log10(max(largest / tolerance, 1.0))))
    width, height = _MAP_PX / stored.columns, _MAP_PX / stored.rows
    cells = []
    for row in range(stored.rows):
        values = stored.values[row * stored.columns : (row + 1) * stored.columns]
        start = 0
        colors = [_cell(value, tolerance, above) for value in values]
        for column in range(1, stored.columns + 1):  # neighbours of one colour are one rectangle
            if column < stored.columns and colors[column] == colors[start]:
                continue
            if colors[start]:
                cells.append(
                    Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="{}"></rect>').format(
                        _px(60 + start * width),
                        _px(row * height),
                        _px((column - start) * width + 0.3),
                        _px(height + 0.3),
                        colors[start],
                    )
                )
            start = column
    axes = Markup(
        '<text x="{}" y="{}" class="mid">{}: {} cells of {}</text>'
        '<text x="16" y="{}" class="mid" transform="rotate(-90 16 {})">{}: {} cells of {}</text>'
    ).format(
        60 + _MAP_PX / 2, _MAP_PX + 20, stored.column_axis, stored.columns, stored.columns_per_cell,
        _MAP_PX / 2, _MAP_PX / 2, stored.row_axis, stored.rows, stored.rows_per_cell,
    )  # fmt: skip
    svg = Markup('<svg class="map" viewBox="0 0 {} {}">{}{}</svg>').format(
        _MAP_PX + 70, _MAP_PX + 30, Markup("").join(cells), axes
    )
    remark = (
        f"Largest error {largest:.3g}, tolerance {tolerance:.3g}: cool within the tolerance, warm "
        "beyond it, red where the output is NaN or infinite, empty where nothing was compared."
    )
    axes_named = f"{stored.row_axis} and {stored.column_axis}"
    return Figure(f"Error map by {axes_named}, evaluation {stored.evaluation}", svg, remark)


def _cell(value: float | None, tolerance: float, above: int) -> str:
    if value is None:
        return LIGHT.bad
    if value < 0:
        return ""
    decade = math.log10(max(value / tolerance, 10.0**_DECADES_BELOW))
    if decade <= 0:
        return _between(LIGHT.within, 1 - decade / _DECADES_BELOW)
    return _between(LIGHT.beyond, min(1.0, decade / above))


def _between(ends: tuple[str, str], share: float) -> str:
    """A colour between two, in 32 steps: neighbours that look alike are one rectangle."""
    share = round(32 * share) / 32
    pairs = ((int(ends[0][i : i + 2], 16), int(ends[1][i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)


def _color(variant: str) -> str:
    ids = [v.id for v in LADDER]
    index = ids.index(variant) if variant in ids else len(ids)
    return CATEGORICAL[index % len(CATEGORICAL)]


def _mark(latency: Latency, x: float, y: float, color: str) -> Markup:
    if latency.origin == "recorded":
        return Markup('<path d="M{} {}l6 6l-6 6l-6 -6z" fill="{}"></path>').format(
            _px(x), y - 6, color
        )
    fill = color if latency.origin == "measured" else "var(--paper)"
    return Markup(
        '<circle cx="{}" cy="{}" r="5" fill="{}" stroke="{}" stroke-width="2"></circle>'
    ).format(_px(x), y, fill, color)


def _x(us: float, low: float, high: float) -> float:
    return _LABEL_PX + _PLOT_PX * math.log(us / low) / math.log(high / low)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 of every decade, or decades where there are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 300 else (1,)
    return [m * 10.0**d for d in decades for m in steps if low <= m * 10.0**d <= high]


def _grid(ticks: Iterable[float], low: float, high: float, rows: int) -> Markup:
    bottom = _ROW_PX * rows
    return Markup("").join(
        Markup(
            '<line x1="{0}" y1="0" x2="{0}" y2="{1}" class="grid"></line>'
            '<text x="{0}" y="{2}" class="mid">{3}</text>'
        ).format(_px(_x(tick, low, high)), bottom, bottom + 16, format_us(tick))
        for tick in ticks
    )


def _label(text: str, y: float) -> Markup:
    short = text if len(text) <= 52 else f"{text[:51]}…"
    return Markup('<text x="{}" y="{}" class="start">{}</text>').format(_LABEL_PX - 8, y + 4, short)


def _svg(content: Markup, rows: int) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}">{}</svg>').format(
        _LABEL_PX + _PLOT_PX + _END_PX, _ROW_PX * rows + 24, content
    )


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _left_out(points: Sequence[object], shown: Sequence[object]) -> str:
    if len(shown) == len(points):
        return ""
    return f"The first {len(shown):,} of {len(points):,}; the tables hold all of them."
