"""Which working session this tab's runs join. The session itself is a journal on disk.

A tab remembers its choice; a reload, a new tab and a restarted server go on with the session that
was changed last.
"""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from engine.errors import AttuneError, StoreError
from engine.evaluation import Evaluation
from engine.sessions.build import MapLike
from engine.sessions.session import Session, resume_session, start_session, working_sessions

_KEY = "working_session"
_OPENED = "working_opened"
_TROUBLE = "working_trouble"


def current() -> Session | None:
    """The session that runs join now; None before the first one."""
    chosen = st.session_state.get(_KEY, "")
    for session_id in filter(None, (chosen, *_known())):
        session = _open(session_id)
        if session is not None:
            st.session_state[_KEY] = session.id
            return session
    st.session_state.pop(_KEY, None)
    return None


def _open(session_id: str) -> Session | None:
    """The session, read on from where this tab has read it to; None once it is discarded."""
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


def _known() -> list[str]:
    try:
        return working_sessions()
    except OSError:
        return []


def start() -> Session | None:
    """Begin a new session and make it the current one; the one before can be resumed."""
    try:
        session = start_session()
    except AttuneError as error:
        _lost(str(error))
        return None
    choose(session.id)
    return session


def choose(session_id: str | None) -> None:
    """Go on with this session."""
    if session_id:
        st.session_state[_KEY] = session_id


def expect(job_id: str) -> None:
    """This run's result belongs to the current session, which begins with it if need be."""
    session = current() or start()
    if session is None:
        return
    try:
        session.expect(job_id)
    except AttuneError as error:
        _lost(str(error))


def take(session: Session, job_id: str, found: Evaluation | None, maps: Iterable[MapLike]) -> None:
    """Keep the result of an expected run; None when it ended without one."""
    try:
        if found is None:
            session.forget(job_id)
        else:
            session.add(found, maps=maps, job_id=job_id)
    except AttuneError as error:
        _lost(str(error))


def _lost(sentence: str) -> None:
    st.session_state[_TROUBLE] = sentence


def trouble() -> str:
    """Why a result could not be kept, once; empty when all is well."""
    return str(st.session_state.pop(_TROUBLE, ""))
