"""Write a session as HTML that works offline, with SVG charts, or as Markdown.

Colours, markers, lines and scales are those of the app. This module computes the content;
`templates/` lays it out. The HTML has no script and loads nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from engine.attention.evaluation import Evaluation, Latency, baseline_label
from engine.base.errors import Status
from engine.base.units import format_us
from engine.choose.advice import Suggestion
from engine.history import History
from engine.history.known_time import under_own_names
from engine.sessions.palette import CATEGORICAL, DARK, LIGHT, reference_color
from engine.sessions.snapshot import Snapshot, StoredErrorMap
from engine.sessions.tables import session_tables
from kernels.ladder import LADDER

MAX_POINTS = 200
MAX_MAPS = 24
_PLOT_PX = (330, 950)  # from left to right, as in `templates/charts.svg`
_DECADES_BELOW = -3  # errors below a thousandth of the tolerance have one colour
_GRAYS = ("#7b8790", "#98a2a9", "#5f6b73", "#aeb6bb")


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart: heading, SVG, and a remark, which may be empty."""

    title: str
    svg: Markup
    remark: str = ""


def report_figures(
    snapshot: Snapshot, templates: Environment, *, maps: bool = False
) -> list[Figure]:
    """Return every chart that has data.

    Args:
        templates: templates that escape every text of the session.
        maps: error maps of results that passed, too; those of wrong ones are always there.
    """
    evaluations = snapshot.opened()
    shown = [
        stored
        for stored in snapshot.error_maps
        if maps or evaluations[stored.evaluation].status is Status.INCORRECT
    ]
    charts: Any = templates.get_template("charts.svg").module
    drawn = [_map(charts, stored, evaluations[stored.evaluation]) for stored in shown[:MAX_MAPS]]
    named = under_own_names(evaluations, snapshot.title)
    return [*_latencies(charts, named), *_occupancies(charts, named), *drawn]


def _latencies(charts: Any, evaluations: Iterable[Evaluation]) -> list[Figure]:
    """Return a chart of medians with intervals on a logarithmic axis, baselines beside variants."""
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

    def x(us: float) -> float:
        left, right = _PLOT_PX
        return left + (right - left) * math.log(us / low) / math.log(high / low)

    svg = charts.latencies(
        [
            {
                "label": label,
                "color": color,
                "origin": latency.origin,
                "low": x(latency.low_us),
                "middle": x(latency.median_us),
                "high": x(latency.high_us),
                "text": format_us(latency.median_us),
            }
            for label, color, latency in shown
        ],
        [{"x": x(tick), "text": format_us(tick)} for tick in _ticks(low, high)],
    )
    remark = "Filled circle and solid line: measured; diamond and dotted: recorded; open circle "
    remark += f"and dashed: predicted. Logarithmic. {_left_out(points, shown)}"
    return [Figure("Latency", svg, remark.strip())]


def _occupancies(charts: Any, evaluations: Iterable[Evaluation]) -> list[Figure]:
    bars = [
        (f"{index}.{number} · {e.variant} · {p.resources.entry}", p.occupancy.occupancy)
        for index, e in enumerate(evaluations)
        for number, p in enumerate(e.passes, start=1)
    ]
    shown = bars[:MAX_POINTS]
    if not shown:
        return []
    remark = f"Active warps as a share of an SM's maximum. {_left_out(bars, shown)}".strip()
    return [Figure("Occupancy of every pass", charts.occupancies(shown, LIGHT.accent), remark)]


def _map(charts: Any, stored: StoredErrorMap, evaluation: Evaluation) -> Figure:
    """Return an error map in multiples of the tolerance: cool within it, warm beyond, as in the
    app."""
    known = evaluation.correctness
    largest = max((v for v in stored.values if v is not None), default=0.0)
    tolerance = known.tolerance if known is not None and known.tolerance else largest or 1.0
    above = max(1, math.ceil(math.log10(max(largest / tolerance, 1.0))))
    cells = []
    for row in range(stored.rows):
        values = stored.values[row * stored.columns : (row + 1) * stored.columns]
        column = 0
        # Neighbours of equal colour form one rectangle.
        for color, same in groupby(_cell(value, tolerance, above) for value in values):
            columns = len(list(same))
            if color:
                cells.append((column, row, columns, color))
            column += columns
    svg = charts.error_map(stored, cells)
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
    """Return a colour between two, in 32 steps, so that similar neighbours form one rectangle."""
    share = round(32 * share) / 32
    pairs = ((int(ends[0][i : i + 2], 16), int(ends[1][i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)


def _color(variant: str) -> str:
    ids = [v.id for v in LADDER.every()]
    if variant not in ids:
        return reference_color(variant)
    return CATEGORICAL[ids.index(variant) % len(CATEGORICAL)]


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5 of every decade, or only decades if there are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 300 else (1,)
    return [m * 10.0**d for d in decades for m in steps if low <= m * 10.0**d <= high]


def _left_out(points: Sequence[object], shown: Sequence[object]) -> str:
    if len(shown) == len(points):
        return ""
    return f"The first {len(shown):,} of {len(points):,}; the tables hold all of them."


# Every text of the session is escaped for its output language; only text marked safe here is not.
# The HTML has no script, its charts are SVG, and its content security policy forbids it to load
# anything.


# Inline Markdown syntax, and text that GitHub's flavour turns into a link.
_MARKDOWN = re.compile(r"[\\`*_{}\[\]()#!|<>~$&]|:(?=//)|(?<=www)\.", re.IGNORECASE)


def to_markdown(
    snapshot: Snapshot, advice: Sequence[Suggestion] = (), history: History | None = None
) -> str:
    """Return the report as Markdown, with the tables of the HTML but without charts."""
    tables = session_tables(snapshot, advice, history)
    return render_markdown("report.md", snapshot=snapshot, tables=tables)


def to_html(
    snapshot: Snapshot,
    advice: Sequence[Suggestion] = (),
    history: History | None = None,
    *,
    maps: bool = False,
) -> str:
    """Return the report as one HTML file with charts, some 50 kB for one evaluation.

    Args:
        history: gives estimates beside Nsight Compute's counters; None: without other sessions'
            times.
        maps: error maps of results that passed, too; those of wrong ones are always there.
    """
    templates = html_templates()
    return templates.get_template("report.html").render(
        snapshot=snapshot,
        tables=session_tables(snapshot, advice, history),
        figures=report_figures(snapshot, templates, maps=maps),
        light=LIGHT,
        dark=DARK,
    )


def render_markdown(template: str, **values: Any) -> str:
    """Render a Markdown template with escaped values."""
    return _markdown_templates().get_template(template).render(values).rstrip() + "\n"


def escape_markdown(text: str) -> str:
    """Return `text` on one line, escaped for Markdown."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))


@cache
def html_templates() -> Environment:
    """Return the templates that escape for HTML and SVG."""
    templates = Environment(autoescape=True, **_common())
    templates.filters["px"] = lambda value: f"{value:.1f}".removesuffix(".0")
    return templates


@cache
def _markdown_templates() -> Environment:
    templates = Environment(autoescape=False, finalize=_escaped_unless_safe, **_common())
    templates.filters |= {"fenced": _fenced, "indented": _indented, "cells": _cells}
    return templates


def _common() -> dict[str, Any]:
    return {
        "loader": FileSystemLoader(Path(__file__).parent / "templates"),
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
    }


def _escaped_unless_safe(value: object) -> object:
    """Autoescape for Markdown: jinja2 calls it with every value."""
    return value if isinstance(value, Markup) else escape_markdown(str(value))


def _fenced(text: str) -> Markup:
    """Return `text`, unchanged, in a fence that it cannot close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}text\n{text}\n{fence}")


def _indented(text: str) -> Markup:
    """Return `text` as an indented block, which no text can close."""
    return Markup("\n".join(f"    {line}" for line in text.splitlines()))


def _cells(values: Iterable[object]) -> Markup:
    """Return one row of a table."""
    return Markup(" | ".join(escape_markdown(str(value)) for value in values))
