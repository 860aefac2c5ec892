"""Error rates of the sampler's verdicts: `python tests/bench/bench_sampler.py`.

1,000 comparisons of identical kernels and 1,000 with a true difference of 2 %, at several levels of
noise, on simulated GPUs whose clock drifts and whose samples have outliers. For comparison the
usual method on the same GPUs: each kernel measured separately, comparing the intervals.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from simulated_gpu import (  # noqa: E402
    ROUGH,
    SimulatedConditions,
    SimulatedDevice,
    verdict_counts,
)

from engine.measure.sampler import SamplerSettings, run_rounds  # noqa: E402
from engine.measure.statistics import (  # noqa: E402
    Verdict,
    interval_verdict,
    median_interval,
)

COMPARISONS = 1000
DECIDED = (Verdict.FASTER, Verdict.SLOWER)


def one_after_another(conditions: SimulatedConditions, seed: int) -> Verdict:
    """Compare two identical kernels on one device, measured in separate runs."""
    device = SimulatedDevice({"a": 10.0, "b": 10.0}, conditions, seed)
    settings = SamplerSettings(kinds=("device_warm",), seed=seed)
    runs = [run_rounds(device, name, [], settings) for name in ("a", "b")]
    times = [run.table.times_us(name, "device_warm") for run, name in zip(runs, "ab", strict=True)]
    return interval_verdict(*map(median_interval, times), floor=0.0).verdict


def main() -> None:
    print(f"{COMPARISONS:,} simulated comparisons each; noise is the deviation of one sample")
    print("noise   false, A/A   2 % slower found   2 % faster found   false, one after another")
    start = time.perf_counter()
    for noise in (0.003, 0.01, 0.02):
        conditions = replace(ROUGH, noise=noise)
        same = verdict_counts(COMPARISONS, 1.0, conditions)
        slower = verdict_counts(COMPARISONS, 1.02, conditions)[Verdict.SLOWER]
        faster = verdict_counts(COMPARISONS, 1 / 1.02, conditions)[Verdict.FASTER]
        naive = sum(one_after_another(conditions, s) in DECIDED for s in range(COMPARISONS // 10))
        print(
            f"{noise:5.1%} {sum(same[v] for v in DECIDED) / COMPARISONS:11.1%} "
            f"{slower / COMPARISONS:17.1%} {faster / COMPARISONS:18.1%} "
            f"{naive / (COMPARISONS // 10):17.1%} of {COMPARISONS // 10}",
            flush=True,
        )
    print(f"took {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
