"""Predictions beside times measured or recorded later, over all sessions."""

from __future__ import annotations

import streamlit as st

from app.sessions import charts, frames
from app.shared import known_times, plot, tables
from app.shared.widgets import empty, plain_markdown, theme
from engine.history.history import predictions
from engine.sessions.known_times import ledger_table, score

_ROWS = 7  # a longer table scrolls


def draw() -> None:
    """Draw a folded part of the page; nothing is read while it is folded."""
    part = st.expander(
        "Predictions and the times measured or recorded later",
        icon=":material/target:",
        key="ledger",
        on_change="rerun",
    )
    if not part.open:
        return
    with part:
        times = known_times.known()
        ledger = score(predictions(), times.all() if times is not None else ())
        if not ledger.scores:
            empty(
                "nothing yet",
                "No prediction was measured yet",
                f"{ledger.waiting:,} predictions have no measured or recorded time: measure the "
                "same kernel, config and problem on that GPU, or import its times.",
            )
            return
        st.markdown(plain_markdown(ledger.reason))
        drawn = frames.ledger(ledger)
        if drawn.empty:  # all times are of other sources
            tables.draw(ledger_table(ledger).frame(), rows=_ROWS, key="ledger_table")
            return
        chart, table = st.columns([4, 5], gap="medium")
        with chart:
            plot.draw(charts.ledger(drawn, theme()), key="ledger_chart")
            st.caption(
                "A prediction on the line is exact; bars are 90 % intervals. Open markers do not "
                "count: the prediction was made after the time."
            )
        with table:
            tables.draw(ledger_table(ledger).frame(), rows=_ROWS, key="ledger_table")
