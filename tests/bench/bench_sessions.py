"""Times of the sessions store: `python tests/bench/bench_sessions.py`.

Prints how long 500 snapshots of 20 evaluations × 60 samples take to save, to list and to find all
their times in, with and without the index, each in a process of its own; the same lists of 10,000
smaller ones; how long a snapshot of 1,000 evaluations × 200 samples takes to save and to open; and
how long two sessions of 2,000 evaluations × 30 samples take to compare.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from sessions_data import evaluation_maker  # noqa: E402

from engine.attention.problem import Problem  # noqa: E402
from engine.devices.environment import collect_environment  # noqa: E402
from engine.sessions.compare import compare_sessions  # noqa: E402
from engine.sessions.known_times import KnownTimes  # noqa: E402
from engine.sessions.session import make_snapshot  # noqa: E402
from engine.sessions.snapshot import Snapshot, dumps, loads  # noqa: E402
from engine.sessions.store import Store, search  # noqa: E402

NUM_SAVED = 500
NUM_SNAPSHOTS = 10_000


def timed(what: str, goal_s: float | None, action: Callable[[], Any]) -> Any:
    start, cpu = time.perf_counter(), time.process_time()
    result = action()
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    goal = f"   (goal ≤ {goal_s:g} s)" if goal_s else ""
    print(f"{what:<58} {wall:7.3f} s wall, {used:7.3f} s CPU{goal}", flush=True)
    return result


def made(kind: int, samples: int) -> Snapshot:
    """Return one of many different snapshots of 20 evaluations."""
    problem = Problem(1 + kind % 8, 1 + kind // 8, 128, 64)
    evaluations = [evaluation_maker(problem=problem, samples=samples, seed=i) for i in range(20)]
    when = f"2026-11-21T{kind // 3600:02}:{kind // 60 % 60:02}:{kind % 60:02}+00:00"
    title = f"Session {kind}"
    return make_snapshot(evaluations, title=title, environment=ENVIRONMENT, updated=when)


def fill(folder: Path) -> None:
    """Write 10,000 files of 100 different snapshots, each of 20 evaluations × 30 samples."""
    folder.mkdir()
    for kind in range(100):
        data = dumps(made(kind, 30))
        for copy in range(NUM_SNAPSHOTS // 100):
            name = f"20261121T0{copy // 60}{copy % 60:02}{kind % 60:02}Z_l4_v05_{kind}.json.gz"
            (folder / name).write_bytes(data)


def store_at(root: Path) -> Store:
    return Store(str(root / "store"), shipped=None, index_folder=root / "index")


def listed(root: Path, what: str, goal_s: float | None) -> None:
    infos = timed(what, goal_s, store_at(root).list)
    assert len(infos) in (NUM_SAVED, NUM_SNAPSHOTS), len(infos)
    assert all(info.summary for info in infos)


def times(root: Path, what: str, goal_s: float | None) -> None:
    known = KnownTimes(store_at(root), root / "working", most_of_a_launch=1_000_000)
    found = timed(what, goal_s, lambda: known.on("L4"))
    assert len(found) == NUM_SAVED * 20 * 3, len(found)


def new_process(action: Callable[..., None], *args: Any) -> None:
    """Run it in a new process, which has nothing in memory."""
    with get_context("spawn").Pool(1) as pool:
        pool.apply(action, args)


def saved(root: Path) -> None:
    """Print the times of 500 sessions."""
    snapshots = [made(kind, 60) for kind in range(NUM_SAVED)]
    store, index = store_at(root), root / "index"
    timed(f"save {NUM_SAVED} sessions", None, lambda: [store.save(s) for s in snapshots])
    new_process(listed, root, "list them, right after saving", 0.15)
    new_process(times, root, "find their times, right after saving", None)
    shutil.rmtree(index)
    new_process(listed, root, "list them without an index", None)
    new_process(listed, root, "list them with it", 0.15)
    shutil.rmtree(index)
    new_process(times, root, "find their times without an index", None)
    new_process(times, root, "find their times with it", None)


def session_of_2000(seed: int) -> Snapshot:
    """Return ten configs on each of 200 problems."""
    evaluations = [
        evaluation_maker(
            problem=Problem(1 + i % 20, 1 + i // 20, 128, 64),
            config={"block_n": 16 * (1 + config)},
            samples=30,
            seed=seed + 10 * i + config,
        )
        for i in range(200)
        for config in range(10)
    ]
    return make_snapshot(evaluations, environment=ENVIRONMENT)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        saved(Path(temporary))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        fill(root / "store")
        new_process(listed, root, f"list {NUM_SNAPSHOTS:,} snapshots without an index", None)
        new_process(listed, root, f"list {NUM_SNAPSHOTS:,} snapshots with it", 1)
        infos = store_at(root).list()
        timed(
            "search them by problem and text",
            None,
            lambda: search(infos, problem="B3 H2", text="session"),
        )

        evaluations = [evaluation_maker(samples=200, seed=i) for i in range(1_000)]
        data = timed(
            "save: 1,000 evaluations × 200 samples to JSON and gzip",
            None,
            lambda: dumps(make_snapshot(evaluations, environment=ENVIRONMENT)),
        )
        print(f"{'its file':<58} {len(data) / 1e6:7.2f} MB")
        timed("open it: expand, parse, validate", 1, lambda: loads(data, name="big.json.gz"))

        sides = {name: session_of_2000(seed) for name, seed in (("before", 0), ("after", 2_000))}
        compare_sessions(sides)  # imports SciPy
        timed("compare 2,000 with 2,000 evaluations", 0.6, lambda: compare_sessions(sides))


ENVIRONMENT = collect_environment()

if __name__ == "__main__":
    main()
