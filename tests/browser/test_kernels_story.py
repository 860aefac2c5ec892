"""Story of the Kernels page: rungs are computed, a diff is opened, `auto` is opened in Tune."""

from __future__ import annotations

import pytest
from app_server import WAIT_MS
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_ladder_is_read_from_top_to_bottom(new_tab):
    app = new_tab("/kernels?gpu=L40&S=448&variant=auto&kernels_rung=v09")
    app.see("Each rung is one CUDA file that adds one idea to the rung it builds on")
    # Without shipped figures for this GPU the rungs are computed; computing can be cancelled and
    # resumed. This comes first, as the rest may take longer than the rungs.
    app.press("kernels_stop")
    app.see("rungs are not computed")
    app.press("kernels_go_on")
    app.see("auto takes")
    app.see("an XOR puts the 8 in 8 groups of 4 banks")  # the rung named by the link
    # On a busy machine some twenty kernels take a few seconds each to compile and simulate.
    chart = app.page.get_by_text("Predicted time of each rung").first
    expect(chart).to_be_visible(timeout=4 * WAIT_MS)
    app.see("Against v08: ")

    # A diff is computed when it is opened.
    source = app.page.get_by_text("Source: what changed against v08").first
    app.click(source, app.page.get_by_text("lines added").first)
    app.no_exception()

    # The other pages show the kernel that `auto` chose.
    app.click(app.page.get_by_role("link", name="Tune", exact=True), app.metric("Latency"))
    app.see_metric("Latency", "predicted")
    expect(app.key("auto_by_hand")).to_be_visible(timeout=WAIT_MS)
    app.press("auto_by_hand")
    expect(app.key("auto_by_hand")).to_have_count(0, timeout=WAIT_MS)
    app.no_exception()
