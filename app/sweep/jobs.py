"""The sweeps of this server and of the command line: which one the page shows, how it stands.

Those of the server are started, cancelled and resumed here; at the others one only looks.
"""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from app.shared import url_state
from app.sweep.frames import duration
from app.sweep.rows import Found
from engine.errors import AttuneError
from engine.jobs.manager import JobStatus, manager
from engine.jobs.sweep.files import PREFIX, sweep_files
from engine.search.autotune import ProblemResult
from engine.search.sweep.journal import SweepSpec
from engine.search.sweep.rows import SweepRow

PARAM = "sweep"  # in the URL: the sweep's journal, the same after it was resumed
_CHOSEN = "sweep_chosen"
_PROBLEM = "sweep_error"  # of the last button
_WHY = "sweep_why"  # of the link, until something else is chosen


def sweeps() -> list[JobStatus]:
    """The newest job of every sweep, newest first."""
    found: dict[str, JobStatus] = {}
    for job in manager().jobs():
        if job.kind == "sweep":
            found.setdefault(job.journal, job)
    both = [*found.values(), *sweep_files().listed()]
    return sorted(both, key=lambda job: job.submitted, reverse=True)


def is_file(job: JobStatus) -> bool:
    """Whether it is the command line's: to be looked at only."""
    return job.job_id.startswith(PREFIX)


def status(job: JobStatus) -> JobStatus | None:
    """How the sweep stands by now."""
    place = sweep_files() if is_file(job) else manager()
    return place.status(job.job_id)


def rows(job: JobStatus) -> list[SweepRow]:
    place = sweep_files() if is_file(job) else manager()
    return place.rows(job.job_id)


def finals(job: JobStatus) -> list[ProblemResult]:
    """Of a sweep on a GPU: the best of every problem, measured side by side."""
    return manager().results(job.job_id) if job.final else []


def go_on_command(job: JobStatus) -> str:
    """What goes on with a sweep of the command line."""
    return f"python -m engine sweep --resume {sweep_files().path(job.job_id)}"


def shown(found: list[JobStatus]) -> tuple[JobStatus | None, str]:
    """The sweep to show, and a sentence when the link names one that is not here."""
    by_journal = {job.journal: job for job in found}
    asked = st.session_state.get(_CHOSEN) or st.query_params.get(PARAM)
    if asked and asked not in by_journal:
        st.session_state[_WHY] = (
            "The sweep of this link is not on this server: choose another one, or start it anew."
        )
    why = st.session_state.get(_WHY, "")
    newest = found[0].journal if found else None
    name = asked if asked in by_journal else newest
    if name is None:
        return None, why
    st.session_state[_CHOSEN] = name
    url_state.write(PARAM, name)
    return by_journal[name], why


def select(found: list[JobStatus], current: JobStatus) -> None:
    """Which sweep this is, and the others to choose from."""
    if len(found) < 2:
        st.caption(label(current))
        return
    by_journal = {job.journal: job for job in found}
    st.session_state["sweep_select"] = current.journal
    st.selectbox(
        "Sweep",
        list(by_journal),
        format_func=lambda name: label(by_journal[name]),
        key="sweep_select",
        on_change=_choose,
        label_visibility="collapsed",
        width=640,
    )


def _choose() -> None:
    _forget_troubles()
    st.session_state[_CHOSEN] = st.session_state["sweep_select"]


def label(job: JobStatus) -> str:
    """`Nov 21, 14:02  v01, v05 on L4, 24 problems, exhaustive: done`."""
    space = job.request["space"]
    where = ", of the command line" if is_file(job) else ""
    when = datetime.fromtimestamp(job.submitted).strftime("%b %d, %H:%M")
    count = len(space["problems"])
    problems = f"{count:,} problem{'s' if count != 1 else ''}"
    variants = ", ".join(space["variants"])
    gpu = job.request["options"]["gpu"] or "the local GPU"
    state = "waiting" if job.state == "queued" else job.state
    return f"{when}  {variants} on {gpu}, {problems}, {job.request['strategy']}: {state}{where}"


def can_resume(job: JobStatus) -> bool:
    """Whether going on could do anything that is not done yet."""
    if is_file(job):
        return False
    return job.is_over and (
        job.state != "done"
        or (job.end == "budget" and job.request["budget"]["seconds"] is not None)
    )


def start(spec: SweepSpec, cluster: str) -> None:
    """Queue the sweep and show it; the button's callback. An empty cluster is this machine."""
    _forget_troubles()
    try:
        st.session_state[_CHOSEN] = manager().submit_sweep(spec, cluster)
    except AttuneError as error:
        st.session_state[_PROBLEM] = str(error)


def resume(job_id: str) -> None:
    """Go on with a sweep; the button's callback."""
    _forget_troubles()
    try:
        manager().resume_sweep(job_id)
    except AttuneError as error:
        st.session_state[_PROBLEM] = str(error)


def cancel(job_id: str) -> None:
    """Stop a sweep; what it has found stays. The button's callback."""
    manager().cancel(job_id)


def trouble() -> str:
    """Why the last button failed, until the next one is pressed."""
    return str(st.session_state.get(_PROBLEM, ""))


def _forget_troubles() -> None:
    for key in (_PROBLEM, _WHY):
        st.session_state.pop(key, None)


def found_of(job: JobStatus) -> Found:
    """The rows of this sweep in this tab, brought up to date."""
    kept: dict[str, Found] = st.session_state.setdefault("sweep_found", {})
    if job.journal not in kept:
        kept.clear()  # of one sweep at a time
        kept[job.journal] = Found()
    found = kept[job.journal]
    found.update(rows(job), is_over=job.is_over)
    return found


def ended(job: JobStatus) -> str:
    """How a finished sweep ended."""
    took = f"after {duration(job.elapsed_s)}"
    if job.end == "budget":
        return f"The budget is spent, {took}."
    return f"Finished {took}."
