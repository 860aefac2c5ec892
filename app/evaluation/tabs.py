"""The tabs below the metrics; only the open one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st

from app.evaluation import correctness, latency, occupancy, source
from app.evaluation.view import EvaluationView
from app.shared import url_state
from app.shared.widgets import show_errors


def draw(
    view: EvaluationView,
    key: str,
    *,
    in_url: bool = False,
    more: Mapping[str, Callable[[EvaluationView], None]] | None = None,
) -> None:
    """Draw the tabs of one evaluation and those of `more`. With `in_url`, the URL names the open
    tab."""
    draws = {
        "Latency": latency.draw,
        "Occupancy": occupancy.draw,
        "Correctness": lambda view: correctness.draw(view, tabs_key=key),
        source.TITLE: source.draw,
        **(more or {}),
    }
    titles = list(draws)
    tabs = url_state.tabs(titles, key) if in_url else st.tabs(titles, key=key, on_change="rerun")
    for tab, draw_tab in zip(tabs, draws.values(), strict=True):
        if tab.open:
            with tab, show_errors():
                draw_tab(view)
