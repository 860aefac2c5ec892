"""Snapshots as plain JSON objects, cut down to what a comparison reads. Plainly test data."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np

ENVIRONMENT = {
    "collected": "2026-01-01T00:00:00+00:00",
    "gpus": [{"name": "NVIDIA L4", "max_sm_clock_mhz": 2040, "sm_clock_mhz": 300}],
    "driver": "570.1",
    "torch": "2.9.0",
}


def latency(median_us: float, samples: int = 50, seed: int = 0, **changes: Any) -> dict[str, Any]:
    values = np.random.default_rng(seed).normal(median_us, median_us * 0.002, samples)
    return {
        "origin": "measured",
        "median_us": median_us,
        "low_us": median_us * 0.999,
        "high_us": median_us * 1.001,
        "reason": "",
        "kind": "device_warm",
        "samples_us": values.tolist(),
    } | changes


def evaluation(
    time_us: float | None = 100.0,
    variant: str = "v05",
    seqlen: int = 128,
    config: dict[str, int] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    return {
        "status": "PASSED",
        "reason": "",
        "variant": variant,
        "problem": {
            "batch": 1,
            "num_heads": 1,
            "seqlen": seqlen,
            "head_dim": 64,
            "causal": False,
            "dtype": "float16",
        },
        "config": {"num_splits": 4} if config is None else config,
        "device": "L4",
        "when": "2026-01-01T00:00:00+00:00",
        "latency": None if time_us is None else latency(time_us),
        "other_latencies": [],
        "baselines": [],
        "source_sha256": "",
        "flags": [],
    } | changes


def source(text: str, name: str = "v05_kv_split.cu", flags: tuple[str, ...] = ()) -> dict[str, Any]:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"name": name, "text": text, "sha256": digest, "flags": list(flags)}


def session(*evaluations: Any, sources: Any = (), **environment: Any) -> dict[str, Any]:
    return {
        "title": "test",
        "environment": copy.deepcopy(ENVIRONMENT) | environment,
        "evaluations": list(evaluations),
        "sources": list(sources),
    }
