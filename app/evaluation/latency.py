"""The latency tab: the time, where it comes from, what binds, and PyTorch beside it."""

from __future__ import annotations

import streamlit as st

from app.evaluation import charts, frames
from app.evaluation.view import Shown
from app.shared import plot
from app.shared.palette import variant_color
from app.shared.widgets import empty, origin_badge, plain_markdown, theme
from engine.evaluation import Latency
from kernels.ladder import LADDER


def draw(shown: Shown) -> None:
    timed = shown.evaluation is not None and any(b.latency for b in shown.evaluation.baselines)
    if shown.latency is None:
        empty("nothing yet", "No latency", shown.latency_reason or "It is not known yet.")
        if timed:
            _compare(shown)
        return
    left, right = st.columns([4, 5], gap="medium")
    with left:
        _reason(shown.latency)
        if shown.predicted is not None and shown.predicted is not shown.latency:
            _reason(shown.predicted)
        _baselines(shown)
    with right:
        _terms(shown)
    _compare(shown)


def _reason(latency: Latency) -> None:
    with st.container(border=True):
        origin_badge(latency.origin)
        st.markdown(plain_markdown(latency.reason))


def _terms(shown: Shown) -> None:
    if shown.terms is None:
        return
    st.markdown("**What the prediction is made of** :gray[in colour the term that binds]")
    plot.draw(charts.latency_terms(frames.terms(shown.terms), theme()), key="terms", tools=False)
    st.caption(
        "Launch floor + the slowest of SMs, L2 and DRAM + fusion, if there is a pass for it."
    )


def _compare(shown: Shown) -> None:
    own = [x for x in (shown.latency, shown.predicted) if x is not None]
    own = list(dict.fromkeys(own))
    found = shown.evaluation
    baselines = found.baselines if found else ()
    if found is not None:
        own += list(found.other_latencies)
    frame = frames.latencies(shown.variant, _color(shown.variant), own, baselines)
    st.markdown(
        "**Side by side** :gray[filled and solid: measured; diamond and dotted: recorded; open and "
        "dashed: predicted]"
    )
    chart, table = st.columns([5, 4], gap="medium")
    with chart:
        plot.draw(charts.latencies(frame, theme()), key="latencies", tools=False)
    table.dataframe(frames.latency_table(frame), hide_index=True, width="stretch")


def _baselines(shown: Shown) -> None:
    """What SDPA could not do, and that it was not timed here."""
    found = shown.evaluation
    missing = [b for b in found.baselines if b.latency is None] if found else []
    for baseline in missing:
        st.caption(f"SDPA {plain_markdown(baseline.name)}: {plain_markdown(baseline.reason)}")
    if not (found and found.baselines):
        st.caption("PyTorch's SDPA is timed beside the kernel where there is a GPU.")


def _color(variant: str) -> str:
    ids = [v.id for v in LADDER]
    return variant_color(ids.index(variant) if variant in ids else len(ids))
