"""Story of "Batch size": open, drag, read the recommendation, import a CSV, validate, save."""

from __future__ import annotations

import re

import pytest
from app_server import WAIT_MS
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

SERIES = """# an FA-1 kernel on an L4
batch,num_heads,seqlen,head_dim,kernel_ms,sdpa_ms
1,1,128,64,0.543,0.026
32,1,128,64,0.752,0.030
256,1,128,64,3.624,0.120
"""


@pytest.mark.slow
def test_drag_read_import_validate_and_save(new_tab, server, tmp_path):
    app = new_tab("/batch")
    app.see_metric("Recommended", "B = ")
    app.see("predicted by machine code")  # no simulation is pending
    before = app.metric("Recommended").inner_text()

    # Drag the heads: recommendation, curve and link follow.
    thumb = app.key("H").get_by_role("slider")
    thumb.focus()
    for heads in (2, 3, 4, 6):
        app.step(thumb, rf"\bH={heads}\b")
    expect(app.metric("Recommended")).not_to_have_text(before, timeout=WAIT_MS)
    app.see("of the plateau (a unit costs")
    for _ in range(4):
        thumb.press("ArrowLeft")
    app.see_metric("Recommended", before.splitlines()[1])
    expect(app.page.locator(".js-plotly-plot")).to_have_count(1, timeout=WAIT_MS)

    # Cost for a given traffic.
    app.tab("Cost")
    app.see("GPU-hours a day against")

    # Import measurements and validate the prediction against them.
    series = tmp_path / "series.csv"
    series.write_text(SERIES)
    app.select("points", "a CSV file")
    app.key("points_csv").locator("input[type=file]").set_input_files(series)
    app.tab("Validate")
    app.see("0 of 3 known times")  # the points of the study are of another kernel

    # Save it; the snapshot holds predictions and the imported points.
    before = {p.name for p in server.sessions.glob("*.json.gz")}
    app.press("batch_save")
    app.see("Saved as")
    (saved,) = {p.name for p in server.sessions.glob("*.json.gz")} - before
    other = new_tab(f"/sessions?session={saved}")
    expect(other.page.get_by_role("heading", name="Batch size of v01 on L4")).to_be_visible(
        timeout=WAIT_MS
    )
    other.see("predicted")
    other.no_exception()


@pytest.mark.exhaustive
def test_choices_survive_a_visit_to_another_page(new_tab):
    app = new_tab("/?variant=v02&B=4&S=256&gpu=A10G&dtype=bfloat16&causal=true")
    app.see_metric("Latency", "predicted")
    app.page.get_by_role("link", name="Batch size").click()
    app.see_metric("Now", "B = 4")
    app.page.get_by_role("link", name="Devices").click()
    app.see("Tensor rates are dense, with FP32 accumulation")
    app.page.get_by_role("link", name="Tune").click()
    app.see("B4 H1 S256 D64 bf16 causal on A10G")
    expect(app.page).to_have_url(re.compile(r"variant=v02"))
