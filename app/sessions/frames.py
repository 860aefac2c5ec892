"""Snapshots and their evaluations as DataFrames. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from engine.evaluation import Evaluation
from engine.sessions.store.store import SnapshotInfo
from engine.units import format_bytes


def evaluations(results: Sequence[Evaluation]) -> pd.DataFrame:
    """One row per evaluation, failures included."""
    return pd.DataFrame(
        [
            {
                "status": str(e.status),
                "variant": e.variant,
                "problem": e.problem.label(),
                "config": ", ".join(f"{k}={v}" for k, v in e.config.items()),
                "device": e.device,
                "latency µs": e.latency.median_us if e.latency else None,
                "origin": e.latency.origin if e.latency else "",
                "best SDPA µs": min(
                    (b.latency.median_us for b in e.baselines if b.latency), default=None
                ),
                "max |error|": e.correctness.max_abs_err if e.correctness else None,
                "occupancy %": 100 * e.main_pass.occupancy.occupancy if e.main_pass else None,
                "when": e.when,
                "reason": e.reason,
            }
            for e in results
        ],
        columns=[
            *("status", "variant", "problem", "config", "device", "latency µs", "origin"),
            *("best SDPA µs", "max |error|", "occupancy %", "when", "reason"),
        ],
    )


def snapshots(infos: Iterable[SnapshotInfo]) -> pd.DataFrame:
    """One row per snapshot; a damaged file is a row that says so."""
    rows = []
    for info in infos:
        s = info.summary
        rows.append(
            {
                "title": info.title,
                "saved, UTC": s.updated[:19].replace("T", " ") if s else "",
                "devices": ", ".join(s.devices) if s else "",
                "variants": ", ".join(s.variants) if s else "",
                "problems": ", ".join(s.problems[:4]) if s else "",
                "evaluations": s.num_evaluations if s else None,
                "passed": s.num_passed if s else None,
                # What was measured there is recorded here.
                "latency": "predicted" if s and s.origins == ("predicted",) else "recorded",
                "kept": "ships with Attune" if info.shipped else "yours",
                "size": format_bytes(info.size_bytes),
                "damage": info.damage,
                "file": info.name,
            }
        )
    return pd.DataFrame(rows)
