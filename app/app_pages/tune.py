"""Tune: one variant on one problem and GPU: its correctness, occupancy and latency."""

from __future__ import annotations

import streamlit as st

from app.evaluation import metrics, tabs
from app.shared import pinned, saving, sidebar, url_state
from app.shared.runs import collect
from app.shared.selection import variant_label
from app.shared.widgets import let_paint, plain_markdown, problem
from app.tune import (
    add_kernel,
    header,
    latency_stream,
    machine_code,
    polling,
    roofline,
    variants,
    verdict_line,
)
from app.tune.run_state import run_state, view_of


def page() -> None:
    add_kernel.select_added()
    selection = sidebar.selection_before_drawing()
    if selection.problem is None:
        sidebar.draw()
        st.markdown(f"# {plain_markdown(variant_label(selection.variant))}")
        problem(selection.error)
        return
    above, tiles, line = st.container(), st.container(), st.container()
    state = run_state(selection)
    if url_state.value_of("live", False, url_state.TRUTH.get):
        state = polling.rerun_on_change(selection, state)
    collect()
    view = view_of(selection, state)
    # Draw the figures that a slider changes first: the browser paints them while the rest arrives.
    with tiles:
        metrics.draw(
            view,
            is_compiling=state.compiling is not None,
            is_stale=state.is_stale,
            baseline=pinned.pinned(),
        )
    let_paint()
    drawn = sidebar.draw()
    if drawn != selection:  # a widget did not take its value
        st.rerun()
    with above:
        header.draw(selection, state)
        saving.draw_outcome("tune")
        polling.poll(selection, state)
        header.problems(state)
    pinned.draw()
    more = {
        "Roofline": roofline.draw,
        "Machine code": lambda _: machine_code.draw(selection, state),
        "Variants": lambda _: variants.draw(drawn),
        "Live latency": lambda _: latency_stream.draw(selection, state),
    }
    tabs.draw(view, "tab", in_url=True, more=more)
    # Last, because looking up auto's choice must not delay a step of a slider.
    with line:
        verdict_line.draw(drawn, state, view, "tab")


page()
