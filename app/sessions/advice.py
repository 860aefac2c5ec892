"""What to try next, from cached compiles; the job worker compiles missing kernels."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.shared import known_times, missing_kernels, tables
from app.shared.runs import rerun_as_jobs_end
from app.shared.widgets import busy, empty, plain_markdown
from engine.attention.evaluation import Evaluation
from engine.choose.advice import advice_limits, advise
from engine.sessions.tables import advice_table

_POLL_S = 1.0
_ROW_PX = 76  # four lines of a reason
_HEAD_PX = 38
_MAX_PX = 460


def draw(evaluations: Sequence[Evaluation], key: str) -> None:
    """Draw a folded part of the page; nothing is computed while it is folded."""
    part = st.expander(
        "What to try next",
        icon=":material/lightbulb:",
        key=f"{key}_advice",
        on_change="rerun",
    )
    if not part.open:
        return
    with part:
        history = known_times.history()
        suggestions = advise(evaluations, history)
        waiting = [job for job in missing_kernels.jobs_for(history) if not job.is_over]
        if suggestions:
            table = advice_table(suggestions, advice_limits(evaluations))
            tables.draw(
                table.frame(),
                row_height=_ROW_PX,
                height=min(_MAX_PX, _HEAD_PX + _ROW_PX * len(suggestions)),
                columns={"why": st.column_config.TextColumn(width="large")},
            )
            st.caption(plain_markdown(f"Ordered by expected gain. {table.remark}"))
        elif not waiting:
            empty(
                "nothing yet",
                "Nothing to suggest",
                "Suggestions need a variant of the ladder on a GPU of the device table, and "
                "something left to gain.",
            )
        rerun_as_jobs_end(waiting, _POLL_S, _progress)


def _progress(count: int) -> None:
    busy(f"Compiling or simulating {count} kernel{'s' if count != 1 else ''} for predictions.")
