"""The working session that collects this tab's runs. The session itself is a journal on disk.

A tab remembers its session; a reload, a new tab and a restarted server use the session that was
changed last.
"""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from app.shared import notices
from engine.attention.evaluation import Evaluation
from engine.base.errors import StoreError
from engine.correctness import ErrorMap
from engine.sessions.session import Session, resume_session, start_session, working_sessions

_ID = "working_session"
_OPENED = "working_opened"
_NOTICES = "working_session"


def current() -> Session | None:
    """Return the session that collects runs; None before the first one."""
    of_this_tab = st.session_state.get(_ID, "")
    for session_id in filter(None, (of_this_tab, *_stored())):
        session = _open(session_id)
        if session is not None:
            st.session_state[_ID] = session.id
            return session
    st.session_state.pop(_ID, None)
    return None


def _open(session_id: str) -> Session | None:
    """Return the session with entries added since the last read; None if it was discarded."""
    opened: Session | None = st.session_state.get(_OPENED)
    try:
        if opened is None or opened.id != session_id or not opened.path.exists():
            opened = resume_session(session_id)
        else:
            opened.refresh()
    except StoreError:
        return None
    st.session_state[_OPENED] = opened
    return opened


def _stored() -> list[str]:
    try:
        return working_sessions()
    except OSError:
        return []


def start() -> Session | None:
    """Start a new session and make it the current one. The previous one can be resumed."""
    with notices.errors_to(_NOTICES, "warning"):
        session = start_session()
        choose(session.id)
        return session
    return None


def choose(session_id: str | None) -> None:
    """Make this session the current one."""
    if session_id:
        st.session_state[_ID] = session_id


def expect(job_id: str) -> None:
    """Add this run's result to the current session when it ends; start a session if there is
    none."""
    session = current() or start()
    if session is None:
        return
    with notices.errors_to(_NOTICES, "warning"):
        session.expect(job_id)


def keep(
    session: Session, job_id: str, evaluation: Evaluation | None, maps: Iterable[ErrorMap]
) -> None:
    """Store the result of an expected run; None if it ended without one."""
    with notices.errors_to(_NOTICES, "warning"):
        if evaluation is None:
            session.forget(job_id)
        else:
            session.add(evaluation, maps=maps, job_id=job_id)


def draw_notices() -> None:
    """Draw why a session could not be started or a result not be stored."""
    notices.draw(_NOTICES)
