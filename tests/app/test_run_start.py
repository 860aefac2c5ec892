"""When the first messages of a run reach the browser, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from app import run_start

BEGIN = ForwardMsg(new_session={"name": "first"})
UNDER_WAY = ForwardMsg(session_status_changed={"script_is_running": True})
LOGO = ForwardMsg(logo={"image": "logo.png"})
TILE = ForwardMsg(delta={"new_element": {"text": {"body": "54 %"}}})
FINISHED = ForwardMsg(script_finished=ForwardMsg.FINISHED_SUCCESSFULLY)
AT_REST = ForwardMsg(session_status_changed={"script_is_running": False})

_Say = Callable[[ForwardMsg], Awaitable[None]]


def _browser_gets(
    page: Callable[[_Say, list[ForwardMsg]], Awaitable[None]], longest_s: float
) -> list[ForwardMsg]:
    """Return the messages received until the connection ends; `page` may read them before."""
    got: list[ForwardMsg] = []

    async def send(message: Message) -> None:
        got.append(ForwardMsg.FromString(message["bytes"]))

    async def app(_: Scope, __: Receive, send: Send) -> None:
        async def say(message: ForwardMsg) -> None:
            await send({"type": "websocket.send", "bytes": message.SerializeToString()})

        await page(say, got)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    asyncio.run(run_start.RunStart(app, longest_s)({"type": "websocket"}, receive, send))
    return got


def test_a_run_starts_with_its_first_message() -> None:

    async def page(say: _Say, got: list[ForwardMsg]) -> None:
        await say(BEGIN)
        await say(UNDER_WAY)
        assert got == []
        for message in (LOGO, TILE, FINISHED, AT_REST):
            await say(message)

    assert _browser_gets(page, 60) == [BEGIN, LOGO, TILE, UNDER_WAY, FINISHED, AT_REST]


def test_a_long_run_sends_its_start() -> None:

    async def page(say: _Say, got: list[ForwardMsg]) -> None:
        for _ in range(2):
            seen = len(got)
            await say(BEGIN)
            await say(UNDER_WAY)
            for _ in range(3000):
                await asyncio.sleep(0.01)
                if len(got) > seen + 1:
                    break
            assert got[seen:] == [BEGIN, UNDER_WAY]

    _browser_gets(page, 0.01)


def test_a_run_in_place_of_another_begins_after_it() -> None:
    second = ForwardMsg(new_session={"name": "second"})

    async def page(say: _Say, _: list[ForwardMsg]) -> None:
        for message in (BEGIN, UNDER_WAY, second, TILE):
            await say(message)

    assert _browser_gets(page, 60) == [BEGIN, UNDER_WAY, second, TILE]


def test_nothing_is_sent_to_a_closed_browser() -> None:
    said: list[Any] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "websocket.send", "bytes": BEGIN.SerializeToString()})

    async def connection() -> None:
        async def send(message: Message) -> None:
            said.append(message)

        async def receive() -> Message:
            raise AssertionError("nothing is read")

        await run_start.RunStart(app, 0.01)({"type": "websocket"}, receive, send)
        await asyncio.sleep(0.05)

    asyncio.run(connection())
    assert said == []
