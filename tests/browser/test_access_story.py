"""Access to the app in a browser: pages of other ports are refused; sign-in by token."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest
from app_server import WAIT_MS, Driver, Server, start_server
from playwright.sync_api import Browser, expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CONNECT = """url => new Promise(done => {
    const socket = new WebSocket(url, ["streamlit"]);
    socket.onopen = () => done("open");
    socket.onerror = () => done("refused");
})"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """Yield the URL printed by a server that asks for a token."""
    folder = tmp_path_factory.mktemp("closed")
    server = start_server(folder, token=True)
    printed = re.search(r"http://attune-\S+", (folder / "server.log").read_text())
    assert printed is not None
    yield server, printed[0]
    server.stop()


class _Other(http.server.BaseHTTPRequestHandler):
    """Another server on this machine, which records the cookies it receives."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Cookie", ""))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>other</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other() -> Iterator[int]:
    """Yield the port of another server."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_other_ports_get_no_access_and_no_cookie(
    browser: Browser, closed: tuple[Server, str], other: int
) -> None:
    server, url = closed
    origin = url.partition("/?")[0]
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    expect(page.get_by_role("link", name="Sessions")).to_be_attached(timeout=WAIT_MS)
    assert "token" not in page.url
    (cookie,) = [c for c in context.cookies() if c["name"].startswith("attune_session")]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert cookie["domain"] == origin.removeprefix("http://").partition(":")[0]
    assert url.partition("token=")[2] not in cookie["value"]
    Driver(page, origin).open("/sweep")  # the session is still signed in

    _Other.seen.clear()
    stream = f"{origin.replace('http', 'ws', 1)}/_stcore/stream"
    assert page.evaluate(CONNECT, stream) == "open"
    for name in ("localhost", "127.0.0.1"):
        page.goto(f"http://{name}:{other}/")
        assert page.evaluate(CONNECT, stream) == "refused"
        own = server.url.replace("127.0.0.1", name).replace("http", "ws", 1)
        assert page.evaluate(CONNECT, f"{own}/_stcore/stream") == "refused"
    assert _Other.seen
    assert not any("attune" in cookies for cookies in _Other.seen)
    context.close()


@pytest.mark.exhaustive
def test_a_token_given_under_localhost_redirects_to_the_servers_own_name(
    browser: Browser, closed: tuple[Server, str]
) -> None:
    server, url = closed
    context = browser.new_context()
    page = context.new_page()
    assert page.goto(server.url).status == 403
    page.goto(f"{server.url}/sessions?{url.partition('?')[2]}")
    expect(page.get_by_role("link", name="Sessions")).to_be_attached(timeout=WAIT_MS)
    assert page.url.startswith(url.partition("/?")[0])
    context.close()


@pytest.mark.exhaustive
def test_without_a_token_too_only_its_own_pages_connect(
    new_tab, server: Server, other: int
) -> None:
    page = new_tab().page
    stream = f"{server.url.replace('http', 'ws', 1)}/_stcore/stream"
    assert page.evaluate(CONNECT, stream) == "open"
    for name in ("localhost", "127.0.0.1"):
        page.goto(f"http://{name}:{other}/")
        assert page.evaluate(CONNECT, stream) == "refused"
