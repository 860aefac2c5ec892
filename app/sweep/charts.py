"""Charts of the page "Sweep": pure functions of the engine's DataFrames and a theme.

The `customdata` of a point is the id of its row, so that a click opens it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.shared.chart_style import (
    ROW_PX,
    TOOLS_PX,
    Part,
    Trace,
    axis,
    figure,
    log_ticks,
    plain,
    time_axis,
)
from app.shared.palette import MARKER, Theme, variant_color
from engine.attention.evaluation import Origin
from engine.base.units import format_us
from engine.history.known_time import NOT_COMPARABLE, RANKING_ERROR

LACKS = "–"  # shown for a tunable that a variant lacks
MAX_LABELS = 12  # of one axis of the parallel coordinates
_LEVEL_LABELS = 5  # number of axis names that fit side by side
_MAX_CELL_TEXTS = 160
_MANY_POINTS = 2000
_TIE = " ="
_MIN_RATIO = 1 + RANKING_ERROR
_PANELS = 3  # side by side
_ON_CELL = "#000000"  # legible on every variant's colour, on the light and the dark page


def winner_map(frame: pd.DataFrame, colors: Mapping[str, str], theme: Theme) -> go.Figure:
    """Return a map of the fastest variant or config, over sequence length and batch × heads.

    Columns: `batch`, `num_heads`, `seqlen`, `winner` (what `colors` name), `runner_up`, `margin`
    (NaN: no other), `tied_with`, `label`, `median_us`, `origin`, `point`, `problem`. One line per
    cell.
    """
    lengths = sorted(frame["seqlen"].unique())
    heads = sorted(set(zip(frame["batch"], frame["num_heads"], strict=True)))
    names = list(dict.fromkeys(frame["winner"]))
    shades = [colors[name] for name in names]
    z = np.full((len(heads), len(lengths)), np.nan, np.float32)
    rows = [heads.index(pair) for pair in zip(frame["batch"], frame["num_heads"], strict=True)]
    columns = [lengths.index(length) for length in frame["seqlen"]]
    z[rows, columns] = [names.index(name) for name in frame["winner"]]
    steps = np.repeat(np.arange(len(names) + 1) / len(names), 2)[1:-1]
    cells: Trace = {
        "type": "heatmap",
        "z": z,
        "zmin": -0.5,
        "zmax": len(names) - 0.5,
        "colorscale": [[float(s), shades[i // 2]] for i, s in enumerate(steps)],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "hoverinfo": "skip",
    }
    pairs = zip(frame["winner"], frame["tied_with"], strict=True)
    few = len(frame) <= _MAX_CELL_TEXTS
    texts = [
        f"<b>{name}{_TIE if tied else ''}</b><br>{format_us(us)}"
        for (name, tied), us in zip(pairs, frame["median_us"], strict=True)
    ]
    points: Trace = {
        "type": "scatter",
        "mode": "markers+text" if few else "markers",
        "x": columns,
        "y": rows,
        "text": texts if few else None,
        "textfont": {"color": _ON_CELL, "size": 11},
        # Invisible, but makes the cell clickable.
        "marker": {"size": 26, "color": "rgba(0,0,0,0)", "symbol": "square"},
        "selected": {"marker": {"opacity": 1}},
        "unselected": {"marker": {"opacity": 1}, "textfont": {"color": _ON_CELL}},
        "customdata": frame["point"].to_list(),
        "hovertext": [_win(row) for row in frame.to_dict("records")],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    return figure(
        theme,
        TOOLS_PX + min(82 + 52 * len(heads), 632),
        [cells, points],
        margin={"t": TOOLS_PX},
        clickmode="event+select",
        xaxis=_categories(theme, "S, sequence length", [f"{n:,}" for n in lengths]),
        yaxis=_categories(theme, "", [f"B{b} H{h}" for b, h in heads]),
    )


def _categories(theme: Theme, title: str, names: Sequence[str]) -> Part:
    every = max(1, -(-len(names) // 24))
    return axis(
        theme,
        title,
        tickvals=list(range(0, len(names), every)),
        ticktext=list(names[::every]),
        range=[-0.5, len(names) - 0.5],
        showgrid=False,
    )


def _win(row: Mapping[str, object]) -> str:
    text = f"<b>{plain(str(row['label']))}</b><br>{row['problem']}<br>"
    text += f"{format_us(float(row['median_us']))} {row['origin']}"  # type: ignore[arg-type]
    if row["tied_with"]:
        text += f"<br>a tie with {plain(str(row['tied_with']))}"
    elif row["runner_up"]:
        margin = row["margin"]
        is_known = not pd.isna(margin)  # type: ignore[call-overload]
        text += (
            f"<br>{row['runner_up']} takes {margin:.2f} × as long"
            if is_known
            else (f"<br>beside {row['runner_up']}: {NOT_COMPARABLE}")
        )
    return text


def parallel(frame: pd.DataFrame, labels: Mapping[str, Sequence[str]], theme: Theme) -> go.Figure:
    """Return parallel coordinates of the varying tunables and the time, one line per point.

    `frame` and `labels` are those of `engine.search.results.parallel_coordinates`. Values are
    equally spaced on each axis; the lowest place stands for a tunable that a variant lacks.
    """
    logs = np.log10(frame["median_us"].to_numpy(np.float64))
    dimensions = [
        _dimension(name, frame[name], labels.get(name))
        for name in frame.columns
        if name != "median_us"
    ]
    low, high = float(frame["median_us"].min()), float(frame["median_us"].max())
    near = (high / low) ** 0.06  # least distance between two labels, as a factor
    between = [t for t in log_ticks(low, high) if low * near < t < high / near]
    ticks = [low, *between, high]
    dimensions.append(
        {
            "label": "latency",
            "values": logs,
            "range": [np.log10(low) - 0.02, np.log10(high) + 0.02],
            "tickvals": np.log10(ticks),
            "ticktext": [format_us(t) for t in ticks],
        }
    )
    halo = f"0 0 3px {theme.paper}"  # labels stand on the lines
    lines: Trace = {
        "type": "parcoords",
        "dimensions": dimensions,
        "line": {
            "color": logs,
            "colorscale": [[0, theme.accent], [0.5, theme.line], [1, theme.muted]],
            "cmin": float(logs.min()),
            "cmax": float(logs.max()) + 1e-6,
        },
        "labelfont": {"color": theme.text, "size": 12},
        # Names of tunables are wider than the space between many axes.
        "labelangle": -16 if len(dimensions) > _LEVEL_LABELS else 0,
        "tickfont": {"color": theme.text, "size": 12, "shadow": ", ".join([halo] * 4)},
        "rangefont": {"color": "rgba(0,0,0,0)"},
        "unselected": {"line": {"color": theme.muted, "opacity": 0.08}},
    }
    return figure(theme, 380, [lines], margin={"l": 60, "r": 60, "t": 72, "b": 24})


def _dimension(name: str, column: pd.Series, names: Sequence[str] | None) -> Part:
    values = np.sort(column.dropna().unique())
    codes = np.searchsorted(values, column.fillna(values[0])).astype(np.float32)
    text = list(names) if names else [f"{int(v):,}" for v in values]
    if column.isna().any():
        codes = np.where(column.isna(), 0, codes + 1)
        text = [LACKS, *text]
    every = max(1, -(-len(text) // MAX_LABELS))
    return {
        "label": plain(name.replace("_", " ")),
        "values": codes,
        "range": [-0.1, len(text) - 0.9],
        "tickvals": list(range(0, len(text), every)),
        "ticktext": text[::every],
    }


def importance(frame: pd.DataFrame, colors: Mapping[str, str], theme: Theme) -> go.Figure:
    """Return bars of each tunable's importance, in the colour of its variant.

    Columns: `variant`, `tunable`, `importance` (0..1), `best_value`, `gain`, `points`.
    """
    order = frame.sort_values(["variant", "importance"], ascending=[True, False])
    rows = order.to_dict("records")
    bars: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": 100 * order["importance"].to_numpy(np.float32),
        "y": [f"{r['variant']} {plain(r['tunable'])}" for r in rows],
        "marker": {"color": [colors[r["variant"]] for r in rows]},
        "text": [f"best {r['best_value']}: {r['gain']:.2f}× faster than the worst" for r in rows],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": order["points"].to_numpy(),
        "hovertemplate": "<b>%{y}</b><br>%{x:.1f}% of the spread<br>%{text}"
        "<br>%{customdata:,} points<extra></extra>",
    }
    return figure(
        theme,
        56 + ROW_PX * len(rows),
        [bars],
        margin={"r": 200},
        xaxis=axis(theme, "share of the spread of times, %", range=[0, 100]),
        yaxis=axis(theme, autorange="reversed", showgrid=False),
    )


def best_so_far(frame: pd.DataFrame, end_s: float, origin: Origin, theme: Theme) -> go.Figure:
    """Return the best time of each problem over the evaluation time spent, `end_s` so far.

    Columns: as `engine.search.results.best_so_far`.
    """
    data: list[Trace] = []
    for number, (name, group) in enumerate(frame.groupby("problem", sort=False)):
        labels = zip(group["label"], group["median_us"], group["evaluated"], strict=True)
        told = [
            f"<b>{plain(label)}</b><br>{format_us(us)} after {count:,} points"
            for label, us, count in labels
        ]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(str(name)),
                "line": {"shape": "hv", "width": 2, "color": variant_color(number)},
                "marker": {"symbol": MARKER[origin], "size": 8},
                # The last best time extends to the present.
                "x": [*group["spent_s"], end_s],
                "y": [*group["median_us"], group["median_us"].iloc[-1]],
                "customdata": [*group["point"], None],
                "hovertext": [*told, told[-1]],
                "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
            }
        )
    return figure(
        theme,
        420,
        data,
        showlegend=len(data) > 1,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"t": 36},
        clickmode="event+select",
        xaxis=axis(theme, "time that evaluations took, s", rangemode="tozero"),
        yaxis=_latency_axis(theme, frame["median_us"], f"best latency, {origin} (logarithmic)"),
    )


def slices(
    frame: pd.DataFrame, colors: Mapping[str, str], origin: Origin, theme: Theme
) -> go.Figure:
    """Return the best time at each value of each tunable, one panel per tunable.

    Columns: as `engine.search.results.tunable_slices`, of one problem.
    """
    tunables = list(dict.fromkeys(frame["tunable"]))
    across = min(len(tunables), _PANELS)
    down = -(-len(tunables) // across)
    data: list[Trace] = []
    axes: dict[str, Part] = {}
    for number, tunable in enumerate(tunables):
        suffix = str(number + 1) if number else ""
        left, top = (number % across) / across, 1 - (number // across) / down
        own = frame[frame["tunable"] == tunable]
        values = sorted(own["value"].unique())
        for variant, group in own.groupby("variant", sort=True):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": str(variant),
                    "legendgroup": str(variant),
                    "showlegend": not any(trace["name"] == str(variant) for trace in data),
                    "xaxis": f"x{suffix}",
                    "yaxis": f"y{suffix}",
                    "line": {"color": colors[str(variant)], "width": 1.5},
                    "marker": {"symbol": MARKER[origin], "size": 8},
                    "x": [values.index(value) for value in group["value"]],
                    "y": list(group["best_us"]),
                    "customdata": list(group["point"]),
                    "hovertext": [
                        f"<b>{variant} {plain(tunable)}={value}</b><br>{format_us(us)}, the best "
                        f"of {count:,} points"
                        for value, us, count in zip(
                            group["value"], group["best_us"], group["points"], strict=True
                        )
                    ],
                    "hovertemplate": "%{hovertext}<extra></extra>",
                }
            )
        axes[f"xaxis{suffix}"] = axis(
            theme,
            plain(tunable.replace("_", " ")),
            tickvals=list(range(len(values))),
            ticktext=[str(value) for value in values],
            range=[-0.5, len(values) - 0.5],
            domain=[left + 0.02, left + 0.94 / across],
            anchor=f"y{suffix}",
            showgrid=False,
        )
        axes[f"yaxis{suffix}"] = {
            **_latency_axis(
                theme, frame["best_us"], f"best, {origin}" if not number % across else ""
            ),
            "domain": [top - 0.72 / down, top],
            "anchor": f"x{suffix}",
            # The panels share one range: only the left one has a title.
            **({"matches": "y"} if number else {}),
        }
    return figure(
        theme,
        60 + 240 * down,
        data,
        showlegend=frame["variant"].nunique() > 1,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"t": 36},
        clickmode="event+select",
        **axes,
    )


def occupancy(
    frame: pd.DataFrame, colors: Mapping[str, str], origin: Origin, theme: Theme
) -> go.Figure:
    """Return latency over occupancy of one problem, with outliers marked by a cross.

    Columns: `variant`, `label`, `occupancy` (0..1), `median_us`, `outlier`, `sentence`, `point`.
    """
    kind = "scattergl" if len(frame) > _MANY_POINTS else "scatter"
    data: list[Trace] = []
    for name, group in frame.groupby("variant", sort=True):
        data.append(
            {
                "type": kind,
                "mode": "markers",
                "name": str(name),
                **_places(group),
                "marker": {
                    "color": colors[str(name)],
                    "size": 10,
                    "symbol": MARKER[origin],
                    "line": {"width": 2, "color": colors[str(name)]},
                },
            }
        )
    outliers = frame[frame["outlier"]]
    if len(outliers):
        data.append(
            {
                "type": kind,
                "mode": "markers",
                "name": "outlier",
                **_places(outliers),
                "marker": {"color": theme.text, "size": 8, "symbol": "x-thin-open"},
            }
        )
    return figure(
        theme,
        420,
        data,
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"t": 36},
        clickmode="event+select",
        xaxis=axis(theme, "occupancy, %", range=[0, 104], tickvals=[0, 25, 50, 75, 100]),
        yaxis=_latency_axis(theme, frame["median_us"], f"latency, {origin} (logarithmic)"),
    )


def _latency_axis(theme: Theme, times_us: pd.Series, title: str) -> Part:
    """Return a time axis whose ends differ at least by `_MIN_RATIO`, so that similar times
    look similar."""
    low, high = float(times_us.min()), float(times_us.max())
    if high / low >= _MIN_RATIO:
        return time_axis(theme, low, high, title)
    middle = float(np.sqrt(low * high))
    low, high = middle / _MIN_RATIO**0.5, middle * _MIN_RATIO**0.5
    return time_axis(theme, low, high, title, range=[np.log10(low), np.log10(high)])


def _places(frame: pd.DataFrame) -> Trace:
    notes = zip(frame["label"], frame["median_us"], frame["sentence"], strict=True)
    return {
        "x": 100 * frame["occupancy"].to_numpy(np.float32),
        "y": frame["median_us"].to_numpy(np.float32),
        "customdata": frame["point"].to_list(),
        "hovertext": [
            f"<b>{plain(label)}</b><br>{format_us(us)}"
            + (f"<br>{plain(sentence)}" if sentence else "")
            for label, us, sentence in notes
        ],
        "hovertemplate": "%{hovertext}<br>%{x:.0f}% occupancy<extra></extra>",
    }
