"""The tabs below the metrics; only the open one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import streamlit as st

from app.evaluation import correctness, latency, occupancy, source
from app.evaluation.view import EvaluationView
from app.shared.widgets import errors_as_sentences


def draw(
    view: EvaluationView,
    key: str,
    bind: Literal["query-params"] | None = None,
    more: Mapping[str, Callable[[EvaluationView], None]] | None = None,
) -> None:
    """The tabs of one evaluation, and `more`. `bind` keeps the open one in the URL."""
    draws = {
        "Latency": latency.draw,
        "Occupancy": occupancy.draw,
        "Correctness": lambda view: correctness.draw(view, tabs_key=key),
        source.TITLE: source.draw,
        **(more or {}),
    }
    tabs = st.tabs(list(draws), key=key, on_change="rerun", bind=bind)
    for tab, draw_tab in zip(tabs, draws.values(), strict=True):
        if tab.open:
            with tab, errors_as_sentences():
                draw_tab(view)
