"""Times of the sessions store: `python tests/bench/bench_sessions.py`.

Prints how long a store of 10,000 snapshots takes to list (cold: no index; warm: with it), how long
a snapshot of 1,000 evaluations × 200 samples takes to save and to open, and how long two sessions
of 2,000 evaluations × 30 samples take to compare.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from sessions_data import evaluation_maker  # noqa: E402

from engine.attention.problem import Problem  # noqa: E402
from engine.devices.environment import collect_environment  # noqa: E402
from engine.sessions.compare import compare_sessions  # noqa: E402
from engine.sessions.session import make_snapshot  # noqa: E402
from engine.sessions.snapshot import Snapshot, dumps, loads  # noqa: E402
from engine.sessions.store import Store, search  # noqa: E402

NUM_SNAPSHOTS = 10_000


def timed(what: str, goal_s: float | None, action: Callable[[], Any]) -> Any:
    start, cpu = time.perf_counter(), time.process_time()
    result = action()
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    goal = f"   (goal ≤ {goal_s:g} s)" if goal_s else ""
    print(f"{what:<58} {wall:7.3f} s wall, {used:7.3f} s CPU{goal}")
    return result


def fill(folder: Path) -> None:
    """Write 10,000 files of 100 different snapshots, each of 20 evaluations × 30 samples."""
    folder.mkdir()
    environment = collect_environment()
    for kind in range(100):
        problem = Problem(1 + kind % 8, 1 + kind // 8, 128, 64)
        evaluations = [evaluation_maker(problem=problem, samples=30, seed=i) for i in range(20)]
        data = dumps(make_snapshot(evaluations, title=f"Session {kind}", environment=environment))
        for copy in range(NUM_SNAPSHOTS // 100):
            name = f"20261121T0{copy // 60}{copy % 60:02}{kind % 60:02}Z_l4_v05_{kind}.json.gz"
            (folder / name).write_bytes(data)


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
    return make_snapshot(evaluations, environment=collect_environment())


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        fill(root / "store")
        store = Store(str(root / "store"), shipped=None, index_folder=root / "index")
        listed = timed(f"list {NUM_SNAPSHOTS:,} snapshots, cold (no index)", 5, store.list)
        assert len(listed) == NUM_SNAPSHOTS, len(listed)
        assert all(info.summary for info in listed)
        timed(f"list {NUM_SNAPSHOTS:,} snapshots, warm", 1, store.list)
        timed(
            "search them by problem and text",
            None,
            lambda: search(listed, problem="B3 H2", text="session"),
        )

        evaluations = [evaluation_maker(samples=200, seed=i) for i in range(1_000)]
        environment = collect_environment()
        data = timed(
            "save: 1,000 evaluations × 200 samples to JSON and gzip",
            None,
            lambda: dumps(make_snapshot(evaluations, environment=environment)),
        )
        print(f"{'its file':<58} {len(data) / 1e6:7.2f} MB")
        timed("open it: expand, parse, validate", 1, lambda: loads(data, name="big.json.gz"))

        sides = {name: session_of_2000(seed) for name, seed in (("before", 0), ("after", 2_000))}
        compare_sessions(sides)  # imports SciPy
        timed("compare 2,000 with 2,000 evaluations", 0.6, lambda: compare_sessions(sides))


if __name__ == "__main__":
    main()
