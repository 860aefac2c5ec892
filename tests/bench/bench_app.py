"""Response times of the Tune and Kernels pages in a browser: `python tests/bench/bench_app.py`.

Cold start has an empty cache: from starting the server to the first prediction in an open browser,
and from Run to the first verdict (which compiles the CPU runtime and loads PyTorch). The slider and
the step buttons are timed in the browser, from the key press or click to the first painted frame in
which the tile shows the new figure: once with a pause between steps, and once without, while the
page still draws the step before. They start after the builds of a new machine's libraries. The
Kernels page comes next, with only the rung of the Tune page compiled: once with shipped figures,
and once with a mask, for which there are none. Last, a new server with an empty cache opens the
Kernels page first.
Each time is printed with the processor time of the server, its worker, their children (compilers,
kernels) and the browser, which depends less on other load. A compiler cache such as ccache would
hide the first builds: set CCACHE_DISABLE=1.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from app_server import CHROMIUM_ARGS, Driver, Server, find_chromium, start_server  # noqa: E402
from playwright.sync_api import expect, sync_playwright  # noqa: E402

GOAL_MS = 120
GOAL_FIRST_RUN_S = 4.0
GOAL_KERNELS_S = 5.0
KERNELS = "/kernels?gpu=L4&variant=auto&B=1&H=8&S=1024"

_LOST_MS = 10_000  # a step without a change after this time is lost

# Times from the next key press or click to the paint after the tile's text has changed.
_WATCH = """
label => {
  const text = () => [...document.querySelectorAll('[data-testid=stMetric]')]
      .map(t => t.textContent).find(t => t.includes(label));
  const before = text();
  window.attuneTime = new Promise(done => {
    const begin = () => {
      const start = performance.now();
      const look = () => text() !== before
          ? requestAnimationFrame(() => done(performance.now() - start))
          : performance.now() - start > LOST_MS ? done(Infinity) : requestAnimationFrame(look);
      look();
    };
    for (const kind of ['keydown', 'click'])
      document.addEventListener(kind, begin, {capture: true, once: true});
  });
}
""".replace("LOST_MS", str(_LOST_MS))


@dataclass(frozen=True)
class Used:
    """Processor seconds of all processes that take part."""

    server: float
    worker: float
    children: float  # compilers and processes that execute kernels
    browser: float

    @classmethod
    def now(cls, server: Server) -> Used:
        process = psutil.Process(server.process.pid)
        worker = next((p for p in process.children() if _is(p, "engine.jobs.worker")), None)
        own = [_own(p) for p in (process, worker) if p is not None]
        below = sum(_with_ended(p) for p in process.children(recursive=True) if p != worker)
        for p in (process, worker):
            below += _with_ended(p) - _own(p) if p is not None else 0.0
        return cls(own[0], sum(own[1:]), below, sum(map(_own, _renderers())))

    def line(self, since: Used, per: int = 1) -> str:
        """Return the processor time since then, in seconds, or in ms for each of `per` steps."""
        unit, factor = ("s", 1.0) if per == 1 else ("ms", 1000 / per)
        digits = 2 if per == 1 else 0
        parts = {
            name: (getattr(self, name) - getattr(since, name)) * factor
            for name in ("server", "worker", "children", "browser")
        }
        return ", ".join(f"{name} {value:.{digits}f}" for name, value in parts.items()) + f" {unit}"


def _renderers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if _is(p, "--type=renderer")]


def _is(process: psutil.Process, argument: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return argument in process.cmdline()
    return False


def _own(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _with_ended(process: psutil.Process) -> float:
    """Return the processor time of a process and of its children that have ended."""
    with contextlib.suppress(psutil.Error):
        return float(sum(process.cpu_times()[:4]))
    return 0.0


class Stopwatch:
    """Prints the time and the processor time of successive actions."""

    def __init__(self, server: Server | None = None) -> None:
        self.start = time.perf_counter()
        self.used = Used(0, 0, 0, 0) if server is None else Used.now(server)

    def report(self, what: str, server: Server, goal_s: float | None = None) -> None:
        seconds = time.perf_counter() - self.start
        goal = f"   goal {goal_s}: {_met(seconds <= goal_s)}" if goal_s is not None else ""
        print(f"{what:<46}{seconds:7.2f} s   ({Used.now(server).line(self.used)}){goal}")


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def timed(app: Driver, label: str, act: object, rest_s: float) -> float:
    """Return ms from `act`, after a pause, to the painted change of the tile `label`."""
    time.sleep(rest_s)
    app.page.evaluate(_WATCH, label)
    act()  # type: ignore[operator]
    return float(app.page.evaluate("window.attuneTime"))


def rest(server: Server) -> None:
    """Wait until the libraries that are built once per machine are built."""
    used = Used.now(server)
    while True:
        time.sleep(2)
        before, used = used, Used.now(server)
        if used.children - before.children < 0.1:
            return


def report(what: str, times_ms: list[float], used: str) -> None:
    ordered = sorted(times_ms)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    median = statistics.median(ordered)
    print(
        f"{what:<46}{median:7.0f} ms median{p95:7.0f} ms p95{ordered[0]:7.0f} ms best   "
        f"n={len(ordered)}   ({used})   goal {GOAL_MS}: {_met(median <= GOAL_MS)}"
    )


def steps(app: Driver, server: Server, samples: int, rest_s: float) -> None:
    """Time steps of the batch by one, which change occupancy and prediction."""
    plus = app.key("B").get_by_role("button", name="Increment")

    def click() -> None:
        plus.evaluate("b => b.click()")

    before = Used.now(server)
    times_ms = [timed(app, "Waves", click, rest_s) for _ in range(samples)]
    report("step of B to updated occupancy", times_ms, Used.now(server).line(before, samples))


def slides(app: Driver, server: Server, samples: int, rest_s: float) -> None:
    """Time steps of a tunable's slider between values that are compiled."""
    thumb = app.page.get_by_role("slider").first
    thumb.focus()
    keys = ["ArrowRight", "ArrowLeft"]

    def press(i: int) -> float:
        return timed(app, "Waves", lambda: thumb.press(keys[i % 2]), rest_s)

    for i in range(2):
        press(i)  # compiles both values
    before = Used.now(server)
    times_ms = [press(i) for i in range(samples)]
    used = Used.now(server).line(before, samples)
    report("slider of num_splits to updated occupancy", times_ms, used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=40)
    samples = parser.parse_args().samples
    chromium_path = find_chromium()
    if chromium_path is None:
        raise SystemExit("No Chromium found: install it or set ATTUNE_CHROMIUM to its path.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as api:
        chromium = api.chromium.launch(executable_path=chromium_path, args=CHROMIUM_ARGS)
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        cold = Stopwatch()
        cold.used = Used(0, 0, 0, sum(map(_own, _renderers())))
        server = start_server(Path(folder), cache=make_empty(Path(folder) / "cache"))
        try:
            cold.report("server ready", server)
            app = Driver(page, server.url).open("/?variant=v05&S=512")
            app.see_metric("Latency", "predicted")
            cold.report("cold start to the first prediction", server)
            first = Stopwatch(server)
            app.press("run")
            app.see_metric("Correctness", "Passed")
            first.report("first Run to its verdict", server, GOAL_FIRST_RUN_S)
            app.number("S", 256)
            app.see_metric("Correctness", "not run")
            second = Stopwatch(server)
            app.press("run")
            app.see_metric("Correctness", "Passed")
            second.report("second Run to its verdict", server)
            reload = Stopwatch(server)
            page.reload()
            app.see_metric("Latency", "predicted")
            reload.report("reload to the prediction", server)
            rest(server)
            for tab in ("Latency", "Occupancy"):
                app.tab(tab)
                app.see({"Latency": "Terms of the", "Occupancy": "Limiting resource"}[tab])
                for rest_s, how in ((0.4, "a step at a time"), (0.0, "each step at once")):
                    print(f"\n{tab} tab open, {how}")
                    steps(app, server, samples, rest_s)
                    slides(app, server, samples, rest_s)
            print()
            for what, more in (
                ("figures that ship", ""),
                ("again", ""),
                ("D = 128 with a mask", "&D=128&causal=1"),
                ("D = 96, every rung simulated", "&D=96"),
                ("that again", "&D=96"),
            ):
                kernels = Stopwatch(server)
                app.open(f"{KERNELS}{more}")
                if "simulated" in what:
                    expect(app.key("kernels_stop")).to_be_visible()
                see_all_kernels(app)
                kernels.report(f"Kernels, {what}", server, GOAL_KERNELS_S)
        finally:
            server.stop()
        first_page = Stopwatch()
        first_page.used = Used(0, 0, 0, sum(map(_own, _renderers())))
        second = Path(folder) / "second"
        second.mkdir()
        server = start_server(second, cache=make_empty(second / "cache"))
        try:
            first_page.report("server ready", server)
            see_all_kernels(Driver(page, server.url).open(KERNELS))
            first_page.report("cold start to all of the Kernels page", server)
        finally:
            server.stop()
        chromium.close()


def see_all_kernels(app: Driver) -> None:
    """Wait until the Kernels page has all figures: table, chart, and auto's time."""
    expect(app.page.get_by_text(re.compile("auto takes .*Simulated ")).first).to_be_visible(
        timeout=120_000
    )
    expect(app.key("kernels_stop")).to_have_count(0)
    expect(app.page.locator(".js-plotly-plot")).not_to_have_count(0)
    expect(app.page.get_by_text("Simulating auto's candidates")).to_have_count(0)


def make_empty(cache: Path) -> Path:
    cache.mkdir(mode=0o700)
    return cache


if __name__ == "__main__":
    main()
