"""The target of a session: the form that sets it, and whether it is met."""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.attention.config import all_variants
from engine.base.schema import decode
from engine.sessions.goal import GoalStatus, describe_goal
from engine.sessions.snapshot import Goal

SIZES = {"B": "batch", "H": "num_heads", "S": "seqlen", "D": "head_dim"}

_COLOR = {"met": "green", "missed": "red", "undecided": "gray"}
_ICON = {
    "met": ":material/flag:",
    "missed": ":material/outlined_flag:",
    "undecided": ":material/help:",
}
_METRICS = {
    "speedup": "Speed-up over SDPA, at least (×)",
    "latency_us": "Latency, at most (µs)",
    "per_unit_gain": "Reduction of time per (batch, head), at least (×)",
}
_BASELINES = ("", "flash", "cudnn", "efficient", "math")


def draw_status(goal: Goal, status: GoalStatus) -> None:
    """Draw whether the target is met, and by which evaluation."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(status.state, icon=_ICON[status.state], color=_COLOR[status.state])
        st.text(f"{describe_goal(goal)}. {status.sentence}")


def form(goal: Goal | None) -> None:
    """Draw the form; `from_form` reads it."""
    metrics = [None, *_METRICS]
    st.selectbox(
        "Target",
        metrics,
        index=metrics.index(goal.metric) if goal else 0,
        format_func=lambda m: _METRICS[m] if m else "none",
        key="target_metric",
    )
    st.number_input("Value", min_value=0.0, value=goal.value if goal else 1.5, key="target_value")
    left, right = st.columns(2)
    baseline = goal.baseline if goal else ""
    _select(left, "Baseline", "baseline", _BASELINES, baseline, "the fastest")
    variants = ("", *(v.id for v in all_variants()))
    _select(right, "Variant", "variant", variants, goal.variant if goal else "", "any")
    for column, (letter, name) in zip(st.columns(4), SIZES.items(), strict=True):
        column.number_input(
            letter,
            min_value=1,
            value=getattr(goal, name) if goal else None,
            key=f"target_{name}",
            placeholder="any",
        )


def _select(
    container: Any, label: str, name: str, options: tuple[str, ...], value: str, none: str
) -> None:
    container.selectbox(
        label,
        options,
        index=options.index(value) if value in options else 0,
        format_func=lambda option: option or none,
        key=f"target_{name}",
    )


def from_form() -> Goal | None:
    """Return the target in the form; None if the form has none.

    Raises:
        SnapshotError: A value is out of range.
    """
    state = st.session_state
    if state["target_metric"] is None:
        return None
    names = ("metric", "value", "baseline", "variant", *SIZES.values())
    return decode(Goal, {name: state[f"target_{name}"] for name in names}, name="The target")
