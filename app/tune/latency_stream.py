"""The live tab: one kernel measured again and again, drawn over time while it goes on."""

from __future__ import annotations

import streamlit as st

from app.shared import plot, queue
from app.shared.palette import ORIGIN_COLOR, ORIGIN_ICON
from app.shared.widgets import empty, failure, plain_markdown, problem, theme
from app.sweep.frames import duration
from app.tune import latency_stream_chart, latency_stream_jobs
from engine.jobs.latency_stream.series import StreamSummary, StreamView
from engine.jobs.manager import JobStatus
from engine.pipeline.request import EvaluationRequest
from engine.records.codec import evaluation_from_dict
from engine.units import format_count, format_us

_TICK_S = 0.5  # also while nothing is measured: another tab may begin

_TERMS = {
    "switch": "Check the kernel once, then measure it again and again until this is switched off "
    "in any tab. Runs and compiles go in between. It follows the choice in the sidebar, and ends "
    "by itself when no tab shows it any more.",
    "median": "Median of all samples so far that count, with the interval that holds the true "
    "median with 95 % confidence, whatever the distribution.",
    "spread": "Nine samples of ten lie between these: a twentieth is faster, a twentieth slower.",
    "samples": "A sample does not count when a protective slowdown held, or when the SM clock was "
    "under 95 % of its median: the rule of every measurement here.",
    "lasted": "From the first sample to the last.",
}
_ENDS = {
    "unseen": "Ended by itself, because no tab showed it any more",
    "full": "Ended by itself, because one stream holds no more samples",
}


def draw(request: EvaluationRequest, why_not: str) -> None:
    """The tab. `why_not`: the sentence why this request cannot be measured, or empty."""

    @st.fragment(run_every=_TICK_S)
    def poll() -> None:
        _draw(request, why_not)

    with st.container():
        poll()


def _draw(request: EvaluationRequest, why_not: str) -> None:
    waits = latency_stream_jobs.follow(request, can_start=not why_not)
    job = latency_stream_jobs.newest(request)
    is_on = waits or (job is not None and not job.is_over)
    with st.container(horizontal=True, vertical_alignment="center", key="live_head"):
        # A new widget for every state. One whose value followed the job, which any tab may end,
        # would be set while a click on it is under way, and then switch itself back.
        key = f"live_{'on' if is_on else 'off'}_{job.job_id if job is not None else ''}"
        st.toggle(
            "Measure continuously",
            is_on,
            key=key,
            on_change=_switched,
            args=(key, request, job),
            disabled=bool(why_not) and not is_on,
            help=_TERMS["switch"],
        )
        if is_on:
            _progress(job)
        elif why_not:
            st.caption(f"It cannot be measured: {plain_markdown(why_not)}")
    # Places that stay, so that the chart stays what it is when a notice comes or goes.
    notice, figures, chart, below = (st.container() for _ in range(4))
    view = latency_stream_jobs.look(job) if job is not None else StreamView(None, "")
    with notice:
        _notice(job, view)
    if job is None or view.summary is None:
        return
    with figures:
        _tiles(view, view.summary)
        _origin(view)
    with chart:
        plot.draw(latency_stream_chart.live(view, job.job_id, theme()), key="live_chart")
    with below:
        _download(job, view)


def _switched(key: str, request: EvaluationRequest, job: JobStatus | None) -> None:
    # Under load Streamlit calls this once too often, for a value that is not new.
    wanted, was_on = st.session_state[key], key.startswith("live_on_")
    if wanted == was_on:
        return
    if wanted:
        latency_stream_jobs.start(request, job)
    else:
        latency_stream_jobs.stop(job)


def _progress(job: JobStatus | None) -> None:
    """What it is doing, or what it waits for."""
    if job is not None and job.state == "queued":
        queue.draw(job, "live_stop_other")
        return
    is_new = job is None or job.is_over
    stage = "Starts when the choice has settled" if is_new else job.stage or "Starting"
    st.markdown(f":material/progress_activity: {plain_markdown(stage)}", width="content")


def _notice(job: JobStatus | None, view: StreamView) -> None:
    """Why there is nothing, or how it ended."""
    if trouble := latency_stream_jobs.trouble():
        problem(trouble)
    if job is None:
        empty(
            "nothing yet",
            "Not measured live yet",
            "Switch on Measure continuously: latency appears here over time, with the GPU's "
            "clock, power and throttling beneath it. Without a GPU it is the execution time on "
            "this machine's CPU, and says so.",
        )
        return
    if not job.is_over:
        return
    if view.summary is None:
        took, stays = "before the first sample", ""
    else:
        took = f"after measuring for {duration(view.summary.lasted_s)}"
        stays = " What was measured stays here."
    if job.state == "cancelled":
        st.info(
            f"Stopped {took}.{stays} Switch on to measure anew.",
            icon=":material/do_not_disturb_on:",
        )
    elif job.state in ("failed", "crashed"):
        problem(f"{job.error}{stays} Switch on to measure anew.", job.log)
    elif job.result is not None:
        found = evaluation_from_dict(job.result, name="The result")
        failure(found.status, f"{found.reason} So it is not measured.", found.log)
    else:
        end = _ENDS.get(job.end, "Ended")
        st.info(f"{end}, {took}.{stays} Switch on to measure anew.", icon=":material/timer_off:")


def _tiles(view: StreamView, so_far: StreamSummary) -> None:
    is_cpu = view.kind == "cpu_execution"
    median = so_far.median
    with st.container(horizontal=True, gap="small", key="metrics_live"):
        st.metric(
            "Median CPU execution time" if is_cpu else "Median",
            format_us(median.median),
            "CPU, not a GPU" if is_cpu else "measured",
            delta_color="orange" if is_cpu else ORIGIN_COLOR["measured"],
            delta_arrow="off",
            delta_description=f"95 %: {format_us(median.low)} – {format_us(median.high)}, "
            f"±{median.half_width:.2%}",
            help=_TERMS["median"],
            border=True,
            height="stretch",
        )
        st.metric(
            "Spread",
            f"{format_us(so_far.low_us)} – {format_us(so_far.high_us)}",
            "5 % to 95 %",
            delta_color="gray",
            delta_arrow="off",
            help=_TERMS["spread"],
            border=True,
            height="stretch",
        )
        st.metric(
            "Samples",
            format_count(so_far.samples),
            f"{so_far.dropped:,} do not count" if so_far.dropped else "all count",
            delta_color="orange" if so_far.dropped else "gray",
            delta_arrow="off",
            help=_TERMS["samples"],
            border=True,
            height="stretch",
        )
        st.metric(
            "Measured for",
            duration(so_far.lasted_s),
            f"{format_count(so_far.samples / max(so_far.lasted_s, 1.0))} samples a second",
            delta_color="gray",
            delta_arrow="off",
            help=_TERMS["lasted"],
            border=True,
            height="stretch",
        )


def _origin(view: StreamView) -> None:
    """What kind of time this is, of what, and which panels are left out and why."""
    device = plain_markdown(view.device)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="live_origin"):
        if view.kind == "cpu_execution":
            st.badge("CPU execution time", icon=":material/memory:", color="orange")
            st.markdown(
                f"on {device}: not a GPU's latency. SM clock, power and throttling belong to a "
                "GPU, so their charts are left out."
            )
            return
        st.badge("measured", icon=ORIGIN_ICON["measured"], color=ORIGIN_COLOR["measured"])
        st.markdown(f"on {device}, inputs warm in the cache.{_left_out(view)}")


def _left_out(view: StreamView) -> str:
    panels = {"SM clock": view.clock, "power": view.power}
    missing = [name for name, curve in panels.items() if curve is None]
    if not missing:
        return ""
    if not view.has_gpu_state:
        missing.append("throttling")
    return f" Its driver does not tell {' or '.join(missing)}, so that is left out."


def _download(job: JobStatus, view: StreamView) -> None:
    request = EvaluationRequest.from_dict(job.request)
    p = request.problem
    shape = p.label().replace(" ", "_")
    st.download_button(
        "Raw samples (CSV)",
        latency_stream_jobs.table(job.job_id) if job.is_over else "",
        file_name=f"live_{request.variant}_{shape}_{view.kind}.csv",
        mime="text/csv",
        icon=":material/download:",
        on_click="ignore",
        key="live_csv",
        disabled=not job.is_over,
        help="" if job.is_over else "Switch off first: the table is of a measurement that is over.",
    )
    thinned = ""
    if view.times is not None and view.summary is not None:
        drawn, samples = view.times.at_s.size, view.summary.samples
        if drawn < samples:
            thinned = (
                f" Of {samples:,} samples {drawn:,} are drawn: of each slice of time the fastest, "
                "the middle and the slowest."
            )
    st.caption(
        "The line is the median so far, the band its 95 % interval; crosses do not count. Drag to "
        "zoom, double-click to go back: what you have zoomed to stays while data come "
        f"in.{thinned}"
    )
