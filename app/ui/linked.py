"""Widgets whose values stand in the URL under plain names, and outlive a visit to another page.

Streamlit's own `bind` writes a widget's label instead of its option, and a click on another page
while a run is under way can lose bound values. So the first run of a tab reads the URL, the session
remembers from then on, and the URL follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import streamlit as st

T = TypeVar("T")

MOST = 2**53 - 1  # the largest whole number a browser counts to
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_KEPT: dict[str, Any] = {"persist_state": "session"}


def whole(text: str) -> int | None:
    """The whole number that a URL's text is, or None."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 16):
        return None
    return sign * int(digits) if int(digits) <= MOST else None


def seed(key: str, default: T, parse: Callable[[str], T | None]) -> None:
    """Before the widget: in a tab's first run, what the URL says, or the default."""
    if key not in st.session_state:
        asked = st.query_params.get(key)
        found = parse(asked) if asked is not None else None
        st.session_state[key] = default if found is None else found


def keep(key: str, value: T | None, default: T, text: Callable[[T], str] = str) -> T:
    """After the widget: its value, written into the URL unless it is the default."""
    if value is None or value == default:
        st.query_params.pop(key, None)
        return default
    if st.query_params.get(key) != text(value):
        st.query_params[key] = text(value)
    return value


def number(
    place: Any,
    label: str,
    key: str,
    default: int,
    *,
    low: int | None = None,
    high: int | None = None,
    **options: Any,
) -> int:
    """A whole number. Without bounds anything can be typed, and the engine says what it thinks."""

    def parse(text: str) -> int | None:
        value = whole(text)
        fits = value is not None and (low is None or value >= low)
        return value if fits and (high is None or value <= high) else None

    seed(key, default, parse)
    value = place.number_input(label, low, high, default, step=1, key=key, **options, **_KEPT)
    return keep(key, value, default)


def amount(
    place: Any, label: str, key: str, default: float, *, low: float, **options: Any
) -> float:
    """A number with a fraction, at least `low`."""

    def parse(text: str) -> float | None:
        try:
            value = float(text)
        except ValueError:
            return None
        return value if low <= value <= MOST else None

    seed(key, default, parse)
    value = place.number_input(label, low, None, default, key=key, **options, **_KEPT)
    return keep(key, value, default, lambda v: f"{v:g}")


def toggle(place: Any, label: str, key: str, **options: Any) -> bool:
    """A switch that is off by default."""
    seed(key, False, _TRUTH.get)
    value = place.toggle(label, key=key, **options, **_KEPT)
    return keep(key, bool(value), False, lambda v: str(v).lower())


def _choice(options: Sequence[T]) -> Callable[[str], T | None]:
    return {str(option): option for option in options}.get


def select(place: Any, label: str, key: str, choices: Sequence[T], default: T, **options: Any) -> T:
    """One of many."""
    seed(key, default, _choice(choices))
    value = place.selectbox(label, choices, key=key, **options, **_KEPT)
    return keep(key, value, default)


def segments(
    place: Any, label: str, key: str, choices: Sequence[T], default: T, **options: Any
) -> T:
    """One of a few, side by side."""
    seed(key, default, _choice(choices))
    value = place.segmented_control(label, choices, required=True, key=key, **options, **_KEPT)
    return keep(key, value, default)


def stops(
    place: Any, label: str, key: str, choices: Sequence[int], default: int, **options: Any
) -> int:
    """A whole number by dragging: the choices, and whatever was typed elsewhere."""
    seed(key, default, whole)
    offered = sorted({*choices, st.session_state[key]})
    value = place.select_slider(label, offered, key=key, **options, **_KEPT)
    return keep(key, value, default)


def slider(place: Any, label: str, key: str, choices: Sequence[T], default: T, **options: Any) -> T:
    """One of several in order."""
    seed(key, default, _choice(choices))
    value = place.select_slider(label, choices, key=key, **options, **_KEPT)
    return keep(key, value, default)
