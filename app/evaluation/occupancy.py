"""The occupancy tab: the limiting resource, what would change it, and how full the launch makes the
GPU."""

from __future__ import annotations

from functools import lru_cache

import plotly.graph_objects as go
import streamlit as st

from app.evaluation import charts, frames
from app.evaluation.view import EvaluationView, Residencies
from app.shared import plot
from app.shared.palette import Theme
from app.shared.terms import TERMS
from app.shared.widgets import busy, empty, plain_markdown, theme
from engine.attention.evaluation import Occupancy, PassReport
from engine.devices import limits_for
from engine.machine_code.disassembly import plain_name
from engine.model.occupancy import whatif

_AXES = {
    "threads": "threads per CTA",
    "registers": "registers per thread",
    "smem_bytes": "shared memory per CTA, bytes",
}


def draw(view: EvaluationView) -> None:
    if not view.passes:
        empty(
            "nothing yet",
            "No occupancy yet",
            plain_markdown(view.latency_reason) or "The kernel's registers are not known.",
        )
        return
    report = _which_pass(view)
    occupancy = report.occupancy
    st.markdown(plain_markdown(_filled(occupancy)), help=TERMS["gpu_fill"])
    row = st.container(horizontal=True, key="occupancy_charts")
    with row.container():
        st.markdown("**Limiting resource**", help=TERMS["occupancy"])
        _plot(charts.limiter_bars(frames.limits(occupancy), theme()), "limits")
    with row.container():
        st.markdown("**Waves**", help=TERMS["waves"])
        _waves(report)
    with row.container():
        st.markdown("**Threads and GPU capacity**", help=TERMS["thread_capacity"])
        _threads(report)
    _what_if(view, report)
    if view.residencies is not None and report is view.passes[0] and view.predicted is not None:
        _time_by_residency(view.residencies, view.predicted.median_us)


def _filled(occupancy: Occupancy) -> str:
    """Draw how full the GPU is, the factors of that, and what limits it."""
    if occupancy.gpu_fill is None:
        return occupancy.reason
    return (
        f"The GPU is {occupancy.gpu_fill:.1%} full: occupancy {occupancy.occupancy:.0%} × wave "
        f"efficiency {occupancy.wave_efficiency:.0%}; {occupancy.sm_fill:.0%} of the SMs get a CTA."
        f" {occupancy.reason}"
    )


def _time_by_residency(residencies: Residencies, now_us: float) -> None:
    times = residencies.times()
    st.markdown("**Time by CTAs per SM** :gray[simulated]", help=TERMS["residency"])
    if not times:
        if residencies.is_being_read():
            busy("Simulating other numbers of CTAs per SM.")
            return
        st.button(
            "Simulate other numbers of CTAs per SM",
            key="simulate_residencies",
            icon=":material/memory:",
            on_click=residencies.read,
        )
        return
    column, _ = st.columns(2)
    with column:
        _plot(charts.residencies(frames.residencies(times, now_us), theme()), "residencies")


def _which_pass(view: EvaluationView) -> PassReport:
    """Draw the choice of a pass; most variants have only one."""
    names = [p.resources.entry for p in view.passes]
    if len(names) == 1:
        return view.passes[0]
    selected = st.segmented_control(
        "Pass",
        range(len(names)),
        format_func=lambda i: plain_markdown(plain_name(names[i])),
        default=0,
        required=True,
        key=f"pass.{view.variant}",
        label_visibility="collapsed",
    )
    return view.passes[min(selected, len(names) - 1)]


def _plot(figure: go.Figure | plot.Drawn, key: str) -> None:
    plot.draw(figure, key, tools=False)


def _waves(report: PassReport) -> None:
    waves = frames.waves(report.occupancy)
    if waves is None:
        empty("nothing yet", "Waves are not known", "The number of SMs of this GPU is not known.")
        return
    frame, capacity = waves
    _plot(charts.waves(frame, capacity, theme()), "waves")
    occupancy = report.occupancy
    if occupancy.waves is not None and occupancy.wave_efficiency is not None:
        st.caption(
            f"Wave efficiency {occupancy.wave_efficiency:.0%}: the share of all CTA slots in use."
        )


def _threads(report: PassReport) -> None:
    occupancy = report.occupancy
    frame = frames.threads(occupancy, report.resources)
    if frame is None or occupancy.thread_fill is None or occupancy.ctas_to_fill is None:
        empty(
            "nothing yet",
            "The capacity is not known",
            "The number of SMs of this GPU is not known.",
        )
        return
    _plot(charts.thread_capacity(frame, theme()), "threads")
    st.caption(
        f"{occupancy.launched()}, of {report.resources.threads_per_cta} threads each, are "
        f"{occupancy.thread_fill:.1%} of what the GPU holds; {occupancy.ctas_to_fill:,} CTAs "
        "would fill it."
    )


def _what_if(view: EvaluationView, report: PassReport) -> None:
    if view.device is None:
        return
    resources = report.resources
    figures = _what_if_figures(
        view.device.compute_capability,
        resources.threads_per_cta,
        resources.registers_per_thread,
        resources.smem_bytes,
        theme(),
    )
    st.markdown("**What if** :gray[only one of these changes?]")
    with st.container(horizontal=True, key="what_if_charts"):
        for name, figure in figures.items():
            _plot(figure, f"what_if_{name}")


@lru_cache(maxsize=64)
def _what_if_figures(
    compute_capability: tuple[int, int],
    threads: int,
    registers: int,
    smem_bytes: int,
    colors: Theme,
) -> dict[str, plot.Drawn]:
    """Return the three what-if curves, which do not depend on batch and length."""
    curves = whatif(limits_for(compute_capability), threads, registers, smem_bytes)
    return {
        name: plot.Drawn.of(charts.what_if(frame, name, _AXES[name], colors))
        for name, frame in curves.items()
    }
