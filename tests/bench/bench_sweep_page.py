"""Time in which the Sweep page follows a journal of 10,000 evaluations, in a browser.

`python tests/bench/bench_sweep_page.py [--samples 20] [--tabs Winners,Table]`

A made-up running sweep is opened in Chromium. For each tab, first rows are appended to its journal,
timed from a tick (the browser's request to the server) until its last answer is drawn, including
late charts, and the browser is idle. After the end of the sweep a filter is changed, timed from the
click.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from engine.base.schema import encode

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from app_server import CHROMIUM_ARGS, Driver, find_chromium, start_server  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402

from app.sweep.results import TABS  # noqa: E402
from engine.attention.evaluation import Evaluation, Latency  # noqa: E402
from engine.attention.problem import Problem  # noqa: E402
from engine.base import files  # noqa: E402
from engine.jobs.layout import RunDir  # noqa: E402
from engine.jobs.supervisor import code_stamp  # noqa: E402
from engine.pipeline.evaluate import evaluate  # noqa: E402
from engine.pipeline.request import EvaluationRequest  # noqa: E402
from engine.search.ranking import SweepRow  # noqa: E402
from engine.search.space import Space, SweepOptions, SweepPoint  # noqa: E402
from engine.search.sweep.journal import SweepJournal, SweepSpec  # noqa: E402

EVALUATIONS = 10_000
GOAL_MS = 300.0
JOB = "00000000000000000001-1-1"
VARIANTS = ("v01", "v02", "v03", "v05")  # 50 configs
PROBLEMS = tuple(
    Problem(batch, heads, seqlen, 64, causal)
    for causal in (False, True)
    for batch in (1, 2, 4, 8, 16)
    for heads in (1, 4, 8, 32)
    for seqlen in (64, 128, 256, 512, 1024, 2048)
)

# Records when the browser sends a request, when answers arrive, and when they are drawn: idle after
# two more frames, because charts are drawn after the page is painted.
_WATCH = """
() => {
  window.attune = {asked: [], answered: [], drawn: [], pressed: 0};
  const frame = () => new Promise(requestAnimationFrame);
  const idle = () => new Promise(done => requestIdleCallback(done));
  const answered = async () => {
    const place = window.attune.answered.push(performance.now()) - 1;
    await idle();
    for (let i = 0; i < 2; i++) {
      await frame();
      await idle();
    }
    window.attune.drawn[place] = performance.now();
  };
  window.WebSocket = class extends WebSocket {
    constructor(...options) {
      super(...options);
      this.addEventListener('message', answered);
    }
    send(data) {
      window.attune.asked.push(performance.now());
      super.send(data);
    }
  };
  document.addEventListener('click', () => { window.attune.pressed = performance.now(); }, true);
}
"""
QUIET_MS = 350.0  # an update is complete after this time without an answer
TICKS_MS = 5000  # within which results of a running sweep are updated too


def rows(spec: SweepSpec) -> list[tuple[SweepPoint, SweepRow]]:
    """Yield rows like real evaluations, with made-up times."""
    request = EvaluationRequest("v05", Problem(1, 1, 64, 64), gpu="L4", execute=False)
    base = evaluate(request).evaluation
    found = []
    for i, point in enumerate(spec.space.points(spec.options)):
        asked = point.request
        us = asked.problem.flops / 1e8 * (1 + 0.4 * math.sin(i)) + 10
        evaluation: Evaluation = replace(
            base,
            variant=asked.variant,
            problem=asked.problem,
            config=dict(asked.config),
            latency=Latency("predicted", us, us * 0.9, us * 1.1, "made up"),
        )
        row = SweepRow.make(point, evaluation, 0.5)
        occupancy = row.result["passes"][0]["occupancy"]
        occupancy["active_warps_per_sm"] = round(48 * (0.1 + 0.9 * abs(math.cos(i))))
        found.append((point, row))
    return found


class MadeUpSweep:
    """A running sweep on disk, whose worker is an idle process."""

    def __init__(self, cache: Path) -> None:
        self.run = RunDir(cache / "jobs" / "server0")
        self.run.create()
        self.spec = SweepSpec(Space(VARIANTS, PROBLEMS), SweepOptions(gpu="L4", execute=False))
        self.worker = subprocess.Popen(
            ["sleep", "3600"],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # else readers of this program's stderr wait for it too
        )
        self.run.write_worker(self.worker.pid, code_stamp())
        self.event("queued", kind="sweep", journal=JOB, request=encode(self.spec))
        self.event("started", pid=self.worker.pid)
        self.book = SweepJournal(self.run.sweep_journal(JOB))
        self.book.begin(self.spec)
        self._left = rows(self.spec)
        self.done = 0
        for _ in range(EVALUATIONS):
            self._add()
        self.progress()

    def event(self, what: str, **data: object) -> None:
        event = {"job": JOB, "event": what, "t": time.time(), **data}
        files.append_event(self.run.journal, event)

    def _add(self) -> None:
        self.book.add(*self._left[self.done])
        self.done += 1

    def progress(self) -> None:
        counts = dict.fromkeys(("skipped", "failed", "resumed"), 0)
        self.event(
            "progress",
            progress={
                **counts,
                "done": self.done,
                "passed": self.done,
                "total": len(self._left),
                "elapsed_s": 60.0,
                "per_minute": 60.0,
                "eta_s": 60.0,
            },
        )

    def add(self) -> None:
        """Add one evaluation, as a worker writes it."""
        self._add()
        self.progress()


def settled(page: Page, since_ms: float) -> None:
    """Wait for an answer after `since_ms`, and until it is drawn and no more have come."""
    page.wait_for_function(
        """([since, quiet]) => {
          const {answered, drawn} = window.attune;
          return answered.at(-1) > since && performance.now() - answered.at(-1) > quiet
              && drawn[answered.length - 1];
        }""",
        arg=[since_ms, QUIET_MS],
        timeout=60_000,
    )


def update_ms(page: Page, asked_ms: float) -> float:
    """Return ms from a request until the last answer before the next pause or request is drawn."""
    attune = page.evaluate("() => window.attune")
    # Both parts of the page may send requests at about the same time, which are one update.
    bound = min((t for t in attune["asked"] if t > asked_ms + 100), default=math.inf)
    last, drawn = asked_ms, asked_ms
    for answer, at in zip(attune["answered"], attune["drawn"], strict=False):
        if not asked_ms < answer < bound or (last > asked_ms and answer - last > QUIET_MS):
            continue
        last, drawn = answer, at
    return float(drawn - asked_ms)


def now_ms(page: Page) -> float:
    return float(page.evaluate("performance.now()"))


def row_appended(page: Page, sweep: MadeUpSweep, shows: str) -> list[float]:
    """Each tick of the page from the one that shows the new row on, until all of it does."""
    since = now_ms(page)
    sweep.add()
    page.wait_for_function(
        "text => document.querySelector('[data-testid=stMain]').innerText.includes(text)",
        arg=shows.format(sweep.done),
        polling=100,  # polling at every frame would delay the timers of the page
        timeout=60_000,
    )
    page.wait_for_timeout(TICKS_MS)
    asked = page.evaluate("since => window.attune.asked.filter(t => t > since)", since)
    return [update_ms(page, t) for t in asked if t < now_ms(page) - 1000]


def filter_changed(app: Driver, name: str) -> float:
    """Return ms from the click on an option to the last paint."""
    page = app.page
    app.key("sweep_only").locator("input").click()
    option = page.get_by_role("option").filter(has_text=name).first
    option.wait_for()
    option.evaluate("option => option.click()")
    pressed = float(page.evaluate("window.attune.pressed"))
    settled(page, pressed)
    asked = page.evaluate("since => window.attune.asked.find(t => t >= since)", pressed)
    took = asked - pressed + update_ms(page, asked)
    page.keyboard.press("Escape")
    since = now_ms(page)
    app.key("sweep_only").get_by_role("button", name=f"Remove {name}").evaluate("b => b.click()")
    settled(page, since)
    return float(took)


def opened(app: Driver, sweep: MadeUpSweep, tab: str) -> None:
    app.open(f"/sweep?gpu=L4&sweep_tab={tab.replace(' ', '+')}")
    app.see(f"{sweep.done:,} of")
    settled(app.page, 0.0)


def report(what: str, times_ms: list[float]) -> None:
    ordered = sorted(times_ms)
    median = statistics.median(ordered)
    p90 = ordered[min(len(ordered) - 1, math.ceil(0.9 * len(ordered)) - 1)]
    load = os.getloadavg()[0]
    print(
        f"{what:<44}{median:7.0f} ms median{p90:7.0f} ms p90   n={len(ordered)}   load {load:.1f}"
        f"   goal {GOAL_MS:.0f}: {'met' if p90 <= GOAL_MS else 'missed'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--tabs", default=",".join(TABS))
    args = parser.parse_args()
    chromium_path = find_chromium()
    if chromium_path is None:
        raise SystemExit("No Chromium found: install it or set ATTUNE_CHROMIUM to its path.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as api:
        cache = Path(folder) / "cache"
        os.environ["ATTUNE_CACHE_DIR"] = str(cache)
        sweep = MadeUpSweep(cache)
        size = sweep.run.sweep_journal(JOB).stat().st_size >> 20
        print(f"{EVALUATIONS:,} evaluations in the journal, {size} MiB", flush=True)
        server = start_server(Path(folder), cache=cache)
        try:
            chromium = api.chromium.launch(executable_path=chromium_path, args=CHROMIUM_ARGS)
            page = chromium.new_page(viewport={"width": 1400, "height": 1000})
            page.add_init_script(f"({_WATCH})()")
            app = Driver(page, server.url)
            tabs = args.tabs.split(",")
            for tab in tabs:
                start = time.perf_counter()
                opened(app, sweep, tab)
                print(f"{tab + ', opened':<44}{time.perf_counter() - start:7.2f} s")
                times = [row_appended(page, sweep, "{:,} of") for _ in range(args.samples)]
                # Most ticks update only the progress; the slowest of each row drew the results.
                report(f"{tab}, a row appended, results", [max(each) for each in times])
                report(f"{tab}, a row appended, any tick", [t for each in times for t in each])
            sweep.event("finished", end="finished", final=[])
            for tab in tabs:
                opened(app, sweep, tab)
                changed = [filter_changed(app, VARIANTS[i % 4]) for i in range(args.samples)]
                report(f"{tab}, a filter changed", changed)
            chromium.close()
        finally:
            server.stop()
            sweep.worker.kill()
            sweep.worker.wait()


if __name__ == "__main__":
    main()
