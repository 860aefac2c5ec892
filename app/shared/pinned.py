"""The pinned baseline on the pages: pin, show and unpin it."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.shared import notices
from app.shared.widgets import plain_markdown
from engine.attention.evaluation import Evaluation
from engine.history.known_time import under_own_names
from engine.sessions.goal import pin, pinned, unpin

_NOTICES = "pinned"


def button(shown: Callable[[], Evaluation | None], *, disabled: bool) -> None:
    """Draw the button that pins the shown evaluation as the baseline of Tune's tiles."""
    st.button(
        "Pin",
        key="pin",
        icon=":material/push_pin:",
        on_click=_pin,
        args=(shown,),
        disabled=disabled,
        help="Make this the baseline: the figures on Tune then show how they differ from it.",
    )


def draw() -> None:
    """Draw the pinned baseline with a button to unpin it."""
    notices.draw(_NOTICES)
    stored = pinned()
    if stored is None:
        return
    (baseline,) = under_own_names([stored], "")
    config = " ".join(f"{name}={value}" for name, value in sorted(baseline.config.items()))
    with st.container(horizontal=True, vertical_alignment="center", key="pinned"):
        st.caption(
            plain_markdown(
                f"Pinned: {baseline.variant} {config}, {baseline.problem.label()} on "
                f"{baseline.device}"
            ),
            width="content",
        )
        st.button("Unpin", key="unpin", type="tertiary", on_click=_unpin)


def _pin(shown: Callable[[], Evaluation | None]) -> None:
    with notices.errors_to(_NOTICES):
        evaluation = shown()
        if evaluation is not None:
            pin(evaluation)


def _unpin() -> None:
    with notices.errors_to(_NOTICES):
        unpin()
