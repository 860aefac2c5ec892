"""The tab "Live latency": measure one kernel repeatedly and plot its latency over time."""

from __future__ import annotations

import streamlit as st

from app.shared import notices, plot, queue_position, tables
from app.shared.palette import ORIGIN_COLOR, ORIGIN_ICON
from app.shared.selection import Selection
from app.shared.widgets import (
    busy,
    empty,
    failure,
    plain_markdown,
    problem,
    theme,
    tile,
    tile_row,
)
from app.tune import latency_stream_chart, latency_stream_jobs
from app.tune.run_state import RunState
from engine.attention.evaluation import Evaluation
from engine.base.schema import decode
from engine.base.units import format_count, format_duration, format_us
from engine.jobs.latency_series import StreamSummary, StreamView
from engine.jobs.manager import JobStatus
from engine.pipeline.request import EvaluationRequest

_POLL_S = 0.5  # also while nothing is measured: another tab may start a stream

_TERMS = {
    "switch": "Checks the kernel once, then measures it repeatedly until any tab switches this "
    "off. Runs and compiles are executed in between. The measurement follows the sidebar and "
    "stops when no tab shows it.",
    "median": "Median of all valid samples so far, with its 95 % confidence interval, which "
    "assumes no distribution.",
    "spread": "The 5th and the 95th percentile: nine of ten samples lie between them.",
    "samples": "A sample is left out when the GPU was throttled or the SM clock was below 95 % of "
    "its median, as in every measurement of Attune.",
    "duration": "From the first sample to the last.",
}
_ENDS = {
    "unseen": "Stopped because no tab showed it any more",
    "full": "Stopped because the stream is full",
}


def draw(selection: Selection, state: RunState) -> None:
    """Draw the tab."""
    request = selection.request(execute=True)
    seen = state.preview
    why_not = state.error or (seen.unsupported or seen.memory if seen is not None else "") or ""

    @st.fragment(run_every=_POLL_S)
    def poll() -> None:
        _draw(request, why_not)

    with st.container():
        poll()


def _draw(request: EvaluationRequest, why_not: str) -> None:
    """Draw the tab's content; `why_not` says why this request cannot be measured, or is empty."""
    waits = latency_stream_jobs.follow(request, can_start=not why_not)
    job = latency_stream_jobs.newest(request)
    is_on = waits or (job is not None and not job.is_over)
    with st.container(horizontal=True, vertical_alignment="center", key="latency_stream_head"):
        # A new widget for every state: any tab may end the job, and a switch that followed the
        # job's state could change during a click and switch back.
        key = f"latency_stream_{'on' if is_on else 'off'}_{job.job_id if job is not None else ''}"
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
    # Fixed containers: the chart stays the same element when a notice appears or disappears.
    notice, figures, chart, below = (st.container() for _ in range(4))
    view = latency_stream_jobs.view_of(job) if job is not None else StreamView(None, "")
    with notice:
        _notice(job, view)
    if job is None or view.summary is None:
        return
    with figures:
        _tiles(view, view.summary)
        _origin(view)
    with chart:
        plot.draw(
            latency_stream_chart.latency_stream(view, job.job_id, theme()),
            key="latency_stream_chart",
        )
    with below:
        _download(job, view)


def _switched(key: str, request: EvaluationRequest, job: JobStatus | None) -> None:
    # Under load Streamlit may call this again for a value that has not changed.
    wanted, was_on = st.session_state[key], key.startswith("latency_stream_on_")
    if wanted == was_on:
        return
    if wanted:
        latency_stream_jobs.start(request, job)
    else:
        latency_stream_jobs.stop(job)


def _progress(job: JobStatus | None) -> None:
    """Draw the stage of the job, or what it waits for."""
    if job is not None and job.state == "queued":
        queue_position.draw(job, "latency_stream_stop_other")
        return
    stage = job.stage if job is not None and not job.is_over else ""
    busy(plain_markdown(stage or "Starting"))


def _notice(job: JobStatus | None, view: StreamView) -> None:
    """Draw why there are no samples, or how the stream ended."""
    notices.draw(latency_stream_jobs.NOTICES)
    if job is None:
        empty(
            "nothing yet",
            "Not measured live yet",
            "Switch on Measure continuously to see latency over time, with the GPU's clock, power "
            "and throttling below it. Without a GPU it is the execution time on this machine's "
            "CPU, labelled as such.",
        )
        return
    if not job.is_over:
        return
    if view.summary is None:
        when, stays = "before the first sample", ""
    else:
        when = f"after measuring for {format_duration(view.summary.lasted_s)}"
        stays = " The samples are kept."
    if job.state == "cancelled":
        st.info(
            f"Stopped {when}.{stays} Switch on to measure again.",
            icon=":material/do_not_disturb_on:",
        )
    elif job.state in ("failed", "crashed"):
        from engine.backends.cuda.backend import SOFTWARE_TIMES

        again = "" if job.error == SOFTWARE_TIMES else " Switch on to measure again."
        problem(f"{job.error}{stays}{again}", job.log)
    elif job.result is not None:
        result = decode(Evaluation, job.result, name="The result")
        failure(result.status, f"{result.reason} Therefore the kernel is not measured.", result.log)
    else:
        end = _ENDS.get(job.end, "Ended")
        st.info(f"{end}, {when}.{stays} Switch on to measure again.", icon=":material/timer_off:")


def _tiles(view: StreamView, summary: StreamSummary) -> None:
    is_cpu = view.kind == "cpu_execution"
    median = summary.median
    with tile_row("metrics_latency_stream"):
        tile(
            "Median CPU execution time" if is_cpu else "Median",
            format_us(median.median),
            "CPU, not a GPU" if is_cpu else "measured",
            f"95 %: {format_us(median.low)} – {format_us(median.high)}, ±{median.half_width:.2%}",
            term=_TERMS["median"],
            color="orange" if is_cpu else ORIGIN_COLOR["measured"],
        )
        tile(
            "Spread",
            f"{format_us(summary.low_us)} – {format_us(summary.high_us)}",
            "5 % to 95 %",
            term=_TERMS["spread"],
        )
        tile(
            "Samples",
            format_count(summary.samples),
            f"{summary.dropped:,} left out" if summary.dropped else "none left out",
            term=_TERMS["samples"],
            color="orange" if summary.dropped else "gray",
        )
        tile(
            "Measured for",
            format_duration(summary.lasted_s),
            f"{format_count(summary.samples / max(summary.lasted_s, 1.0))} samples per second",
            term=_TERMS["duration"],
        )


def _origin(view: StreamView) -> None:
    """Draw the kind of time, the device, and the panels that are left out, with the reason."""
    device = plain_markdown(view.device)
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="latency_stream_origin"
    ):
        if view.kind == "cpu_execution":
            st.badge("CPU execution time", icon=":material/memory:", color="orange")
            st.markdown(
                f"on {device}: not a GPU's latency. SM clock, power and throttling exist only on a "
                "GPU, so their charts are left out."
            )
            return
        st.badge("measured", icon=ORIGIN_ICON["measured"], color=ORIGIN_COLOR["measured"])
        st.markdown(f"on {device}, inputs warm in L2.{_left_out(view)}")


def _left_out(view: StreamView) -> str:
    panels = {"SM clock": view.clock, "power": view.power}
    missing = [name for name, curve in panels.items() if curve is None]
    if not missing:
        return ""
    if not view.has_gpu_state:
        missing.append("throttling")
    return f" The driver does not report {' or '.join(missing)}: left out."


def _download(job: JobStatus, view: StreamView) -> None:
    request = decode(EvaluationRequest, job.request)
    shape = request.problem.label().replace(" ", "_")
    tables.download(
        "Raw samples (CSV)",
        latency_stream_jobs.csv_of(job.job_id) if job.is_over else "",
        f"live_{request.variant}_{shape}_{view.kind}.csv",
        key="latency_stream_csv",
        type="secondary",
        disabled=not job.is_over,
        help=None
        if job.is_over
        else "Switch off first: only a finished measurement can be downloaded.",
    )
    thinned = ""
    if view.times is not None and view.summary is not None:
        drawn, samples = view.times.at_s.size, view.summary.samples
        if drawn < samples:
            thinned = (
                f" {drawn:,} of {samples:,} samples are drawn: the fastest, the middle and the "
                "slowest of each slice of time."
            )
    st.caption(
        "Line: the median so far. Band: its 95 % interval. Crosses: samples left out. "
        f"Drag to zoom, double-click to zoom out.{thinned}"
    )
