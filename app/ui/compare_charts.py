"""The winner map: which variant is the fastest for each problem, and by how much."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from app.ui.charts import plain
from app.ui.palette import Theme, variant_color
from engine.units import format_us
from kernels.ladder import LADDER

_ROW_PX = 34
MAX_ROWS = 60  # more problems are in the table below


def winner_map(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """One bar per problem and device, in the winner's colour; a tie is hatched and says with whom.

    Columns: `problem, device, winner, origin, median_us, tied, runner_up, speedup, speedup_low,
    speedup_high, sdpa, speedup_over_sdpa` (`engine.sessions.compare_output.winners_frame`). The
    bar's length is how many times longer the next variant takes that is slower for sure; 1 where
    there is none.
    """
    shown = frame.head(MAX_ROWS)
    colors = {v.id: variant_color(i) for i, v in enumerate(LADDER)}
    figure = go.Figure()
    names = [f"{plain(str(row.problem))}, {plain(str(row.device))}" for row in shown.itertuples()]
    lengths = [1.0 if pd.isna(x) else float(x) for x in shown["speedup"]]
    figure.add_bar(
        x=lengths,
        y=list(range(len(shown))),  # two environments may share problem and device
        orientation="h",
        marker={
            "color": [colors.get(str(w), theme.line) for w in shown["winner"]],
            "pattern": {"shape": ["/" if tied else "" for tied in shown["tied"]]},
            "line": {"width": 0},
        },
        text=[_label(row) for row in shown.itertuples()],
        textposition="outside",
        cliponaxis=False,
        hovertext=[_hover(row) for row in shown.itertuples()],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    figure.update_layout(
        height=80 + _ROW_PX * max(len(shown), 1),
        margin={"l": 8, "r": 16, "t": 8, "b": 40},
        showlegend=False,
        hoverlabel={"align": "left"},
        bargap=0.35,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": theme.text},
    )
    longest = max(lengths, default=1.0)
    figure.update_xaxes(
        title="time of the next slower variant / time of the fastest",
        range=[0, longest * 1.6],  # room for the words at the bar's end
        gridcolor=theme.grid,
        zeroline=False,
        title_font_size=12,
        automargin=True,
    )
    figure.update_yaxes(
        autorange="reversed",
        showgrid=False,
        automargin=True,
        tickvals=list(range(len(shown))),
        ticktext=names,
    )
    return figure


def _label(row: Any) -> str:
    winner, tied = plain(str(row.winner)), plain(str(row.tied))
    if tied:
        words = f"{winner} tied with {tied}"
    elif row.runner_up:
        words = f"{winner}, {row.speedup:.3g}× over {plain(str(row.runner_up))}"
    else:
        words = f"{winner}, the only one timed"
    if not pd.isna(row.speedup_over_sdpa):
        words += f"; {row.speedup_over_sdpa:.3g}× over SDPA {plain(str(row.sdpa))}"
    return words


def _hover(row: Any) -> str:
    time = format_us(row.median_us)
    lines = [f"<b>{_label(row)}</b>", f"{time} {plain(str(row.origin))}"]
    if not pd.isna(row.speedup):
        low, high = row.speedup_low, row.speedup_high
        lines.append(f"{low:.3g}× to {high:.3g}×, 95 % interval")
    return "<br>".join(lines)
