"""A sweep before and while it runs: the plan, how far it is, how it ended."""

from __future__ import annotations

import streamlit as st

from app.shared import queue
from app.shared.widgets import empty, plain_markdown, problem
from app.sweep import jobs
from app.sweep.frames import best_so_far, duration
from app.sweep.plan import Plan
from app.sweep.terms import TERMS
from engine.jobs.manager import JobStatus
from engine.jobs.status import JobProgress
from engine.units import format_us


def draw_plan(plan: Plan) -> None:
    """Points, exclusions and time, before anything is compiled."""
    words = f"**{plan.points:,} points**, {plan.evaluations:,} to evaluate"
    if plan.excluded is None:
        words += "; constraints are decided when it starts"
    elif plan.excluded:
        words += f", {plan.excluded:,} excluded by constraints"
    st.markdown(f"{words}; about **{duration(plan.estimate_s)}** :gray[(an estimate)]")
    for reason, count in plan.reasons:
        st.caption(f"{count:,} × {plain_markdown(reason)}")


def draw(job: JobStatus) -> None:
    """How the sweep stands."""
    progress = job.progress
    if progress is None and job.state == "queued":
        with st.container(horizontal=True, vertical_alignment="center"):
            queue.draw(job, "sweep_stop_other")
    elif progress is None:
        if not job.is_over:
            st.markdown(f":material/progress_activity: **{job.stage or 'Starting'}**")
    else:
        if not job.is_over:
            st.progress(
                min(progress.done / max(progress.total, 1), 1.0),
                job.stage or f"{progress.done:,} of {progress.total:,} points",
            )
        _tiles(job, progress)
        if len(progress.best) > 1 and not job.is_over:
            with st.expander("Best so far of each problem", icon=":material/trophy:"):
                st.dataframe(best_so_far(progress), hide_index=True, width="stretch")
    _end(job)


def _tiles(job: JobStatus, progress: JobProgress) -> None:
    with st.container(horizontal=True, gap="small", key="metrics"):
        resumed = f"{progress.resumed:,} taken over" if progress.resumed else None
        st.metric(
            "Done",
            f"{progress.done:,} of {progress.total:,}",
            resumed,
            delta_color="gray",
            delta_arrow="off",
            border=True,
            height="stretch",
        )
        if job.is_over:
            st.metric("Took", duration(job.elapsed_s), border=True, height="stretch")
        else:
            rate = f"{progress.per_minute:,.0f} / min" if progress.per_minute else "–"
            st.metric("Rate", rate, help=TERMS["rate"], border=True, height="stretch")
            left = duration(progress.eta_s) if progress.eta_s is not None else "–"
            st.metric("Left", left, help=TERMS["left"], border=True, height="stretch")
        st.metric(
            "Without a time",
            f"{progress.skipped + progress.failed:,}",
            f"{progress.skipped:,} excluded, {progress.failed:,} failed",
            delta_color="red" if progress.failed else "gray",
            delta_arrow="off",
            help=TERMS["without"],
            border=True,
            height="stretch",
        )
        if progress.best:
            first = progress.best[0]
            others = f"; {len(progress.best) - 1} more problems below" * (len(progress.best) > 1)
            st.metric(
                "Best" if job.is_over else "Best so far",
                format_us(first.median_us),
                first.origin,
                delta_color="violet" if first.origin == "predicted" else "blue",
                delta_arrow="off",
                delta_description=f"{first.name}, {first.problem}" + others,
                border=True,
                height="stretch",
            )


def _end(job: JobStatus) -> None:
    if job.state == "cancelled" and jobs.is_file(job):
        st.info(
            "The command ended before this sweep did. To go on with it: "
            f"`{jobs.go_on_command(job)}`",
            icon=":material/terminal:",
        )
    elif job.state == "cancelled":
        st.info(
            "Cancelled. What was found stays; Resume goes on with the rest.",
            icon=":material/do_not_disturb_on:",
        )
    elif job.state in ("failed", "crashed"):
        problem(job.error, job.log)
    elif job.state == "done":
        st.caption(f":material/check_circle: {jobs.ended(job)}")


def nothing_yet() -> None:
    empty(
        "nothing yet",
        "No sweep yet",
        "Give an axis several values above (S = 64:1024:x2, say), then start: winners, the "
        "importance of tunables and every point appear here while it runs.",
    )
