"""Values in the URL, without a page."""

from __future__ import annotations

from typing import Any

import pytest
import streamlit as st
from hypothesis import given
from hypothesis import strategies as some

from app.shared import url_state


class Url:
    """What `st.query_params` does with texts and lists of them, counting the writes."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}
        self.writes = 0

    def get_all(self, key: str) -> list[str]:
        return self.said.get(key, [])

    def __setitem__(self, key: str, texts: Any) -> None:
        self.said[key] = list(texts)
        self.writes += 1


def test_the_url_is_written_only_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    url = Url()
    monkeypatch.setattr(st, "query_params", url)
    for texts in (("a",), ("a",), ("a", "b"), ("a", "b"), ("b", "a")):
        url_state.write("session", *texts)
    assert url.said == {"session": ["b", "a"]}
    assert url.writes == 3


@given(some.integers(-url_state.MOST, url_state.MOST))
def test_a_whole_number_is_read_as_it_was_written(value: int) -> None:
    assert url_state.whole(str(value)) == value


@pytest.mark.parametrize("text", ["", "1.0", "1e3", "١", "9" * 20, str(2**53), "0x10", " 1"])
def test_anything_else_is_no_number(text: str) -> None:
    assert url_state.whole(text) is None
