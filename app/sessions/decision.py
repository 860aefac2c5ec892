"""Cost and decision of a session: the form, the line below the target, and totals over sessions."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from app.shared import notices, tables
from app.shared.widgets import plain_markdown, show_errors
from engine.base.schema import decode
from engine.history.known_time import timed_device
from engine.sessions.session import Session
from engine.sessions.snapshot import Decision, Spent
from engine.sessions.store import SnapshotInfo, Store
from engine.sessions.tables import hypothesis_state, spent_rows, spent_table

_OUTCOMES = ("kept", "dropped", "next")
_AMOUNTS = {
    "hours": "Person-hours",
    "gpu_hours": "GPU-hours",
    "cost_usd": "Cost, US$",
    "budget_usd": "Budget, US$",
}
_ROWS = 7  # a longer table scrolls


def form(session: Session, place: str) -> None:
    """Draw the form and the button that saves it."""
    present = session.decision
    st.selectbox(
        "Decision",
        (None, *_OUTCOMES),
        index=_OUTCOMES.index(present.outcome) + 1 if present else 0,
        format_func=lambda outcome: outcome or "none yet",
        key="decision_outcome",
    )
    st.text_area("Why", value=present.why if present else "", key="decision_why", height=80)
    for column, (name, label) in zip(st.columns(2) * 2, _AMOUNTS.items(), strict=True):
        column.number_input(
            label,
            min_value=0.0,
            value=getattr(session.spent, name) if session.spent else None,
            key=f"decision_{name}",
            placeholder="not recorded",
        )
    st.button("Save decision", key="decision_keep", on_click=_keep, args=(session, place))


def draw(session: Session) -> None:
    """Draw the decision and the cost so far."""
    devices = list(dict.fromkeys(map(timed_device, session.evaluations)))
    words = [f"{name} {text}" for name, text in spent_rows(session.spent, devices).items()]
    if session.decision is not None:
        words.insert(0, f"Decision: {session.decision.outcome}. {session.decision.why}".strip())
    if words:
        st.text("; ".join(words))


def draw_spent(infos: Iterable[SnapshotInfo], store: Store) -> None:
    """Draw cost and gain of each session and in total; nothing if no session records them."""
    infos = list(infos)
    table = spent_table(infos)
    if not table.rows:
        return
    if table.remark:
        st.warning(plain_markdown(table.remark), icon=":material/payments:")
    opened = st.expander(
        "Time, cost, gain and decisions over all sessions",
        key="spent",
        icon=":material/payments:",
        on_change="rerun",
    )
    if opened.open:
        with opened, show_errors():
            tables.draw(spent_table(infos, store.open).frame(), rows=_ROWS, key="spent_table")


def hypothesis(session: Session) -> None:
    """Draw the hypothesis, and whether the session's numbers confirm it."""
    if session.hypothesis:
        st.text(f"Hypothesis: {session.hypothesis}")
        state = hypothesis_state(session.target, session.evaluations, session.title)
        st.caption(plain_markdown(f"{state[0].upper()}{state[1:]}"))


def _keep(session: Session, place: str) -> None:
    state = st.session_state
    with notices.errors_to(place):
        spent = {name: state[f"decision_{name}"] for name in _AMOUNTS}
        outcome = state["decision_outcome"]
        raw = {"outcome": outcome, "why": state["decision_why"].strip()}
        session.edit(
            spent=decode(Spent, spent, name="What was spent"),
            decision=decode(Decision, raw, name="The decision") if outcome else None,
        )
