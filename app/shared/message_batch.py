"""A run's messages to the browser, sent together.

Streamlit sends each element as soon as it is made. The browser goes through the whole page for what
comes alone, for 20 ms of its only thread, and the figures that a step of a slider changes wait
behind the page's head. So elements are held back until something is to be seen; `app.run_start`
does its part for the messages that come before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streamlit import runtime
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.scriptrunner import get_script_run_ctx

_running = threading.local()  # of each run's own thread


class _Batch:
    """Messages that are held back, in their order. Its timer's thread sends them too."""

    def __init__(
        self, send: Callable[[ForwardMsg], None], check: Callable[[], None], longest_s: float
    ) -> None:
        self._send, self._check, self._longest_s = send, check, longest_s
        self._lock = threading.RLock()
        self._held: deque[ForwardMsg] = deque()
        self._timer: threading.Timer | None = None

    def put(self, message: ForwardMsg) -> None:
        self._check()  # where Streamlit stops a run that another one replaces
        # An element that the browser has already is sent as a reference: a part of the page, too,
        # and the browser takes none whose place does not exist yet.
        if not (message.HasField("delta") or message.HasField("ref_hash")):
            self._send(message)  # the frame around a page, taken up while its figures are made
            return
        with self._lock:
            self._held.append(message)
            if self._timer is None:
                self._timer = threading.Timer(self._longest_s, self.send)
                self._timer.daemon = True
                self._timer.start()

    def send(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            while self._held:
                self._send(self._held.popleft())


@contextmanager
def together(longest_s: float = 0.1) -> Iterator[None]:
    """Hold this run's messages back until `send` or its end.

    Args:
        longest_s: that a message is held back: a run that takes long shows what it has.
    """
    context = get_script_run_ctx()
    if context is None or not runtime.exists():
        yield
        return
    # Streamlit has no public way to do so. Without these attributes messages go one by one.
    before = getattr(context, "_enqueue", None)
    check = getattr(context, "yield_check", None)
    if before is None or check is None:
        yield
        return
    batch = _Batch(before, check, longest_s)
    context._enqueue = batch.put
    _running.batch = batch
    try:
        yield
    finally:
        _running.batch = None
        context._enqueue = before
        batch.send()


def send() -> None:
    """Send this run's messages so far to the browser."""
    batch: _Batch | None = getattr(_running, "batch", None)
    if batch is not None:
        batch.send()
