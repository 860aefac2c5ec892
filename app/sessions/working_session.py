"""The working session: its target, its timeline, and its buttons."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.sessions import advice, decision, downloads, goal, phases
from app.shared import notices, tables, working_session
from app.shared.widgets import empty
from engine.base.errors import AttuneError
from engine.sessions.session import Session, resume_session, working_sessions
from engine.sessions.store import Store
from engine.sessions.tables import timeline_table

_OUTCOMES = ("tried", "kept", "dropped")
_ROWS = 6  # a longer timeline scrolls
_MAX_OTHERS = 10  # the most recently changed sessions
_NOTICES = "sessions.working"


def draw(store: Store) -> None:
    session = working_session.current()
    with st.container(border=True, key="working"):
        if session is None:
            _none()
        else:
            _head(store, session)
            _status(session)
            _timeline(session)
    working_session.draw_notices()


def _none() -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("**Working session** :gray[none yet]", width="stretch")
        st.button("Start one", key="working_start", on_click=working_session.start)
    st.caption(
        "Every run on the Tune page is collected in it and written to disk at once: nothing is "
        "lost when the browser, the tab or the server is closed."
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
            _notes_form(session)
            goal.form(session.target)
            st.button("Set target", key="target_set", on_click=_set_target, args=(session,))
            with st.container(horizontal=True, vertical_alignment="bottom"):
                phases.form(session, _NOTICES)
        with st.popover("Decision and cost", icon=":material/gavel:"):
            decision.form(session, _NOTICES)
        st.button(
            "Save snapshot",
            key="working_save",
            type="primary",
            icon=":material/save:",
            on_click=_save,
            args=(store, session),
            disabled=not session.num_evaluations,
            help=None if session.num_evaluations else "Nothing to save yet: run a kernel first.",
        )
        if session.num_evaluations:
            name = f"session-{session.created[:10]}.json.gz"
            downloads.draw(session.to_snapshot, name, "working")
        with st.popover("More", icon=":material/more_horiz:"):
            _more(session)
    notices.draw(_NOTICES)


def _notes_form(session: Session) -> None:
    keys = {name: f"working_{name}.{session.id}" for name in ("hypothesis", "notes")}
    for name, key in keys.items():
        st.text_area(
            name.capitalize(),
            value=getattr(session, name),
            key=key,
            height=80,
            on_change=lambda name=name, key=key: _edit(session, **{name: st.session_state[key]}),
        )


def _more(session: Session) -> None:
    st.button(
        "Start a new session", key="working_new", on_click=working_session.start, width="stretch"
    )
    others = [other for other in working_sessions() if other != session.id][:_MAX_OTHERS]
    if others:
        st.selectbox(
            "Resume another session",
            others,
            index=None,
            format_func=_label,
            key="working_other",
            on_change=lambda: working_session.choose(st.session_state["working_other"]),
        )
    st.button(
        "Discard this session",
        key="working_discard",
        icon=":material/delete:",
        on_click=_discard,
        args=(session,),
        help="Deletes its journal. Snapshots saved from it are kept.",
        width="stretch",
    )


def _label(session_id: str) -> str:
    try:
        session = resume_session(session_id)
    except AttuneError:
        return "a session that cannot be read"
    when = session.created[:16].replace("T", " ")
    return f"{session.title or 'Untitled'}, {when}, {session.num_evaluations} evaluations"


def _set_target(session: Session) -> None:
    with notices.errors_to(_NOTICES):
        session.edit(target=goal.from_form())


def _edit(session: Session, **changes: Any) -> None:
    with notices.errors_to(_NOTICES):
        session.edit(**changes)


def _save(store: Store, session: Session) -> None:
    with notices.errors_to(_NOTICES):
        notices.add(_NOTICES, f"Saved as {session.save(store)}.")


def _discard(session: Session) -> None:
    with notices.errors_to(_NOTICES):
        session.discard()
        working_session.current()


def _status(session: Session) -> None:
    status = session.status()
    if status is None or session.target is None:
        st.caption("No target yet: set one to see whether it is met.")
    else:
        goal.draw_status(session.target, status)
    phases.draw(session, _NOTICES)
    decision.draw(session)
    decision.hypothesis(session)


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
    frame = timeline_table(rows).frame().iloc[::-1]  # the newest first
    row_px = tables.row_px(frame["what"])

    def mark() -> None:
        for position, change in st.session_state[key]["edited_rows"].items():
            entry = int(frame.index[int(position)])
            outcome = change.get("outcome")
            if outcome in _OUTCOMES and rows[entry].outcome != outcome:
                with notices.errors_to(_NOTICES):
                    session.mark(entry, outcome)

    st.data_editor(
        frame,
        key=key,
        hide_index=True,
        width="stretch",
        height=tables.height_px(len(rows), _ROWS, row_px),
        row_height=row_px,
        disabled=[name for name in frame if name != "outcome"],
        on_change=mark,
        column_config={
            "what": st.column_config.TextColumn(width="large"),
            "gain since the start": st.column_config.TextColumn(
                help="The session's first time for this problem over this one."
            ),
            "outcome": st.column_config.SelectboxColumn(options=list(_OUTCOMES), required=True),
        },
    )
    note = f"working_note.{session.id}.{len(rows)}"
    st.text_input(
        "Add a note to the timeline",
        key=note,
        placeholder="Add a note: an idea, a dead end, a decision",
        label_visibility="collapsed",
        on_change=lambda: _add_note(session, st.session_state[note].strip()),
    )
    advice.draw(session.evaluations, "working")


def _add_note(session: Session, text: str) -> None:
    if text:
        with notices.errors_to(_NOTICES):
            session.note(text)
