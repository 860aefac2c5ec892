"""The sweeps of this server and of the command line: the one that the page shows, and its state.

Sweeps of the server are started, cancelled and resumed here; others are only shown.
"""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from app.shared import notices, url_state
from app.shared.widgets import plain_markdown
from app.sweep.result_rows import ResultRows
from engine.base.units import format_duration
from engine.jobs.manager import JobManager, JobStatus, manager
from engine.jobs.sweep_files import PREFIX, SweepFiles, sweep_files
from engine.search.autotune import ProblemResult
from engine.search.cluster.members import is_loopback, parse_address
from engine.search.sweep.journal import SweepSpec

_PARAM = "sweep"  # in the URL: the sweep's journal, which a resumed sweep keeps
_SELECTED = "sweep_selected"
_ASKED = "sweep_asked"  # a sweep on another machine's cluster that awaits confirmation
_NOTICES = "sweep"  # notices of the link and of the last button, until the next button


def sweeps() -> list[JobStatus]:
    """Return the newest job of every sweep, newest first."""
    newest: dict[str, JobStatus] = {}
    for job in manager().jobs():
        if job.kind == "sweep":
            newest.setdefault(job.journal, job)
    both = [*newest.values(), *sweep_files().listed()]
    return sorted(both, key=lambda job: job.submitted, reverse=True)


def is_of_command_line(job: JobStatus) -> bool:
    """Return True if the sweep was started on the command line."""
    return job.job_id.startswith(PREFIX)


def _source(job: JobStatus) -> JobManager | SweepFiles:
    return sweep_files() if is_of_command_line(job) else manager()


def status(job: JobStatus) -> JobStatus | None:
    """Return the sweep's present state."""
    return _source(job).status(job.job_id)


def result_rows(job: JobStatus) -> ResultRows:
    """Return the up-to-date rows of this sweep in this tab."""
    by_journal: dict[str, ResultRows] = st.session_state.setdefault("sweep_rows", {})
    if job.journal not in by_journal:
        by_journal.clear()  # the tab stores one sweep at a time
        by_journal[job.journal] = ResultRows()
    rows = by_journal[job.journal]
    rows.update(_source(job).rows(job.job_id), is_over=job.is_over)
    return rows


def final_round(job: JobStatus) -> list[ProblemResult]:
    """Return the final round of a sweep on a GPU: each problem's best kernels, measured side by
    side."""
    return manager().results(job.job_id) if job.final else []


def resume_command(job: JobStatus) -> str:
    """Return the command that resumes a sweep of the command line."""
    return f"attune sweep --resume {sweep_files().path(job.job_id)}"


def selected(jobs: list[JobStatus]) -> JobStatus | None:
    """Return the sweep to show: the selected or linked one, else the newest."""
    by_journal = {job.journal: job for job in jobs}
    own = st.session_state.get(_SELECTED)
    if own and own not in by_journal:
        return jobs[0] if jobs else None  # just started: the list does not include it yet
    name = own or st.query_params.get(_PARAM)
    if name and name not in by_journal:
        notices.clear(_NOTICES)
        notices.add(
            _NOTICES,
            "The sweep of this link is not on this server: select another one, or start it again.",
            "error",
        )
        name = None
    if name is None:
        if not jobs:
            return None
        name = jobs[0].journal
    st.session_state[_SELECTED] = name
    url_state.write(_PARAM, name)
    return by_journal[name]


def draw_notices() -> None:
    """Draw errors of the link or of the last button."""
    notices.draw(_NOTICES, once=False)


def select(jobs: list[JobStatus], current: JobStatus) -> None:
    """Draw the shown sweep's label, and the choice of others."""
    if len(jobs) < 2:
        st.caption(plain_markdown(_label(current)))
        return
    by_journal = {job.journal: job for job in jobs}
    st.session_state["sweep_select"] = current.journal
    st.selectbox(
        "Sweep",
        list(by_journal),
        format_func=lambda name: _label(by_journal[name]),
        key="sweep_select",
        on_change=_select,
        label_visibility="collapsed",
        width=640,
    )


def _select() -> None:
    notices.clear(_NOTICES)
    st.session_state[_SELECTED] = st.session_state["sweep_select"]


def _label(job: JobStatus) -> str:
    """Return `Nov 21, 14:02  v01, v05 on L4, 24 problems, exhaustive: done`."""
    space = job.request["space"]
    where = ", of the command line" if is_of_command_line(job) else ""
    when = datetime.fromtimestamp(job.submitted).strftime("%b %d, %H:%M")
    count = len(space["problems"])
    problems = f"{count:,} problem{'s' if count != 1 else ''}"
    variants = ", ".join(space["variants"])
    gpu = job.request["options"]["gpu"] or "the local GPU"
    state = "waiting" if job.state == "queued" else job.state
    return f"{when}  {variants} on {gpu}, {problems}, {job.request['strategy']}: {state}{where}"


def action_buttons(job: JobStatus) -> None:
    """Draw the button that cancels a running sweep or resumes an unfinished one."""
    if is_of_command_line(job):
        return
    if not job.is_over:
        st.button(
            "Cancel",
            key="sweep_cancel",
            icon=":material/stop:",
            on_click=manager().cancel,
            args=(job.job_id,),
        )
    elif _can_resume(job):
        st.button(
            "Resume",
            key="sweep_resume",
            icon=":material/resume:",
            on_click=_resume,
            args=(job.job_id,),
        )


def _can_resume(job: JobStatus) -> bool:
    """True if the sweep has ended and has points left to evaluate."""
    ended_early = job.end == "budget" and job.request["budget"]["seconds"] is not None
    return job.state != "done" or ended_early


def start(spec: SweepSpec, cluster: str) -> None:
    """Queue the sweep and show it; a button's callback. An empty cluster means this machine.

    A cluster on another machine needs confirmation by `confirm_cluster`.
    """
    notices.clear(_NOTICES)
    with notices.errors_to(_NOTICES):
        if cluster and not is_loopback(cluster):
            st.session_state[_ASKED] = (spec, parse_address(cluster))
        else:
            _submit(spec, cluster)


def confirm_cluster() -> None:
    """Ask for confirmation of a cluster on another machine after Start was pressed."""
    if _ASKED not in st.session_state:
        return
    spec, cluster = st.session_state[_ASKED]
    st.warning(
        plain_markdown(
            f"Start on {cluster}? What this scheduler and its workers send is executed here with "
            "your rights: start only if you know the machine and typed its address yourself."
        ),
        icon=":material/warning:",
    )
    with st.container(horizontal=True):
        st.button(
            f"Start on {plain_markdown(cluster)}",
            key="sweep_confirm",
            icon=":material/play_arrow:",
            on_click=_confirmed,
            args=(spec, cluster),
        )
        st.button("Do not start", key="sweep_decline", on_click=_forget_asked)


def _confirmed(spec: SweepSpec, cluster: str) -> None:
    _forget_asked()
    with notices.errors_to(_NOTICES):
        _submit(spec, cluster)


def _forget_asked() -> None:
    st.session_state.pop(_ASKED, None)


def _submit(spec: SweepSpec, cluster: str) -> None:
    st.session_state[_SELECTED] = manager().submit_sweep(spec, cluster)


def _resume(job_id: str) -> None:
    notices.clear(_NOTICES)
    with notices.errors_to(_NOTICES):
        manager().resume_sweep(job_id)


def describe_end(job: JobStatus) -> str:
    """Draw how a finished sweep ended."""
    after = f"after {format_duration(job.elapsed_s)}"
    return f"The budget is spent, {after}." if job.end == "budget" else f"Finished {after}."
