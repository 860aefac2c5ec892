"""Evaluations and snapshots with realistic values, marked as test data."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
from verdicts import RIGHT

from engine.attention.evaluation import (
    BaselineTiming,
    Evaluation,
    Execution,
    Finding,
    Latency,
    Occupancy,
    PassReport,
    Resources,
)
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.correctness import ErrorMap
from engine.model.kernel import variant_sources
from engine.sessions.importers.nsight_compute import METRICS
from engine.sessions.session import make_error_map, make_snapshot, make_source
from engine.sessions.snapshot import Goal, Snapshot, TimelineEntry
from kernels.ladder import LADDER


def present_sha256(variant: str) -> str:
    """The hash of a rung's present source; another one for kernels that are not in the ladder."""
    rung = next((v for v in LADDER.every() if v.id == variant), None)
    return variant_sources(rung).source_sha256 if rung is not None else "ab" * 32


def make_latency(median_us: float, samples: int, seed: int = 0, **changes: Any) -> Latency:
    rng = random.Random(seed)
    values = tuple(rng.gauss(median_us, median_us / 100) for _ in range(samples))
    latency = Latency(
        origin="measured",
        median_us=median_us,
        low_us=median_us * 0.995,
        high_us=median_us * 1.005,
        reason="test data: graph replay of 20 launches",
        samples_us=values,
    )
    return replace(latency, **changes)


def evaluation_maker(
    *,
    variant: str = "v05",
    problem: Problem | None = None,
    median_us: float = 12.5,
    baseline_us: float = 25.0,
    samples: int = 5,
    seed: int = 0,
    **changes: Any,
) -> Evaluation:
    resources = Resources("partial_pass", "sm_89", 256, 96, 1024, 40960, 8, 4, 16)
    occupancy = Occupancy(
        ctas=512,
        ctas_per_sm=2,
        active_warps_per_sm=16,
        max_warps_per_sm=48,
        limits={"warps": 6, "registers": 2, "shared memory": 2, "ctas": 24},
        num_sms=58,
        waves=4.41,
        tail_ctas=48,
        sm_fill=1.0,
        thread_fill=1.47,
        ctas_to_fill=348,
        reason="registers limit it: 85 or fewer per thread would let a third CTA in",
    )
    correctness = replace(
        RIGHT,
        reason="within twice SDPA's own error",
        max_abs_err=4.9e-4,
        mean_abs_err=3.1e-5,
        rms_err=4.4e-5,
        cosine=0.9999998,
        baseline_err=4.1e-4,
        baseline_name="math fp16",
        tolerance=8.3e-4,
        findings=(Finding("none", "no pattern: every element is within the tolerance", 0.0),),
    )
    evaluation = Evaluation(
        status=Status.PASSED,
        reason="",
        variant=variant,
        problem=problem or Problem(1, 1, 128, 64),
        config={"block_m": 64, "block_n": 64, "num_splits": 4},
        device="L4",
        when="2026-11-21T02:45:00+00:00",
        passes=(PassReport(resources, occupancy), PassReport(resources, occupancy)),
        execution=Execution("cpu", "fast", "random", 7, 3.25),
        correctness=correctness,
        latency=make_latency(median_us, samples, seed),
        other_latencies=(make_latency(median_us * 1.4, 2, seed + 1, kind="device_cold"),),
        baselines=(
            BaselineTiming("flash", make_latency(baseline_us, samples, seed + 2)),
            BaselineTiming("cudnn", None, "not built into this torch"),
        ),
        notes=("test data, nothing was measured",),
        log="ptxas info    : Used 96 registers\nptxas info    : 8 bytes spill stores",
        source_sha256=present_sha256(changes.get("variant", variant)),
        flags=("--gpu-architecture=sm_89", "-DHEAD_DIM=64"),
    )
    return replace(evaluation, **changes)


def map_stub(rows: int = 3, columns: int = 4) -> ErrorMap:
    values = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns) / 1e4
    return ErrorMap("row_by_column", "query row", "column d", values)


ENVIRONMENT: dict[str, Any] = {
    "collected": "2026-11-21T02:44:00+00:00",
    "gpus": [
        {
            "name": "Test GPU L4 (no such board was used)",
            "compute_capability": "8.9",
            "memory_bytes": 24 * 2**30,
            "sm_clock_mhz": 2040,
            "max_sm_clock_mhz": 2040,
            "memory_clock_mhz": 6251,
            "max_memory_clock_mhz": 6251,
            "power_limit_w": 72.0,
        }
    ],
    "driver": "000.00 (test data)",
    "cuda_driver": "13.0",
    "python": "3.11.7",
    "os": "Test OS 1",
    "cpu_count": 2,
    "commit": "0" * 40,
    "dirty": False,
}


def snapshot_maker(**changes: Any) -> Snapshot:
    """Return a snapshot that uses every part of the schema, the same one every time."""
    values: dict[str, Any] = {
        "id": "0123456789abcdef" * 2,
        "title": "Test data: KV-split on an L4",
        "hypothesis": "Four splits beat flash at S=128 by half.",
        "target": Goal(metric="speedup", value=1.5, baseline="flash", seqlen=128),
        "notes": "Test data.\nNothing here was measured.",
        "provenance": "Made by tests/sessions_data.py.",
        "created": "2026-11-21T02:44:00+00:00",
        "updated": "2026-11-21T02:45:00+00:00",
        "environment": ENVIRONMENT,
        "error_maps": [make_error_map(0, map_stub())],
        "sources": [make_source("v05_kv_split.cu", "// test data\n", ["-DHEAD_DIM=64"])],
        "timeline": [
            TimelineEntry(when="2026-11-21T02:44:30Z", what="v05 as it is", evaluation=0),
            TimelineEntry(when="2026-11-21T02:44:50Z", what="a dead end", outcome="dropped"),
        ],
    }
    evaluations = changes.pop("evaluations", None) or [
        evaluation_maker(),
        evaluation_maker(
            variant="v01",
            status=Status.SKIPPED,
            reason="v01 has no kernel for head_dim 512: choose one of 4, 32, 64, 96, 128.",
            problem=Problem(2, 8, 512, 512, causal=True, dtype="bfloat16"),
            config={},
            passes=(),
            execution=None,
            correctness=None,
            latency=None,
            other_latencies=(),
            baselines=(),
        ),
    ]
    return make_snapshot(evaluations, **{**values, **changes})


_NCU_UNITS = ("nsecond", "byte", "byte", "byte", "%", "%", "register/thread", "")


def ncu_export(*launches: tuple[str, int], columns: str = "", values: str = "") -> bytes:
    """Return the raw page of `ncu --csv` for (kernel, nanoseconds), with made-up figures."""
    names = ",".join(f'"{metric}"' for metric in METRICS)
    units = ",".join(f'"{unit}"' for unit in _NCU_UNITS)
    lines = [f'"ID","Kernel Name","Block Size","Grid Size"{columns},{names}']
    lines.append('"","","",""' + "," * columns.count(",") + f",{units}")
    for number, (kernel, ns) in enumerate(launches):
        figures = f'"{ns:,}","1,000,000","24,000","3,000,000","29.5","33.3","100","0.02"'
        lines.append(f'"{number}","{kernel}","(256, 1, 1)","(2, 1, 1)"{values},{figures}')
    return ("\n".join(lines) + "\n").encode()
