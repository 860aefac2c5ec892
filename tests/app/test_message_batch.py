"""A run's messages to the browser are held back and come in their order."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.shared import message_batch


@dataclass(frozen=True)
class _Message:
    """As much of a message as is used: a word, and whether it is an element of the page."""

    word: str
    is_element: bool = True

    def HasField(self, name: str) -> bool:  # noqa: N802, the name of Streamlit's message
        assert name == "delta"
        return self.is_element


@dataclass
class _Run:
    """As much of Streamlit's context of a run as is used."""

    sent: list[Any] = field(default_factory=list)
    stops: bool = False

    def __post_init__(self) -> None:
        self._enqueue = lambda message: self.sent.append(message.word)

    def enqueue(self, word: Any, *, is_element: bool = True) -> None:
        self._enqueue(_Message(word, is_element))

    def yield_check(self) -> None:
        if self.stops:
            raise InterruptedError


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> _Run:
    run = _Run()
    monkeypatch.setattr(message_batch, "get_script_run_ctx", lambda: run)
    monkeypatch.setattr(message_batch.runtime, "exists", lambda: True)
    return run


def test_they_wait_for_what_is_to_be_seen(run: _Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batch, "_LONGEST_S", 60)
    with message_batch.together():
        run.enqueue("head")
        run.enqueue("tile")
        assert run.sent == []
        message_batch.send()
        assert run.sent == ["head", "tile"]
        run.enqueue("chart")
        assert run.sent == ["head", "tile"]
    assert run.sent == ["head", "tile", "chart"]
    run.enqueue("later")
    assert run.sent[-1] == "later"


def test_a_long_run_shows_what_it_has(run: _Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batch, "_LONGEST_S", 0.01)
    with message_batch.together():
        for number in range(200):
            run.enqueue(number)
            time.sleep(0.0005)
        deadline = time.monotonic() + 30
        while len(run.sent) < 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert run.sent == list(range(200))


def _end_early(run: _Run) -> None:
    with message_batch.together():
        run.enqueue("head")
        run.stops = True
        run.enqueue("never")


def test_a_run_that_ends_early_says_what_it_said(run: _Run) -> None:
    with pytest.raises(InterruptedError):
        _end_early(run)
    assert run.sent == ["head"]


def test_another_thread_holds_nothing_back(run: _Run) -> None:
    with message_batch.together():
        run.enqueue("head")
        other = threading.Thread(target=message_batch.send)
        other.start()
        other.join()
        assert run.sent == []


def test_the_frame_of_a_page_waits_for_nothing(run: _Run) -> None:
    with message_batch.together():
        run.enqueue("head")
        run.enqueue("navigation", is_element=False)
        assert run.sent == ["navigation"]
    assert run.sent == ["navigation", "head"]
