"""One opened snapshot: where it comes from, its evaluations, and one of them in full."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.evaluation import frames, metrics, tabs
from app.evaluation.view import Shown, from_snapshot
from app.sessions import advice
from app.sessions import frames as session_frames
from app.sessions.working import STATE_COLOR, STATE_ICON
from app.shared import selection
from app.shared.downloads import csv, downloads
from app.shared.widgets import empty, plain_markdown
from engine.records.snapshot import Snapshot
from engine.sessions.goal import describe_target, target_status
from engine.sessions.timeline import timeline_rows

_ROWS = 7  # a longer table scrolls


def draw(
    name: str, snapshot: Snapshot, *, on_close: Callable[[], None], on_remove: Callable[[], None]
) -> None:
    _head(name, snapshot, on_close, on_remove)
    _about(snapshot)
    _folded(snapshot)
    if not snapshot.evaluations:
        empty(
            "nothing yet", "This session holds no evaluation", "It was saved before anything ran."
        )
        return
    index = _choose(snapshot)
    shown = from_snapshot(snapshot, index)
    _coordinates(shown)
    metrics.draw(shown)
    tabs.draw(shown, "session_tab")


def _head(
    name: str, snapshot: Snapshot, on_close: Callable[[], None], on_remove: Callable[[], None]
) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"#### {plain_markdown(snapshot.title)}", width="stretch")
        downloads(lambda: snapshot, name, "session")
        if st.button("Compare", key="session_compare", icon=":material/compare_arrows:"):
            st.switch_page("app_pages/compare.py", query_params={"session": name})
        with st.popover("Remove", icon=":material/delete:"):
            st.write("It goes to the trash folder beside the sessions.")
            st.button("Remove this snapshot", key="session_remove", on_click=on_remove)
        st.button("Close", key="session_close", on_click=on_close, icon=":material/close:")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge("recorded", icon=":material/history:", color="gray")
        st.text(f"{name}, saved {snapshot.updated[:19].replace('T', ' ')} UTC")


def _about(snapshot: Snapshot) -> None:
    if snapshot.target is not None:
        found = target_status(snapshot.target, snapshot.opened())
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.badge(found.state, icon=STATE_ICON[found.state], color=STATE_COLOR[found.state])
            st.text(f"{describe_target(snapshot.target)}. {found.sentence}")
    for label, text in (
        ("Hypothesis", snapshot.hypothesis),
        ("Notes", snapshot.notes),
        ("Where it comes from", snapshot.provenance),
    ):
        if text:
            left, right = st.columns([1, 6])
            left.caption(label)
            right.text(text)


def _folded(snapshot: Snapshot) -> None:
    with st.expander("Environment it was made in", icon=":material/memory:"):
        st.dataframe(frames.environment(snapshot.environment), hide_index=True, width="stretch")
    if snapshot.timeline:
        rows = timeline_rows(snapshot.timeline, snapshot.opened())
        with st.expander(f"Timeline, {len(rows):,} entries", icon=":material/timeline:"):
            st.dataframe(session_frames.timeline(rows), hide_index=True, width="stretch")
    if snapshot.sources:
        _sources(snapshot)
    if snapshot.log:
        with st.expander("Import log", icon=":material/subject:"):
            st.code(snapshot.log, language=None, wrap_lines=True)
    if snapshot.evaluations:
        advice.draw(snapshot.opened(), "session")


def _sources(snapshot: Snapshot) -> None:
    part = st.expander(
        f"Sources, {len(snapshot.sources):,} files",
        icon=":material/code:",
        key="session_sources",
        on_change="rerun",
    )
    if not part.open:
        return
    with part:
        st.caption("Shown as text. Opening a snapshot compiles and runs nothing of it.")
        st.dataframe(session_frames.sources(snapshot.sources), hide_index=True, width="stretch")
        index = st.selectbox(
            "File",
            range(len(snapshot.sources)),
            format_func=lambda i: snapshot.sources[i].name,
            key="session_source",
        )
        source = snapshot.sources[index or 0]
        st.code(source.text, language="cpp", line_numbers=True, height=420)


def _choose(snapshot: Snapshot) -> int:
    """The evaluation to look at."""
    if len(snapshot.evaluations) == 1:
        return 0
    frame = frames.evaluations(snapshot.opened())
    event = st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height="content" if len(frame) <= _ROWS else 300,
        key=f"evaluations.{snapshot.id}",
        on_select="rerun",
        selection_mode="single-row-required",
        placeholder="",
        column_config={
            "occupancy %": st.column_config.NumberColumn(format="%.0f"),
            "max |error|": st.column_config.NumberColumn(format="%.2g"),
        },
    )
    st.download_button(
        "This table, CSV",
        lambda: csv(frame),
        file_name="evaluations.csv",
        mime="text/csv",
        key="session_table_csv",
        icon=":material/download:",
        type="tertiary",
        on_click="ignore",
    )
    rows = event["selection"]["rows"]
    return int(rows[0]) if rows else 0


def _coordinates(shown: Shown) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(f"{shown.variant}  {shown.problem.label()}  on {shown.device_name}")
        if st.button("Take to Tune", key="session_tune", icon=":material/tune:"):
            selection.choose(shown.variant, shown.config, shown.problem, shown.device_name)
            st.switch_page("app_pages/tune.py")
