"""Messages of button callbacks. Callbacks run before the page, which then draws the messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import streamlit as st

from app.shared.widgets import plain_markdown
from engine.base.errors import AttuneError

Kind = Literal["success", "warning", "error"]

_ICON: dict[Kind, str] = {
    "success": ":material/check:",
    "warning": ":material/warning:",
    "error": ":material/error:",
}


def add(place: str, text: str, kind: Kind = "success") -> None:
    """Add a message for `draw(place)` to show."""
    st.session_state.setdefault(_key(place), []).append((kind, text))


def clear(place: str) -> None:
    """Remove the messages at `place`."""
    st.session_state.pop(_key(place), None)


@contextmanager
def errors_to(place: str, kind: Kind = "error") -> Iterator[None]:
    """End the block at an AttuneError, and show the error at `place`."""
    try:
        yield
    except AttuneError as error:
        add(place, str(error), kind)


def draw(place: str, *, once: bool = True) -> None:
    """Draw the messages and remove them. With `once=False` they stay until `clear`."""
    for kind, text in st.session_state.get(_key(place), ()):
        box = {"success": st.success, "warning": st.warning, "error": st.error}[kind]
        box(plain_markdown(text), icon=_ICON[kind])
    if once:
        clear(place)


def _key(place: str) -> str:
    return f"notices.{place}"
