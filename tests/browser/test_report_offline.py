"""The HTML report of a session in a browser: charts are drawn, nothing is fetched."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from engine.sessions.report import to_html
from engine.sessions.snapshot import loads

pytestmark = pytest.mark.browser

V1 = Path(__file__).resolve().parents[1] / "sessions" / "data" / "v1.json"
EVIL = "</script><script>window.evil=1</script><img src=//example.org/x onerror=window.evil=1>"


def spoiled_report() -> str:
    raw = json.loads(V1.read_text(encoding="utf-8"))
    raw["title"] = EVIL
    raw["notes"] = raw["hypothesis"] = raw["provenance"] = EVIL
    raw["timeline"][0]["what"] = EVIL
    raw["error_maps"][0] |= {"name": EVIL, "row_axis": EVIL, "column_axis": EVIL}
    raw["sources"][0] |= {"text": EVIL, "sha256": hashlib.sha256(EVIL.encode()).hexdigest()}
    for evaluation in raw["evaluations"]:
        evaluation["variant"] = evaluation["device"] = evaluation["reason"] = EVIL
    raw["evaluations"][0]["baselines"][0]["name"] = EVIL
    return to_html(loads(json.dumps(raw).encode(), name="v1.json"), maps=True)


def test_the_report_draws_offline_and_runs_nothing_of_the_snapshot(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(spoiled_report(), encoding="utf-8")
    context = browser.new_context(offline=True)
    try:
        page = context.new_page()
        fetched: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: fetched.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        page.goto(path.as_uri())
        assert page.locator("svg").count() == 3
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) <= 0, "a table or chart sticks out of the page"
        assert page.locator("h1").inner_text() == EVIL
        assert page.evaluate("window.evil") is None
        assert page.locator("img").count() == 0
        assert fetched == [path.as_uri()]
        assert errors == []
    finally:
        context.close()
