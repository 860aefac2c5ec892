"""The History tab: a kernel's figures over its commits, and the commits that made it worse."""

from __future__ import annotations

import streamlit as st

from app.ladder import charts
from app.shared import plot, runs, tables
from app.shared.runs import rerun_as_jobs_end
from app.shared.selection import Selection
from app.shared.widgets import busy, plain_markdown, problem, show_errors, theme
from engine.gate.commits import KernelHistory, Step, history_frame, history_table
from engine.gate.trees import last_commit
from engine.jobs.manager import JobStatus
from engine.pipeline.request import EvaluationRequest

_POLL_S = 0.5
_ROWS = 8  # a longer history scrolls
_DIFF_PX = 460
_DIFF_LINES = 24  # lines that fit into the diff


def draw(selection: Selection) -> None:
    """Draw the sidebar's kernel on its problem and GPU, commit by commit."""
    assert selection.problem is not None
    variant = selection.variant
    st.markdown(
        f"{plain_markdown(variant.id)} over the last git commits that touched its file or its "
        "headers. Each version is compiled with its default config and simulated, not executed."
    )
    commit = last_commit(variant.source.parent)
    request = EvaluationRequest(variant.id, selection.problem, gpu=selection.gpu, execute=False)
    job = runs.history_job(request, commit)
    if job is None or not job.is_over:
        _progress(job)
    elif job.state == "done":
        _draw(runs.history_of(job))
    else:
        problem(job.error, job.log)
        st.button(
            "Compute again",
            key="history_again",
            icon=":material/refresh:",
            on_click=runs.forget_history,
            args=(request, commit),
        )


def _progress(job: JobStatus | None) -> None:
    if job is None:  # the next run submits it again
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center", key="history_progress"):
        st.button(
            "Cancel",
            key="history_stop",
            icon=":material/stop:",
            on_click=runs.cancel,
            args=(job.job_id,),
        )
        rerun_as_jobs_end([job], _POLL_S, lambda _: busy(plain_markdown(runs.stage_of(job.job_id))))


def _draw(history: KernelHistory) -> None:
    if not history.steps:
        st.info("No commit has this kernel yet: commit it first.", icon=":material/history:")
        return
    frame = history_frame(history)
    if frame["simulated_us"].notna().any():
        st.markdown(
            f"**{plain_markdown(history.kernel)} on {plain_markdown(history.gpu)}, "
            f"{plain_markdown(history.problem.label())}** :gray[the oldest commit on the left; in "
            "red: commits that made it worse]"
        )
        plot.draw(charts.history(frame, theme()), key="history_chart", tools=False)
    table = history_table(history)
    tables.draw(
        table.frame(),
        rows=_ROWS,
        columns={"subject": st.column_config.TextColumn(width="medium")},
        key="history_table",
    )
    st.caption(plain_markdown(table.remark))
    _draw_diff(history)


def _draw_diff(history: KernelHistory) -> None:
    """Draw the diff of a commit; by default the last that made it worse, else the newest."""
    steps = {step.commit: step for step in reversed(history.steps)}
    worse = [name for name, step in steps.items() if step.is_worse]
    names = list(steps)
    chosen = st.selectbox(
        "What a commit changed",
        names,
        index=names.index(worse[0]) if worse else 0,
        format_func=lambda name: _label(steps[name]),
        key="history_commit",
    )
    step = steps[chosen]
    with show_errors():
        for found in step.findings:
            icon = ":material/warning:" if found.is_regression else ":material/check:"
            st.caption(f"{icon} {plain_markdown(f'{found.verdict}: {found.what}')}")
        why = step.answer.fault or step.answer.obstacle
        if why and not any(why in found.what for found in step.findings):
            st.caption(f":material/block: {plain_markdown(why)}")
        if step.diff:
            is_long = step.diff.count("\n") > _DIFF_LINES
            st.code(step.diff, language="diff", height=_DIFF_PX if is_long else "content")
        else:
            st.caption("The oldest of these commits: there is no earlier one to compare with.")


def _label(step: Step) -> str:
    verdicts = ", ".join(dict.fromkeys(str(f.verdict) for f in step.findings))
    return "  ".join(filter(None, [step.commit[:7], step.day, step.subject, verdicts]))
