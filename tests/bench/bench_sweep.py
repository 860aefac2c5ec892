"""Speed of sweeps: `python tests/bench/bench_sweep.py`.

Evaluations per minute on the CPU backend (new compiles, then from the cache), the error of the
estimated durations, the same on two local Dask workers, and the cost of a journal of 10,000
evaluations for a page that follows it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "cluster")]

from local_cluster import LocalCluster  # noqa: E402
from search_data import Landscape, bowl  # noqa: E402

from engine.attention.problem import Problem  # noqa: E402
from engine.pipeline.evaluate import Evaluator  # noqa: E402
from engine.search import results  # noqa: E402
from engine.search.cluster.executor import connect, sweep_on  # noqa: E402
from engine.search.ranking import by_problem  # noqa: E402
from engine.search.space import ProblemAxes, Space, SweepOptions, SweepPoint  # noqa: E402
from engine.search.sweep.estimate import Estimator  # noqa: E402
from engine.search.sweep.journal import (  # noqa: E402
    Progress,
    SweepJournal,
    SweepSpec,
)
from engine.search.sweep.run import run_sweep  # noqa: E402

CPU = SweepOptions(gpu="L4", backend="cpu")
NUM_ROWS = 10_000
ROUNDS = 5


def on_the_cpu(folder: Path) -> None:
    """Time the configs of three variants at one small problem, with an empty, then a full cache."""
    os.environ["ATTUNE_CACHE_DIR"] = str(folder / "cache")
    space = Space(("v01", "v02", "v05"), (Problem(1, 1, 128, 64),), {"block_n": (64,)})
    spec = SweepSpec(space, CPU)
    points = space.points(CPU)
    for what in ("compiles new", "compiles cached"):
        told: list[Progress] = []
        with Evaluator() as evaluator:

            def evaluate(request: Any, evaluator: Evaluator = evaluator) -> Any:
                return evaluator.evaluate(request)

            book = SweepJournal(folder / f"{what}.jsonl")
            run_sweep(spec, evaluate, book, told.append)
        took_s = told[-1].elapsed_s
        early = told[len(points) // 4]
        before_s = Estimator(points, on_gpu=False).left().expected_s
        after_s = early.elapsed_s + (early.eta_s or 0)
        print(
            f"CPU backend, {what:<16} {60 * len(points) / took_s:6.0f} evaluations/min "
            f"({len(points)} in {took_s:.1f} s; expected before the start {before_s:.1f} s, "
            f"after a quarter {after_s:.1f} s)"
        )


def on_two_workers(folder: Path) -> None:
    """Time one process against two local workers, alternating, with everything compiled."""
    space = Space(("v01", "v02", "v05"), (Problem(1, 1, 128, 64),), {"block_n": (64,)})
    spec = SweepSpec(space, CPU)
    points = space.points(CPU)
    per_minute: dict[str, list[float]] = {"in this process": [], "on two workers": []}
    with LocalCluster(folder) as local, Evaluator() as evaluator:
        local.add_worker()
        local.add_worker()
        wait_for_workers(local.address, 2)
        with connect(local.address, points[0].request) as cluster:

            def evaluate(request: Any) -> Any:
                return evaluator.evaluate(request)

            for turn in range(ROUNDS + 1):
                for what, rates in per_minute.items():
                    book = SweepJournal(folder / f"{what}{turn}.jsonl")
                    start = time.perf_counter()
                    if what == "in this process":
                        run_sweep(spec, evaluate, book)
                    else:
                        sweep_on(cluster, spec, book)
                    took_s = time.perf_counter() - start
                    assert len(book.rows) == len(points)
                    if turn > 0:  # the first turn warms up
                        rates.append(60 * len(points) / took_s)
    for what, rates in per_minute.items():
        print(f"CPU backend, {what:<16} {median(rates):6.0f} evaluations/min ({len(points)} each)")
    ratios = [two / one for one, two in zip(*per_minute.values(), strict=True)]
    print(
        f"two workers over one process, {ROUNDS} rounds: median {median(ratios):.2f}×, "
        f"{min(ratios):.2f}× to {max(ratios):.2f}×; load {os.getloadavg()[0]:.1f}"
    )


def wait_for_workers(address: str, count: int) -> None:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=60)


def timed(what: str, goal_s: float | None, action: Callable[[], Any]) -> Any:
    start, cpu = time.perf_counter(), time.process_time()
    result = action()
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    goal = f"   (goal ≤ {goal_s:g} s)" if goal_s else ""
    print(f"{what:<58} {wall:7.3f} s wall, {used:7.3f} s CPU{goal}")
    return result


def large_journal(folder: Path) -> None:
    axes = ProblemAxes(batch=tuple(range(1, 15)), num_heads=tuple(range(1, 21)))
    space = Space(("v05",), axes.problems())
    spec = SweepSpec(space, CPU)
    path = folder / "large.jsonl"
    print(f"A journal of {space.count():,} made-up evaluations:")
    timed("points with constraints and ids", None, lambda: space.points(CPU))
    timed(
        "run and write",
        None,
        lambda: run_sweep(spec, Landscape(bowl), SweepJournal(path), lambda _: None),
    )
    follower = SweepJournal(path)
    timed("open", None, follower.poll)
    rows = list(follower.rows.values())
    print(f"{path.stat().st_size / 1e6:.0f} MB, {len(rows):,} rows")
    writer = SweepJournal.open(path)
    point = point_of(rows[0])
    writer.add(point, replace(rows[0], point=point.id))
    timed("follow: one more row", 0.3, follower.poll)
    results.sweep_frame(rows[:10])  # the first call imports pandas
    frame = timed("all rows as a table", 0.3, lambda: results.sweep_frame(rows))
    timed(
        "winner map",
        0.3,
        lambda: [results.winner_line(*key, group) for key, group in by_problem(rows).items()],
    )
    timed("importance", 0.3, lambda: results.tunable_importance(frame))
    timed("latency against occupancy", 0.3, lambda: results.occupancy_frame(frame))
    timed("parallel coordinates", 0.3, lambda: results.parallel_coordinates(frame))


def point_of(row: Any) -> Any:

    problem = replace(row.problem, seqlen=77)
    return SweepPoint.of(CPU.request(row.variant, problem, row.config), None)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        on_the_cpu(Path(folder))
        on_two_workers(Path(folder))
        large_journal(Path(folder))


if __name__ == "__main__":
    main()
