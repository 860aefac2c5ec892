"""Values in the URL, without a page."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import streamlit as st
from hypothesis import given
from hypothesis import strategies as some

from app.shared import url_state


class Url(MutableMapping[str, Any]):
    """A stand-in for `st.query_params` that counts writes."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}
        self.writes = 0

    def get_all(self, key: str) -> list[str]:
        return self.said.get(key, [])

    def __setitem__(self, key: str, texts: Any) -> None:
        self.said[key] = [texts] if isinstance(texts, str) else list(texts)
        self.writes += 1

    def __delitem__(self, key: str) -> None:
        del self.said[key]
        self.writes += 1

    def __getitem__(self, key: str) -> str:
        return self.said[key][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.said)

    def __len__(self) -> int:
        return len(self.said)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Url:
    url = Url()
    monkeypatch.setattr(st, "query_params", url)
    st.session_state.clear()
    return url


def test_the_url_is_written_only_when_it_changes(url: Url) -> None:
    for texts in (("a",), ("a",), ("a", "b"), ("a", "b"), ("b", "a")):
        url_state.write("session", *texts)
    assert url.said == {"session": ["b", "a"]}
    assert url.writes == 3


@pytest.mark.parametrize(("value", "between"), [(16, 12), (16, 8), (8, 12)])
def test_an_outdated_url_is_written_again(url: Url, value: int, between: int) -> None:
    def step(value: int) -> None:
        url_state.keep("H", value, default=8)

    step(value)
    shown = dict(url.said)
    step(between)
    url.said = dict(shown)  # the browser requests the next run before it receives `between`
    writes = url.writes
    step(value)
    assert url.writes > writes
    assert url.said == shown
    writes = url.writes
    step(value)
    assert url.writes == writes


@given(some.integers(-url_state.MAX_SAFE_INTEGER, url_state.MAX_SAFE_INTEGER))
def test_a_whole_number_is_read_as_it_was_written(value: int) -> None:
    assert url_state.whole(str(value)) == value


@pytest.mark.parametrize("text", ["", "1.0", "1e3", "١", "9" * 20, str(2**53), "0x10", " 1"])
def test_malformed_numbers_are_rejected(text: str) -> None:
    assert url_state.whole(text) is None
