"""How fast the Tune page feels, in a real browser: `python tests/bench/bench_app.py`.

Cold start begins with an empty cache: from starting the server to the first prediction on the page,
and from Run to the first verdict (which loads PyTorch and compiles for the CPU). The slider and the
step buttons are timed in the browser, from the key press or click to the first painted frame in
which the tile shows the new figure.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from app_server import CHROMIUM_ARGS, Driver, find_chromium, start_server  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

GOAL_MS = 200

# Times from the next key press or click to the paint after the tile's text has changed.
_WATCH = """
label => {
  const tile = [...document.querySelectorAll('[data-testid=stMetric]')]
      .find(t => t.innerText.trim().startsWith(label));
  const text = () => [...document.querySelectorAll('[data-testid=stMetric]')]
      .find(t => t.innerText.trim().startsWith(label)).innerText;
  const before = tile.innerText;
  window.attuneTime = new Promise(done => {
    const begin = () => {
      const start = performance.now();
      const look = () => text() === before
          ? requestAnimationFrame(look)
          : requestAnimationFrame(() => done(performance.now() - start));
      look();
    };
    for (const kind of ['keydown', 'click'])
      document.addEventListener(kind, begin, {capture: true, once: true});
  });
}
"""


def timed(app: Driver, label: str, act: object) -> float:
    """Milliseconds from `act` to the painted change of the tile `label`."""
    app.page.evaluate(_WATCH, label)
    act()  # type: ignore[operator]
    return float(app.page.evaluate("window.attuneTime"))


def report(what: str, times_ms: list[float]) -> None:
    ordered = sorted(times_ms)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    median = statistics.median(ordered)
    print(
        f"{what:<46}{median:7.0f} ms median{p95:7.0f} ms p95   n={len(ordered)}"
        f"   goal {GOAL_MS}: {'met' if median <= GOAL_MS else 'missed'}"
    )


def steps(app: Driver, samples: int) -> None:
    """One more in the batch: occupancy and prediction follow."""
    plus = app.key("B").get_by_role("button", name="Increment")
    report(
        "step of B to updated occupancy",
        [timed(app, "Waves", lambda: plus.evaluate("b => b.click()")) for _ in range(samples)],
    )


def slides(app: Driver, samples: int) -> None:
    """The slider of a tunable, over values whose compiles are cached."""
    thumb = app.page.get_by_role("slider").first
    thumb.focus()
    keys = ["ArrowRight", "ArrowLeft"]

    def press(i: int) -> float:
        return timed(app, "Waves", lambda: thumb.press(keys[i % 2]))

    for i in range(2):
        press(i)  # compiles both values
    report("slider of num_splits to updated occupancy", [press(i) for i in range(samples)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=40)
    samples = parser.parse_args().samples
    chromium_path = find_chromium()
    if chromium_path is None:
        raise SystemExit("No Chromium found: install it or set ATTUNE_CHROMIUM to its path.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as api:
        start = time.perf_counter()
        server = start_server(Path(folder))
        try:
            chromium = api.chromium.launch(executable_path=chromium_path, args=CHROMIUM_ARGS)
            page = chromium.new_page(viewport={"width": 1400, "height": 1000})
            print(f"{'server ready':<46}{time.perf_counter() - start:7.2f} s")
            app = Driver(page, server.url).open("/?variant=v05&S=512")
            app.see_metric("Latency", "predicted")
            print(f"{'cold start to the first prediction':<46}{time.perf_counter() - start:7.2f} s")
            start = time.perf_counter()
            app.press("run")
            app.see_metric("Correctness", "Passed")
            print(f"{'first Run to its verdict':<46}{time.perf_counter() - start:7.2f} s")
            app.number("S", 256)
            app.see_metric("Correctness", "not run")
            start = time.perf_counter()
            app.press("run")
            app.see_metric("Correctness", "Passed")
            print(f"{'second Run to its verdict':<46}{time.perf_counter() - start:7.2f} s")
            start = time.perf_counter()
            page.reload()
            app.see_metric("Latency", "predicted")
            print(f"{'reload to the prediction':<46}{time.perf_counter() - start:7.2f} s")
            for tab in ("Latency", "Occupancy"):
                app.tab(tab)
                app.see({"Latency": "Side by side", "Occupancy": "What limits"}[tab])
                print(f"\n{tab} tab open")
                steps(app, samples)
                slides(app, samples)
            chromium.close()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
