"""Small made-up sessions to compare."""

from __future__ import annotations

from typing import Any

import numpy as np
from sessions_data import evaluation_maker

from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.sessions.session import make_snapshot, make_source
from engine.sessions.snapshot import Snapshot, Source

ENVIRONMENT = {
    "collected": "2026-01-01T00:00:00+00:00",
    "gpus": [{"name": "NVIDIA L4", "max_sm_clock_mhz": 2040, "sm_clock_mhz": 300}],
    "driver": "570.1",
    "torch": "2.9.0",
}


def latency(median_us: float, samples: int = 50, seed: int = 0, **changes: Any) -> Latency:
    values = np.random.default_rng(seed).normal(median_us, median_us * 0.002, samples)
    fields: dict[str, Any] = {
        "origin": "measured",
        "median_us": median_us,
        "low_us": median_us * 0.999,
        "high_us": median_us * 1.001,
        "reason": "",
        "samples_us": tuple(values.tolist()),
    }
    return Latency(**(fields | changes))


def evaluation(
    time_us: float | None = 100.0,
    variant: str = "v05",
    seqlen: int = 128,
    config: dict[str, int] | None = None,
    **changes: Any,
) -> Evaluation:
    fields: dict[str, Any] = {
        "status": Status.PASSED,
        "variant": variant,
        "problem": Problem(1, 1, seqlen, 64),
        "config": {"num_splits": 4} if config is None else config,
        "device": "L4",
        "when": "2026-01-01T00:00:00+00:00",
        "latency": None if time_us is None else latency(time_us),
        "other_latencies": (),
        "baselines": (),
        "source_sha256": "",
        "flags": (),
    }
    return evaluation_maker(**(fields | changes))


def source(text: str, name: str = "v05_kv_split.cu", flags: tuple[str, ...] = ()) -> Source:
    return make_source(name, text, flags)


def session(*evaluations: Evaluation, sources: Any = (), **environment: Any) -> Snapshot:
    return make_snapshot(evaluations, environment=ENVIRONMENT | environment, sources=sources)
