"""Helpers of the importer tests."""

from __future__ import annotations

import json
from typing import Any

from words import raises

from engine.attention.evaluation import Evaluation
from engine.base.errors import SnapshotError
from engine.sessions.importers import ImportOptions, import_measurements
from engine.sessions.snapshot import dumps, loads

WHOLE = ImportOptions(
    variant="v05", device="NVIDIA L4", batch=2, num_heads=3, seqlen=128, head_dim=64
)


def imported(
    text: str | bytes | Any, name: str = "file", options: ImportOptions = WHOLE
) -> tuple[Evaluation, ...]:
    if not isinstance(text, (str, bytes)):
        text = json.dumps(text)
    data = text.encode() if isinstance(text, str) else text
    snapshot = import_measurements(data, name=name, options=options)
    assert loads(dumps(snapshot), name=name) == snapshot
    for e in snapshot.opened():
        latencies = [e.latency, *(b.latency for b in e.baselines), *e.other_latencies]
        assert all(x.origin == "recorded" for x in latencies if x is not None)
        assert e.correctness is None
        assert e.reason
    return snapshot.opened()


def refused(text: Any, code: str, *facts: str, options: ImportOptions = WHOLE) -> None:
    """Check that importing fails with this code, in one line that names the facts."""
    with raises(SnapshotError, code, *facts) as caught:
        imported(text, "bad.csv", options)
    assert "\n" not in str(caught.value)
