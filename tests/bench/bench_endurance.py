"""Large stores, many reruns and many tabs: `python tests/bench/bench_endurance.py`.

A store of 10,000 snapshots: processor time of `sessions`, first without an index and then with it,
and of the Sessions page, opened and redrawn. Then 500 reruns of the Tune page with the memory of
the server meanwhile, and 20 tabs open at once. All in a Chromium on the loopback; processor time is
that of the server without its children.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in (".", "tests", "tests/browser", "tests/bench")]

from app_server import CHROMIUM_ARGS, WAIT_MS, find_chromium, start_server  # noqa: E402
from bench_sessions import NUM_SNAPSHOTS, fill  # noqa: E402
from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

RERUNS = 500
TABS = 20
_BEGINS_MS = 60  # until the browser knows that a rerun has begun
_STATE = "[data-testid=stApp][data-test-script-state=notRunning]"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder / "sessions")
        command(folder)
        beside(folder, lambda browser, url, process: store_page(browser.new_page(), url, process))
    with tempfile.TemporaryDirectory() as name:
        beside(Path(name), tune_page)


def beside(folder: Path, look: Callable[[Browser, str, psutil.Process], None]) -> None:
    """Call `look` with a server whose store, cache and data are in `folder`."""
    server = start_server(folder)
    try:
        with sync_playwright() as playwright:
            path = find_chromium()
            browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
            look(browser, server.url, psutil.Process(server.process.pid))
    finally:
        server.stop()


def tune_page(browser: Browser, url: str, process: psutil.Process) -> None:
    reruns(browser.new_page(), url, process)
    tabs([browser.new_page() for _ in range(TABS)], url, process)


def command(folder: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "ATTUNE_SESSIONS": str(folder / "sessions"),
        "ATTUNE_CACHE_DIR": str(folder / "cli-cache"),
    }
    for which in ("without an index", "with it", "with it again"):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "engine", "sessions"],
            env=environment, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"sessions of {NUM_SNAPSHOTS:,}, {which}: {used:.2f} s CPU", flush=True)


def store_page(page: Page, url: str, process: psutil.Process) -> None:
    opened_page(page, f"{url}/devices")  # which imports the app
    opened = cpu_s(process, lambda: opened_page(page, f"{url}/sessions"))
    print(f"Sessions page of {NUM_SNAPSHOTS:,}, first: {opened:.2f} s CPU", flush=True)
    again = [cpu_s(process, lambda: rerun(page)) for _ in range(5)]
    print(f"  drawn again: {', '.join(f'{used:.2f}' for used in again)} s CPU", flush=True)
    page.close()


def reruns(page: Page, url: str, process: psutil.Process) -> None:
    opened_page(page, url)
    for number in range(RERUNS + 1):
        if number % 100 == 0:
            print(f"after {number} reruns: {process.memory_info().rss / 2**20:.0f} MiB", flush=True)
        rerun(page)
    page.close()


def tabs(pages: list[Page], url: str, process: psutil.Process) -> None:
    before = process.memory_info().rss
    used = cpu_s(process, lambda: [opened_page(page, url) for page in pages])
    start = time.perf_counter()
    for page in pages:
        page.keyboard.press("r")
    for page in pages:
        page.wait_for_selector(_STATE, state="attached", timeout=3 * WAIT_MS)
    took = time.perf_counter() - start
    more = (process.memory_info().rss - before) / 2**20
    print(f"{len(pages)} tabs: {used:.1f} s CPU to open, {more:.0f} MiB more", flush=True)
    print(f"  all drawn again at once: {took:.1f} s", flush=True)
    for page in pages:
        expect(page.get_by_test_id("stException")).to_have_count(0)


def opened_page(page: Page, url: str) -> None:
    page.goto(url)
    drawn = "stDataFrame" if url.endswith(("/sessions", "/devices")) else "stMetric"
    expect(page.get_by_test_id(drawn).first).to_be_attached(timeout=3 * WAIT_MS)


def rerun(page: Page) -> None:
    """Rerun the page, and wait until it is drawn."""
    page.keyboard.press("r")
    page.wait_for_timeout(_BEGINS_MS)
    page.wait_for_selector(_STATE, state="attached", timeout=3 * WAIT_MS)


def cpu_s(process: psutil.Process, action: Callable[[], Any]) -> float:
    """Return the processor time of the server during `action`, in seconds."""
    before = process.cpu_times()
    action()
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system)


if __name__ == "__main__":
    main()
