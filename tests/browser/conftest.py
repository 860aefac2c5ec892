"""A Chromium and a server for the browser stories, which are skipped without a browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

if os.environ.get("ATTUNE_REQUIRE_BROWSER") == "1":
    import playwright.sync_api as playwright_api
else:
    playwright_api = pytest.importorskip("playwright.sync_api")

from app_server import CHROMIUM_ARGS, WAIT_MS, Driver, Server, find_chromium, start_server


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright_api.Browser]:
    """Yield the browser; it is closed before tests with their own event loop."""
    path = find_chromium()
    if path is None:
        words = "no Chromium found: install it or set ATTUNE_CHROMIUM to its path"
        if os.environ.get("ATTUNE_REQUIRE_BROWSER") == "1":
            pytest.fail(words)
        pytest.skip(words)
    with playwright_api.sync_playwright() as api:
        chromium = api.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture
def new_tab(browser: playwright_api.Browser, server: Server) -> Iterator[Callable[..., Driver]]:
    """Yield a function that opens a path of the app in a new profile; page errors fail the test."""
    contexts = []
    uncaught: list[str] = []

    def open_(path: str = "/", **context_options: object) -> Driver:
        options = {"viewport": {"width": 1400, "height": 1000}, **context_options}
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: uncaught.append(str(error)))
        return Driver(page, server.url).open(path)

    yield open_
    for context in contexts:
        context.close()
    assert not uncaught
