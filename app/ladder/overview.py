"""The ladder as a table and one chart."""

from __future__ import annotations

from functools import lru_cache, partial

import streamlit as st

from app.ladder import charts, rungs
from app.shared import known_times, missing_kernels, plot, tables
from app.shared.runs import rerun_as_jobs_end
from app.shared.selection import Selection
from app.shared.widgets import busy, plain_markdown, theme
from engine.choose.auto import Choice
from engine.jobs.manager import JobStatus
from engine.kernel_figures import Rung, ladder_table
from engine.kernel_figures.changes import forecasts_table, lessons_tree, orders
from engine.kernel_figures.rung import reasons, without_empty
from engine.versions.figures import default_threshold
from kernels.ladder import LADDER

_POLL_S = 0.5
_TITLE_PX = 150  # "Persistent on Hopper"
_ORDER_PX = 135  # "? within error of v08"
_INTERVAL_PX = 140  # "2.01 ms to 2.79 ms"
_KNOWN_PX = 125  # "1.07 ms recorded"
_FIRST = ("rung", "title", "predicted", "order", "90 % interval", "known")
_CONFIG_REMARK = (
    "Each rung has its default config, or the nearest that fits: the table shows the difference."
)
_ROWS = 12  # a longer table scrolls, so that the part below stays visible
_ORDER_HELP = (
    "Compared with the previous rung. ✓: the predicted times differ enough to be ordered reliably. "
    "{threshold}"
)
DETAIL = "kernels_rung"  # id of the rung that is shown below the table


def draw(known: list[Rung], waiting: list[JobStatus], choice: Choice | None) -> None:
    """Draw the choice of `auto`, the progress and the table."""
    if choice is not None:
        st.markdown(f":material/auto_awesome: {plain_markdown(choice.note())}")
    _progress(known, waiting)
    possible = [rung for rung in known if not rung.why_not]
    if possible:
        table = without_empty(ladder_table(possible, ""))
        frame = table.frame()
        # Full configs are too wide for the table; each rung's part below shows its config.
        frame["config"] = [rung.describe_changed for rung in possible]
        frame["order"] = list(orders(possible).values())
        ids = [rung.variant.id for rung in possible]
        tables.draw(
            frame[sorted(frame.columns, key=_place)],
            rows=_ROWS,
            on_select=partial(_open, ids),
            selection_mode="single-row",
            columns={
                "order": st.column_config.TextColumn(
                    width=_ORDER_PX, help=_ORDER_HELP.format(threshold=default_threshold())
                ),
                "title": st.column_config.TextColumn(width=_TITLE_PX),
                "90 % interval": st.column_config.TextColumn(width=_INTERVAL_PX),
                "known": st.column_config.TextColumn(width=_KNOWN_PX),
                "shared memory": st.column_config.TextColumn("smem"),
                "config": st.column_config.TextColumn(width=tables.text_px(frame["config"])),
                "instructions": st.column_config.NumberColumn(format="localized"),
            },
            key="kernels_table",
        )
        remarks = [table.remark, _CONFIG_REMARK, "Select a row to show its rung below."]
        if shipped := sum(rung.is_shipped for rung in possible):
            remarks.append(
                f"The figures of {shipped} of these {len(possible)} rungs ship with Attune. "
                "They were computed by this version of the code, from the same sources with the "
                "same compiler."
            )
        st.caption(plain_markdown(" ".join(remarks)))
    for sentence in reasons({rung.variant.id: rung.why_not for rung in known}):
        st.caption(f":material/block: {plain_markdown(sentence)}")


def draw_tree() -> None:
    """Draw which rung builds on which; computed when opened."""
    opened = st.expander(
        "Tree of the ladder: which rung builds on which", key="kernels_tree", on_change="rerun"
    )
    if not opened.open:
        return
    with opened:
        st.caption(
            "The percentage is the share of the parent's lines of code that a rung keeps; "
            "kernels/README.md explains the small ones."
        )
        st.code(_tree(tuple(v.source.stat().st_mtime_ns for v in LADDER.every())), language=None)


@lru_cache(maxsize=1)
def _tree(_changed: tuple[int, ...]) -> str:
    return lessons_tree()


def draw_times(selection: Selection, known: list[Rung]) -> None:
    """Draw the chart of predicted times."""
    possible = [rung for rung in known if not rung.why_not]
    frame = charts.times_frame(possible, selection.variant.id)
    if len(frame) > 1:
        st.markdown(
            "**Predicted time of each rung** :gray[with its 90 % interval; the sidebar's kernel in "
            "colour]"
        )
        plot.draw(charts.times(frame, theme()), key="kernels_chart", tools=False)


def draw_forecasts() -> None:
    """Draw the study's forecasts for four ideas; computed when opened."""
    opened = st.expander(
        "The study's forecasts and the simulated gains",
        key="kernels_forecasts",
        icon=":material/query_stats:",
        on_change="rerun",
    )
    if not opened.open:
        return
    with opened:
        history = known_times.history()
        table = forecasts_table(history)
        jobs = missing_kernels.jobs_for(history)
        tables.draw(table.frame(), key="kernels_forecasts_table")
        st.caption(plain_markdown(table.remark))
        rerun_as_jobs_end([job for job in jobs if not job.is_over], _POLL_S)


def _open(ids: list[str]) -> None:
    """Show the rung of the selected row; a table's callback."""
    rows = st.session_state["kernels_table"]["selection"]["rows"]
    if rows and rows[0] < len(ids):
        st.session_state[DETAIL] = ids[rows[0]]


def _place(column: str) -> int:
    """Return a column's position: times first, for narrow windows, and the wide config last."""
    return _FIRST.index(column) if column in _FIRST else len(_FIRST) + (column == "config")


def _progress(known: list[Rung], waiting: list[JobStatus]) -> None:
    left = sum(not rung.is_complete for rung in known)
    if not left:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="kernels_progress"):
        if rungs.is_stopped():
            st.markdown(f"{left} rungs are not computed.", width="content")
            st.button(
                "Compute them",
                key="kernels_go_on",
                icon=":material/play_arrow:",
                on_click=rungs.resume,
            )
            return
        st.button("Cancel", key="kernels_stop", icon=":material/stop:", on_click=rungs.stop)
        rerun_as_jobs_end(
            waiting,
            _POLL_S,
            lambda count: busy(f"Compiling, simulating and counting {count} of {len(known)} rungs"),
        )
