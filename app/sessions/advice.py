"""What to try next, from the compile cache; what is missing there the job worker compiles."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.batch.footprints import CachedFootprints, compile_missing
from app.sessions import frames
from app.shared.widgets import empty
from engine.evaluation import Evaluation
from engine.jobs.manager import JobStatus, manager
from engine.sessions.advice import advice_limits, advise

_POLL_S = 1.0
_ROW_PX = 58  # three lines of a reason
_HEAD_PX = 38
_MOST_PX = 460


def draw(evaluations: Sequence[Evaluation], key: str) -> None:
    """A folded part of the page; nothing is computed while it is folded."""
    part = st.expander(
        "What to try next",
        icon=":material/lightbulb:",
        key=f"{key}_advice",
        on_change="rerun",
    )
    if not part.open:
        return
    with part:
        cached = CachedFootprints()
        found = advise(evaluations, cached)
        waiting = [job for job in compile_missing(cached.missing) if not job.is_over]
        if found:
            st.dataframe(
                frames.advice(found),
                hide_index=True,
                width="stretch",
                row_height=_ROW_PX,
                height=min(_MOST_PX, _HEAD_PX + _ROW_PX * len(found)),
                column_config={"why": st.column_config.TextColumn(width="large")},
            )
            st.caption(
                "In order of expected gain. Gains are predictions: the model's time of the kernel "
                "as it is over its time of what is suggested. " + advice_limits(evaluations)
            )
        elif not waiting:
            empty(
                "nothing yet",
                "Nothing to suggest",
                "It needs a kernel of the ladder on a GPU of the device table that leaves "
                "something to gain.",
            )
        if waiting:
            _wait(waiting)


def _wait(waiting: list[JobStatus]) -> None:
    @st.fragment(run_every=_POLL_S)
    def poll() -> None:
        left = [job for job in waiting if not _is_over(job.job_id)]
        if len(left) < len(waiting):
            st.rerun()
        st.markdown(
            f":material/progress_activity: Compiling {len(left)} kernels of the ladder to predict "
            "them."
        )

    poll()


def _is_over(job_id: str) -> bool:
    job = manager().status(job_id)
    return job is None or job.is_over
