"""The part of the page that ticks: progress of a run, jobs of other tabs, files on disk."""

from __future__ import annotations

import streamlit as st

from app.shared.runs import Standing, run, standing, token_now
from app.shared.selection import Chosen
from app.tune.watch import Watch, source_digest
from engine.jobs.manager import manager

RUNNING_S = 0.25
LIVE_S = 0.5
IDLE_S = 2.0


def run_if_new(chosen: Chosen, now: Standing) -> Standing:
    """Live: run what has not been run yet, one at a time; a newer wish waits for its turn."""
    seen = now.preview
    if seen is None or seen.unsupported or seen.memory or now.compiling or now.is_running:
        return now
    request = chosen.request(execute=True)
    done: set[tuple[str, str]] = st.session_state.setdefault("live_done", set())
    key = (repr(request), now.digest)
    if key in done:
        return now
    done.add(key)
    run(request)
    return standing(chosen)


def tick(chosen: Chosen, now: Standing) -> None:
    """Draw progress and watch for change; the whole page runs again once when there is one."""
    busy = now.is_running or now.compiling is not None
    period = RUNNING_S if busy else LIVE_S if st.session_state.get("live") else IDLE_S
    st.session_state["watch"] = Watch.start(now.digest)

    @st.fragment(run_every=period)
    def poll() -> None:
        watch, settled = st.session_state["watch"].poll(source_digest(chosen.variant.source))
        st.session_state["watch"] = watch
        if settled or token_now(chosen, now) != now.token:
            st.rerun()
        _progress(chosen, now)

    # A place of its own: a late tick must not draw over what another run of the page put there.
    with st.container():
        poll()


def _progress(chosen: Chosen, now: Standing) -> None:
    if now.job is None or not now.is_running:
        return
    job = manager().status(now.job.job_id) or now.job
    stage = job.stage or ("Starting" if job.state == "running" else "Waiting for its turn")
    st.markdown(
        f":material/progress_activity: **{stage}** "
        f":gray[{job.elapsed_s:.1f} s, at most {chosen.timeout_s:.0f} s]"
    )
