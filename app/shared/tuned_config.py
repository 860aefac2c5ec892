"""The saved tuned config for the sidebar's selection: use it or forget it."""

from __future__ import annotations

import streamlit as st

from app.shared import notices, url_state
from app.shared.selection import tunable_key
from app.shared.terms import TERMS
from app.shared.widgets import plain_markdown
from engine.attention.config import TunedConfig, delete_tuned, find_tuned
from engine.attention.problem import Problem
from engine.base.errors import StoreError
from kernels.variant import Variant

_NOTICES = "tuned_config"


def draw(variant: Variant, config: dict[str, int], problem: Problem | None, gpu: str) -> None:
    """Draw the tuned config of this GPU, variant and class of problems, below the tunables.

    It is offered, not applied automatically: a link that leaves out defaults must mean the same on
    every machine.
    """
    if problem is None or not variant.tunables:
        return
    notices.draw(_NOTICES)
    try:
        tuned = find_tuned(gpu, variant, problem)
    except StoreError as error:
        st.caption(f":material/error: {plain_markdown(str(error))}")
        return
    if tuned is None:
        return
    is_used = all(config.get(name) == value for name, value in tuned.config.items())
    in_use = ", in use" if is_used else ""
    st.caption(
        f":material/tune: **tuned**{in_use}: {plain_markdown(tuned.values())}", help=_help(tuned)
    )
    with st.container(horizontal=True, gap="small", key="tuned"):
        if not is_used:
            st.button(
                "Use tuned config",
                key="tuned_use",
                type="tertiary",
                on_click=_use,
                args=(variant, tuned),
            )
        st.button(
            "Forget it",
            key="tuned_forget",
            type="tertiary",
            on_click=forget,
            args=(tuned, _NOTICES),
        )


def _help(tuned: TunedConfig) -> str:
    this = (
        f"{tuned.describe()}, by {tuned.strategy} search of {tuned.evaluations:,} points, "
        f"{tuned.when[:16].replace('T', ' ')} UTC."
    )
    return f"{TERMS['tuned']} This one: {plain_markdown(this)}"


def _use(variant: Variant, tuned: TunedConfig) -> None:
    for tunable in variant.tunables:
        if tunable.name in tuned.config and tunable.offers(tuned.config[tunable.name]):
            url_state.put({tunable_key(variant, tunable): tuned.config[tunable.name]})


def forget(tuned: TunedConfig, place: str) -> None:
    """Delete a tuned config and confirm it at `place`; a button's callback."""
    with notices.errors_to(place):
        delete_tuned(tuned)
        where = f"{tuned.variant} on {tuned.gpu}, {tuned.problem_class}"
        notices.add(place, f"Forgotten for {where}: {tuned.values()}.")
