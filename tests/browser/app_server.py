"""Start a server of the app on a free loopback port, and drive its pages."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Error, Locator, Page, expect
from shared_builds import own_cache

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Repeats Playwright's own list, as the last such option counts, and adds the page of the
    # browser's frame, which takes a second of CPU time for each profile.
    "--disable-features=AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,"
    "HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,LensOverlay,MediaRouter,PaintHolding,"
    "ThirdPartyStoragePartitioning,OptimizationHints,NetworkTimeServiceQuerying,"
    "PreconnectToSearch,Translate,PreloadTopChromeWebUI",
]
WAIT_MS = 120_000  # long, as a busy machine compiles slowly; waits end with a text
expect.set_options(timeout=WAIT_MS)


def find_chromium() -> str | None:
    """Return `ATTUNE_CHROMIUM` or the system's browser, preferring a headless shell as cheaper."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    wanted = os.environ.get("ATTUNE_CHROMIUM"), *names
    return next((path for name in wanted if name and (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Server:
    url: str
    cache: Path
    sessions: Path
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Stop the server and the worker it started."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for file in self.cache.glob("jobs/*/worker.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                os.killpg(json.loads(file.read_text())["pid"], signal.SIGKILL)


def start_server(
    folder: Path, *, root: Path = ROOT, cache: Path | None = None, token: bool = False
) -> Server:
    """Start `streamlit run app/main.py` of the checkout at `root` and wait until it answers.

    Args:
        token: ask visitors for a token; the URL is in `server.log` of `folder`.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cache = cache or own_cache(folder / "cache")
    sessions = folder / "sessions"
    environment = {
        **os.environ,
        "ATTUNE_CACHE_DIR": str(cache),
        "ATTUNE_SESSIONS": str(sessions),
        "ATTUNE_DATA_DIR": str(folder / "data"),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(root),
    }
    command = [sys.executable, "-m", "streamlit", "run", str(root / "app" / "main.py")]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *command,
                "--server.headless=true",
                f"--server.port={port}",
                *["--", "--token"][: 2 * token],
            ],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )
    server = Server(f"http://127.0.0.1:{port}", cache, sessions, process)
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),  # refused, or no answer in time on a busy machine
            urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=5) as answer,
        ):
            if answer.status == 200:
                return server
        if token and "/?token=" in (folder / "server.log").read_text():
            return server
        time.sleep(0.05)
    server.stop()
    raise RuntimeError(f"the app did not start: {(folder / 'server.log').read_text()}")


@dataclass(frozen=True)
class Driver:
    """Actions of a user on a page."""

    page: Page
    url: str

    def open(self, path: str = "/") -> Driver:
        self.page.goto(self.url + path)
        expect(self.page.get_by_role("link", name="Sessions")).to_be_attached(timeout=WAIT_MS)
        return self

    def key(self, key: str) -> Locator:
        """Return the widget with this key."""
        return self.page.locator(f".st-key-{key.replace('.', '-')}")

    def number(self, key: str, value: int) -> None:
        box = self.key(key).locator("input")
        box.fill(str(value))
        box.press("Enter")

    def select(self, key: str, text: str) -> None:
        """Type `text` and select the option that equals or begins with it."""
        box = self.key(key).locator("input")
        self.rest()
        box.click()
        box.fill(text)
        wanted = re.compile(rf"^{re.escape(text)}\b")
        self.page.get_by_role("option").filter(has_text=wanted).first.click()

    def metric(self, label: str) -> Locator:
        tiles = self.page.get_by_test_id("stMetric")
        return tiles.filter(has=self.page.get_by_text(label, exact=True))

    def see(self, text: str) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible(timeout=WAIT_MS)

    def see_metric(self, label: str, text: str) -> None:
        expect(self.metric(label)).to_contain_text(text, timeout=WAIT_MS)

    def rest(self) -> None:
        """Wait until no script run of the page is active."""
        expect(self.page.get_by_test_id("stApp")).to_have_attribute(
            "data-test-script-state", "notRunning", timeout=WAIT_MS
        )

    def tab(self, name: str) -> None:
        """Open a tab, clicking again if a redraw of the page discards the click."""
        tab = self.page.get_by_role("tab", name=name, exact=True)
        for _ in range(5):
            tab.click()
            self.rest()
            if tab.get_attribute("aria-selected") == "true":
                return
        expect(tab).to_have_attribute("aria-selected", "true")

    def click(self, button: Locator, shows: Locator) -> None:
        """Click until `shows` is visible, as a redraw of the page may discard a click."""
        for _ in range(5):
            self.rest()
            if button.is_visible():
                button.click()
            with contextlib.suppress(AssertionError):
                expect(shows).to_be_visible(timeout=WAIT_MS / 5)
                return
        expect(shows).to_be_visible()

    def step(self, slider: Locator, url: str) -> None:
        """Press the right arrow until the URL of the page has `url`, as a redraw may discard a key
        press."""
        for _ in range(5):
            self.rest()
            slider.press("ArrowRight")
            with contextlib.suppress(AssertionError):
                expect(self.page).to_have_url(re.compile(url), timeout=WAIT_MS / 5)
                return
        expect(self.page).to_have_url(re.compile(url))

    def press(self, key: str) -> None:
        """Click through the DOM: a polling page redraws under a mouse pointer."""
        self.key(key).locator("button").first.evaluate("button => button.click()")

    def drag(
        self,
        panel: Locator,
        places: Sequence[tuple[float, float]],
        taken: str,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Drag over `places` of a chart (shares of its width and height) until the JavaScript
        `taken` is true, as a new layout of the chart discards a drag.

        Args:
            meanwhile: called before the last place, with the mouse down.
        """
        mouse = self.page.mouse
        for _ in range(8):
            panel.evaluate("panel => panel.scrollIntoView({block: 'center'})", timeout=WAIT_MS)
            box = panel.bounding_box(timeout=WAIT_MS)
            if box is None:
                continue
            points = [
                (box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in places
            ]
            mouse.move(*points[0])
            mouse.down()
            for point in points[1:-1]:
                mouse.move(*point, steps=3)
            meanwhile()
            mouse.move(*points[-1], steps=3)
            mouse.up()
            with contextlib.suppress(Error):
                self.page.wait_for_function(taken, timeout=5_000)
                return
        raise AssertionError("the chart took none of the drags")

    def click_point(self, point: Locator, text: str) -> None:
        """Click a point of a chart until the page shows `text`: a click is lost during a new layout
        and before the chart has found the point under the mouse."""
        seen = self.page.get_by_text(text).first
        label = self.page.locator(".hoverlayer .hovertext").first
        for _ in range(8):
            with contextlib.suppress(Error, AssertionError):
                point.evaluate("point => point.scrollIntoView({block: 'center'})", timeout=WAIT_MS)
                box = point.bounding_box(timeout=WAIT_MS)
                if box is None:
                    continue
                middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
                self.page.mouse.move(*middle)
                expect(label).to_be_visible(timeout=5_000)
                self.page.mouse.click(*middle)
                expect(seen).to_be_visible(timeout=WAIT_MS / 8)
                return
        raise AssertionError("the chart took none of the clicks")

    def quiet(self, count: str, still_ms: int = 1000) -> None:
        """Wait until the number that the JavaScript `count` returns is stable for `still_ms`."""
        grown = f"window.counted = [{count}, performance.now()]"
        self.page.evaluate(grown)
        self.page.wait_for_function(
            f"{count} > counted[0] ? ({grown}, 0) : performance.now() - counted[1] > {still_ms}",
            timeout=WAIT_MS,
        )

    def no_exception(self) -> None:
        expect(self.page.get_by_test_id("stException")).to_have_count(0)
