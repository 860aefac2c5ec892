"""The best configs of a sweep, and keeping them for the ladder."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.shared.terms import TERMS
from app.shared.widgets import empty, plain_markdown, problem
from engine.errors import StoreError
from engine.search.keep import keep_configs
from engine.tuned import TunedConfig, forget_tuned, load_tuned, tuned_path

_SAID = "sweep_kept_said"
_FAILED = "sweep_kept_failed"
_SHOWN = 12


def draw(found: Sequence[TunedConfig]) -> None:
    """One line per GPU, variant and class of problems: what was found and what is kept."""
    for sentence in st.session_state.get(_SAID, ()):  # until the next button
        st.success(plain_markdown(sentence), icon=":material/check:")
    if failed := st.session_state.get(_FAILED, ""):
        problem(failed)
    if not found:
        empty("nothing yet", "No config to keep", "None of these points has a time that counts.")
        return
    try:
        kept = {_place(entry): entry for entry in load_tuned()}
    except StoreError as error:
        problem(str(error))
        return
    left = [entry for entry in found if _why_not(entry, kept.get(_place(entry))) is None]
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(found) > 1:
            st.button(
                f"Keep all {len(left):,}",
                key="sweep_keep_all",
                icon=":material/bookmarks:",
                on_click=_keep,
                args=(left,),
                disabled=not left,
            )
        st.caption(f"{TERMS['tuned']} They are in `{tuned_path()}`.")
    for number, entry in enumerate(found[:_SHOWN]):
        _line(number, entry, kept.get(_place(entry)))
    if len(found) > _SHOWN:
        st.caption(
            f"{len(found) - _SHOWN:,} more are kept with the others; choose a problem or variants "
            "above to see them."
        )


def _line(number: int, entry: TunedConfig, kept: TunedConfig | None) -> None:
    why_not = _why_not(entry, kept)
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        with st.container(width="stretch", gap=None):
            st.text(f"{entry.variant} on {entry.gpu}, {entry.problem_class}: {entry.values()}")
            st.caption(f"{plain_markdown(entry.describe())}. {_now(kept)}")
        if kept is not None:
            st.button(
                "Forget",
                key=f"sweep_forget_{number}",
                type="tertiary",
                on_click=_forget,
                args=(kept,),
            )
        st.button(
            "Keep as tuned config" if why_not is None or why_not else "Kept",
            key=f"sweep_keep_{number}",
            icon=":material/bookmark_add:",
            on_click=_keep,
            args=([entry],),
            disabled=why_not is not None,
            help=why_not or None,
        )


def _now(kept: TunedConfig | None) -> str:
    if kept is None:
        return "Nothing is kept yet."
    return f"Kept now: {plain_markdown(kept.values())}, of {plain_markdown(kept.describe())}."


def _why_not(entry: TunedConfig, kept: TunedConfig | None) -> str | None:
    """None when keeping it would change something; empty when it is what is kept."""
    if kept is None:
        return None
    if kept.outranks(entry):
        return f"What is kept was {kept.origin}: a time that is {entry.origin} never replaces it."
    same = (kept.config, kept.origin, kept.median_us) == (
        entry.config,
        entry.origin,
        entry.median_us,
    )
    return "" if same else None


def _place(entry: TunedConfig) -> tuple[str, str, str]:
    return (entry.gpu, entry.variant, entry.problem_class)


def _keep(entries: Sequence[TunedConfig]) -> None:
    """A button's callback."""
    try:
        sentences = keep_configs(entries)
    except StoreError as error:
        _say([], str(error))
        return
    if len(sentences) > 3:
        sentences = [f"{len(sentences):,} configs are kept.", *sentences[:2], "…"]
    _say(sentences)


def _forget(kept: TunedConfig) -> None:
    """A button's callback."""
    try:
        forget_tuned(kept)
    except StoreError as error:
        _say([], str(error))
    else:
        where = f"{kept.variant} on {kept.gpu}, {kept.problem_class}"
        _say([f"Forgotten for {where}: {kept.values()}."])


def _say(sentences: Sequence[str], failed: str = "") -> None:
    st.session_state[_SAID], st.session_state[_FAILED] = sentences, failed
