"""Time of the model in a page that follows a slider: `python tests/bench/bench_model.py`.

Medians with every compile in the cache: the preview of the Tune page, a curve over 4,096 batches,
and the whole recommendation of the Batch size page, already calibrated.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from engine.attention.problem import Problem  # noqa: E402
from engine.choose.batch.batch_table import predict_curve  # noqa: E402
from engine.choose.batch.recommend import BatchRequest, calibrate_for, recommend_batch  # noqa: E402
from engine.devices import find_device  # noqa: E402
from engine.history import History  # noqa: E402
from engine.model.kernel import Kernel  # noqa: E402
from engine.pipeline.request import EvaluationRequest, preview  # noqa: E402
from kernels.ladder import by_id  # noqa: E402

REPEATS = 40
GOAL_MS = 100


def report(what: str, act: Callable[[], object]) -> None:
    times_ms = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        act()
        times_ms.append(1000 * (time.perf_counter() - start))
    warm = times_ms[1:]
    print(
        f"{what:<52}{statistics.median(warm):8.1f} ms median{max(warm):8.1f} ms at most"
        f"   goal {GOAL_MS}: {'met' if statistics.median(warm) <= GOAL_MS else 'missed'}"
    )


def main() -> None:
    variant, device = by_id("v05"), find_device("L4")
    problem, known = Problem(1, 8, 128, 64), History().doing("compile")
    numbers = count(2)

    def drag() -> object:
        here = replace(problem, batch=next(numbers))
        return preview(EvaluationRequest("v05", here, gpu="L4", execute=False))

    report("preview: occupancy and prediction of a new batch", drag)
    report(
        "predicted curve over 4,096 batches",
        lambda: predict_curve(Kernel.of(variant, device), problem, range(1, 4097), known),
    )
    request = BatchRequest("v05", "L4", seqlen=128, head_dim=64)
    calibrated = calibrate_for(request, known)
    lengths = count(64)
    report(
        "batch size: the whole answer for a new length",
        lambda: recommend_batch(replace(request, seqlen=next(lengths)), known, calibrated),
    )


if __name__ == "__main__":
    main()
