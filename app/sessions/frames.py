"""Sessions and their parts as DataFrames. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from engine.evaluation import Evaluation
from engine.records.snapshot import Environment, Source
from engine.sessions.advice import Suggestion
from engine.sessions.store.store import SnapshotInfo
from engine.sessions.timeline import TimelineRow
from engine.units import format_bytes, format_us

OUTCOMES = ("tried", "kept", "dropped")


def timeline(rows: Sequence[TimelineRow]) -> pd.DataFrame:
    """`when, UTC`, `what`, `latency`, `origin`, `gain`, `outcome`; the newest first."""
    return pd.DataFrame(
        [
            {
                "when, UTC": row.when[:19].replace("T", " "),
                "what": row.what,
                "latency": format_us(row.latency.median_us) if row.latency else "",
                "origin": row.latency.origin if row.latency else "",
                "gain": f"{row.gain:.3g}×" if row.gain is not None else "",
                "outcome": row.outcome,
            }
            for row in reversed(rows)
        ],
        columns=["when, UTC", "what", "latency", "origin", "gain", "outcome"],
        index=[row.index for row in reversed(rows)],
    )


def sources(files: Iterable[Source]) -> pd.DataFrame:
    """`file`, `lines`, `SHA-256`, `flags`."""
    return pd.DataFrame(
        [
            {
                "file": s.name,
                "lines": len(s.text.splitlines()),
                "SHA-256": s.sha256,
                "flags": " ".join(s.flags),
            }
            for s in files
        ]
    )


def advice(suggestions: Iterable[Suggestion]) -> pd.DataFrame:
    """`what`, `problem`, `GPU`, `expected gain`, `predicted then`, `why`; best first."""
    return pd.DataFrame(
        [
            {
                "what": s.title,
                "problem": s.problem.label(),
                "GPU": s.device,
                "expected gain": f"{s.gain:.3g}×" if s.gain is not None else "",
                "predicted then": format_us(s.latency.median_us) if s.latency else "",
                "why": s.reason,
            }
            for s in suggestions
        ]
    )


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


def environment(recorded: Environment) -> pd.DataFrame:
    """`what`, `value` of everything that was known when the snapshot was made."""
    rows = [
        (name.replace("_", " "), str(value))
        for name, value in recorded.model_dump(exclude={"gpus"}).items()
        if value not in (None, "")
    ]
    for i, gpu in enumerate(recorded.gpus):
        rows += [
            (f"GPU {i} {name.replace('_', ' ')}", str(value))
            for name, value in gpu.model_dump().items()
            if value is not None
        ]
    return pd.DataFrame(rows, columns=["what", "value"])
