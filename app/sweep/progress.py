"""The size estimate, progress and outcome of a sweep."""

from __future__ import annotations

import time

import streamlit as st

from app.shared import queue_position, tables
from app.shared.palette import ORIGIN_COLOR
from app.shared.terms import TERMS
from app.shared.widgets import busy, empty, plain_markdown, problem, tile, tile_row
from app.sweep import jobs
from app.sweep.cost_estimate import SweepEstimate
from app.sweep.frames import best_so_far
from engine.base.units import format_duration, format_durations, format_us
from engine.jobs.layout import JobProgress
from engine.jobs.manager import JobStatus


def draw_estimate(estimate: SweepEstimate) -> None:
    """Draw points, exclusions and time, estimated before anything is compiled."""
    text = f"**{estimate.points:,} points**, {estimate.evaluations:,} to evaluate"
    if estimate.excluded is None:
        text += "; constraints are checked when it starts"
    elif estimate.excluded:
        text += f", {estimate.excluded:,} excluded by constraints"
    about = format_durations(estimate.time.low_s, estimate.time.high_s)
    st.markdown(f"{text}; about **{about}** :gray[(an estimate)]")
    for reason, count in estimate.reasons:
        st.caption(f"{count:,} × {plain_markdown(reason)}")


def draw(job: JobStatus) -> None:
    """Draw the progress or the outcome of the sweep."""
    progress = job.progress
    if progress is None and job.state == "queued":
        with st.container(horizontal=True, vertical_alignment="center"):
            queue_position.draw(job, "sweep_stop_other")
    elif progress is None:
        if not job.is_over:
            busy(f"**{plain_markdown(job.stage) or 'Starting'}**")
    else:
        if not job.is_over:
            st.progress(
                min(progress.done / max(progress.total, 1), 1.0),
                plain_markdown(_under_way(job, progress)),
            )
        _tiles(job, progress)
        if len(progress.best) > 1 and not job.is_over:
            with st.expander("Best so far for each problem", icon=":material/trophy:"):
                tables.draw(best_so_far(progress))
    _end(job)


def _under_way(job: JobStatus, progress: JobProgress) -> str:
    """Draw the worker's current stage and the tiles of the running sweep."""
    if job.stage:
        return job.stage
    if progress.under_way:
        return f"Evaluating {progress.under_way}"
    return f"{progress.done:,} of {progress.total:,} points"


def _tiles(job: JobStatus, progress: JobProgress) -> None:
    with tile_row():
        resumed = f"{progress.resumed:,} from an earlier run" if progress.resumed else ""
        tile("Done", f"{progress.done:,} of {progress.total:,}", resumed)
        if job.is_over:
            tile("Took", format_duration(job.elapsed_s))
        else:
            rate = f"{progress.per_minute:,.0f} / min" if progress.per_minute else "–"
            tile("Rate", rate, term=TERMS["sweep_rate"])
            left_s = job.left_s(time.time())
            left = format_duration(left_s[0]) if left_s is not None else "–"
            between = format_durations(*left_s[1:]) if left_s and progress.eta_range_s else ""
            tile("Time left", left, between, term=TERMS["sweep_left"])
        untimed = 0 if progress.best else progress.passed  # no compiler for the GPU
        tile(
            "Not timed",
            f"{progress.skipped + progress.failed + untimed:,}",
            f"{progress.skipped:,} excluded, {progress.failed:,} failed"
            + f", {untimed:,} correct without a time" * (untimed > 0),
            term=TERMS["sweep_without"],
            color="red" if progress.failed else "gray",
        )
        if progress.best:
            first = progress.best[0]
            more = len(progress.best) - 1
            others = f"; {more} more problem{'s' * (more > 1)} below" * (more > 0)
            tile(
                "Best" if job.is_over else "Best so far",
                format_us(first.median_us),
                first.origin,
                f"{first.name}, {first.problem}{others}",
                color=ORIGIN_COLOR[first.origin],
            )


def _end(job: JobStatus) -> None:
    if job.state == "cancelled" and jobs.is_of_command_line(job):
        st.info(
            f"The command ended before this sweep was finished. Resume it: "
            f"`{jobs.resume_command(job)}`",
            icon=":material/terminal:",
        )
    elif job.state == "cancelled":
        st.info(
            "Cancelled. Results so far are kept; Resume evaluates the rest.",
            icon=":material/do_not_disturb_on:",
        )
    elif job.state in ("failed", "crashed"):
        problem(job.error, job.log)
    elif job.state == "done":
        st.caption(f":material/check_circle: {jobs.describe_end(job)}")


def nothing_yet() -> None:
    """Draw what to do before the first sweep."""
    empty(
        "nothing yet",
        "No sweep yet",
        "Give an axis several values above, for example S = 64:1024:x2, and press Start. Winners, "
        "the importance of tunables and every point appear here while it runs.",
    )
