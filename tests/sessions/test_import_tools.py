"""Kernel Tuner, NVBench and Nsight Compute files as recorded sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from importing import WHOLE, imported, refused
from words import says

from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.sessions.importers import ImportOptions, import_measurements

# -- Kernel Tuner (the layout of its schema 1.1.0; the figures are made up)

CACHE: dict[str, Any] = {
    "schema_version": "1.1.0",
    "device_name": "NVIDIA L4",
    "kernel_name": "attention",
    "problem_size": [4096, 1],
    "tune_params_keys": ["block_m", "seqlen", "layout"],
    "tune_params": {"block_m": [16, 32], "seqlen": [256], "layout": ["a"]},
    "objective": "time",
    "cache": {
        "16,256,a": {
            "block_m": 16,
            "seqlen": 256,
            "layout": "a",
            "time": 0.25,
            "times": [0.25, 0.24, 0.26, 0.25, 0.255, 0.245],
            "GFLOP/s": 100.5,
            "compile_time": 900.0,
            "verification_time": 0,
            "benchmark_time": 100.0,
            "strategy_time": 0,
            "framework_time": 1.0,
            "timestamp": "2026-01-02 03:04:05.678901+00:00",
        },
        "32,256,a": {"block_m": 32, "seqlen": 256, "layout": "a", "time": "InvalidConfig"},
        "64,256,a": {"block_m": 64, "seqlen": 256, "time": "CompilationFailedConfig"},
        "65,256,a": {"block_m": 65, "seqlen": 256, "__error__": "RuntimeFailedConfig"},
        "66,256,a": {"block_m": 66, "seqlen": 256, "time": 0.5},
    },
}


def test_a_kernel_tuner_cache() -> None:
    options = ImportOptions(batch=1, num_heads=8, head_dim=64, causal=True)
    one, invalid, uncompiled, failed, single = imported(CACHE, options=options)
    assert one.problem == Problem(1, 8, 256, 64, causal=True)
    assert one.latency is not None
    assert one.latency.median_us == 250.0
    assert one.latency.samples_us == (250.0, 240.0, 260.0, 250.0, 255.0, 245.0)
    assert (one.latency.low_us, one.latency.high_us) == (240.0, 260.0)
    assert (one.variant, one.device, one.when) == ("attention", "L4", "2026-01-02T03:04:05+00:00")
    assert one.config == {"block_m": 16, "seqlen": 256}
    assert one.notes == ("layout: a", "GFLOP/s: 100.5")
    assert [e.status for e in (invalid, uncompiled, failed, single)] == [
        Status.SKIPPED,
        Status.COMPILE_ERROR,
        Status.LAUNCH_ERROR,
        Status.SKIPPED,
    ]
    assert all(e.latency is None for e in (invalid, uncompiled, failed))
    assert single.latency is not None
    assert single.latency.samples_us == ()


@pytest.mark.parametrize("end", ["", ",", "\n", ",\n"])
def test_a_cache_that_is_still_being_written(end: str) -> None:
    text = json.dumps(CACHE).removesuffix("}}") + end
    assert len(imported(text)) == 5
    looks_closed = CACHE | {"cache": {"k": {"time": 1.0, "extra": {}}}}
    assert len(imported(json.dumps(looks_closed).removesuffix("}}") + end)) == 1


def test_a_cache_with_many_entries() -> None:
    many = {str(n): {"block_m": n, "time": 1.0} for n in range(1, 2_000)}
    assert len(imported(CACHE | {"cache": many})) == 1_999


@pytest.mark.parametrize(
    ("entry", "code", "fact"),
    [
        ({"time": "TookTooLong"}, "cache_entry_error", "cache entry 1"),
        ({"time": -1}, "import_time", "cache entry 1"),
        ({"time": 1, "times": [1, "x"]}, "import_time", "cache entry 1"),
        ({}, "import_time", "cache entry 1"),
        (5, "cache_entry_form", "cache entry 1"),
    ],
)
def test_a_wrong_cache_entry_is_named(entry: Any, code: str, fact: str) -> None:
    refused(CACHE | {"cache": {"k": entry}}, code, fact)


# -- NVBench (the layout of its --json output; the figures are made up)


def summary(tag: str, value: Any) -> dict[str, Any]:
    return {"tag": tag, "name": tag, "data": [{"name": "value", "type": "float64", "value": value}]}


def nvbench(*summaries: dict[str, Any], **state: Any) -> dict[str, Any]:
    whole = {
        "name": "Device=0 S=512",
        "device": 0,
        "axis_values": [
            {"name": "S", "type": "int64", "value": "512"},
            {"name": "BlockM", "type": "int64", "value": "64"},
            {"name": "Layout", "type": "string", "value": "bhsd"},
        ],
        "summaries": list(summaries),
        "is_skipped": False,
    } | state
    return {
        "devices": [{"id": 0, "name": "NVIDIA H200"}],
        "benchmarks": [{"name": "attention", "axes": [], "states": [whole]}],
    }


COLD = summary("nv/cold/time/gpu/mean", "1.25e-5")


def test_nvbench_results() -> None:
    results = nvbench(
        COLD,
        summary("nv/batch/time/gpu/mean", "1.0e-5"),
        summary("nv/cold/time/cpu/mean", "2.0e-5"),
        summary("nv/cold/time/gpu/stdev/relative", "0.015"),
    )
    options = ImportOptions(batch=1, num_heads=1, head_dim=64)
    (found,) = imported(results, options=options)
    assert found.problem == Problem(1, 1, 512, 64)
    assert (found.variant, found.device) == ("attention", "H200")
    assert found.config == {"BlockM": 64}
    assert found.latency is not None
    assert (found.latency.kind, found.latency.median_us) == ("device_warm", 10.0)
    assert [(x.kind, x.median_us) for x in found.other_latencies] == [
        ("device_cold", 12.5),
        ("end_to_end", 20.0),
    ]
    assert [note.split(": ")[1] for note in found.notes] == ["bhsd", "0.015"]


def test_nvbench_prefers_the_median_and_keeps_what_was_skipped_in_the_log() -> None:
    results = nvbench(COLD, summary("nv/cold/time/gpu/median", "1.2e-5"))
    skipped = nvbench(is_skipped=True, skip_reason="too small")["benchmarks"][0]
    snapshot = import_measurements(
        json.dumps(results | {"benchmarks": [*results["benchmarks"], skipped]}).encode(),
        name="r.json",
        options=WHOLE,
    )
    (found,) = snapshot.opened()
    assert found.latency is not None
    assert (found.latency.kind, found.latency.median_us) == ("device_cold", 12.0)
    assert says(snapshot.log, "skipped_by_nvbench", "benchmark 2, state 1", "too small")


@pytest.mark.parametrize(
    ("results", "code", "fact"),
    [
        (nvbench(), "nvbench_time_missing", "benchmark 1, state 1"),
        (nvbench(summary("nv/cold/time/gpu/mean", "nan")), "nvbench_time_missing", "state 1"),
        (nvbench(summary("nv/cold/time/gpu/mean", None)), "nvbench_time_missing", "state 1"),
        (nvbench(summary("nv/cold/time/gpu/mean", "-1")), "import_time", "mean"),
        (nvbench(COLD, is_skipped=True), "import_empty", ""),
        (nvbench(COLD) | {"benchmarks": [{"states": [5]}]}, "nvbench_state_form", "state 1"),
        (nvbench(COLD) | {"benchmarks": [5]}, "import_empty", ""),
    ],
)
def test_wrong_nvbench_results(results: Any, code: str, fact: str) -> None:
    refused(results, code, fact)


# -- Nsight Compute (the columns of `ncu --csv`; the figures are made up)

LONG = (
    "device: made up\n==PROF== Connected to process 1\n"
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"\n'
)
RAW = (
    '"ID","Kernel Name","Block Size","Grid Size","Device","CC","dram__bytes_read.sum",'
    '"gpu__time_duration.sum"\n'
    '"","","","","","","byte","second"\n'
    '"0","attention","(256, 1, 1)","(2, 1, 1)","0","8.9","10,240,000","4.0e-05"\n'
    '"1","attention","(256, 1, 1)","(2, 1, 1)","0","8.9","10,240,000","4.2e-05"\n'
    '"2","fusion","(32, 1, 1)","(2, 1, 1)","0","8.9","2,048","1.0e-05"\n'
)


def long_line(metric: str, unit: str, value: str, launch: int = 0) -> str:
    return (
        f'"{launch}","1","p","h","attention","1","7","(256, 1, 1)","(2, 1, 1)","0","8.9","s",'
        f'"{metric}","{unit}","{value}"\n'
    )


def test_the_details_page_of_nsight_compute() -> None:
    text = (
        LONG
        + long_line("gpu__time_duration.sum", "ns", "1,234,500")
        + long_line("L2 Hit Rate", "%", "n/a")
        + long_line("Registers Per Thread", "register/thread", "96")
    )
    (found,) = imported(text)
    assert found.latency is not None
    assert (found.latency.median_us, found.latency.kind) == (1234.5, "device_cold")
    assert "profiled" in found.latency.reason
    assert found.notes == (
        "Kernel Name: attention",
        "Block Size: (256, 1, 1)",
        "Grid Size: (2, 1, 1)",
        "launches profiled: 1",
        "Registers Per Thread: 96 register/thread",
        "L2 Hit Rate: n/a %",
    )
    assert found.passes == ()


def test_the_raw_page_of_nsight_compute_joins_launches_of_one_kernel() -> None:
    sizes = ImportOptions(batch=1, num_heads=1, seqlen=128, head_dim=64, device="L4")
    one, two = imported(RAW, options=sizes)
    assert one.latency is not None
    assert one.latency.samples_us == (40.0, 42.0)
    assert [one.variant, two.variant] == ["attention", "fusion"]
    assert "dram__bytes_read.sum: 10,240,000 byte" in one.notes


@pytest.mark.parametrize(
    ("text", "code", "fact"),
    [
        (LONG + long_line("x", "%", "5"), "ncu_duration_missing", "line 4"),
        (LONG + long_line("Duration", "%", "5"), "ncu_unit_unknown", "line 4, Duration"),
        (LONG + long_line("Duration", "us", "5,5"), "import_time", "line 4, Duration"),
        (LONG + long_line("Duration", "ns", "117.344"), "ncu_dot_thousands", "Duration"),
        (LONG + long_line("Duration", "us", "n/a"), "import_time", "line 4, Duration"),
        (LONG, "import_empty", ""),
    ],
)
def test_wrong_exports_of_nsight_compute(text: str, code: str, fact: str) -> None:
    refused(text, code, fact)
