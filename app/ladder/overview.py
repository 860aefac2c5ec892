"""The top of the page: the ladder as a table and one chart."""

from __future__ import annotations

import streamlit as st

from app.ladder import charts, rungs
from app.shared import plot, tables
from app.shared.runs import rerun_as_jobs_end
from app.shared.selection import Selection
from app.shared.widgets import busy, plain_markdown, theme
from engine.auto import Choice
from engine.jobs.manager import JobStatus
from engine.kernel_figures import Rung, ladder_table
from engine.kernel_figures.rung import reasons, without_empty

_POLL_S = 0.5
_TITLE_PX = 150  # "Persistent on Hopper"
_KNOWN_PX = 125  # "1.07 ms recorded"
_FIRST = ("rung", "title", "simulated", "90 % interval", "known")
_CONFIG_REMARK = (
    "Each rung has its default config, or the nearest that fits: the table shows the difference."
)


def draw(
    selection: Selection, known: list[Rung], waiting: list[JobStatus], choice: Choice | None
) -> None:
    """What `auto` takes, progress, table, chart."""
    if choice is not None:
        st.markdown(f":material/auto_awesome: {plain_markdown(choice.note())}")
    _progress(known, waiting)
    possible = [rung for rung in known if not rung.why_not]
    if possible:
        table = without_empty(ladder_table(possible, ""))
        frame = table.frame()
        # Whole configs are wider than a window: they stand with each rung.
        frame["config"] = [rung.describe_changed for rung in possible]
        tables.draw(
            frame[sorted(frame.columns, key=_place)],
            rows=len(possible),
            columns={
                "title": st.column_config.TextColumn(width=_TITLE_PX),
                "known": st.column_config.TextColumn(width=_KNOWN_PX),
                "instructions": st.column_config.NumberColumn(format="localized"),
            },
            key="kernels_table",
        )
        st.caption(plain_markdown(f"{table.remark} {_CONFIG_REMARK}"))
    for sentence in reasons({rung.variant.id: rung.why_not for rung in known}):
        st.caption(f":material/block: {plain_markdown(sentence)}")
    frame = charts.times_frame(possible, selection.variant.id)
    if len(frame) > 1:
        st.markdown(
            "**Simulated time of each rung** :gray[with its 90 % interval; in colour the kernel of "
            "the sidebar]"
        )
        plot.draw(charts.times(frame, theme()), key="kernels_chart", tools=False)


def _place(column: str) -> int:
    """Times first, which a narrow window must show, and the config, the widest, last."""
    return _FIRST.index(column) if column in _FIRST else len(_FIRST) + (column == "config")


def _progress(known: list[Rung], waiting: list[JobStatus]) -> None:
    left = sum(not rung.is_complete for rung in known)
    if not left:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="kernels_progress"):
        if rungs.is_stopped():
            st.markdown(f"{left} rungs are not worked out.", width="content")
            st.button(
                "Work them out",
                key="kernels_go_on",
                icon=":material/play_arrow:",
                on_click=rungs.go_on,
            )
            return
        st.button("Cancel", key="kernels_stop", icon=":material/stop:", on_click=rungs.stop)
        rerun_as_jobs_end(
            waiting,
            _POLL_S,
            lambda count: busy(f"Compiling, simulating and counting {count} of {len(known)} rungs"),
        )
