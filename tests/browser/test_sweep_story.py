"""The story of "Sweep": axes, start, watch, cancel, resume, results, a point back to Tune."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def text(app, key: str, value: str) -> None:
    box = app.key(key).locator("input")
    box.fill(value)
    box.press("Enter")


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
