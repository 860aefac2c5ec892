"""Compare: snapshots beside each other; what differs first, then what got slower."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.ui import compare_charts, working
from app.ui.opened import open_snapshot
from app.ui.runs import collect
from app.ui.share import csv
from app.ui.widgets import empty, plain_markdown, problem, theme
from engine.errors import AttuneError
from engine.sessions.compare import SessionComparison, compare_sessions
from engine.sessions.compare_environment import Differences
from engine.sessions.compare_output import (
    differences_frame,
    rows_frame,
    to_markdown,
    unmatched_frame,
    winners_frame,
)
from engine.sessions.files import comparable
from engine.sessions.schema import Snapshot
from engine.sessions.store import SnapshotInfo, Store, default_store
from engine.units import format_us

WORKING = "working session"  # stands in the list beside the snapshots' names
_KINDS = {
    "device_warm": "on the device, warm",
    "device_cold": "on the device, cold L2",
    "end_to_end": "end to end",
}
_LISTED = 500
_ROWS = 10  # a longer table scrolls
_DIFF_HEIGHT = 320


def page() -> None:
    st.markdown("### Compare")
    try:
        store = default_store()
        infos = {info.name: info for info in store.list() if info.summary is not None}
    except AttuneError as error:
        problem(str(error))
        return
    collect()
    asked = [*st.query_params.get_all("session"), *st.query_params.get_all("baseline")]
    # A long list makes the field slow; what a link names is in it, however old.
    listed = list(infos)[:_LISTED] + [name for name in list(infos)[_LISTED:] if name in asked]
    options = [*_working(), *listed]
    chosen = _choose(options, infos)
    if len(options) < 2:
        empty(
            "nothing yet",
            "Nothing to compare yet",
            "It takes two sessions: save one on the Tune or Sessions page, or upload one there.",
        )
        return
    if len(chosen) < 2:
        empty("nothing yet", "Choose two sessions or more", "The first field takes them.")
        return
    baseline, kind, across = _how(chosen, infos)
    opened = {}
    for name in chosen:
        try:
            opened[name] = comparable(_open(store, name))
        except AttuneError as error:
            problem(str(error))
    if baseline not in opened or len(opened) < 2:
        return
    _show(compare_sessions(opened, baseline, across=across, kind=kind))


def _working() -> list[str]:
    session = working.current()
    return [WORKING] if session is not None and session.evaluations else []


def _open(store: Store, name: str) -> Snapshot:
    if name == WORKING:
        session = working.current()
        assert session is not None
        return session.to_snapshot()
    return open_snapshot(store, name)


def _label(name: str, infos: dict[str, SnapshotInfo]) -> str:
    if name == WORKING:
        session = working.current()
        return f"{WORKING}: {(session and session.title) or 'untitled'}"
    return f"{infos[name].title} · {infos[name].updated[:10]} · {name}"


def _choose(options: list[str], infos: dict[str, SnapshotInfo]) -> list[str]:
    """The sessions to compare; the link's at first, else the two newest."""
    if "compare_sessions" not in st.session_state:
        asked = [*st.query_params.get_all("session"), *st.query_params.get_all("baseline")]
        missing = [name for name in dict.fromkeys(asked) if name not in options]
        st.session_state["compare_missing"] = missing
        wanted = [name for name in dict.fromkeys(asked) if name in options]
        st.session_state["compare_sessions"] = wanted or options[:2]
    if missing := st.session_state.get("compare_missing"):
        listed = ", ".join(missing)
        st.warning(
            plain_markdown(f"The link names sessions that are not here: {listed}."),
            icon=":material/link_off:",
        )
    chosen = st.multiselect(
        "Sessions",
        options,
        format_func=lambda name: _label(name, infos),
        key="compare_sessions",
        placeholder="Choose two or more",
        help=f"The {_LISTED} newest snapshots. The Sessions page searches all of them.",
        on_change=lambda: st.session_state.pop("compare_missing", None),
    )
    st.query_params["session"] = chosen
    return chosen


def _how(chosen: list[str], infos: dict[str, SnapshotInfo]) -> tuple[str, str, bool]:
    """Which is the baseline, which time is compared, and whether across environments."""
    left, middle, right = st.columns([5, 3, 4], vertical_alignment="bottom")
    asked = st.query_params.get("baseline", "")
    if "compare_baseline" not in st.session_state:
        st.session_state["compare_baseline"] = asked if asked in chosen else _oldest(chosen, infos)
    elif st.session_state["compare_baseline"] not in chosen:
        st.session_state["compare_baseline"] = _oldest(chosen, infos)
    baseline = left.selectbox(
        "Baseline",
        chosen,
        format_func=lambda name: _label(name, infos),
        key="compare_baseline",
        help="Speed-ups are its time over the other's.",
    )
    kind = middle.selectbox(
        "Time", list(_KINDS), format_func=_KINDS.__getitem__, key="compare_kind"
    )
    across = right.toggle(
        "Verdicts across GPUs, drivers and clocks",
        key="compare_across",
        help="Off: a verdict is given only where both were timed under the same conditions.",
        bind="query-params",
    )
    st.query_params["baseline"] = baseline
    return baseline, kind, across


def _oldest(chosen: list[str], infos: dict[str, SnapshotInfo]) -> str:
    return min(chosen, key=lambda name: infos[name].updated if name in infos else "9")


def _show(comparison: SessionComparison) -> None:
    _counts(comparison)
    st.markdown("#### What differs")
    for found in comparison.differences:
        _differences(comparison, found)
    rows = rows_frame(comparison)
    if comparison.regressions:
        st.markdown("#### :material/trending_down: Slower or broken")
        _rows(rows[rows["regressed"]], "regressions")
    st.markdown("#### Evaluations")
    if rows.empty:
        empty(
            "nothing yet",
            "No evaluation stands in both",
            "Sessions are aligned by variant, config and problem: run one of them again with the "
            "other's, for instance with `python -m engine rerun`.",
        )
    else:
        _rows(rows, "rows")
        _downloads(comparison, rows)
    _winners(comparison)
    _unmatched(comparison)


def _counts(comparison: SessionComparison) -> None:
    verdicts = [str(row.verdict) if row.verdict else "" for row in comparison.rows]
    with st.container(horizontal=True, gap="small", key="metrics"):
        for label, count in (
            ("Slower", verdicts.count("SLOWER")),
            ("Broken", sum(row.broken for row in comparison.rows)),
            ("Faster", verdicts.count("FASTER")),
            ("Same", verdicts.count("SAME")),
            ("Undecided", verdicts.count("UNDECIDED")),
            ("No verdict", verdicts.count("")),
        ):
            st.metric(label, f"{count:,}", border=True)


def _differences(comparison: SessionComparison, found: Differences) -> None:
    with st.container(border=True):
        st.text(f"{found.session}, against {comparison.baseline}")
        if found.nothing:
            st.caption("Nothing in environment, flags and sources.")
            return
        frame = differences_frame(comparison)
        mine = frame[frame["session"] == found.session].drop(columns="session")
        if not mine.empty:
            st.dataframe(
                mine.assign(decisive=["no verdict" if x else "" for x in mine["decisive"]]),
                hide_index=True,
                width="stretch",
                height="content" if len(mine) <= _ROWS else 300,
                column_config={"decisive": "effect"},
            )
        for flags in found.flags:
            st.text(f"Flags of {flags.source}")
            changed = [f"- {f}" for f in flags.removed] + [f"+ {f}" for f in flags.added]
            st.code("\n".join(changed), language="diff")
        for source in found.sources:
            label = f"{source.name}, +{source.added_lines} −{source.removed_lines} lines"
            with st.expander(plain_markdown(label), icon=":material/difference:", expanded=True):
                tall = source.diff.count("\n") > 18
                height = _DIFF_HEIGHT if tall else "content"
                st.code(source.diff, language="diff", height=height)
        for remark in found.remarks:
            st.text(remark)


def _rows(rows: pd.DataFrame, key: str) -> None:
    shown = pd.DataFrame(
        {
            "verdict": [
                "BROKEN" if v == "BROKEN" else f"{v}, across" if across and v else v or "–"
                for v, across in zip(rows["verdict"], rows["across"], strict=True)
            ],
            "speed-up": rows["speedup"],
            "95 % interval": [
                f"{low:.4g} to {high:.4g}" if pd.notna(low) else ""
                for low, high in zip(rows["speedup_low"], rows["speedup_high"], strict=True)
            ],
            "baseline": [format_us(t) if pd.notna(t) else "" for t in rows["baseline_us"]],
            "time": [format_us(t) if pd.notna(t) else "" for t in rows["time_us"]],
            "origin": rows["origin"],
            "variant": rows["variant"],
            "config": rows["config"],
            "problem": rows["problem"],
            "GPU": rows["device"],
            "session": rows["session"],
            "why": rows["reason"],
        }
    )
    if rows["session"].nunique() == 1:
        shown = shown.drop(columns="session")  # the heading above names it
    st.dataframe(
        shown,
        hide_index=True,
        width="stretch",
        height="content" if len(shown) <= _ROWS else 390,
        key=f"compare_{key}",
        placeholder="",
        column_config={
            "speed-up": st.column_config.NumberColumn(
                format="%.3f×", help="Baseline time / time: above 1 it got faster."
            ),
            "why": st.column_config.TextColumn(width="large"),
        },
    )


def _downloads(comparison: SessionComparison, rows: pd.DataFrame) -> None:
    def markdown() -> bytes:
        return to_markdown(comparison).encode()

    with st.container(horizontal=True, gap="small"):
        for label, made, name, mime in (
            ("CSV", lambda: csv(rows), "comparison.csv", "text/csv"),
            (
                "Markdown",
                lambda: to_markdown(comparison).encode(),
                "comparison.md",
                "text/markdown",
            ),
        ):
            st.download_button(
                label,
                made,
                file_name=name,
                mime=mime,
                key=f"compare_{label.lower()}",
                icon=":material/download:",
                type="tertiary",
                on_click="ignore",
            )


def _winners(comparison: SessionComparison) -> None:
    st.markdown("#### Fastest variant per problem")
    frame = winners_frame(comparison)
    if frame.empty:
        empty(
            "nothing yet",
            "No variant was timed",
            "Predictions do not compete: measure on a GPU, or import measurements.",
        )
        return
    st.caption(
        "Over all sessions shown, within the same GPU, driver and clocks. Hatched: the variants "
        "named cannot be told apart."
    )
    st.plotly_chart(
        compare_charts.winner_map(frame, theme()), key="winner_map", config={"displaylogo": False}
    )
    with st.expander("As a table", icon=":material/table:"):
        st.dataframe(frame, hide_index=True, width="stretch")


def _unmatched(comparison: SessionComparison) -> None:
    frame = unmatched_frame(comparison)
    if not frame.empty:
        with st.expander(
            f"In one session only, {len(frame):,} evaluations", icon=":material/unknown_document:"
        ):
            st.dataframe(frame, hide_index=True, width="stretch")


page()
