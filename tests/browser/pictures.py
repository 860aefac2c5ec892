"""Renew the pictures of the READMEs from the present pages.

    python tests/browser/pictures.py [NAME ...]    # app/assets/NAME.png; without names all of them

Each shows a page with an empty store, in the light theme, 1400 pixels wide.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from app_server import CHROMIUM_ARGS, WAIT_MS, Driver, find_chromium, start_server  # noqa: E402

ASSETS = ROOT / "app" / "assets"
_WIDTH_PX = 1400
_SWEEP = (  # one config of each kernel
    "sweep_variants=v08,v10,v12&sweep_H=1,8&sweep_S=64,128,256&sweep_block_n=64&sweep_stages=2"
    "&sweep_num_warps=4&sweep_row_warps=1&sweep_keys_per_warp=32&sweep_row_tiles=1"
)
_STUDY = "20261121T000000Z_l4_v01_7-problems.json"


@dataclass(frozen=True)
class Picture:
    path: str
    height_px: int
    until: Callable[[Driver], None]  # brings the page into the state to show


def _tune(app: Driver) -> None:
    app.see_metric("Latency", "by machine code")
    app.press("run")
    expect(app.metric("Correctness")).to_contain_text("Passed", timeout=3 * WAIT_MS)
    expect(app.key("verdict")).to_contain_text("limiter:", timeout=3 * WAIT_MS)
    expect(app.page.locator(".js-plotly-plot")).to_have_count(3)


def _machine_code(app: Driver) -> None:
    app.see("The ten hottest lines")


def _kernels(app: Driver) -> None:
    chart = app.page.get_by_text("Predicted time of each rung").first
    expect(chart).to_be_visible(timeout=4 * WAIT_MS)
    app.see("auto takes")
    expect(app.key("kernels_stop")).to_have_count(0, timeout=4 * WAIT_MS)  # every rung is computed


def _batch(app: Driver) -> None:
    app.see_metric("Recommended", "B = ")
    app.select("points", "L4 study")
    app.see("are of another kernel")  # the page is drawn again with the points
    app.see("one head of one batch element")


def _sweep(app: Driver) -> None:
    app.press("sweep_start")
    expect(app.page.get_by_text("Finished after").first).to_be_visible(timeout=4 * WAIT_MS)
    expect(app.key("sweep_cancel")).to_have_count(0, timeout=WAIT_MS)  # drawn again at the end
    app.tab("Winners")
    app.see("Click a cell to open its winner")


def _sessions(app: Driver) -> None:
    app.see_metric("Latency", "recorded")


PICTURES = {
    "tune": Picture("/?gpu=L4&variant=v05&H=4&S=512&tab=Correctness", 1180, _tune),
    "kernels": Picture("/kernels?gpu=L4&variant=auto&B=1&H=8&S=1024", 1100, _kernels),
    "machine_code": Picture(
        "/?gpu=H200&variant=v17&H=16&S=2048&D=128&tab=Machine+code", 1150, _machine_code
    ),
    "batch": Picture("/batch?gpu=L4&variant=v01", 1380, _batch),
    "sweep": Picture(f"/sweep?gpu=L4&{_SWEEP}", 1000, _sweep),
    "sessions": Picture(f"/sessions?session={_STUDY}", 1100, _sessions),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    names = parser.parse_args().names or list(PICTURES)
    if unknown := set(names) - set(PICTURES):
        parser.error(f"no such picture: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as api:
        chromium = api.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGS)
        server = start_server(Path(folder))
        try:
            for name in names:
                picture = PICTURES[name]
                size = {"width": _WIDTH_PX, "height": picture.height_px}
                page = chromium.new_page(viewport=size, color_scheme="light")  # type: ignore[arg-type]
                page.set_default_timeout(WAIT_MS)
                app = Driver(page, server.url).open(picture.path)
                picture.until(app)
                app.rest()
                expect(page.get_by_test_id("stSkeleton")).to_have_count(0)
                page.wait_for_timeout(1_000)  # animations end
                shot = Image.open(BytesIO(page.screenshot())).convert("RGB")
                few = shot.quantize(256, kmeans=1)  # keeps rare colours of a scale
                few.save(ASSETS / f"{name}.png", optimize=True)
                page.close()
        finally:
            server.stop()
            chromium.close()


if __name__ == "__main__":
    main()
