"""The story of "Sweep": axes, start, watch, cancel, resume, results, a point back to Tune."""

from __future__ import annotations

import re

import pytest
from app_server import WAIT_MS
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def text(app, key: str, value: str) -> None:
    box = app.key(key).locator("input")
    box.fill(value)
    box.press("Enter")


def test_start_watch_cancel_resume_and_take_the_best_to_tune(new_tab):
    app = new_tab("/sweep?variant=v05&gpu=L4&S=64")
    app.see("No sweep yet")
    text(app, "sweep_S", "64:256:x2")
    app.see("108 points")
    app.key("sweep_execute").locator("label").first.click()
    app.press("sweep_start")

    # Watch it, cancel from another tab, resume in this one.
    app.see("Best so far")
    other = new_tab("/sweep?gpu=L4")
    other.press("sweep_cancel")
    app.see("What was found stays")
    app.press("sweep_resume")
    app.see("Finished after")
    app.see_metric("Done", "108 of 108")
    other.see("Finished after")

    # Reload: the same sweep, the same results.
    app.page.reload()
    app.see("none of them was measured")
    expect(app.page.locator(".js-plotly-plot")).to_have_count(1, timeout=WAIT_MS)
    app.tab("Parallel coordinates")
    app.see("One line per point")
    app.tab("Importance")
    app.see("num_splits")
    app.tab("Occupancy")
    expect(app.page.locator(".js-plotly-plot .scatterlayer .point").first).to_be_visible(
        timeout=WAIT_MS
    )

    # A point of the scatter leads to the Tune page.
    app.page.locator(".js-plotly-plot .scatterlayer .point").first.scroll_into_view_if_needed()
    box = app.page.locator(".js-plotly-plot .scatterlayer .point").first.bounding_box()
    app.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    app.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    app.see("Take to Tune")
    app.no_exception()
    picked = app.key("sweep_picked_scatter").inner_text()
    splits = re.search(r"num_splits=(\d+)", picked)[1]
    app.press("sweep_tune_scatter")
    app.see_metric("Latency", "predicted")
    expect(app.page).to_have_url(re.compile(r"/(tune)?\?.*variant=v05"))
    expect(app.page).to_have_url(re.compile(rf"v05\.num_splits={splits}\b"))
    app.see("B1 H1 S64 D64 fp16 on L4")
    app.no_exception()


def test_the_table_is_downloaded_and_an_axis_is_checked(new_tab):
    app = new_tab("/sweep?variant=v01&gpu=L4&sweep_S=64..128")
    app.see("seqlen takes whole numbers")
    if not app.key("sweep_S").is_visible():  # folded away below the results of an earlier sweep
        app.page.get_by_text("What to try").click()
    text(app, "sweep_S", "64,128")
    app.key("sweep_execute").locator("label").first.click()
    app.see("4 points")
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
