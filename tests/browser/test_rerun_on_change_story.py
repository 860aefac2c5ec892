"""Editing a kernel with "Rerun on change": a compile error, an endless kernel, a fix."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_server import ROOT, WAIT_MS, Driver, Server, start_server
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

ANCHOR = "    const int tid = threadIdx.x;\n"
ENDLESS = ANCHOR + "    for (volatile int endless = 0; endless == 0;) {}\n"


@pytest.fixture
def own_checkout(tmp_path: Path) -> Iterator[Server]:
    """Return a copy of the checkout whose kernels a test may break."""
    root = tmp_path / "checkout"
    for name in ("app", "engine", "kernels", "sessions"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    server = start_server(tmp_path, root=root)
    yield server
    server.stop()


@pytest.mark.slow
def test_every_save_is_compiled_and_run(browser, own_checkout, tmp_path):
    kernel = tmp_path / "checkout" / "kernels" / "v01_fa1_baseline.cu"
    good = kernel.read_text()
    assert good.count(ANCHOR) == 1
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    app = Driver(context.new_page(), own_checkout.url).open("/?S=64&live=true&timeout=600")
    app.see_metric("Correctness", "Passed")

    kernel.write_text(good.replace(ANCHOR, ANCHOR.replace(";", "")))
    app.see("COMPILE_ERROR")
    app.see("v01_fa1_baseline.cu")
    app.see("the last version of the source that compiled")
    app.see_metric("Correctness", "older source")

    kernel.write_text(good.replace(ANCHOR, ENDLESS))
    app.see("Executing on the CPU")
    app.press("cancel")
    app.see("Cancelled before it finished")

    kernel.write_text(good + "// mended\n")
    app.see_metric("Correctness", "Passed")
    expect(app.metric("Correctness")).not_to_contain_text("older source", timeout=WAIT_MS)
    app.no_exception()
    context.close()
