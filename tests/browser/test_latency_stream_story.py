"""A latency stream in a browser: zoomed while it grows, shared, stopped, and its worker killed."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from app_server import WAIT_MS, Driver, Server
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser

PATH = "/?S=64&tab=Live+latency"
CHART = ".attune-chart[data-key=latency_stream_chart]"
RANGE = f"document.querySelector('{CHART}').layout.xaxis.range"
# Number of points drawn by the chart.
POINTS = "calcdata.find(c => c[0].trace.mode === 'markers').length"
# 0 while there is no drawn chart.
_FOUND = f"document.querySelector('{CHART}')"
DRAWN = f"({_FOUND}?.calcdata ? {_FOUND}.{POINTS} : 0)"

SAMPLES = """
Number([...document.querySelectorAll('[data-testid=stMetric]')]
    .find(tile => tile.innerText.trim().startsWith('Samples'))
    ?.querySelector('[data-testid=stMetricValue]').innerText.replaceAll(',', '') ?? 0)
""".strip()


def switch(app: Driver) -> Locator:
    return app.page.get_by_role("switch", name="Measure continuously")


def flip(app: Driver) -> None:
    switch(app).evaluate("box => box.click()")


def samples(app: Driver) -> int:
    return int(app.page.evaluate(SAMPLES))


def grows(app: Driver) -> None:
    """Wait until more samples have arrived."""
    app.page.wait_for_function(f"before => {SAMPLES} > before", arg=samples(app), timeout=WAIT_MS)


def zoom(app: Driver) -> list[float]:
    """Zoom by dragging a box while data arrive; return the time range then shown."""
    app.page.wait_for_function(f"{DRAWN} > 8", timeout=WAIT_MS)
    panel = app.page.locator(f"{CHART} .nsewdrag").first
    app.drag(panel, [(0.2, 0.2), (0.4, 0.6), (0.5, 0.8)], f"{RANGE}[0] > 0", lambda: grows(app))
    chosen: list[float] = app.page.evaluate(RANGE)
    return chosen


def worker_pid(server: Server) -> int:
    files = list(server.cache.glob("jobs/*/worker.json"))
    return json.loads(max(files, key=lambda f: f.stat().st_mtime).read_text())["pid"]


@pytest.mark.slow
def test_it_grows_under_a_zoom_is_shared_stopped_and_survives_its_worker(new_tab, server):
    first = new_tab(PATH)
    first.see("Not measured live yet")
    fetched = []
    first.page.on("request", lambda r: fetched.append(r.url))
    flip(first)
    expect(first.page.locator(f"{CHART} .main-svg").first).to_be_visible(timeout=WAIT_MS)
    first.see("not a GPU's latency")
    assert {url.split("/")[2] for url in fetched} == {server.url.split("/")[2]}
    expect(first.page.get_by_role("button", name="Share")).to_have_count(0)

    # The zoom is kept while data arrive and when the rest of the page changes.
    chosen = zoom(first)
    grows(first)
    grows(first)
    assert first.page.evaluate(RANGE) == chosen
    first.page.set_viewport_size({"width": 1100, "height": 1000})
    first.press("run")
    first.see_metric("Correctness", "Passed")
    grows(first)
    assert first.page.evaluate(RANGE) == chosen

    # Another tab shows the same stream and ends it for both.
    second = new_tab(PATH)
    expect(switch(second)).to_be_checked(timeout=WAIT_MS)
    grows(second)
    flip(second)
    second.see("Stopped after measuring")
    first.see("Stopped after measuring")
    expect(switch(first)).not_to_be_checked(timeout=WAIT_MS)
    assert first.page.evaluate(RANGE) == chosen

    # The samples are still there after a reload, also as a table.
    first.page.reload()
    first.see("Stopped after measuring")
    expect(first.page.locator(f"{CHART} .main-svg").first).to_be_visible(timeout=WAIT_MS)
    same = f"count => {SAMPLES} === count"
    second.page.wait_for_function(same, arg=samples(first), timeout=WAIT_MS)
    with first.page.expect_download(timeout=WAIT_MS) as download:
        first.press("latency_stream_csv")
    assert download.value.suggested_filename == "live_v01_B1_H1_S64_D64_fp16_cpu_execution.csv"
    table = download.value.path().read_text().splitlines()
    assert table[0].startswith("time_utc,cpu_execution_us,")
    assert len(table) == samples(first) + 1

    # Again, with its worker killed: the page reports it, keeps the samples and still works.
    flip(first)
    expect(switch(second)).to_be_checked(timeout=WAIT_MS)
    first.page.wait_for_function(f"{DRAWN} > 3", timeout=WAIT_MS)
    os.kill(worker_pid(server), signal.SIGKILL)
    begin = time.monotonic()
    for app in (first, second):
        app.see("The worker process died")
        app.see("The samples are kept")
        assert samples(app) > 0
        app.no_exception()
    assert time.monotonic() - begin < WAIT_MS / 1000
    flip(first)
    expect(switch(first)).to_be_checked(timeout=WAIT_MS)
    grows(first)
    flip(first)
    first.see("Stopped after measuring")
    first.no_exception()


@pytest.mark.exhaustive
def test_the_stream_follows_the_selected_variant(new_tab):
    app = new_tab("/?S=32&tab=Live+latency")
    app.see("Not measured live yet")
    flip(app)
    chart = app.page.locator(f"{CHART} .main-svg").first
    expect(chart).to_be_visible(timeout=WAIT_MS)
    revision = f"document.querySelector('{CHART}').layout.uirevision"
    first = app.page.evaluate(revision)
    app.number("S", 48)
    app.page.wait_for_function(
        f"!!document.querySelector('{CHART}') && {revision} !== '{first}'", timeout=WAIT_MS
    )
    grows(app)
    expect(switch(app)).to_be_checked()
    flip(app)
    app.see("Stopped after measuring")
    app.number("S", 32)
    app.see("Stopped after measuring")
    app.page.wait_for_function(f"{revision} === '{first}'", timeout=WAIT_MS)
    app.no_exception()
