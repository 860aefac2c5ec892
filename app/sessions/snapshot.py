"""An opened snapshot: its provenance, its evaluations, and the details of one of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import streamlit as st

from app.evaluation import metrics, tabs
from app.evaluation.view import EvaluationView
from app.sessions import advice, charts, downloads, frames
from app.sessions.goal import draw_status
from app.shared import known_times, pinned, plot, tables
from app.shared.selection import select
from app.shared.widgets import empty, origin_badge, plain_markdown, show_errors, theme
from engine.attention.evaluation import Evaluation
from engine.base.errors import UnknownName
from engine.correctness import ErrorMap
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.history.known_time import kernel_name, timed_device
from engine.sessions.goal import goal_status, timeline_rows
from engine.sessions.importers.nsight_compute import counters_table
from engine.sessions.snapshot import Snapshot, summarise
from engine.sessions.tables import (
    environment_table,
    holds_baselines_alone,
    phases_table,
    sources_table,
    summary_table,
    timeline_table,
)

_ROWS = 7  # a longer table scrolls


def draw(
    name: str, snapshot: Snapshot, *, on_close: Callable[[], None], on_remove: Callable[[], None]
) -> None:
    _head(name, snapshot, on_close, on_remove)
    for part in (_about, _folded):
        with show_errors():
            part(snapshot)
    if not snapshot.evaluations:
        empty(
            "nothing yet", "No evaluations in this session", "It was saved before anything was run."
        )
        return
    with show_errors():
        if holds_baselines_alone(snapshot.evaluations):
            _draw_baselines(snapshot)
        else:
            _draw_evaluation(snapshot)


def _draw_baselines(snapshot: Snapshot) -> None:
    """Draw a snapshot with times of PyTorch's attention only."""
    results = snapshot.opened()
    devices = ", ".join(dict.fromkeys(e.device for e in results))
    st.markdown("**PyTorch's attention, to compare kernels with**")
    st.caption(
        plain_markdown(
            f"{len(results):,} problems on {devices}; device time, warm. Tune shows these times "
            "beside kernels of the same problem and GPU."
        )
    )
    frame = frames.baselines(results)
    if not frame.empty:
        plot.draw(charts.baselines(frame, theme()), key="session_baselines")
    table = frames.baseline_table(results)
    tables.draw(table, rows=_ROWS, numbers="%.4g", key="session_baseline_table")
    tables.download(
        "This table, CSV",
        lambda: tables.csv(table),
        "baselines.csv",
        key="session_table_csv",
    )


def _draw_evaluation(snapshot: Snapshot) -> None:
    index = _choose(snapshot)
    view = _view_of(snapshot, index)
    _coordinates(view, snapshot.opened()[index])
    with show_errors():
        metrics.draw(view)
        metrics.draw_notes(view.evaluation.notes if view.evaluation is not None else ())
    tabs.draw(view, "session_tab")


def _head(
    name: str, snapshot: Snapshot, on_close: Callable[[], None], on_remove: Callable[[], None]
) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"#### {plain_markdown(snapshot.title)}", width="stretch")
        downloads.draw(lambda: snapshot, name, "session")
        if st.button("Compare", key="session_compare", icon=":material/compare_arrows:"):
            st.switch_page("app_pages/compare.py", query_params={"session": name})
        with st.popover("Remove", icon=":material/delete:"):
            st.write("It is moved to the trash folder of the store.")
            st.button("Remove this snapshot", key="session_remove", on_click=on_remove)
        st.button("Close", key="session_close", on_click=on_close, icon=":material/close:")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(origin_badge(frames.origin_of(summarise(snapshot))), width="content")
        st.text(f"{name}, saved {snapshot.updated[:19].replace('T', ' ')} UTC")


def _about(snapshot: Snapshot) -> None:
    if snapshot.target is not None:
        status = goal_status(snapshot.target, snapshot.opened(), snapshot.title)
        draw_status(snapshot.target, status)
    summary = dict(summary_table(snapshot, snapshot.opened()).texts)
    told = [
        (name.capitalize(), summary[name])
        for name in ("decision", "time spent", "GPU-hours", "cost", "budget")
        if name in summary
    ]
    for label, text in (
        *told,
        ("Hypothesis", snapshot.hypothesis),
        ("Result", summary.get("hypothesis", "")),
        ("Notes", snapshot.notes),
        ("Provenance", snapshot.provenance),
    ):
        if text:
            left, right = st.columns([1, 6])
            left.caption(label)
            right.text(text)


def _folded(snapshot: Snapshot) -> None:
    if snapshot.phases:
        tables.draw(phases_table(snapshot.phases, snapshot.opened(), snapshot.title).frame())
    with st.expander("Environment", icon=":material/memory:"):
        tables.draw(environment_table(snapshot.environment).frame())
    counted = counters_table(snapshot.opened(), known_times.history(), snapshot.title)
    if counted.rows:
        with st.expander(counted.title, icon=":material/monitoring:", expanded=True):
            tables.draw(counted.frame(), rows=_ROWS)
            st.caption(plain_markdown(counted.remark))
    if snapshot.timeline:
        rows = timeline_rows(snapshot.timeline, snapshot.opened(), snapshot.title)
        with st.expander(f"Timeline, {len(rows):,} entries", icon=":material/timeline:"):
            frame = timeline_table(rows).frame().iloc[::-1]
            tables.draw(
                frame,
                rows=_ROWS,
                row_height=tables.row_px(frame["what"]),
                columns={"what": st.column_config.TextColumn(width="large")},
            )
    if snapshot.sources:
        _sources(snapshot)
    if snapshot.attachments:
        with st.expander(f"Files, {len(snapshot.attachments):,}", icon=":material/attach_file:"):
            for i, file in enumerate(snapshot.attachments):
                tables.download(file.name, file.text, file.name, key=f"session_file.{i}")
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
        st.caption("Shown as text only: opening a snapshot compiles and runs nothing from it.")
        tables.draw(sources_table(snapshot.sources).frame())
        index = st.selectbox(
            "File",
            range(len(snapshot.sources)),
            format_func=lambda i: snapshot.sources[i].name,
            key="session_source",
        )
        source = snapshot.sources[index or 0]
        st.code(source.text, language="cpp", line_numbers=True, height=420)


def _choose(snapshot: Snapshot) -> int:
    """Draw the evaluations; return the index of the selected one."""
    if len(snapshot.evaluations) == 1:
        return 0
    frame = frames.evaluations(snapshot.opened(), snapshot.title)
    event = tables.draw(
        frame,
        rows=_ROWS,
        key=f"evaluations.{snapshot.id}",
        on_select="rerun",
        selection_mode="single-row-required",
        columns={
            "latency µs": st.column_config.NumberColumn(format="localized"),
            "occupancy %": st.column_config.NumberColumn(format="%.0f"),
            "max |error|": st.column_config.NumberColumn(format="%.2g"),
        },
    )
    tables.download(
        "This table, CSV",
        lambda: tables.csv(frame),
        "evaluations.csv",
        key="session_table_csv",
    )
    rows = event["selection"]["rows"]
    return int(rows[0]) if rows else 0


def _view_of(snapshot: Snapshot, index: int) -> EvaluationView:
    """Return the view of a snapshot's evaluation, with nothing from this machine."""
    evaluation = snapshot.opened()[index]
    sources = (s for s in snapshot.sources if s.sha256 == evaluation.source_sha256)
    source = next(sources, None)
    return EvaluationView(
        variant=kernel_name(evaluation, snapshot.title),
        problem=evaluation.problem,
        config=evaluation.config,
        device_name=timed_device(evaluation),
        device=_device(timed_device(evaluation)),
        passes=evaluation.passes,
        latency=evaluation.latency,
        latency_reason="The snapshot has no latency for this evaluation.",
        bound_us=None,
        predicted=None,
        terms=None,
        kernel=None,
        known=(),
        evaluation=evaluation,
        maps=_maps(snapshot, index),
        source_name=source.name if source else "",
        source_path="",
        source=source.text if source else "",
        headers={},
        flags=evaluation.flags,
        log=evaluation.log,
        is_recorded=True,
    )


def _maps(snapshot: Snapshot, index: int) -> tuple[ErrorMap, ...]:
    maps = []
    for stored in snapshot.error_maps:
        if stored.evaluation == index:
            values = [np.nan if v is None else v for v in stored.values]
            maps.append(
                ErrorMap(
                    stored.name,
                    stored.row_axis,
                    stored.column_axis,
                    np.array(values, dtype=np.float64).reshape(stored.rows, stored.columns),
                    stored.rows_per_cell,
                    stored.columns_per_cell,
                )
            )
    return tuple(maps)


def _device(name: str) -> DeviceSpec | None:
    try:
        return find_device(name)
    except UnknownName:
        return None


def _coordinates(view: EvaluationView, evaluation: Evaluation) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(f"{view.variant}  {view.problem.label()}  on {view.device_name}")
        pinned.button(lambda: evaluation, disabled=False)
        if st.button("Open in Tune", key="session_tune", icon=":material/tune:"):
            select(evaluation.variant, view.config, view.problem, view.device_name)
            st.switch_page("app_pages/tune.py")
