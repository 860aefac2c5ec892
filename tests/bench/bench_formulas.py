"""Formulas of a description against handwritten lambdas: `python tests/bench/bench_formulas.py`.

Both sides compute the same figures of v05, alternating in one process, 10,000 evaluations a turn:
once for single problems (as in a launch plan) and once for an array of batches (as in a curve).
Also printed: the time to load the ladder, to look up, and to notice that a file has changed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from engine.attention.problem import Problem  # noqa: E402
from kernels.description import parse_variant, read_text  # noqa: E402
from kernels.ladder import Ladder  # noqa: E402
from kernels.variant import KERNELS_DIR, ceil_div  # noqa: E402

TURNS = 15
EVALUATIONS = 10_000
BLOCK_M = 64
V05 = KERNELS_DIR / "v05_kv_split.cu"

Formulas = tuple[Callable[[Any, Any], Any], ...]


def _rows(p: Any, c: Any) -> tuple[int, ...]:
    return (c["num_splits"], p.batch, p.num_heads, p.seqlen)


BY_HAND: Formulas = (
    lambda p, _: p.batch <= 65535,
    lambda p, _: ceil_div(p.seqlen, BLOCK_M) <= 65535,
    lambda p, c: (p.num_heads * c["num_splits"], p.batch, ceil_div(p.seqlen, BLOCK_M)),
    lambda _, c: BLOCK_M * c["threads_per_row"],
    lambda p, c: (BLOCK_M + 2 * c["block_n"]) * p.head_dim * 2 + BLOCK_M * c["block_n"] * 4,
    lambda p, _: (ceil_div(p.seqlen, 4), p.num_heads, p.batch),
    lambda _p, _c: 128,
    lambda _p, _c: 0,
    lambda p, c: (*_rows(p, c), p.head_dim),
    _rows,
    lambda _p, _c: BLOCK_M,
    lambda p, c: ceil_div(ceil_div(p.num_keys, c["block_n"]), c["num_splits"]) * c["block_n"],
)


def compiled() -> Formulas:
    """Return the same formulas of the description, in the same order."""
    v05 = parse_variant(read_text(V05), V05)
    main, fuse = v05.passes
    limits = {c.reason(Problem(9, 7, 5 * 64, 64), CONFIG): c.holds for c in v05.constraints}
    return (
        *(holds for text, holds in limits.items() if " 9 CTAs along the grid's y" in text),
        *(holds for text, holds in limits.items() if " 5 CTAs along the grid's z" in text),
        *(main.grid, main.threads, main.dynamic_smem_bytes),
        *(fuse.grid, fuse.threads, fuse.dynamic_smem_bytes),
        *(s.shape for s in v05.scratch[:2]),
        *(v05.work.query_rows, v05.work.kv_rows),
    )


CONFIG = {"block_n": 64, "threads_per_row": 4, "num_splits": 8}


def seconds(formulas: Formulas, problem: Any, evaluations: int) -> float:
    """Return the seconds of `evaluations` evaluations of all formulas."""
    start = time.perf_counter()
    for _ in range(evaluations):
        for formula in formulas:
            formula(problem, CONFIG)
    return time.perf_counter() - start


def compare(what: str, problem: Any, evaluations: int) -> None:
    block = compiled()
    for one, other in zip(BY_HAND, block, strict=True):
        same = [
            np.array_equal(a, b)
            for a, b in zip(
                np.atleast_1d(np.array(one(problem, CONFIG), dtype=object)),
                np.atleast_1d(np.array(other(problem, CONFIG), dtype=object)),
                strict=True,
            )
        ]
        assert all(same)
    by_hand, of_block, ratios = [], [], []
    for turn in range(TURNS):
        sides = [(BY_HAND, by_hand), (block, of_block)]
        for formulas, times in sides if turn % 2 else reversed(sides):
            times.append(seconds(formulas, problem, evaluations))
        ratios.append(of_block[-1] / by_hand[-1])
    us = 1e6 / evaluations
    print(
        f"{what:<40}{us * statistics.median(by_hand):8.2f} µs by hand"
        f"{us * statistics.median(of_block):8.2f} µs from the block"
        f"   ratio {statistics.median(ratios):.2f}"
    )


def report(what: str, act: Callable[[], object], repeats: int) -> None:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        times.append(1e6 * (time.perf_counter() - start))
    print(f"{what:<40}{statistics.median(times):10.1f} µs")


def main() -> None:
    problem = Problem(4, 8, 1024, 64)
    compare("one plan of v05, 12 formulas", problem, EVALUATIONS)
    names = ("num_heads", "seqlen", "num_keys", "head_dim", "causal")
    shape = SimpleNamespace(**{n: getattr(problem, n) for n in names}, batch=np.arange(1, 4097))
    compare("the same over 4,096 batches at once", shape, EVALUATIONS // 20)
    report("ladder: load all of it", lambda: Ladder(KERNELS_DIR).variants(), 20)
    ladder = Ladder(KERNELS_DIR)
    ladder.variants()
    report("ladder: list it again", ladder.variants, 500)
    report("ladder: look a variant up", lambda: ladder.by_id("v05"), 5000)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "v05_kv_split.cu"
        text = (KERNELS_DIR / file.name).read_text(encoding="utf-8")
        edited = Ladder(Path(folder))
        splits = iter(range(33, 1000))

        def edit() -> None:
            line = text.replace("8, 16, 32]", f"8, 16, 32, {next(splits)}]")
            file.write_text(line, encoding="utf-8")
            edited.by_id("v05")

        report("ladder: write and read an edited block", edit, 50)


if __name__ == "__main__":
    main()
