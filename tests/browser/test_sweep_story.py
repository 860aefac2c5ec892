"""Story of "Sweep": axes, start, watch, cancel, resume, results, open a point in Tune."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from app_server import WAIT_MS
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SWEEP_MS = 4 * WAIT_MS  # a compile takes seconds on a busy machine


def text(app, key: str, value: str) -> None:
    box = app.key(key).locator("input")
    box.fill(value)
    box.press("Enter")


def unfold(app) -> None:
    """Open the expander with the axes, which is closed below results of an earlier sweep."""
    axes = app.page.locator("details").filter(has_text="What to try")
    expect(axes).to_be_visible(timeout=WAIT_MS)
    if axes.get_attribute("open") is None:
        app.click(axes.locator("summary"), app.key("sweep_S"))
    expect(app.key("sweep_S")).to_be_visible(timeout=WAIT_MS)


def only_compile(app) -> None:
    """Switch execution off, and wait until the page has applied it."""
    app.rest()
    app.key("sweep_execute").locator("label").first.click()
    expect(app.page).to_have_url(re.compile("sweep_execute=false"), timeout=WAIT_MS)


def finished(app) -> None:
    expect(app.page.get_by_text("Finished after").first).to_be_visible(timeout=SWEEP_MS)


def test_start_watch_cancel_resume_and_open_the_best_in_tune(new_tab, server):
    app = new_tab("/sweep?variant=v05&gpu=L4&S=64")
    unfold(app)
    text(app, "sweep_S", "64:256:x2")
    app.see("108 points")
    text(app, "sweep_block_n", "64")
    text(app, "sweep_threads_per_row", "2")
    app.see("18 points")
    only_compile(app)

    # Watch it, cancel it in another tab, resume it in this one.
    _, worker = start_and_halt(app, server)
    app.see("Best so far")
    other = new_tab("/sweep?gpu=L4")
    other.press("sweep_cancel")
    other.see("Results so far are kept")  # a worker that is not stopped may finish first
    with contextlib.suppress(ProcessLookupError):  # it may have ended
        os.killpg(worker, signal.SIGCONT)
    app.see("Results so far are kept")
    app.press("sweep_resume")
    finished(app)
    app.see_metric("Done", "18 of 18")
    finished(other)

    # Reload: the same sweep, the same axes, the same results.
    app.page.reload()
    app.see("none of them was measured")
    unfold(app)
    expect(app.key("sweep_block_n").locator("input")).to_have_value("64")
    app.see("18 points")
    expect(app.page.locator(".js-plotly-plot")).to_have_count(1, timeout=WAIT_MS)
    app.tab("Parallel coordinates")
    app.see("One line per point")
    app.tab("Importance")
    app.see("num_splits")
    app.tab("Occupancy")

    # A click on a point of the scatter opens the Tune page.
    point = app.page.locator(".js-plotly-plot .scatterlayer .point").first
    expect(point).to_be_visible(timeout=WAIT_MS)
    app.click_point(point, "Open in Tune")
    app.no_exception()
    picked = app.key("sweep_picked_scatter")
    splits = re.search(r"num_splits=(\d+)", picked.inner_text())[1]
    picked.get_by_role("link", name="Open in Tune").evaluate("link => link.click()")
    app.see_metric("Latency", "predicted")
    app.see("B1 H1 S64 D64 fp16 on L4")
    expect(app.page).to_have_url(re.compile(r"/(tune)?\?.*variant=v05"), timeout=WAIT_MS)
    expect(app.page.get_by_role("slider")).to_have_attribute(
        "aria-valuetext", splits, timeout=WAIT_MS
    )
    app.no_exception()


def worker_of(journal: Path) -> int:
    return int(json.loads((journal.parents[1] / "worker.json").read_text())["pid"])


def start_and_halt(app, server) -> tuple[Path, int]:
    """Start a sweep and stop its worker at the sixth point, as the rest may be faster than the page
    is updated on a busy machine; return its journal and the worker."""

    def journals() -> set[Path]:
        return set(server.cache.glob("jobs/server*/sweeps/*.jsonl"))

    before, deadline_s = journals(), time.monotonic() + WAIT_MS / 1000
    app.press("sweep_start")
    while time.monotonic() < deadline_s:
        for journal in journals() - before:
            if journal.read_text().count('"event":"evaluation"') >= 6:
                os.killpg(worker_of(journal), signal.SIGSTOP)
                return journal, worker_of(journal)
        time.sleep(0.005)
    raise TimeoutError("the sweep has no sixth point")


def test_zoom_outlives_updates_and_the_sweep_outlives_its_worker(new_tab, server):
    app = new_tab("/sweep?variant=v04&gpu=L4&S=64&sweep_execute=false&sweep_tab=Occupancy")
    unfold(app)
    app.see("12 points")
    journal, worker = start_and_halt(app, server)
    expect(app.page.locator(".js-plotly-plot .scatterlayer .point").nth(2)).to_be_visible(
        timeout=WAIT_MS
    )

    # Zoom by dragging.
    chart = app.page.locator(".js-plotly-plot")
    expect(chart).to_be_visible(timeout=WAIT_MS)
    shown = "document.querySelector('.js-plotly-plot').layout.xaxis.range"
    app.drag(
        chart,
        [(0.3, 0.3), (0.5, 0.5), (0.7, 0.7)],
        f"{shown}[1] - {shown}[0] < 60",  # percent; 104 at first
    )
    zoomed = chart.evaluate("chart => chart.layout.xaxis.range")
    drawn = chart.evaluate("chart => chart.calcdata[0].length")

    # The worker is killed; a new one continues.
    os.killpg(worker, signal.SIGKILL)
    finished(app)
    app.see_metric("Done", "12 of 12")
    assert worker_of(journal) != worker
    app.page.wait_for_function(
        "drawn => document.querySelector('.js-plotly-plot')?.calcdata?.[0].length > drawn",
        arg=drawn,
        timeout=WAIT_MS,
    )
    assert chart.evaluate("chart => chart.layout.xaxis.range") == zoomed
    events = [json.loads(line) for line in journal.read_text().splitlines() if line.strip()]
    points = [event["point"] for event in events if event["event"] == "evaluation"]
    assert len(points) == len(set(points)) == 12
    app.no_exception()


@pytest.mark.exhaustive
def test_the_table_is_downloaded_and_an_axis_is_checked(new_tab):
    app = new_tab("/sweep?variant=v01&gpu=L4&sweep_S=64..128")
    app.see("seqlen takes whole numbers")
    unfold(app)
    text(app, "sweep_S", "64,128")
    app.see("4 points")
    only_compile(app)
    app.press("sweep_start")
    app.see_metric("Done", "4 of 4")
    app.see("Finished after")
    app.tab("Table")
    app.see("This table, CSV")
    with app.page.expect_download() as download:
        app.press("sweep_csv")
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 5
    assert "median_us" in lines[0]
    app.no_exception()


@pytest.mark.exhaustive
def test_no_word_of_the_form_is_cut_off_in_a_narrow_window(new_tab):
    app = new_tab("/sweep?variant=v05&S=64")
    app.page.set_viewport_size({"width": 1024, "height": 900})
    unfold(app)
    expect(app.key("sweep_evaluations").locator("input")).to_have_attribute(
        "placeholder", "no limit"
    )
    cut = app.page.evaluate(
        """() => [...document.querySelectorAll('[data-testid=stMain] *')]
            .filter(e => getComputedStyle(e).textOverflow === 'ellipsis')
            .filter(e => e.scrollWidth > e.clientWidth && e.tagName !== 'INPUT')
            .map(e => e.textContent)"""
    )
    assert cut == []
