"""Story of the Tune page in a browser: select, run, read the maps, save, reload, open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from app_server import WAIT_MS
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
MIN_CONTRAST = 4.5


@pytest.mark.slow
def test_choose_run_read_save_reload_and_open_again(new_tab, server):
    app = new_tab()
    foreign = []
    app.page.on("request", lambda r: foreign.append(r.url) if not _is_local(r.url) else None)
    app.select("gpu", "A10G")
    app.select("gpu", "L4")
    app.select("variant", "v05")
    app.number("B", 2)
    app.number("H", 2)
    app.number("S", 130)

    # Occupancy and prediction need no run.
    app.see_metric("Latency", "predicted")
    app.see_metric("Waves", "48 CTAs")
    app.see_metric("Correctness", "not run")
    app.see("No NVIDIA GPU on this machine")

    # Run, and read the verdict and the maps.
    app.press("run")
    app.see_metric("Correctness", "Passed")
    # The verdict line names the limit once the machine code is read.
    verdict = app.key("verdict")
    expect(verdict).to_contain_text("Correct", timeout=WAIT_MS)
    expect(verdict).to_contain_text(re.compile(r"\d% of the \w+ roof"), timeout=WAIT_MS)
    expect(verdict).to_contain_text(re.compile("limiter:|waits for"), timeout=2 * WAIT_MS)
    assert app.page.title() == "Tune · Attune"
    app.tab("Correctness")
    app.see("By query tile and key tile")
    expect(app.page.locator(".js-plotly-plot")).to_have_count(3, timeout=WAIT_MS)
    app.see("of CPU time, not a GPU time")
    app.tab("Occupancy")
    app.see("Limiting resource")
    expect(app.page.locator(".js-plotly-plot")).to_have_count(7, timeout=WAIT_MS)
    app.tab("Source and resources")
    app.see("Compile flags")
    link = app.page.get_by_role("link", name="Open in editor")
    expect(link).to_have_attribute("href", re.compile(r"^vscode://file/.*/v05_kv_split\.cu:1$"))

    # Save. Other stories may have saved on the shared server before.
    before = set(server.sessions.glob("*.json.gz"))
    title = app.page.get_by_label("Title")
    app.click(app.page.get_by_role("button", name="Save", exact=True), title)
    title.fill("The split story")
    title.press("Enter")
    app.rest()
    app.page.get_by_role("button", name="Save snapshot").click()
    app.see("Saved as")
    (saved,) = set(server.sessions.glob("*.json.gz")) - before

    # Values survive a reload through the URL; the result is found again.
    expect(app.page).to_have_url(re.compile("variant=v05"))
    app.page.reload()
    app.see_metric("Correctness", "Passed")
    expect(app.key("S").locator("input")).to_have_value("130", timeout=WAIT_MS)
    expect(app.page.get_by_role("tab", name="Source and resources")).to_have_attribute(
        "aria-selected", "true"
    )
    assert foreign == []  # no request to another host

    # Open the snapshot in a fresh profile, by its link.
    other = new_tab(f"/sessions?session={saved.name}")
    other.see("The split story")
    other.see_metric("Correctness", "Passed")
    other.see_metric("Latency", "predicted")
    other.no_exception()

    # And open it in Tune.
    other.press("session_tune")
    expect(other.key("S").locator("input")).to_have_value("130", timeout=WAIT_MS)
    other.see_metric("Waves", "48 CTAs")


@pytest.mark.exhaustive
def test_run_uses_a_value_that_the_page_has_not_processed_yet(new_tab):
    app = new_tab("/?variant=v05&S=130")
    app.see_metric("Latency", "predicted")
    for seqlen in (131, 132, 133):
        app.number("S", seqlen)
        app.press("run")
        app.see(f"S{seqlen} D64")
        app.see_metric("Correctness", "Passed")


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.exhaustive)])
def test_source_and_machine_code_are_linked_both_ways(new_tab, scheme):
    app = new_tab("/?variant=v08&S=64&tab=Machine+code", color_scheme=scheme)
    listing = app.page.locator(".listing").first
    expect(listing).to_be_visible(
        timeout=4 * WAIT_MS
    )  # the first listing waits for the C++ compiler
    source, code = listing.locator(".pane").nth(0), listing.locator(".pane").nth(1)
    expect(code.locator(".row").nth(5)).to_be_visible()
    assert code.locator(".row").count() < 100  # of several hundred

    # From an instruction to its source line, and from the line to its instructions.
    app.page.get_by_label("Search the listing").fill("HMMA")
    expect(code.locator(".row.chosen")).to_contain_text("HMMA")
    expect(source.locator(".row.chosen")).to_contain_text("mma_m16n8k16")
    app.click(source.locator(".row.chosen"), code.locator(".row.linked").nth(1))
    expect(listing.locator(".detail")).to_contain_text("executed")

    app.click(app.page.get_by_role("button", name="Fold loops"), code.locator(".row.loop").first)
    expect(code.locator(".row.loop").first).to_contain_text("▸ loop of")
    app.tab("Occupancy")
    app.see("Time by CTAs per SM")
    app.no_exception()


@pytest.mark.exhaustive
def test_dark_mode_follows_the_system(new_tab):
    light = new_tab()
    dark = new_tab(color_scheme="dark")
    dark.see_metric("Latency", "predicted")
    color = "e => getComputedStyle(document.querySelector('.stApp')).backgroundColor"
    assert light.page.evaluate(color) == "rgb(255, 255, 255)"
    assert dark.page.evaluate(color) == "rgb(18, 23, 26)"
    for app in (light, dark):
        app.see_metric("Latency", "predicted")
        for tab in ("Source and resources", "Correctness"):
            app.tab(tab)
            app.see({"Correctness": "Not run yet"}.get(tab, "Open in editor"))
            read = app.page.evaluate(f"({CONTRAST})({MIN_CONTRAST})")
            assert read["found"] == []
            assert read["texts"] > 50


@pytest.mark.exhaustive
def test_run_is_reached_by_a_few_tabs_with_visible_focus(new_tab):
    app = new_tab()
    app.see_metric("Latency", "predicted")
    expect(app.key("run").get_by_role("button")).to_be_enabled()
    focused = "document.activeElement.closest('.st-key-run') !== null"
    presses = 0
    while not app.page.evaluate(focused):
        app.page.keyboard.press("Tab")
        presses += 1
        assert presses <= 12
        if app.page.evaluate("document.activeElement.dataset.testid") == "stSkipToContent":
            app.page.keyboard.press("Enter")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert app.page.evaluate(outline) == "solid"
    app.page.keyboard.press("Tab")  # a switch, whose input element is hidden
    switch = "getComputedStyle(document.activeElement.closest('label')).outlineStyle"
    assert app.page.evaluate(switch) == "solid"


@pytest.mark.exhaustive
def test_a_long_run_is_cancelled_from_another_tab(new_tab):
    path = "/?B=8&H=32&S=4096&D=128&causal=true&timeout=600"
    first = new_tab(path)
    first.press("run")
    expect(first.key("cancel")).to_be_visible(timeout=WAIT_MS)
    first.see("Executing on the CPU")
    second = new_tab(path)
    second.see("Executing on the CPU")
    second.press("cancel")
    second.see("Cancelled before it finished")
    first.see("Cancelled before it finished")
    expect(first.key("run")).to_be_visible(timeout=WAIT_MS)


@pytest.mark.slow
def test_bad_input_gives_a_one_sentence_error(new_tab):
    app = new_tab()
    app.number("S", 0)
    app.see("seqlen must be at least 1, not 0.")
    app.number("S", 128)
    app.see_metric("Latency", "predicted")
    app.number("D", 80)
    app.see("v01 has no kernel for head_dim 80")
    app.no_exception()


@pytest.mark.exhaustive
def test_the_path_tune_opens_the_default_page(new_tab):
    app = new_tab("/tune?variant=v02&S=256", permissions=["clipboard-read", "clipboard-write"])
    app.see("B1 H1 S256 D64 fp16 on L4")
    expect(app.page).to_have_url(re.compile(r"/\?.*variant=v02"))
    copied = app.page.get_by_text("Copied: http").first
    app.click(app.page.get_by_role("button", name="Copy link"), copied)
    assert app.page.evaluate("navigator.clipboard.readText()") == app.page.url
    expect(app.page.get_by_role("link", name="Tune")).to_have_count(1)


@pytest.mark.slow
@pytest.mark.parametrize("width", [420, 1920])
def test_narrow_and_wide_windows_show_all_figures(new_tab, width):
    app = new_tab(viewport={"width": width, "height": 900})
    for label in ("Correctness", "Latency", "Registers", "Occupancy", "Waves", "GPU fill"):
        expect(app.metric(label)).to_be_visible(timeout=WAIT_MS)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert app.page.evaluate(overflow) <= 0


def _is_local(url: str) -> bool:
    return bool(re.match(r"(https?|wss?)://127\.0\.0\.1[:/]|data:|blob:", url))


@pytest.mark.exhaustive
def test_execution_of_machine_code_is_shown_as_such(new_tab):
    app = new_tab("/?variant=v02&S=65&D=32&gpu=L4")
    app.click(app.page.get_by_text("Execution", exact=True).first, app.key("backend"))
    app.select("backend", "machine code")
    expect(app.page).to_have_url(re.compile("backend=machine-code"))
    app.press("run")
    app.see_metric("Correctness", "Passed")
    app.tab("Correctness")
    app.see("Executed: machine code for sm_")
    app.see("of CPU time, not a GPU time")
