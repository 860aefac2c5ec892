"""The working session: what it is after, where it stands, and what was tried."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.sessions import advice, frames
from app.shared import working_session
from app.shared.downloads import downloads
from app.shared.widgets import empty, plain_markdown
from engine.errors import AttuneError
from engine.records.codec import validated
from engine.records.snapshot import Target
from engine.sessions.goal import describe_target
from engine.sessions.session import Session, resume_session, working_sessions
from engine.sessions.store.store import Store
from kernels.ladder import LADDER

STATE_COLOR = {"met": "green", "missed": "red", "undecided": "gray"}
STATE_ICON = {
    "met": ":material/flag:",
    "missed": ":material/outlined_flag:",
    "undecided": ":material/help:",
}
_METRICS = {
    "speedup": "Speed-up over SDPA, at least (×)",
    "latency_us": "Latency, at most (µs)",
    "per_unit_gain": "Less time per (batch, head), at least (×)",
}
_BASELINES = ("", "flash", "cudnn", "efficient", "math")
_ROWS = 6  # a longer timeline scrolls
_OTHERS = 10  # the ones changed last
_MESSAGE = "working_message"


def draw(store: Store) -> None:
    session = working_session.current()
    with st.container(border=True, key="working"):
        if session is None:
            _none()
        else:
            _head(store, session)
            _status(session)
            _timeline(session)
    if lost := working_session.trouble():
        st.warning(plain_markdown(lost), icon=":material/warning:")


def _none() -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("**Working session** :gray[none yet]", width="stretch")
        st.button("Begin one", key="working_start", on_click=working_session.start)
    st.caption(
        "Every run on the Tune page is collected into it, on disk first: nothing is lost when "
        "browser, tab or server end."
    )


def _head(store: Store, session: Session) -> None:
    title = f"working_title.{session.id}"
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input(
            "Working session",
            value=session.title,
            key=title,
            max_chars=120,
            placeholder="What is this session about?",
            on_change=lambda: _edit(session, title=st.session_state[title]),
            width="stretch",
        )
        with st.popover("Target and notes", icon=":material/flag:"):
            _target_form(session)
        st.button(
            "Save snapshot",
            key="working_save",
            type="primary",
            icon=":material/save:",
            on_click=_save,
            args=(store, session),
            disabled=not session.evaluations,
            help=None if session.evaluations else "Nothing was tried yet.",
        )
        if session.evaluations:
            downloads(session.to_snapshot, f"session-{session.created[:10]}.json.gz", "working")
        with st.popover("More", icon=":material/more_horiz:"):
            _more(session)
    kind, text = st.session_state.pop(_MESSAGE, ("", ""))
    if kind:
        (st.success if kind == "done" else st.error)(plain_markdown(text))


def _more(session: Session) -> None:
    st.button(
        "Begin a new session", key="working_new", on_click=working_session.start, width="stretch"
    )
    others = [found for found in working_sessions() if found != session.id][:_OTHERS]
    if others:
        st.selectbox(
            "Go on with another",
            others,
            index=None,
            format_func=_name_of,
            key="working_other",
            on_change=lambda: working_session.choose(st.session_state["working_other"]),
        )
    st.button(
        "Discard this session",
        key="working_discard",
        icon=":material/delete:",
        on_click=_discard,
        args=(session,),
        help="Deletes its journal. Snapshots saved from it stay.",
        width="stretch",
    )


def _name_of(session_id: str) -> str:
    try:
        found = resume_session(session_id)
    except AttuneError:
        return "a session that cannot be read"
    when = found.created[:16].replace("T", " ")
    return f"{found.title or 'Untitled'}, {when}, {len(found.evaluations)} evaluations"


def _target_form(session: Session) -> None:
    keys = {name: f"working_{name}.{session.id}" for name in ("hypothesis", "notes")}
    for name, label in (("hypothesis", "Hypothesis"), ("notes", "Notes")):
        st.text_area(
            label,
            value=getattr(session, name),
            key=keys[name],
            height=80,
            on_change=lambda name=name: _edit(session, **{name: st.session_state[keys[name]]}),
        )
    target = session.target
    metrics = [None, *_METRICS]
    st.selectbox(
        "Target",
        metrics,
        index=metrics.index(target.metric) if target else 0,
        format_func=lambda m: _METRICS[m] if m else "none",
        key="target_metric",
    )
    st.number_input(
        "Value", min_value=0.0, value=target.value if target else 1.5, key="target_value"
    )
    left, right = st.columns(2)
    baseline = target.baseline if target and target.baseline in _BASELINES else ""
    left.selectbox(
        "Baseline",
        _BASELINES,
        index=_BASELINES.index(baseline),
        format_func=lambda b: b or "the fastest",
        key="target_baseline",
    )
    variants = ["", *(v.id for v in LADDER)]
    variant = target.variant if target and target.variant in variants else ""
    right.selectbox(
        "Variant",
        variants,
        index=variants.index(variant),
        format_func=lambda v: v or "any",
        key="target_variant",
    )
    for column, (letter, name) in zip(st.columns(4), _SIZES.items(), strict=True):
        column.number_input(
            letter,
            min_value=1,
            value=getattr(target, name) if target else None,
            key=f"target_{name}",
            placeholder="any",
        )
    st.button("Set target", key="target_set", on_click=_set_target, args=(session,))


_SIZES = {"B": "batch", "H": "num_heads", "S": "seqlen", "D": "head_dim"}


def _set_target(session: Session) -> None:
    state = st.session_state
    if state["target_metric"] is None:
        _edit(session, target="none")
        return
    raw = {
        "metric": state["target_metric"],
        "value": float(state["target_value"]),
        "baseline": state["target_baseline"],
        "variant": state["target_variant"],
        **{name: state[f"target_{name}"] for name in _SIZES.values()},
    }
    try:
        target = validated(Target, raw, "The target")
    except AttuneError as error:
        _say("failed", str(error))
    else:
        _edit(session, target=target)


def _say(kind: str, text: str) -> None:
    st.session_state[_MESSAGE] = (kind, text)


def _edit(session: Session, **changes: Any) -> None:
    try:
        session.edit(**changes)
    except AttuneError as error:
        _say("failed", str(error))


def _save(store: Store, session: Session) -> None:
    try:
        _say("done", f"Kept as {session.save(store)}.")
    except AttuneError as error:
        _say("failed", str(error))


def _discard(session: Session) -> None:
    try:
        session.discard()
        working_session.current()
    except AttuneError as error:
        _say("failed", str(error))


def _status(session: Session) -> None:
    status = session.status()
    if status is None or session.target is None:
        st.caption("No target yet: set one to see whether it is met.")
    else:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            state = status.state
            st.badge(state, icon=STATE_ICON[state], color=STATE_COLOR[state])
            st.text(f"{describe_target(session.target)}. {status.sentence}")
    if session.hypothesis:
        st.text(f"Hypothesis: {session.hypothesis}")


def _timeline(session: Session) -> None:
    rows = session.timeline()
    if not rows:
        empty(
            "nothing yet",
            "Nothing tried yet",
            "Run a kernel on the Tune page: the evaluation appears here.",
        )
        return
    key = f"timeline.{session.id}.{len(rows)}"
    frame = frames.timeline(rows)

    def mark() -> None:
        for position, change in st.session_state[key]["edited_rows"].items():
            entry = int(frame.index[int(position)])
            outcome = change.get("outcome")
            if outcome in frames.OUTCOMES and rows[entry].outcome != outcome:
                try:
                    session.mark(entry, outcome)
                except AttuneError as error:
                    _say("failed", str(error))

    st.data_editor(
        frame,
        key=key,
        hide_index=True,
        width="stretch",
        height="content" if len(rows) <= _ROWS else 250,
        disabled=[name for name in frame if name != "outcome"],
        on_change=mark,
        column_config={
            "what": st.column_config.TextColumn(width="large"),
            "gain": st.column_config.TextColumn(
                help="The session's first time of this problem over this one."
            ),
            "outcome": st.column_config.SelectboxColumn(
                options=list(frames.OUTCOMES), required=True
            ),
        },
    )
    note = f"working_note.{session.id}.{len(rows)}"
    st.text_input(
        "Add a note to the timeline",
        key=note,
        placeholder="An idea, a dead end, a decision",
        label_visibility="collapsed",
        on_change=lambda: _note(session, st.session_state[note]),
    )
    advice.draw(session.evaluations, "working")


def _note(session: Session, text: str) -> None:
    if text.strip():
        try:
            session.note(text.strip())
        except AttuneError as error:
            _say("failed", str(error))
