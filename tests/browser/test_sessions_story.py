"""Story of a session in a browser: tune, save, download, upload elsewhere, compare, export, open a
deep link; and nothing is lost if the server is killed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from app_server import WAIT_MS, Driver, Server, start_server
from playwright.sync_api import Browser, Download, expect

pytestmark = pytest.mark.browser

SHIPPED = "20261121T000000Z_l4_v01_7-problems.json"


@pytest.fixture
def machine(tmp_path: Path, server: Server) -> Iterator[Callable[[str], Server]]:
    """Return a function that starts servers with their own sessions and shared compiled kernels."""
    running: dict[str, Server] = {}

    def start(name: str) -> Server:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        running[name] = start_server(folder, cache=server.cache)
        return running[name]

    yield start
    for found in running.values():
        found.stop()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[[Server, str], Driver]]:
    """Yield a page in a new browser profile."""
    contexts = []

    def open_(at: Server, path: str) -> Driver:
        context = browser.new_context(viewport={"width": 1400, "height": 1000})
        contexts.append(context)
        return Driver(context.new_page(), at.url).open(path)

    yield open_
    for context in contexts:
        context.close()


def run(app: Driver) -> None:
    app.see_metric("Latency", "predicted")
    app.press("run")
    app.see_metric("Correctness", "Passed")


def download(app: Driver, menu: str, what: str) -> Download:
    button = app.page.get_by_role("button", name=what, exact=True)
    app.click(app.key(menu).locator("button").first, button)
    app.rest()
    with app.page.expect_download(timeout=WAIT_MS) as caught:
        button.click()
    return caught.value


@pytest.mark.slow
def test_tune_save_send_compare_export_and_follow_a_link(machine, visit, tmp_path):
    mine = machine("mine")
    app = visit(mine, "/?variant=v05&S=130&H=2")
    run(app)

    # The run is in the working session, which gets a title and is saved.
    app.open("/sessions")
    app.see("No target yet")
    title = app.page.get_by_label("Working session")
    title.fill("Split or not")
    title.press("Enter")
    app.press("working_save")
    app.see("Saved as")
    [kept] = mine.sessions.glob("*.json.gz")

    # After the server is killed nothing is lost, and the next run joins the same session.
    mine.process.kill()
    mine.process.wait()
    mine = machine("mine")
    app = visit(mine, "/?variant=v01&S=130&H=2")
    run(app)
    app.open("/sessions")
    expect(app.page.get_by_label("Working session")).to_have_value("Split or not", timeout=WAIT_MS)
    app.press("working_save")
    app.see("Saved as")
    assert kept.exists()
    assert len(list(mine.sessions.glob("*.json.gz"))) == 2

    # Download it, and upload it on another machine in a fresh profile.
    app.open(f"/sessions?session={kept.name}")
    app.see("Environment")
    file = tmp_path / "sent.json.gz"
    download(app, "session_share", "Snapshot").save_as(file)
    assert file.read_bytes() == kept.read_bytes()
    theirs = machine("theirs")
    other = visit(theirs, "/sessions")
    upload = other.page.get_by_role("button", name="Upload")
    other.click(upload, other.page.get_by_test_id("stFileUploaderDropzone"))
    other.page.locator("input[type=file]").set_input_files(file)
    other.see("Uploaded and saved as")
    other.see_metric("Correctness", "Passed")
    other.see_metric("Latency", "predicted")
    other.no_exception()
    [uploaded] = theirs.sessions.glob("*.json.gz")

    # Export a report of it.
    report = tmp_path / "report.html"
    download(other, "session_share", "Report, HTML").save_as(report)
    text = report.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "Split or not" in text
    assert "<svg" in text
    assert "<script" not in text

    # Rerun it there, and compare both.
    repeated = visit(theirs, "/?variant=v05&S=130&H=2")
    run(repeated)
    repeated.open(f"/compare?session=working+session&session={uploaded.name}")
    repeated.see("Other differences")
    expect(repeated.metric("Same code")).to_contain_text("1", timeout=WAIT_MS)
    repeated.no_exception()

    # Open a deep link in a third profile.
    link = visit(theirs, f"/sessions?session={uploaded.name}&baseline={SHIPPED}")
    link.see("Fastest kernel per problem")
    assert "/compare" in link.page.url
    baseline = link.key("compare_baseline").locator("input")
    expect(baseline).to_have_value(re.compile("^L4 study"), timeout=WAIT_MS)
    link.see("No problem is in both sessions")
    expect(link.page.locator(".js-plotly-plot")).to_have_count(0, timeout=WAIT_MS)
    link.no_exception()
