"""Calibration of predictions: the share of recorded latencies inside their 90 % intervals.

    python tests/bench/bench_predictions.py [SNAPSHOT ...]

Uses the shipped snapshots, or the named files. Each variant, config and GPU is predicted without
calibration; baselines (PyTorch's SDPA) are skipped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.attention.config import find_variant
from engine.base.errors import AttuneError
from engine.choose.batch.validate import from_evaluations, validate
from engine.devices import find_device
from engine.history import History
from engine.model.kernel import Kernel
from engine.sessions.snapshot import loads

SHIPPED = Path(__file__).resolve().parents[2] / "sessions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, usage="%(prog)s [SNAPSHOT ...]")
    parser.add_argument("snapshot", nargs="*", type=Path)
    files = parser.parse_args().snapshot or sorted(SHIPPED.glob("*.json*"))
    inside = total = 0
    for file in files:
        snapshot = loads(file.read_bytes(), name=file.name)
        evaluations = snapshot.evaluations
        groups = {(e.variant, tuple(sorted(e.config.items())), e.device) for e in evaluations}
        for variant_id, config, gpu in sorted(groups):
            label = f"{file.name}: {variant_id} on {gpu}"
            try:
                variant, device = find_variant(variant_id), find_device(gpu)
            except AttuneError as error:
                print(f"{label}: passed over. {error}")
                continue
            kernel = Kernel.of(variant, device, dict(config))
            points = from_evaluations(evaluations, kernel)
            if not points:
                print(f"{label}: no latency was recorded.")
                continue
            found = validate(kernel, points, History().doing("compile"))
            print(f"{label}: {found.reason}")
            inside, total = inside + found.inside, total + len(found.rows)
    if total:
        print(f"\nIn all {inside} of {total} ({inside / total:.0%}); the goal is at least 80 %.")


if __name__ == "__main__":
    main()
