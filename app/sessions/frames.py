"""Snapshots and their evaluations as DataFrames. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from engine.attention.evaluation import Evaluation, Origin
from engine.base.table import Table
from engine.base.units import format_bytes
from engine.history.known_time import status_label, under_own_names
from engine.sessions.known_times import Ledger
from engine.sessions.snapshot import Summary
from engine.sessions.store import SnapshotInfo


def evaluations(results: Sequence[Evaluation], session: str) -> pd.DataFrame:
    """Return one row per evaluation, failures included.

    Args:
        session: its title, used in names of kernels whose source is not recorded.
    """
    columns = (
        *("status", "variant", "problem", "config", "device", "latency µs", "origin"),
        *("best SDPA µs", "max |error|", "occupancy %", "when, UTC", "reason"),
    )
    rows = [
        (
            status_label(e),
            e.variant,
            e.problem.label(),
            ", ".join(f"{k}={v}" for k, v in e.config.items()),
            e.device,
            e.latency.median_us if e.latency else None,
            e.latency.origin if e.latency else "",
            min((b.latency.median_us for b in e.baselines if b.latency), default=None),
            e.correctness.max_abs_err if e.correctness else None,
            100 * e.main_pass.occupancy.occupancy if e.main_pass else None,
            e.when[:19].replace("T", " "),
            e.reason,
        )
        for e in under_own_names(results, session)
    ]
    return Table("Evaluations", columns, tuple(rows)).frame(dashes=False)


def baselines(results: Iterable[Evaluation]) -> pd.DataFrame:
    """Return `problem`, `backend`, `us`, `origin`: the warm device time of every timed backend.

    If there are several GPUs, `problem` names the GPU, too.
    """
    results = list(results)
    many = len({e.device for e in results}) > 1
    rows = [
        (
            e.problem.label() + (f" on {e.device}" if many else ""),
            *(b.name, b.latency.median_us, b.latency.origin),
        )
        for e in results
        for b in e.baselines
        if b.latency is not None
    ]
    columns = ("problem", "backend", "us", "origin")
    return Table("Baselines", columns, tuple(rows)).frame(dashes=False)


def baseline_table(results: Iterable[Evaluation]) -> pd.DataFrame:
    """Return a row per problem with a column per backend in µs and the fastest backend."""
    long = baselines(results)
    wide = long.pivot_table(
        index="problem", columns="backend", values="us", aggfunc="min", sort=False
    )
    wide.insert(0, "fastest", wide.idxmin(axis=1))
    renamed = {name: f"{name} µs" for name in wide.columns if name != "fastest"}
    return wide.rename(columns=renamed).reset_index()


def ledger(scored: Ledger) -> pd.DataFrame:
    """Return one row per score of a source that was timed for `app.sessions.charts.ledger`."""
    rows = (
        {
            "variant": s.timed_kernel,
            "name": f"{s.timed_kernel} {s.time.problem.label()} on {s.time.device}",
            "measured_us": s.time.latency.median_us,
            "predicted_us": s.prediction.latency.median_us,
            "low_us": s.prediction.latency.low_us,
            "high_us": s.prediction.latency.high_us,
            "counts": s.counts,
        }
        for s in scored.scores
        if s.is_same_source
    )
    return Table.of("Predicted and measured", rows).frame(dashes=False)


def snapshots(infos: Iterable[SnapshotInfo]) -> pd.DataFrame:
    """Return one row per snapshot; a damaged file is a row with the damage and its name."""
    infos = list(infos)
    damaged = any(info.damage for info in infos)
    rows = []
    for info in infos:
        s = info.summary
        rows.append(
            {
                "title": info.title,
                **({"damage": info.damage.removeprefix(f"{info.name} ")} if damaged else {}),
                "saved, UTC": s.updated[:19].replace("T", " ") if s else "",
                "devices": ", ".join(s.devices) if s else "",
                "variants": ", ".join(s.variants) if s else "",
                "problems": ", ".join(s.problems[:4]) if s else "",
                "evaluations": s.num_evaluations if s else None,
                "passed": s.num_passed if s else None,
                "latency": origin_of(s) if s else "",
                "kept": "ships with Attune" if info.shipped else "own snapshot",
                "size": format_bytes(info.size_bytes),
                "file": info.name,
            }
        )
    return Table.of("Snapshots", rows).frame(dashes=False)


def origin_of(summary: Summary) -> Origin:
    """Return the origin; times measured there count as recorded here."""
    return "predicted" if summary.origins == ("predicted",) else "recorded"
