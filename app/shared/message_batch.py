"""A run's messages to the browser, sent together.

Streamlit sends each element as soon as it is made. For each message that arrives alone, the browser
traverses the whole page, 20 ms of its only thread, so that figures changed by a slider wait for the
page's head. Therefore elements are held back until something visible is complete; `app.run_start`
does the same for the messages before them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streamlit import runtime
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.scriptrunner import get_script_run_ctx

_running = threading.local()  # one value per run's thread


class _Batch:
    """Messages held back, in order. The thread of the batch's timer sends them, too."""

    def __init__(
        self, send: Callable[[ForwardMsg], None], check: Callable[[], None], longest_s: float
    ) -> None:
        self._send, self._check, self._longest_s = send, check, longest_s
        self._lock = threading.RLock()
        self._held: deque[ForwardMsg] = deque()
        self._timer: threading.Timer | None = None

    def put(self, message: ForwardMsg) -> None:
        self._check()  # Streamlit stops a replaced run here
        # An element that the browser already has is sent as a reference. It is part of the page,
        # too: the browser rejects it until its parent exists.
        if not (message.HasField("delta") or message.HasField("ref_hash")):
            self._send(message)  # the page's frame: laid out while figures are computed
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
def batched(longest_s: float = 0.1) -> Iterator[None]:
    """Hold back this run's messages until `send` or the end of the run.

    Args:
        longest_s: longest time that a message is held back, so that a long run shows what is done.
    """
    context = get_script_run_ctx()
    if context is None or not runtime.exists():
        yield
        return
    # Streamlit has no public API for this. Without these attributes, messages are sent one by one.
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
