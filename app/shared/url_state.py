"""Widgets whose values are kept in the URL under plain names, also after a visit to another page.

Streamlit's own `bind` writes a widget's label instead of its option, and a switch of pages during a
run can lose bound values. Therefore the first run of a tab reads the URL; afterwards the session
holds the values and the URL is updated. A link within the app (`link_params`, `follow_link`) is
read like the URL of a first run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st

T = TypeVar("T")

MAX_SAFE_INTEGER = 2**53 - 1  # the largest safe integer of JavaScript
_LINK = "link"  # parameter of links within the app, removed once the link is followed
_FOLLOWED = "link_followed"  # keys whose values in the URL are still to be read
_NOTES = "link_notes"
_DEFAULTS = "last_defaults"  # defaults of keys that depend on other values
_WRITTEN = "written_to_url"  # by key: what this tab wrote last; empty if it removed the key
TRUTH = {"true": True, "1": True, "false": False, "0": False}
_KEPT: dict[str, Any] = {"persist_state": "session"}


def whole(text: str) -> int | None:
    """Parse a whole number; None if the text is none."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 16):
        return None
    return sign * int(digits) if int(digits) <= MAX_SAFE_INTEGER else None


def whole_from(low: int | None, high: int | None = None) -> Callable[[str], int | None]:
    """Return a parser of whole numbers between bounds."""

    def parse(text: str) -> int | None:
        value = whole(text)
        fits = value is not None and (low is None or value >= low)
        return value if fits and (high is None or value <= high) else None

    return parse


def amount_from(low: float, high: float | None = None) -> Callable[[str], float | None]:
    """Return a parser of decimal numbers between bounds."""

    def parse(text: str) -> float | None:
        try:
            value = float(text)
        except ValueError:
            return None
        return value if low <= value <= (high or MAX_SAFE_INTEGER) else None

    return parse


def link_params(values: Mapping[str, object]) -> dict[str, str]:
    """Return the URL parameters of a link within the app; their values override those of the
    tab."""
    return {**{key: _text(value) for key, value in values.items()}, _LINK: "1"}


def _text(value: object) -> str:
    if value is None:
        return ""  # no widget can parse an empty text, so each takes its default
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def follow_link() -> None:
    """Note which values a link has just set. Call before all widgets of a page."""
    if st.query_params.pop(_LINK, None) is not None:
        st.session_state[_FOLLOWED] = set(st.query_params)


def note(sentence: str) -> None:
    """Add a note on a part of the link that is not available; it is shown until dismissed."""
    notes().append(sentence)


def notes() -> list[str]:
    """Return the notes on the link that was opened last."""
    listed: list[str] = st.session_state.setdefault(_NOTES, [])
    return listed


def _is_read(key: str) -> bool:
    """True if the value in the URL is still to be read."""
    return key not in st.session_state or key in st.session_state.get(_FOLLOWED, set())


def seed(key: str, default: T, parse: Callable[[str], T | None]) -> None:
    """Set a widget's value from the URL of a first run or of a link, else the default. Call
    before the widget."""
    if _is_read(key):
        st.session_state.get(_FOLLOWED, set()).discard(key)
        text = st.query_params.get(key)
        value = parse(text) if text is not None else None
        if text and value is None:
            note(
                f"The link asks for {key}={text}, which is not available here: {key} is unchanged."
            )
        st.session_state[key] = default if value is None else value


def follow_default(key: str, default: object) -> None:
    """Update a value that equals the last default to the new default. Call before the widget."""
    last: dict[str, object] = st.session_state.setdefault(_DEFAULTS, {})
    if not _is_read(key) and key in last and st.session_state[key] == last[key]:
        st.session_state[key] = default
    last[key] = default


def put(values: Mapping[str, object]) -> None:
    """Set values of widgets, which are kept when a default changes. Call from a callback."""
    last = st.session_state.setdefault(_DEFAULTS, {})
    for key, value in values.items():
        st.session_state[key] = value
        last.pop(key, None)


def keep(key: str, value: T | None, default: T, text: Callable[[T], str] = str) -> T:
    """Write a widget's value into the URL unless it is the default. Call after the widget."""
    if value is None or value == default:
        _remove(key)
        return default
    write(key, text(value))
    return value


def write(key: str, *texts: str) -> None:
    """Write the URL only if it changes: the browser redraws the page at each write.

    While a slider moves, a run's URL may be older than the URL that the previous run wrote, which
    still arrives. Therefore the last written value is compared, too.
    """
    written = _written()
    if tuple(st.query_params.get_all(key)) != texts or written.get(key, texts) != texts:
        st.query_params[key] = texts
    written[key] = texts


def _remove(key: str) -> None:
    """Remove a key from the URL, also if the value written last has not arrived there yet."""
    written = _written()
    if written.get(key) and key not in st.query_params:
        st.query_params[key] = ""  # only an existing key can be removed
    st.query_params.pop(key, None)
    written[key] = ()


def _written() -> dict[str, tuple[str, ...]]:
    written: dict[str, tuple[str, ...]] = st.session_state.setdefault(_WRITTEN, {})
    return written


def number(
    container: Any,
    label: str,
    key: str,
    default: int,
    *,
    low: int | None = None,
    high: int | None = None,
    **options: Any,
) -> int:
    """Draw a field for a whole number. Without bounds any number can be typed; the engine
    validates it."""

    seed(key, default, whole_from(low, high))
    value = container.number_input(label, low, high, default, step=1, key=key, **options, **_KEPT)
    return keep(key, value, default)


def amount(
    container: Any,
    label: str,
    key: str,
    default: float,
    *,
    low: float,
    high: float | None = None,
    **options: Any,
) -> float:
    """Draw a field for a decimal number, at least `low`."""

    seed(key, default, amount_from(low, high))
    value = container.number_input(label, low, high, default, key=key, **options, **_KEPT)
    return keep(key, value, default, _text)


def number_or_none(container: Any, label: str, key: str, *, low: int, **options: Any) -> int | None:
    """Draw a field for an optional whole number."""

    seed(key, None, whole_from(low))
    value = container.number_input(label, low, None, None, step=1, key=key, **options, **_KEPT)
    return keep(key, value, None)


def amount_or_none(
    container: Any, label: str, key: str, *, low: float, **options: Any
) -> float | None:
    """Draw a field for an optional decimal number."""
    seed(key, None, amount_from(low))
    value = container.number_input(label, low, None, None, key=key, **options, **_KEPT)
    return keep(key, value, None, _text)


def text(container: Any, label: str, key: str, *, lines: bool = False, **options: Any) -> str:
    """Draw a field for one or several lines of text; empty by default."""
    seed(key, "", str)
    field = container.text_area if lines else container.text_input
    return keep(key, field(label, key=key, **options, **_KEPT).strip(), "")


def toggle(container: Any, label: str, key: str, *, default: bool = False, **options: Any) -> bool:
    """Draw a switch, off by default."""
    seed(key, default, TRUTH.get)
    value = container.toggle(label, key=key, **options, **_KEPT)
    return keep(key, bool(value), default, _text)


def value_of(key: str, default: T, parse: Callable[[str], T | None]) -> T:
    """Return the value that the widget of this key will have, before it is drawn."""
    seed(key, default, parse)
    value: T | None = st.session_state[key]
    return default if value is None else value


def chosen(key: str, choices: Sequence[T], default: T) -> T:
    """Return the choice that the widget of this key will have, before it is drawn."""
    value = value_of(key, default, _choice(choices))
    return value if value in choices else default


def remembered(key: str, default: T, parse: Callable[[str], T | None]) -> T:
    """Return the value of a widget of other pages, and keep it in this page's URL, too."""
    return keep(key, value_of(key, default, parse), default, _text)


def multiselect(
    container: Any, label: str, key: str, choices: Sequence[str], **options: Any
) -> tuple[str, ...]:
    """Draw a multi-select box; return the choices in the order in which they were made."""

    def parse(text: str) -> list[str] | None:
        named = dict.fromkeys(part.strip() for part in text.split(","))
        return [name for name in named if name in choices]

    _note_left_out(key, choices)
    seed(key, [], parse)
    value = container.multiselect(label, choices, key=key, **options, **_KEPT)
    return tuple(keep(key, value, [], ",".join))


def tabs(
    labels: Sequence[str], key: str, renamed: Mapping[str, str] | None = None
) -> Sequence[Any]:
    """Draw tabs; the URL holds the open one. `renamed` maps labels of older links to today's."""
    asked = st.query_params.get(key)
    if renamed and asked in renamed:
        st.query_params[key] = renamed[asked]
        st.rerun()
    if asked and asked not in labels and key not in st.session_state:
        note(f"The link asks for {key}={asked}, and there is no such tab: the first one is open.")
    return st.tabs(labels, key=key, on_change="rerun", bind="query-params")


def _note_left_out(key: str, choices: Sequence[str]) -> None:
    """Note the values of a list in the URL that are not available; `seed` then takes the others."""
    if not _is_read(key):
        return
    named = [part.strip() for part in st.query_params.get(key, "").split(",")]
    if missing := ", ".join(name for name in dict.fromkeys(named) if name and name not in choices):
        note(f"The link asks for {key}={missing}, which is not available here and is left out.")


def _choice(options: Sequence[T]) -> Callable[[str], T | None]:
    return {str(option): option for option in options}.get


def select(
    container: Any, label: str, key: str, choices: Sequence[T], default: T, **options: Any
) -> T:
    """Draw a select box: one of many choices."""
    seed(key, default, _choice(choices))
    value = container.selectbox(label, choices, key=key, **options, **_KEPT)
    return keep(key, value, default)


def optional_select(
    container: Any, label: str, key: str, choices: Sequence[T], **options: Any
) -> T | None:
    """Draw a select box that may stay empty."""
    seed(key, None, _choice(choices))
    value: T | None = container.selectbox(label, choices, None, key=key, **options, **_KEPT)
    return keep(key, value, None)


def segments(
    container: Any, label: str, key: str, choices: Sequence[T], default: T, **options: Any
) -> T:
    """Draw a segmented control: one of a few choices."""
    seed(key, default, _choice(choices))
    value = container.segmented_control(label, choices, required=True, key=key, **options, **_KEPT)
    return keep(key, value, default)


def number_slider(
    container: Any, label: str, key: str, choices: Sequence[int], default: int, **options: Any
) -> int:
    """Draw a slider for a whole number: the choices, and a value that was typed elsewhere."""
    seed(key, default, whole)
    offered = sorted({*choices, st.session_state[key]})
    value = container.select_slider(label, offered, key=key, **options, **_KEPT)
    return keep(key, value, default)


def slider(
    container: Any, label: str, key: str, choices: Sequence[T], default: T, **options: Any
) -> T:
    """Draw a slider: one of several ordered choices."""
    seed(key, default, _choice(choices))
    value = container.select_slider(label, choices, key=key, **options, **_KEPT)
    return keep(key, value, default)
