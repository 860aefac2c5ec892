"""Response times of a live measurement: `python tests/bench/bench_live.py`.

Cancelling is timed in the browser, from the click on the switch to the first painted frame of the
same tab that says "stopped". The cost of one poll is given for the server, with a long stream and
thirty new samples, and for the browser as the time of a chart update.
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

from app_server import CHROMIUM_ARGS, WAIT_MS, Driver, find_chromium, start_server  # noqa: E402
from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402

from app.shared.palette import LIGHT  # noqa: E402
from app.tune import latency_stream_chart  # noqa: E402
from engine.jobs.latency_series import (  # noqa: E402
    LatencySample,
    LatencySeries,
    StreamPart,
)

CHART = ".attune-chart[data-key=latency_stream_chart]"
GOAL_CANCEL_MS = 500
GOAL_LOOK_MS = 100

# Times from the next click to the paint after the page says that it was stopped.
_CANCEL = """
() => {
  const stopped = () => document.body.innerText.includes('Stopped after measuring');
  window.attuneTime = new Promise(done => {
    document.addEventListener('click', () => {
      const start = performance.now();
      const look = () => stopped()
          ? requestAnimationFrame(() => done(performance.now() - start))
          : requestAnimationFrame(look);
      look();
    }, {capture: true, once: true});
  });
}
"""
# Times every update of the chart from now on.
_UPDATES = """
() => {
  const react = window.Plotly.react;
  window.attuneUpdates = [];
  window.Plotly.react = (...all) => {
    const start = performance.now();
    const result = react(...all);
    Promise.resolve(result).then(() => window.attuneUpdates.push(performance.now() - start));
    return result;
  };
}
"""


def report(what: str, times_ms: list[float], goal_ms: float) -> None:
    ordered = sorted(times_ms)
    median, p95 = statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))]
    print(
        f"{what:<46}{median:7.1f} ms median{p95:7.1f} ms p95   n={len(ordered)}"
        f"   goal {goal_ms:g}: {'met' if median <= goal_ms else 'missed'}"
    )


def gpu_samples(first: int, count: int) -> tuple[LatencySample, ...]:
    """Return samples as of a GPU, with occasional power capping."""
    return tuple(
        LatencySample(
            1e9 + 0.016 * i,
            12.0 + (i * 7919 % 101) / 200,
            1980 - i % 3,
            500.0 + i % 50,
            60,
            ("power cap",) if i // 500 % 4 == 3 else (),
        )
        for i in range(first, first + count)
    )


def looks(size: int, samples: int) -> None:
    """Time one poll in the server: read new samples, summarise, make and encode the figure."""
    series, parts = LatencySeries(), []
    series.extend(StreamPart("device_warm", "H200", gpu_samples(0, size), 1))
    series.view()
    times = {"sum up": [], "sum up and draw": []}
    for i in range(samples):
        start = time.perf_counter()
        series.extend(StreamPart(None, "", gpu_samples(size + 30 * i, 30), 2 + i))
        view = series.view()
        times["sum up"].append(1000 * (time.perf_counter() - start))
        parts.append(latency_stream_chart.latency_stream(view, "job", LIGHT).to_json())
        times["sum up and draw"].append(1000 * (time.perf_counter() - start))
    for what, taken in times.items():
        report(f"a look at {size:,} samples: {what}", taken, GOAL_LOOK_MS)
    print(f"{'  sent to the browser':<46}{len(parts[-1]) / 1024:7.0f} KiB")


def cancels(app: Driver, page: Page, samples: int) -> list[float]:
    """Time cancelling: switch on, wait for the chart, switch off."""
    switch = page.get_by_role("switch", name="Measure continuously")
    times = []
    for _ in range(samples):
        switch.evaluate("box => box.click()")
        expect(page.get_by_text(", repeatedly").first).to_be_visible(timeout=WAIT_MS)
        expect(page.locator(f"{CHART} .main-svg").first).to_be_visible(timeout=WAIT_MS)
        expect(app.metric("Samples")).to_be_visible(timeout=WAIT_MS)
        page.evaluate(_CANCEL)
        switch.evaluate("box => box.click()")
        times.append(float(page.evaluate("window.attuneTime")))
        page.wait_for_timeout(500)  # a user does not switch on again within a frame
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=15)
    samples = parser.parse_args().samples
    for size in (10_000, 200_000):
        looks(size, samples)
    chromium_path = find_chromium()
    if chromium_path is None:
        raise SystemExit("No Chromium found: install it or set ATTUNE_CHROMIUM to its path.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as api:
        server = start_server(Path(folder))
        try:
            chromium = api.chromium.launch(executable_path=chromium_path, args=CHROMIUM_ARGS)
            page = chromium.new_page(viewport={"width": 1400, "height": 1000})
            app = Driver(page, server.url).open("/?S=64&tab=Live+latency")
            app.see("Not measured live yet")
            report("cancelling felt", cancels(app, page, samples), GOAL_CANCEL_MS)
            page.get_by_role("switch", name="Measure continuously").evaluate("box => box.click()")
            app.see(", repeatedly")
            page.evaluate(_UPDATES)
            page.wait_for_function(
                f"window.attuneUpdates.length >= {samples}", timeout=WAIT_MS + 1000 * samples
            )
            report("an update in the browser", page.evaluate("window.attuneUpdates"), GOAL_LOOK_MS)
            chromium.close()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
