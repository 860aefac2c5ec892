"""The live measurements of this server: which one a tab shows, start, stop, and who else looks.

The switch belongs to the request. Every tab with the same request shows the same stream. When a tab
goes on to another request, its measurement goes with it: the old one is cancelled, and the new one
starts once the choice has settled. A measurement that another tab looks at is left alone.
"""

from __future__ import annotations

import threading
import time
import uuid

import streamlit as st

from app.shared.runs import payload_of
from engine.errors import AttuneError
from engine.jobs.latency_stream.series import LatencySeries, StreamView
from engine.jobs.manager import JobStatus, manager
from engine.pipeline.request import EvaluationRequest

_SETTLED_S = 0.4  # a request that stays for so long is not a knob on its way to somewhere else
_LOOKS_S = 3.0  # a tab that has not asked for so long is closed, or shows something else
_MOST_KEPT = 4  # streams held in memory; another one is read anew

_FOLLOWED = "live_followed"  # the job that this tab shows while it measures
_WISH = "live_wish"  # (request, since when): what this tab will measure next
_PROBLEM = "live_problem"
_TAB = "live_tab"

_lock = threading.RLock()
_looks: dict[str, dict[str, float]] = {}  # job → tab → when it last looked
_series: dict[str, LatencySeries] = {}  # newest last


def newest(request: EvaluationRequest) -> JobStatus | None:
    """The newest latency stream of this request, ended or not, whichever tab began it."""
    payload = payload_of(request)
    found = (j for j in manager().jobs() if j.kind == "live" and j.request == payload)
    return next(found, None)


def start(request: EvaluationRequest, known: JobStatus | None) -> None:
    """Measure this, or join in when another tab already does.

    `known` is the newest job that the caller has seen: one order never starts two, however late
    and often it comes in.
    """
    st.session_state.pop(_WISH, None)
    with _lock:
        job = newest(request)
        if job is None or (job.is_over and known is not None and job.job_id == known.job_id):
            try:
                manager().submit_stream(request)
            except AttuneError as error:
                st.session_state[_PROBLEM] = str(error)


def stop(job: JobStatus | None) -> None:
    """End it for every tab, or give up what this tab waits for; what was measured stays."""
    st.session_state.pop(_WISH, None)
    if job is not None:
        manager().cancel(job.job_id)


def follow(request: EvaluationRequest, can_start: bool) -> bool:
    """Take this tab's measurement along to another request. Call with every look.

    Returns:
        Whether this tab waits for the choice to settle.
    """
    state, payload = st.session_state, payload_of(request)
    followed = manager().status(state[_FOLLOWED]) if _FOLLOWED in state else None
    if followed is not None and followed.request != payload:
        del state[_FOLLOWED]
        if not followed.is_over and not _others_look(followed.job_id):
            manager().cancel(followed.job_id)
            state[_WISH] = (payload, time.monotonic())
    if _WISH not in state:
        return False
    wanted, since = state[_WISH]
    if wanted != payload:
        state[_WISH] = (payload, time.monotonic())
    elif can_start and time.monotonic() - since > _SETTLED_S:
        start(request, newest(request))
        return False
    return True


def look(job: JobStatus) -> StreamView:
    """The job's stream as it is now; the look is noted, so that the job goes on."""
    with _lock:
        if job.is_over:
            _looks.pop(job.job_id, None)
            st.session_state.pop(_FOLLOWED, None)
        else:
            _looks.setdefault(job.job_id, {})[_this_tab()] = time.monotonic()
            st.session_state[_FOLLOWED] = job.job_id
        return _up_to_date(job.job_id).view()


def table(job_id: str) -> str:
    """The raw samples as CSV."""
    with _lock:
        return _up_to_date(job_id).csv()


def trouble() -> str:
    """Why the last start failed, once."""
    return str(st.session_state.pop(_PROBLEM, ""))


def _up_to_date(job_id: str) -> LatencySeries:
    series = _series.pop(job_id, None) or LatencySeries()
    series.extend(manager().read_stream(job_id, series.after))
    _series[job_id] = series
    while len(_series) > _MOST_KEPT:
        del _series[next(iter(_series))]
    return series


def _others_look(job_id: str) -> bool:
    with _lock:
        looks = dict(_looks.get(job_id, {}))
    looks.pop(_this_tab(), None)
    return any(time.monotonic() - when < _LOOKS_S for when in looks.values())


def _this_tab() -> str:
    tab: str = st.session_state.setdefault(_TAB, uuid.uuid4().hex)
    return tab
