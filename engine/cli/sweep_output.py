"""What `sweep` prints: the plan, progress, places and failures."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any, Self, TextIO

from engine.base.units import format_duration, format_us
from engine.cli.output import print_table, unfiltered
from engine.search.autotune import ProblemResult
from engine.search.ranking import SweepRow
from engine.search.results import SHOWN_PLACES, result_tables
from engine.search.space import SweepPoint
from engine.search.sweep.journal import Progress, best_key
from kernels.characters import visible


def plan_dict(points: Sequence[SweepPoint], estimate_s: float) -> dict[str, Any]:
    """What is about to be done, and the reasons why constraints exclude the rest."""
    reasons = Counter(p.why_not for p in points if p.why_not is not None)
    return {
        "points": len(points),
        "runnable": len(points) - reasons.total(),
        "excluded": reasons.total(),
        "excluded_because": dict(reasons.most_common(5)),
        "estimate_s": round(estimate_s, 1),
    }


def print_plan(points: Sequence[SweepPoint], estimate_s: float, to: TextIO) -> None:
    plan = plan_dict(points, estimate_s)
    word = "point" if len(points) == 1 else "points"
    print(
        f"{plan['points']:,} {word}, {plan['runnable']:,} to evaluate and {plan['excluded']:,} "
        f"excluded by constraints; about {format_duration(estimate_s)} (a guess until the first "
        "are done).",
        file=to,
    )
    for reason, count in plan["excluded_because"].items():
        print(f"  {count:,} × {reason}", file=to)


class Reporter:
    """Shows progress and keeps the latest: a bar on a terminal, else a line a second at most.

    Use as a context manager: the bar ends with it, and what is printed then stands below.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._next = 0.0
        self._bar: Callable[[Progress, str], None] | None = None
        self._shown = ExitStack()
        self.last: Progress | None = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._bar = self._shown.enter_context(_bar())
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def __call__(self, progress: Progress) -> None:
        self.last = progress
        done = progress.done >= progress.total
        if self._quiet or (time.monotonic() < self._next and not done):
            return
        if self._bar is not None:
            self._bar(progress, _told(progress))
            return
        self._next = time.monotonic() + 1.0
        print(_told(progress), file=sys.stderr)


@contextmanager
def _bar() -> Iterator[Callable[[Progress, str], None]]:
    """A bar at the foot of the terminal, and what renews it."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    told = TextColumn("{task.fields[told]}", markup=False, table_column=Column(no_wrap=True))
    console = Console(file=unfiltered(sys.stderr))
    with Bar(BarColumn(24), told, console=console, refresh_per_second=4) as bar:
        task = bar.add_task("", total=None, told="")

        def renew(progress: Progress, sentence: str) -> None:
            bar.update(task, total=progress.total, completed=progress.done, told=visible(sentence))

        yield renew


def _told(progress: Progress) -> str:
    """`12/50 · 80/min · 30 s left · best v05 …`."""
    parts = [f"{progress.done:,}/{progress.total:,}"]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.per_minute is not None:
        parts.append(f"{progress.per_minute:,.0f}/min")
    if progress.eta_s:
        parts.append(f"{format_duration(progress.eta_s)} left")
    if progress.workers != 1:
        parts.append(f"{progress.workers:,} workers")
    best = _best(progress)
    if best is not None and best.median_us is not None:
        parts.append(
            f"best {best.label()}: {format_us(best.median_us)} {best.origin} "
            f"({best.problem.label()})"
        )
    return " · ".join(parts)


def _best(progress: Progress) -> SweepRow | None:
    """The best so far at what was evaluated last, on the same GPU where there is one."""
    last = progress.last
    if last is None:
        return None
    others = (row for row in progress.best.values() if row.problem == last.problem)
    return progress.best.get(best_key(last)) or next(others, None)


def print_results(
    rows: Sequence[SweepRow],
    results: Sequence[ProblemResult],
    state: str,
    counts: Mapping[str, int],
) -> None:
    """A table of the best for every problem, and one of what has no time and why."""
    for table in result_tables(rows, results):
        print_table(table)
    if not results:
        print("No point has a latency: name a target GPU with --gpu to have one predicted.")
    how = {"finished": "Finished", "budget": "The budget is spent", "cancelled": "Cancelled"}
    print(
        f"{how[state]}: {counts['passed']:,} passed, {counts['failed']:,} failed, "
        f"{counts['skipped']:,} skipped, {counts['resumed']:,} from an earlier run."
    )


def result_dict(result: ProblemResult, rows: Mapping[str, SweepRow]) -> dict[str, Any]:
    """The best places of one problem, for `--json`."""
    return {
        "device": result.device,
        "problem": asdict(result.problem),
        "origin": result.origin,
        "reason": result.reason,
        "places": [
            {
                "place": p.place,
                "tied": p.tied,
                "variant": rows[p.point].variant,
                "config": dict(rows[p.point].config),
                "point": p.point,
                "median_us": p.interval.median,
                "low_us": p.interval.low,
                "high_us": p.interval.high,
                "ratio": p.ratio,
            }
            for p in result.places[:SHOWN_PLACES]
        ],
    }
