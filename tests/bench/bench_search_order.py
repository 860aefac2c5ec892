"""Number of measurements to reach the best config, ordered by simulated times and unordered.

    python tests/bench/bench_search_order.py [--gpu L4] [--seqlen 1024] [--ladder]

Two tables. First measured times: the published SGEMM series of the validation, each a search among
ten kernels on one GPU. Then the configs of the ladder, for which there are no recorded times: the
true times are simulated ones with the error found by the validation, drawn in every trial, and each
measurement has the noise of tests/simulated_gpu.py. This shows the value of the order if the errors
of the ladder are of that size; it is no measurement of the ladder.

The best is reached when a config within 2 % of it is measured. The kernels of the ladder are
compiled and simulated first, which takes minutes, later seconds.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bench")]

from bench_sass_validation import SGEMM, sgemm_gflops  # noqa: E402
from simulated_gpu import SimulatedConditions, SimulatedDevice  # noqa: E402

from engine.attention.problem import Problem  # noqa: E402
from engine.history import History  # noqa: E402
from engine.pipeline.request import simulated_us  # noqa: E402
from engine.search.space import Space, SweepOptions, SweepPoint  # noqa: E402
from engine.search.strategies import StrategyName, make_strategy  # noqa: E402

NEAR = 1.02  # of the best time
TRIALS = 400
# Standard deviation of log(simulated / measured) of kernels of one series on one GPU: the largest
# of the validation sets.
SERIES_ERROR = 0.12
VARIANTS = ("v08", "v09", "v10")


def recorded() -> None:
    print("Recorded: published SGEMM kernels, ten a GPU; measurements until one within 2 % of best")
    for gpu, gflops in SGEMM.items():
        measured = [1 / g for g in gflops]
        simulated = [1 / sgemm_gflops(gpu, step) for step in range(1, len(gflops) + 1)]
        order = sorted(range(len(measured)), key=simulated.__getitem__)
        near = [i for i, time in enumerate(measured) if time <= NEAR * min(measured)]
        by_code = 1 + min(order.index(i) for i in near)
        # In random order the first of k good ones of n comes at (n + 1) / (k + 1) on average.
        at_random = (len(measured) + 1) / (len(near) + 1)
        print(f"  {gpu:16} by machine code {by_code}, in random order {at_random:.1f} on average")


def ladder(gpu: str, seqlen: int) -> None:
    problem = Problem(batch=1, num_heads=32, seqlen=seqlen, head_dim=64)
    space = Space(VARIANTS, (problem,))
    points = [p for p in space.points(SweepOptions(gpu=gpu)) if p.why_not is None]
    known = {p.id: simulated_us(p.request, History()) for p in points}
    points = [p for p in points if known[p.id] is not None]
    times = {i: t for i, t in known.items() if t is not None}
    print(
        f"\nThe ladder, {len(points)} configs of {', '.join(VARIANTS)} at {problem.label()} on "
        f"{gpu}: simulated {min(times.values()):.0f} to {max(times.values()):.0f} µs. True times "
        f"drawn around these with a deviation of {SERIES_ERROR:.0%}, {TRIALS} trials:"
    )
    names: tuple[StrategyName, ...] = ("exhaustive", "random", "coordinate", "simulated")
    needed = {name: [_trial(name, points, times, seed) for seed in range(TRIALS)] for name in names}
    for name, counts in needed.items():
        ninety = np.percentile(counts, 90)
        print(f"  {name:10} {mean(counts):5.1f} measurements on average, 90 % within {ninety:.0f}")


def _trial(
    name: StrategyName, points: Sequence[SweepPoint], times: dict[str, float], seed: int
) -> int:
    """Return the number of measurements until one is of a config within 2 % of the best."""
    rng = random.Random(seed)
    true = {i: t * math.exp(rng.gauss(0, SERIES_ERROR)) for i, t in times.items()}
    device = SimulatedDevice(true, SimulatedConditions(), seed=seed)
    measure: Callable[[str], float] = lambda i: device.time_once(i, "device_warm")  # noqa: E731
    best = min(true.values())
    by_request = {id(p.request): times[p.id] for p in points}
    strategy = make_strategy(name, points, seed, lambda request: by_request[id(request)])
    count = 0
    while (point := strategy.ask()) is not None:
        count += 1
        if true[point.id] <= NEAR * best:
            return count
        strategy.tell(point, measure(point.id))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", default="L4")
    parser.add_argument("--seqlen", type=int, default=1024)
    parser.add_argument("--ladder", action="store_true", help="the second table alone")
    chosen = parser.parse_args()
    if not chosen.ladder:
        recorded()
    ladder(chosen.gpu, chosen.seqlen)


if __name__ == "__main__":
    main()
