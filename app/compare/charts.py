"""The chart of the fastest variant of each problem, and by how much it wins."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from app.shared.chart_style import ROW_PX, axis, figure, plain
from app.shared.palette import Theme, color_of
from engine.attention.evaluation import baseline_label
from engine.base.units import format_speedup_over, format_us

MAX_ROWS = 60  # more problems are in the table below


def winner_map(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Return a bar per problem and device, in the winner's colour; a tie is hatched and names the
    other.

    Columns: `problem, device, winner, origin, median_us, tied, runner_up, speedup, speedup_low,
    speedup_high, sdpa, speedup_over_sdpa, caveat` (`formats.winners_frame`).
    The bar's length is the runner-up's time divided by the winner's; 1 without a runner-up.
    """
    rows = frame.head(MAX_ROWS)
    names = [f"{plain(str(row.problem))}, {plain(str(row.device))}" for row in rows.itertuples()]
    lengths = [1.0 if pd.isna(x) else float(x) for x in rows["speedup"]]
    positions = list(range(len(rows)))  # two environments may have the same problem and device
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": lengths,
        "y": positions,
        "marker": {
            "color": [color_of(str(w)) for w in rows["winner"]],
            "pattern": {"shape": ["/" if tied else "" for tied in rows["tied"]]},
            "line": {"width": 0},
        },
        "text": [_label(row) for row in rows.itertuples()],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertext": [_hover(row) for row in rows.itertuples()],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    room = 1.6 * max(lengths, default=1.0)  # space for the text at the bar's end
    return figure(
        theme,
        80 + ROW_PX * max(len(rows), 1),
        [bars],
        xaxis=axis(theme, "time of the runner-up / time of the fastest", range=[0, room]),
        yaxis=axis(theme, autorange="reversed", showgrid=False, tickvals=positions, ticktext=names),
    )


def _label(row: Any) -> str:
    winner, tied = plain(str(row.winner)), plain(str(row.tied))
    if tied:
        text = f"{winner} tied with {tied}"
    elif row.runner_up:
        text = f"{winner}, {format_speedup_over(row.speedup, plain(str(row.runner_up)))}"
    else:
        text = f"{winner}, the only one timed"
    if not pd.isna(row.speedup_over_sdpa):
        sdpa = plain(baseline_label(str(row.sdpa)))
        text += f"; {format_speedup_over(row.speedup_over_sdpa, sdpa)}"
    return text


def _hover(row: Any) -> str:
    time = format_us(row.median_us)
    lines = [f"<b>{_label(row)}</b>", f"{time} {plain(str(row.origin))}"]
    if not pd.isna(row.speedup):
        low, high = row.speedup_low, row.speedup_high
        if not pd.isna(low):
            lines.append(f"{low:.3g}× to {high:.3g}×, 95 % interval")
    if row.caveat:
        lines.append(f"no verdict: {plain(str(row.caveat))}")
    return "<br>".join(lines)
