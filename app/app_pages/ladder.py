"""Kernels: the figures of every rung of the ladder on one problem, and what each rung changed."""

from __future__ import annotations

import streamlit as st

from app.ladder import commits, overview, rung_by_rung, rungs
from app.shared import auto, sidebar, url_state
from app.shared.machine import device_of
from app.shared.selection import Selection
from app.shared.widgets import problem, show_errors


def page() -> None:
    selection = sidebar.draw()
    where = f"{selection.problem.label()} on {selection.gpu_name}" if selection.problem else ""
    st.markdown(f"# Kernels  :small[:gray[{where}]]")
    if selection.problem is None:
        problem(selection.error)
        return
    ladder, over_commits = url_state.tabs(("Rungs", "History"), "kernels_tab")
    if over_commits.open:
        with over_commits, show_errors():
            commits.draw(selection)
    if ladder.open:
        with ladder:
            _draw_rungs(selection)


def _draw_rungs(selection: Selection) -> None:
    assert selection.problem is not None
    st.markdown(
        "Each rung is one CUDA file that adds one idea to the rung it builds on. The table shows "
        "what each idea costs and gains on the problem and GPU of the sidebar; below it, one rung "
        "is described, with its changes in source and machine code."
    )
    known, waiting = rungs.of(selection)
    choice = selection.choice or auto.choice_for(selection.problem, selection.gpu)
    overview.draw(known, waiting, choice)
    if choice is not None and all(rung.is_complete for rung in known) and not rungs.is_stopped():
        # Otherwise a choice made without a time would stay although the table has faster rungs.
        auto.simulate_candidates(choice, selection.problem, selection.gpu)
    overview.draw_tree()
    rung_by_rung.draw(known, selection.variant.id)
    overview.draw_times(selection, known)
    overview.draw_forecasts()
    rung_by_rung.draw_unused_instructions(device_of(selection.gpu))


page()
