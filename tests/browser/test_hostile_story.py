"""An untrusted snapshot in a browser: no request leaves this machine."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest
from app_server import Server
from hostile import probe_snapshot

from engine.sessions.store import Store

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_hostile_snapshot_makes_no_request_elsewhere(new_tab, server: Server) -> None:
    name = Store(str(server.sessions), shipped=None).save(probe_snapshot())
    app = new_tab("/sessions")
    hosts: set[str] = set()
    app.page.context.on("request", lambda r: hosts.add(urlsplit(r.url).hostname or ""))
    app.open(f"/sessions?session={name}")
    for tab in ("Occupancy", "Correctness", "Source and resources", "Latency"):
        app.tab(tab)
        app.page.wait_for_load_state("networkidle")
        app.no_exception()
    app.see_metric("Latency", "recorded")
    # Streamlit's own download of a table would not escape formulas.
    assert not app.page.get_by_role("button", name="Download as CSV").is_visible()
    assert hosts <= {"127.0.0.1", ""}
    main = app.page.get_by_test_id("stMain")
    assert main.locator("a[href*=evil], img[src*=evil], .katex").count() == 0
    assert main.locator("strong, code", has_text=re.compile("^evil$")).count() == 0


def test_a_foreign_name_gets_no_page_and_no_other_site_frames_one(server: Server) -> None:
    for path in ("/", "/sweep", "/_stcore/health", "/_stcore/host-config"):
        foreign = urllib.request.Request(server.url + path, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(foreign, timeout=10)
        assert refused.value.code == 421
        refused.value.close()  # its socket
        with urllib.request.urlopen(server.url + path, timeout=10) as answer:
            assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'self'"
