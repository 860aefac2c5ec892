"""All charts: no redraw without a change, full-screen mode, and a message if drawing fails."""

from __future__ import annotations

import pytest
from app_server import WAIT_MS
from playwright.sync_api import Route, expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def chart(key: str) -> str:
    return f".attune-chart[data-key={key}]"


def drawn(app, key: str) -> str:
    """Wait for the chart; return JavaScript that counts its draws from now on."""
    expect(app.page.locator(f"{chart(key)} .main-svg").first).to_be_visible(timeout=WAIT_MS)
    app.page.evaluate(
        """([selector, key]) => {
          window.draws ??= {};
          window.draws[key] = 0;
          document.querySelector(selector).on('plotly_afterplot', () => window.draws[key]++);
        }""",
        [chart(key), key],
    )
    count = f"window.draws.{key}"
    app.quiet(count)  # after the initial draws
    app.page.evaluate(f"{count} = 0")
    return count


@pytest.mark.exhaustive
def test_only_a_chart_that_changes_is_drawn_again(new_tab):
    app = new_tab("/?variant=v02&S=512&tab=Occupancy")
    waves, what_if = drawn(app, "waves"), drawn(app, "what_if_threads")
    app.key("B").get_by_role("button", name="Increment").click()
    app.page.wait_for_function(f"{waves} > 0", timeout=WAIT_MS)
    app.page.wait_for_timeout(500)
    assert app.page.evaluate(what_if) == 0


@pytest.mark.exhaustive
def test_a_chart_enters_and_leaves_full_screen_mode(new_tab):
    app = new_tab("/batch?variant=v02&S=512")
    found = app.page.locator(chart("batch_curves"))
    expect(found.locator(".main-svg").first).to_be_visible(timeout=WAIT_MS)
    height = "document.querySelector('.attune-chart .main-svg').getBoundingClientRect().height"
    before, screen = app.page.evaluate(f"[{height}, window.innerHeight]")
    assert before < screen
    for fills in (screen, before):
        found.hover()
        app.page.locator('.modebar-btn[data-title="Full screen"]').click()
        app.page.wait_for_function(f"Math.abs({height} - {fills}) < 2", timeout=WAIT_MS)


@pytest.mark.exhaustive
def test_a_missing_plotly_is_reported_and_loaded_later(new_tab):
    app = new_tab("/devices")
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.abort()

    app.page.route("**/plotly.min.js", refuse)
    app.open("/?variant=v02&S=512&tab=Occupancy")
    app.see("The chart cannot be drawn: plotly.js did not load. Reload the page.")
    assert refused
    app.page.unroute("**/plotly.min.js")
    app.key("B").get_by_role("button", name="Increment").click()
    expect(app.page.locator(f"{chart('waves')} .main-svg").first).to_be_visible(timeout=WAIT_MS)
    expect(app.page.locator(chart("waves"))).not_to_contain_text("cannot be drawn")


@pytest.mark.exhaustive
def test_a_failed_figure_shows_its_error_and_the_next_one_is_drawn(new_tab):
    app = new_tab("/?variant=v02&S=512&tab=Occupancy")
    waves = app.page.locator(chart("waves"))
    expect(waves.locator(".main-svg").first).to_be_visible(timeout=WAIT_MS)
    app.page.evaluate(
        """() => {
          const draw = Plotly.react;
          Plotly.react = () => { Plotly.react = draw; throw new Error("no such axis"); };
        }"""
    )
    more = app.key("B").get_by_role("button", name="Increment")
    more.click()
    said = app.page.get_by_text("The chart cannot be drawn: no such axis.")
    expect(said).to_be_visible(timeout=WAIT_MS)
    more.click()
    expect(said).to_have_count(0, timeout=WAIT_MS)
    expect(waves.locator(".main-svg").first).to_be_visible(timeout=WAIT_MS)
