"""Save the best configs of a sweep as tuned configs."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.shared import notices
from app.shared.terms import TERMS
from app.shared.tuned_config import forget
from app.shared.widgets import empty, plain_markdown, problem
from engine.attention.config import TunedConfig, load_tuned, tuned_path
from engine.base.errors import StoreError
from engine.search.autotune import save_configs

_MAX_SHOWN = 12
_NOTICES = "sweep.tuned_configs"


def draw(best: Sequence[TunedConfig]) -> None:
    """Draw a line per GPU, variant and class of problems: the best config and the saved one."""
    notices.draw(_NOTICES, once=False)  # stays until the next button, because this part polls
    if not best:
        empty("nothing yet", "No config to save", "None of these points has a valid time.")
        return
    try:
        saved = {_key(entry): entry for entry in load_tuned()}
    except StoreError as error:
        problem(str(error))
        return
    changes = [entry for entry in best if _why_not(entry, saved.get(_key(entry))) is None]
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(best) > 1:
            st.button(
                f"Save all {len(changes):,} as tuned configs",
                key="sweep_keep_all",
                icon=":material/bookmarks:",
                on_click=_save,
                args=(changes,),
                disabled=not changes,
            )
        st.caption(f"{TERMS['tuned']} Stored in `{tuned_path()}`.")
    for number, entry in enumerate(best[:_MAX_SHOWN]):
        _line(number, entry, saved.get(_key(entry)))
    if len(best) > _MAX_SHOWN:
        st.caption(
            f"{len(best) - _MAX_SHOWN:,} more; the button above saves them too. Select a problem "
            "or variants above to see them."
        )


def _line(number: int, entry: TunedConfig, saved: TunedConfig | None) -> None:
    why_not = _why_not(entry, saved)
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        with st.container(width="stretch", gap=None):
            st.text(f"{entry.variant} on {entry.gpu}, {entry.problem_class}: {entry.values()}")
            st.caption(f"{plain_markdown(entry.describe())}. {_now(saved)}")
        if saved is not None:
            st.button(
                "Forget tuned config",
                key=f"sweep_forget_{number}",
                type="tertiary",
                on_click=_forget,
                args=(saved,),
            )
        st.button(
            "Save as tuned config" if why_not is None or why_not else "Saved",
            key=f"sweep_keep_{number}",
            icon=":material/bookmark_add:",
            on_click=_save,
            args=([entry],),
            disabled=why_not is not None,
            help=why_not or None,
        )


def _now(saved: TunedConfig | None) -> str:
    if saved is None:
        return "Nothing is saved yet."
    return f"Saved now: {plain_markdown(saved.values())}, of {plain_markdown(saved.describe())}."


def _why_not(entry: TunedConfig, saved: TunedConfig | None) -> str | None:
    """Return None if saving would change something, empty if it is saved already, else the
    reason why it is not saved."""
    if saved is None:
        return None
    if saved.outranks(entry):
        return f"The saved config is {saved.origin}: a {entry.origin} time never replaces it."
    same = (saved.config, saved.origin, saved.median_us) == (
        entry.config,
        entry.origin,
        entry.median_us,
    )
    return "" if same else None


def _key(entry: TunedConfig) -> tuple[str, str, str]:
    return (entry.gpu, entry.variant, entry.problem_class)


def _save(entries: Sequence[TunedConfig]) -> None:
    """A button's callback."""
    notices.clear(_NOTICES)
    with notices.errors_to(_NOTICES):
        sentences = save_configs(entries)
        if len(sentences) > 3:
            sentences = [f"{len(sentences):,} configs are saved.", *sentences[:2], "…"]
        for sentence in sentences:
            notices.add(_NOTICES, sentence)


def _forget(saved: TunedConfig) -> None:
    """A button's callback."""
    notices.clear(_NOTICES)
    forget(saved, _NOTICES)
