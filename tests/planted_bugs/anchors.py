"""The places in a kernel's text where a bug is planted, independent of its layout."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\w+|[^\w\s]")


def spans(text: str, old: str) -> list[tuple[int, int]]:
    """Return the places of `old`, or of the same tokens with other white space between them."""
    exact = re.compile(re.escape(old))
    found = [match.span() for match in exact.finditer(text)]
    return found or [match.span() for match in _laid_out_anyhow(old).finditer(text)]


def replaced(text: str, old: str, new: str, nth: int | None = None) -> tuple[str, tuple[int, ...]]:
    """Return the text with `new` at the `nth` place of `old`, or at all, and the changed lines.

    Raises AssertionError where there is no such place.
    """
    places = spans(text, old)
    assert len(places) > (nth or 0), f"it no longer holds {old!r}"
    pieces, lines, done = [], [], 0
    for index, (begin, end) in enumerate(places):
        if nth not in (None, index):
            continue
        pieces += [text[done:begin], new]
        done = end
        first = "".join(pieces[:-1]).count("\n") + 1
        lines += range(first, first + text[begin:end].strip("\n").count("\n") + 1)
    return "".join([*pieces, text[done:]]), tuple(lines)


def _laid_out_anyhow(old: str) -> re.Pattern[str]:
    tokens = _TOKEN.findall(old)
    pattern = ""
    for before, token in zip(["", *tokens], tokens, strict=False):
        words = before[-1:].isalnum() and token[0].isalnum()
        pattern += (r"\s+" if words else r"\s*" if before else "") + re.escape(token)
    return re.compile(pattern)
