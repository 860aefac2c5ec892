"""Timeline, sources and advice of a session as DataFrames. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from engine.records.snapshot import Source
from engine.sessions.advice import Suggestion
from engine.sessions.timeline import TimelineRow
from engine.units import format_us

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


def sources(found: Iterable[Source]) -> pd.DataFrame:
    """`file`, `lines`, `SHA-256`, `flags`."""
    return pd.DataFrame(
        [
            {
                "file": s.name,
                "lines": len(s.text.splitlines()),
                "SHA-256": s.sha256,
                "flags": " ".join(s.flags),
            }
            for s in found
        ]
    )


def advice(found: Iterable[Suggestion]) -> pd.DataFrame:
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
            for s in found
        ]
    )
