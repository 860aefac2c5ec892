"""The latency streams of this server: start and stop them, and track which tab shows which stream.

A stream belongs to its request: every tab with the same request shows the same stream. When a tab
switches to another request, the old stream is cancelled and a new one starts once the choice has
settled. A stream that another tab shows continues.
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

_SETTLED_S = 0.4  # a request that is unchanged for this long is not a slider being dragged
_WATCHED_S = 3.0  # a tab that has not polled for this long is closed, or shows something else
_MAX_IN_MEMORY = 4  # streams; others are read again from their files

_FOLLOWED = "latency_stream_followed"  # the running job that this tab shows
_NEXT = "latency_stream_next"  # (request, since when): the stream that this tab starts next
_TAB = "latency_stream_tab"

_lock = threading.RLock()
_watchers: dict[str, dict[str, float]] = {}  # job → tab → time of its last poll
_series: dict[str, LatencySeries] = {}  # newest last


def newest(request: EvaluationRequest) -> JobStatus | None:
    """Return the newest stream of this request, ended or not, started by any tab."""
    payload = payload_of(request)
    streams = (j for j in manager().jobs() if j.kind == "live" and j.request == payload)
    return next(streams, None)


def start(request: EvaluationRequest, known: JobStatus | None) -> None:
    """Start a stream, or join one that another tab has started.

    `known` is the newest job that the caller has seen, so that a repeated or late call starts no
    second stream.
    """
    st.session_state.pop(_NEXT, None)
    with _lock:
        job = newest(request)
        if job is None or (job.is_over and known is not None and job.job_id == known.job_id):
            with notices.errors_to(NOTICES):
                manager().submit_stream(request)


def stop(job: JobStatus | None) -> None:
    """End the stream for every tab, or cancel a queued one; samples are kept."""
    st.session_state.pop(_NEXT, None)
    if job is not None:
        manager().cancel(job.job_id)


def follow(request: EvaluationRequest, can_start: bool) -> bool:
    """Move this tab's stream to another request. Call at every poll.

    Returns:
        True while this tab waits for the choice to settle.
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
    """Return the job's stream so far, and note that this tab still shows it."""
    with _lock:
        if job.is_over:
            _watchers.pop(job.job_id, None)
            st.session_state.pop(_FOLLOWED, None)
        else:
            _watchers.setdefault(job.job_id, {})[_this_tab()] = time.monotonic()
            st.session_state[_FOLLOWED] = job.job_id
        return _up_to_date(job.job_id).view()


def csv_of(job_id: str) -> str:
    """Return the raw samples as CSV."""
    with _lock:
        return _up_to_date(job_id).csv()


def _up_to_date(job_id: str) -> LatencySeries:
    series = _series.pop(job_id, None) or LatencySeries()
    series.extend(manager().read_stream(job_id, series.after))
    _series[job_id] = series
    while len(_series) > _MAX_IN_MEMORY:
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
