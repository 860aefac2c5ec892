"""Delay of the messages at the start of a run.

Streamlit sends "new run" and "running" before the page's script starts. For each message that
arrives alone, the browser traverses the whole page, 20 ms of its only thread; messages that arrive
meanwhile are processed together. Therefore "new run" is sent with the run's first own message: the
browser still processes it when the figures arrive that a slider changes. "Running", an indicator at
the window's edge, is sent after them.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

# Messages at the end of a run; "running" is not sent after them.
_AT_END = ("script_finished", "session_status_changed")


class RunStart:
    """Delays these two messages on each connection of a page. The order of all others is unchanged.

    Args:
        longest_s: that a message is held back.
    """

    def __init__(self, app: ASGIApp, longest_s: float = 0.1) -> None:
        self._app, self._longest_s = app, longest_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        connection = _Connection(send, self._longest_s)
        try:
            await self._app(scope, receive, connection.send)
        finally:
            connection.close()


class _Connection:
    def __init__(self, send: Send, longest_s: float) -> None:
        self._send, self._longest_s = send, longest_s
        self._begun: Message | None = None
        self._under_way: Message | None = None
        self._timer: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()  # the timer's thread sends, too

    async def send(self, message: Message) -> None:
        kind, is_under_way = _kind(message)
        async with self._sending:
            if kind == "new_session":
                await self._send_held()
                self._begun = message
            elif is_under_way:
                self._under_way = message
            else:
                await self._send_held(all_of_it=kind in _AT_END)
                await self._send(message)
                return
        if self._timer is None:
            self._timer = asyncio.create_task(self._send_later())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _send_later(self) -> None:
        await asyncio.sleep(self._longest_s)
        self._timer = None
        async with self._sending:
            with contextlib.suppress(OSError):  # disconnected: the next message reports it
                await self._send_held()

    async def _send_held(self, all_of_it: bool = True) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            await self._send(begun)
        if all_of_it and self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            await self._send(under_way)


def _kind(message: Message) -> tuple[str, bool]:
    """Return the type of one of Streamlit's messages, and whether it reports a running script."""
    payload = message.get("bytes") if message["type"] == "websocket.send" else None
    if payload is None:
        return "", False
    said = ForwardMsg.FromString(payload)
    return said.WhichOneof("type") or "", said.session_status_changed.script_is_running
