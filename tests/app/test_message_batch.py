"""Messages of a run to the browser are batched and keep their order."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from app.shared import message_batch


def _word(message: ForwardMsg) -> str:
    if message.HasField("delta"):
        return message.delta.new_element.markdown.body
    return message.ref_hash or message.page_config_changed.title


@dataclass
class _Run:
    """The part of Streamlit's script-run context that the code uses."""

    sent: list[str] = field(default_factory=list)
    stops: bool = False

    def __post_init__(self) -> None:
        self._enqueue = lambda message: self.sent.append(_word(message))

    def enqueue(self, word: str) -> None:
        """Enqueue `word` as an element of the page."""
        message = ForwardMsg()
        message.delta.new_element.markdown.body = word
        self._enqueue(message)

    def enqueue_known(self, word: str) -> None:
        """Enqueue `word` as the reference Streamlit sends for an element that the browser has."""
        self._enqueue(ForwardMsg(ref_hash=word))

    def enqueue_frame(self, word: str) -> None:
        """Enqueue `word` as a message that is no element of the page."""
        message = ForwardMsg()
        message.page_config_changed.title = word
        self._enqueue(message)

    def yield_check(self) -> None:
        if self.stops:
            raise InterruptedError


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> _Run:
    run = _Run()
    monkeypatch.setattr(message_batch, "get_script_run_ctx", lambda: run)
    monkeypatch.setattr(message_batch.runtime, "exists", lambda: True)
    return run


def test_messages_are_batched_until_the_visible_part(run: _Run) -> None:
    with message_batch.batched(60):
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


def test_a_long_run_sends_its_messages_after_the_limit(run: _Run) -> None:
    with message_batch.batched(0.01):
        for number in range(200):
            run.enqueue(str(number))
            time.sleep(0.0005)
        deadline = time.monotonic() + 30
        while len(run.sent) < 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert run.sent == [str(number) for number in range(200)]


def _end_early(run: _Run) -> None:
    with message_batch.batched():
        run.enqueue("head")
        run.stops = True
        run.enqueue("never")


def test_a_run_that_ends_early_sends_its_messages(run: _Run) -> None:
    with pytest.raises(InterruptedError):
        _end_early(run)
    assert run.sent == ["head"]


def test_messages_of_other_threads_are_not_batched(run: _Run) -> None:
    with message_batch.batched():
        run.enqueue("head")
        other = threading.Thread(target=message_batch.send)
        other.start()
        other.join()
        assert run.sent == []


def test_page_frame_messages_are_not_batched(run: _Run) -> None:
    with message_batch.batched():
        run.enqueue("head")
        run.enqueue_frame("navigation")
        assert run.sent == ["navigation"]
    assert run.sent == ["navigation", "head"]


def test_an_element_the_browser_has_keeps_its_place(run: _Run) -> None:
    """An element sent before its container would leave the page blank."""
    with message_batch.batched():
        run.enqueue("container")
        run.enqueue_known("chart")
        run.enqueue("table")
        assert run.sent == []
    assert run.sent == ["container", "chart", "table"]
