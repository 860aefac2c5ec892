"""Tuned configs on the page: what is kept for the sidebar's choice, taking it, forgetting it."""

from __future__ import annotations

import streamlit as st

from app.shared import selection
from app.shared.terms import TERMS
from app.shared.widgets import plain_markdown
from engine.errors import StoreError
from engine.problem import Problem
from engine.tuned import TunedConfig, find_tuned, forget_tuned
from kernels.variant import Variant

_SAID = "tuned_said"


def draw(variant: Variant, config: dict[str, int], problem: Problem | None, gpu: str) -> None:
    """Below the tunables: what was tuned for this GPU, variant and class of problems.

    It is offered and not taken by itself: a link that leaves out defaults means the same on every
    machine, whatever was tuned there.
    """
    if problem is None or not variant.tunables:
        return
    if said := st.session_state.pop(_SAID, ""):
        st.caption(plain_markdown(said))
    try:
        kept = find_tuned(gpu, variant.id, problem)
    except StoreError as error:
        st.caption(f":material/error: {plain_markdown(str(error))}")
        return
    if kept is None:
        return
    is_used = all(config.get(name) == value for name, value in kept.config.items())
    says = f"**tuned**{', in use' if is_used else ''}: {plain_markdown(kept.values())}"
    st.caption(f":material/tune: {says}", help=_help(kept))
    with st.container(horizontal=True, gap="small", key="tuned"):
        if not is_used:
            st.button(
                "Use tuned config",
                key="tuned_use",
                type="tertiary",
                on_click=_use,
                args=(variant, kept),
            )
        st.button("Forget it", key="tuned_forget", type="tertiary", on_click=forget, args=(kept,))


def _help(kept: TunedConfig) -> str:
    return (
        f"{TERMS['tuned']} This one is of {plain_markdown(kept.describe())}, by "
        f"{kept.strategy} search of {kept.evaluations:,} points, {kept.when[:16].replace('T', ' ')}"
        " UTC."
    )


def _use(variant: Variant, kept: TunedConfig) -> None:
    for tunable in variant.tunables:
        if kept.config.get(tunable.name) in tunable.values:
            key = selection.tunable_key(variant, tunable)
            st.session_state[key] = kept.config[tunable.name]


def forget(kept: TunedConfig) -> None:
    """Drop it from the file; a button's callback."""
    try:
        forget_tuned(kept)
    except StoreError as error:
        st.session_state[_SAID] = str(error)
    else:
        st.session_state[_SAID] = (
            f"Forgotten for {kept.variant} on {kept.gpu}, {kept.problem_class}: {kept.values()}."
        )
