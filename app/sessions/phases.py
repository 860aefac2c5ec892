"""The phases of the working session, each with a target and a decision."""

from __future__ import annotations

import streamlit as st

from app.sessions import goal
from app.shared import notices
from engine.base.schema import decode
from engine.sessions.session import Session
from engine.sessions.snapshot import Decision, Phase
from engine.sessions.tables import phases_table

_OUTCOMES = ("", "kept", "dropped", "next")


def form(session: Session, place: str) -> None:
    """Draw a name and a button that adds a phase with the target of the form above."""
    st.text_input("Phase", key="phase_name", max_chars=120, placeholder="Name of a phase")
    st.button("Add phase", key="phase_add", on_click=_add, args=(session, place))


def draw(session: Session, place: str) -> None:
    """Draw the phases as a table in which the decision can be chosen."""
    if not session.phases:
        return
    frame = phases_table(session.phases, session.evaluations, session.title).frame()
    frame["decision"] = [p.decision.outcome if p.decision else "" for p in session.phases]
    key = f"phases.{session.id}.{len(session.phases)}"
    st.data_editor(
        frame,
        key=key,
        hide_index=True,
        width="stretch",
        disabled=[name for name in frame if name != "decision"],
        on_change=_decide,
        args=(session, key, place),
        column_config={
            "decision": st.column_config.SelectboxColumn(options=list(_OUTCOMES), required=True)
        },
    )


def _add(session: Session, place: str) -> None:
    name = st.session_state["phase_name"].strip()
    with notices.errors_to(place):
        target = goal.from_form()
        raw = {"name": name or f"Phase {len(session.phases) + 1}"}
        phase = decode(Phase, raw, name="The phase").model_copy(update={"target": target})
        session.edit(phases=[*session.phases, phase])


def _decide(session: Session, key: str, place: str) -> None:
    changed = list(session.phases)
    for position, change in st.session_state[key]["edited_rows"].items():
        outcome = change.get("decision")
        if outcome in _OUTCOMES:
            decision = Decision(outcome=outcome) if outcome else None
            index = int(position)
            changed[index] = changed[index].model_copy(update={"decision": decision})
    with notices.errors_to(place):
        session.edit(phases=changed)
