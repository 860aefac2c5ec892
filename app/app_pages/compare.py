"""Compare: snapshots beside each other; what differs first, then what got slower."""

from __future__ import annotations

import streamlit as st

from app.compare import parts as views
from app.shared import url_state, working_session
from app.shared.opened_snapshots import open_snapshot
from app.shared.runs import collect
from app.shared.widgets import empty, plain_markdown, problem
from engine.errors import AttuneError
from engine.records.snapshot import Snapshot
from engine.sessions.compare.comparison import compare_sessions
from engine.sessions.store.store import SnapshotInfo, Store, default_store

WORKING = "working session"  # stands in the list beside the snapshots' names
_KINDS = {
    "device_warm": "on the device, warm",
    "device_cold": "on the device, cold L2",
    "end_to_end": "end to end",
}
_LISTED = 500


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
            opened[name] = _open(store, name)
        except AttuneError as error:
            problem(str(error))
    if baseline not in opened or len(opened) < 2:
        return
    views.draw(compare_sessions(opened, baseline, across=across, kind=kind))


def _working() -> list[str]:
    session = working_session.current()
    return [WORKING] if session is not None and session.evaluations else []


def _open(store: Store, name: str) -> Snapshot:
    if name == WORKING:
        session = working_session.current()
        assert session is not None
        return session.to_snapshot()
    return open_snapshot(store, name)


def _label(name: str, infos: dict[str, SnapshotInfo]) -> str:
    if name == WORKING:
        session = working_session.current()
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
    url_state.write("session", *chosen)
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
    url_state.write("baseline", baseline)
    return baseline, kind, across


def _oldest(chosen: list[str], infos: dict[str, SnapshotInfo]) -> str:
    return min(chosen, key=lambda name: infos[name].updated if name in infos else "9")


page()
