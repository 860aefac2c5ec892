"""The latency tab: the time, its origin, the limiting term, and PyTorch's times."""

from __future__ import annotations

import streamlit as st

from app.evaluation import charts, frames
from app.evaluation.view import EvaluationView
from app.shared import plot, tables
from app.shared.palette import color_of
from app.shared.terms import TERMS
from app.shared.widgets import empty, origin_badge, plain_markdown, theme
from engine.attention.evaluation import Latency, baseline_label
from engine.base.units import format_us
from engine.sessions.tables import known_times_table

_ROWS = 8  # a longer table scrolls


def draw(view: EvaluationView) -> None:
    timed = view.evaluation is not None and any(b.latency for b in view.evaluation.baselines)
    if view.latency is None:
        empty(
            "nothing yet",
            f"At least {format_us(view.bound_us)}" if view.bound_us is not None else "No latency",
            plain_markdown(view.latency_reason) or "It is not known yet.",
        )
        if timed or view.known:
            _compare(view)
            _known(view)
        return
    left, right = st.columns([4, 5], gap="medium")
    with left:
        _reason(view.latency)
        if view.predicted is not None and view.predicted is not view.latency:
            _reason(view.predicted)
        _baselines(view)
    with right:
        _terms(view)
    _compare(view)
    _known(view)


def _known(view: EvaluationView) -> None:
    """Draw the times of this problem and GPU in sessions."""
    if not view.known:
        return
    st.markdown("**Known times of this problem on this GPU**")
    table = known_times_table(view.known, view.kernel)
    tables.draw(table.frame(), rows=_ROWS)
    st.caption(plain_markdown(table.remark))


def _reason(latency: Latency) -> None:
    with st.container(border=True):
        st.markdown(f"{origin_badge(latency.origin)}\n\n{plain_markdown(latency.reason)}")


def _terms(view: EvaluationView) -> None:
    if view.terms is None:
        return
    st.markdown(
        "**Terms of the prediction** :gray[the limiting term is coloured]",
        help=TERMS["prediction"],
    )
    plot.draw(charts.latency_terms(frames.terms(view.terms), theme()), key="terms", tools=False)


def _compare(view: EvaluationView) -> None:
    own = [x for x in (view.latency, view.predicted) if x is not None]
    own = list(dict.fromkeys(own))
    evaluation = view.evaluation
    baselines = evaluation.baselines if evaluation else ()
    if evaluation is not None and not view.is_stale:
        own += list(evaluation.other_latencies)
    shown = [t for t in view.known if t.latency.kind == "device_warm" and t.latency not in own]
    frame = frames.latencies(view.variant, color_of(view.variant), own, baselines, shown)
    if len(frame) < 2:  # the tile shows it already
        return
    st.markdown(
        "**Side by side** :gray[filled and solid: measured; diamond and dotted: recorded; open and "
        "dashed: predicted]",
        help=TERMS["side_by_side"],
    )
    plot.draw(charts.latencies(frame, theme()), key="latencies", tools=False)


def _baselines(view: EvaluationView) -> None:
    """Draw which baselines have no time, and why."""
    evaluation = view.evaluation
    missing = [b for b in evaluation.baselines if b.latency is None] if evaluation else []
    for baseline in missing:
        st.caption(plain_markdown(f"{baseline_label(baseline.name)}: {baseline.reason}"))
    if not (evaluation and evaluation.baselines) and not any(t.is_sdpa for t in view.known):
        st.caption("With a GPU, PyTorch's SDPA is timed beside the kernel.")
