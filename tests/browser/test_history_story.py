"""Story of the History tab: an own kernel over its commits, and the diff of the slow one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from app_server import WAIT_MS, Driver, Server, start_server
from playwright.sync_api import Browser, expect

from tests.gate.repositories import commit, edit, kernel_file, repository

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server for a made-up repository of three commits, of which the second is slower."""
    folder = tmp_path_factory.mktemp("history")
    repo = repository(folder / "r", "v08")
    source = kernel_file(repo, "v08").rename(repo / "kernels" / "mine.cu")
    commit(repo, "A kernel of its own")
    edit(source, ("unroll 4", "unroll 1"))
    commit(repo, "One load at a time")
    edit(source, ("unroll 1", "unroll 4"))
    commit(repo, "Mended: one load at a time")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTUNE_KERNELS", str(source))
        running = start_server(folder)
    yield running
    running.stop()


@pytest.mark.exhaustive
def test_the_history_shows_which_commit_became_slower(browser: Browser, own_server: Server) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    try:
        address = "/kernels?gpu=L4&S=128&H=2&variant=mine&kernels_tab=History"
        app = Driver(context.new_page(), own_server.url).open(address)
        app.see("over the last git commits")
        app.see("commits that made it worse")
        expect(app.key("history_chart")).to_be_visible(timeout=WAIT_MS)
        # The slower commit is open at first.
        app.see("SIMULATED SLOWER: simulated time")
        app.see("-#pragma unroll 4")
        app.see("Times are simulated, none is measured.")
        # Another commit is selected, and a reload keeps the selection.
        option = app.page.get_by_role("option", name="Mended: one load at a time")
        app.click(app.page.get_by_role("combobox", name="What a commit changed"), option)
        option.click()
        app.see("+#pragma unroll 4")
        app.page.reload()
        app.see("commits that made it worse")
        app.no_exception()
        app.tab("Rungs")
        app.see("Predicted time of each rung")
    finally:
        context.close()
