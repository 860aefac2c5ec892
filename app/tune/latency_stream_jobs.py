"""The latency streams of this server: which one a tab shows, start, stop, and which tabs watch it.

The switch belongs to the request. Every tab with the same request shows the same stream. When a tab
goes on to another request, its measurement goes with it: the old one is cancelled, and the new one
starts once the choice has settled. A measurement that another tab shows is left alone.
"""

from __future__ import annotations

import threading
import time
import uuid

import streamlit as st

from app.shared import notices
from app.shared.runs import payload_of
from engine.jobs.latency_series import LatencySeries, StreamView
from engine.jobs.manager import JobStatus, manager
from engine.pipeline.request import EvaluationRequest

NOTICES = "latency_stream"

_SETTLED_S = 0.4  # a request unchanged for so long is not a slider that is being dragged
_WATCHED_S = 3.0  # a tab that has not asked for so long is closed, or shows something else
_MOST_IN_MEMORY = 4  # streams; another one is read again from its file

_FOLLOWED = "latency_stream_followed"  # the job that this tab shows while it measures
_NEXT = "latency_stream_next"  # (request, since when): what this tab will measure next
_TAB = "latency_stream_tab"

_lock = threading.RLock()
_watchers: dict[str, dict[str, float]] = {}  # job → tab → when it last asked
_series: dict[str, LatencySeries] = {}  # newest last


def newest(request: EvaluationRequest) -> JobStatus | None:
    """The newest stream of this request, ended or not, whichever tab began it."""
    payload = payload_of(request)
    streams = (j for j in manager().jobs() if j.kind == "live" and j.request == payload)
    return next(streams, None)


def start(request: EvaluationRequest, known: JobStatus | None) -> None:
    """Measure this, or join in when another tab already does.

    `known` is the newest job that the caller has seen: one order never starts two, however late
    and often it comes in.
    """
    st.session_state.pop(_NEXT, None)
    with _lock:
        job = newest(request)
        if job is None or (job.is_over and known is not None and job.job_id == known.job_id):
            with notices.errors_to(NOTICES):
                manager().submit_stream(request)


def stop(job: JobStatus | None) -> None:
    """End it for every tab, or cancel what this tab waits for; what was measured is kept."""
    st.session_state.pop(_NEXT, None)
    if job is not None:
        manager().cancel(job.job_id)


def follow(request: EvaluationRequest, can_start: bool) -> bool:
    """Take this tab's measurement along to another request. Call at every poll.

    Returns:
        Whether this tab waits for the choice to settle.
    """
    state, payload = st.session_state, payload_of(request)
    followed = manager().status(state[_FOLLOWED]) if _FOLLOWED in state else None
    if followed is not None and followed.request != payload:
        del state[_FOLLOWED]
        if not followed.is_over and not _others_watch(followed.job_id):
            manager().cancel(followed.job_id)
            state[_NEXT] = (payload, time.monotonic())
    if _NEXT not in state:
        return False
    wanted, since = state[_NEXT]
    if wanted != payload:
        state[_NEXT] = (payload, time.monotonic())
    elif can_start and time.monotonic() - since > _SETTLED_S:
        start(request, newest(request))
        return False
    return True


def view_of(job: JobStatus) -> StreamView:
    """The job's stream as it is now; that this tab shows it is noted, so that the job goes on."""
    with _lock:
        if job.is_over:
            _watchers.pop(job.job_id, None)
            st.session_state.pop(_FOLLOWED, None)
        else:
            _watchers.setdefault(job.job_id, {})[_this_tab()] = time.monotonic()
            st.session_state[_FOLLOWED] = job.job_id
        return _up_to_date(job.job_id).view()


def csv_of(job_id: str) -> str:
    """The raw samples as CSV."""
    with _lock:
        return _up_to_date(job_id).csv()


def _up_to_date(job_id: str) -> LatencySeries:
    series = _series.pop(job_id, None) or LatencySeries()
    series.extend(manager().read_stream(job_id, series.after))
    _series[job_id] = series
    while len(_series) > _MOST_IN_MEMORY:
        del _series[next(iter(_series))]
    return series


def _others_watch(job_id: str) -> bool:
    with _lock:
        watchers = dict(_watchers.get(job_id, {}))
    watchers.pop(_this_tab(), None)
    return any(time.monotonic() - when < _WATCHED_S for when in watchers.values())


def _this_tab() -> str:
    tab: str = st.session_state.setdefault(_TAB, uuid.uuid4().hex)
    return tab
