"""Inputs of the Compare page: sessions, baseline, kind of time, pairing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import streamlit as st

from app.shared import url_state, working_session
from app.shared.snapshots import open_snapshot
from app.shared.widgets import plain_markdown
from engine.attention.evaluation import CodeCounts
from engine.history.known_time import other_source
from engine.sessions.compare import Pairing, Pick, SessionComparison, newest_that_share
from engine.sessions.importers.measurements import SDPA
from engine.sessions.rerun import count_sources, uncounted, with_counts
from engine.sessions.snapshot import Snapshot
from engine.sessions.store import SnapshotInfo, Store

_WORKING = "working session"  # listed beside the snapshots' names
_KINDS = {
    "device_warm": "on the device, warm",
    "device_cold": "on the device, cold L2",
    "end_to_end": "end to end",
}
_PICK = "picked"
_BY = {
    "auto": "the same kernel, else the best",
    "same": "the same variant and config",
    "best": "the best of each session",
    _PICK: "two selected kernels",
}
_COUNTED = "compare_counted"
_MAX_PAIRED = 50  # sessions searched for two that share a problem
_MAX_LISTED = 500  # a longer list makes the field slow


@dataclass(frozen=True, slots=True)
class Options:
    """How the sessions are compared."""

    baseline: str
    kind: str
    across: bool  # give verdicts across environments
    pairing: Pairing
    picks: bool  # the page's choice of two kernels overrides `pairing`


def choices(infos: Mapping[str, SnapshotInfo]) -> list[str]:
    """Return the sessions to choose from: the working session, the newest snapshots and the
    URL's."""
    linked = _linked()
    names = list(infos)
    listed = names[:_MAX_LISTED] + [name for name in names[_MAX_LISTED:] if name in linked]
    session = working_session.current()
    return [_WORKING, *listed] if session is not None and session.num_evaluations else listed


def _linked() -> list[str]:
    params = st.query_params
    return list(dict.fromkeys([*params.get_all("session"), *params.get_all("baseline")]))


def sessions(choices: list[str], infos: Mapping[str, SnapshotInfo]) -> list[str]:
    """Draw the choice of sessions; by default the URL's, else the two newest that share a
    problem."""
    if "compare_sessions" not in st.session_state:
        linked = _linked()
        st.session_state["compare_missing"] = [name for name in linked if name not in choices]
        known = [name for name in linked if name in choices]
        st.session_state["compare_sessions"] = known or newest_that_share(
            {name: _asked(name, infos) for name in choices[:_MAX_PAIRED]}
        )
    if missing := st.session_state.get("compare_missing"):
        names = ", ".join(missing)
        st.warning(
            plain_markdown(f"The link names sessions that do not exist here: {names}."),
            icon=":material/link_off:",
        )
    selected = st.multiselect(
        "Sessions",
        choices,
        format_func=lambda name: _label(name, infos),
        key="compare_sessions",
        placeholder="Select two or more, or one that holds several kernels",
        help=f"The {_MAX_LISTED} newest snapshots. The Sessions page searches all of them.",
        on_change=lambda: st.session_state.pop("compare_missing", None),
    )
    url_state.write("session", *selected)
    return selected


def _asked(name: str, infos: Mapping[str, SnapshotInfo]) -> set[tuple[str, str]]:
    """Return (problem, GPU) of the session's kernels, without baselines."""
    if name == _WORKING:
        session = working_session.current()
        return {(e.problem.label(), e.device) for e in session.evaluations} if session else set()
    summary = infos[name].summary
    if summary is None or set(summary.variants) <= {SDPA}:
        return set()
    return set(product(summary.problems, summary.devices))


def options(selected: list[str], infos: Mapping[str, SnapshotInfo]) -> Options:
    """Draw the options: baseline, kind of time, verdicts across environments, pairing."""
    left, right = st.columns([7, 3], vertical_alignment="bottom")
    linked = st.query_params.get("baseline", "")
    if st.session_state.get("compare_baseline", linked) not in selected:
        st.session_state["compare_baseline"] = _oldest(selected, infos)
    elif "compare_baseline" not in st.session_state:
        st.session_state["compare_baseline"] = linked
    baseline = left.selectbox(
        "Baseline",
        selected,
        format_func=lambda name: _label(name, infos),
        key="compare_baseline",
        help="Speed-up = time of the baseline / time of the other session.",
    )
    kind = right.selectbox("Time", list(_KINDS), format_func=_KINDS.__getitem__, key="compare_kind")
    across = url_state.toggle(
        st,
        "Verdicts across GPUs, drivers and clocks",
        "compare_across",
        help="Off: a verdict is given only where both were timed under the same conditions.",
    )
    url_state.write("baseline", baseline)
    if len(selected) == 1:
        return Options(baseline, kind, across, "auto", picks=True)
    by = url_state.segments(
        st, "On each problem, compare", "compare_by", list(_BY), "auto", format_func=_BY.__getitem__
    )
    return Options(baseline, kind, across, "auto" if by == _PICK else by, by == _PICK)


def pairs(opened: Mapping[str, Snapshot], baseline: str) -> list[tuple[Pick, Pick]]:
    """Draw the choice of two kernels; by default the last two."""
    kernels: dict[str, Pick] = {}
    for name in (baseline, *(name for name in opened if name != baseline)):
        for e in opened[name].evaluations:
            if e.variant != SDPA:
                shown = Pick(e.variant, dict(e.config), name, other_source(e))
                pick = replace(shown, source=e.source_sha256)
                kernels[f"{shown.label} · {opened[name].title} · {name}"] = pick
    if len(kernels) < 2:
        return []
    labels = list(kernels)
    left, right = st.columns(2)
    before = _kernel(left, "Before", "compare_before", labels, labels[-2])
    after = _kernel(right, "After", "compare_after", labels, labels[-1])
    return [(kernels[before], kernels[after])]


def _kernel(container: Any, label: str, key: str, labels: list[str], default: str) -> str:
    if st.session_state.get(key) not in labels:  # a kernel of sessions selected before
        linked = st.query_params.get(key)
        if linked and key not in st.session_state and linked not in labels:
            url_state.note(f"The link's {key}={linked} is not one of the compared kernels.")
        st.session_state[key] = linked if linked in labels else default
    chosen: str = container.selectbox(label, labels, key=key)
    url_state.write(key, chosen)
    return chosen


def open_session(store: Store, name: str) -> Snapshot:
    """Return the snapshot with this name, or one of the working session.

    Raises:
        UnknownName, SnapshotError: It does not exist, or it is damaged.
    """
    if name == _WORKING:
        session = working_session.current()
        assert session is not None
        return session.to_snapshot()
    return open_snapshot(store, name)


def counted(
    comparison: SessionComparison, opened: Mapping[str, Snapshot]
) -> dict[str, Snapshot] | None:
    """Return the sessions with machine code counted from their sources; None until requested."""
    known: dict[tuple[str, str, int], CodeCounts | str] = st.session_state.setdefault(_COUNTED, {})
    missing = [
        each
        for each in uncounted(comparison, opened)
        if (each.session, opened[each.session].updated, each.index) not in known
    ]
    asked = missing and st.button(
        f"Count the machine code of {len(missing):,} evaluations",
        icon=":material/memory:",
        key="compare_count",
        help="Their sessions hold no counts. Their sources are compiled, and nothing is executed.",
    )
    if asked:
        with st.spinner("Compiling and counting…"):
            for (name, index), found in count_sources(missing, opened).items():
                known[name, opened[name].updated, index] = found
    ours = {
        (name, index): found
        for (name, updated, index), found in known.items()
        if name in opened and opened[name].updated == updated
    }
    for why in sorted({text for text in ours.values() if isinstance(text, str)}):
        st.caption(plain_markdown(why))
    if asked:
        st.rerun()
    return with_counts(opened, ours) if ours else None


def _label(name: str, infos: Mapping[str, SnapshotInfo]) -> str:
    if name == _WORKING:
        session = working_session.current()
        return f"{_WORKING}: {(session and session.title) or 'untitled'}"
    return f"{infos[name].title} · {infos[name].updated[:10]} · {name}"


def _oldest(selected: list[str], infos: Mapping[str, SnapshotInfo]) -> str:
    return min(selected, key=lambda name: infos[name].updated if name in infos else "9")
