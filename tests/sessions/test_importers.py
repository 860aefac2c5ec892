"""What other tools measured, as recorded sessions; every wrong value named by row and column."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from make_shipped import SHIPPED, h200_baselines, l4_study, shipped
from sessions_data import snapshot_maker

from engine.errors import SnapshotError
from engine.evaluation import Evaluation, Status
from engine.problem import Problem
from engine.sessions import importers
from engine.sessions.codec import dumps, loads
from engine.sessions.importers import ImportOptions, common, import_measurements
from engine.sessions.store import Store
from engine.sessions.target import target_status

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


def refusal(text: Any, options: ImportOptions = WHOLE) -> str:
    with pytest.raises(SnapshotError) as caught:
        imported(text, "bad.csv", options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- the recorded sessions that ship


def test_the_shipped_sessions_are_what_the_importers_make() -> None:
    made = shipped()
    assert {path.name for path in SHIPPED.glob("*.json*")} >= set(made)
    for name, content in made.items():
        assert (SHIPPED / name).read_bytes() == content


def test_the_shipped_sessions_are_in_everybody_s_list(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "own"), index_folder=tmp_path / "index")
    infos = [info for info in store.list() if info.shipped]
    assert len(infos) >= 2
    assert not [info.damage for info in infos if info.damage]


def test_the_l4_study() -> None:
    snapshot = l4_study()
    evaluations = snapshot.opened()
    assert [e.latency.median_us for e in evaluations if e.latency] == [
        10.0,
        278.0,
        543.0,
        1073.0,
        2133.0,
        579.0,
        752.0,
        3624.0,
    ]
    first = evaluations[1]
    assert (first.variant, first.device, first.problem) == ("v01", "L4", Problem(1, 1, 64, 64))
    assert first.status is Status.SKIPPED
    assert first.notes == ("series: length", "ctas: 1")
    assert [(b.name, b.latency and b.latency.median_us) for b in first.baselines] == [
        ("sdpa", 25.0)
    ]
    assert evaluations[5].baselines == ()
    assert snapshot.notes.startswith("Measured on an NVIDIA L4 (sm_89, 58 SMs)")
    assert "Imported from l4_fa1_baseline.csv" in snapshot.provenance
    assert snapshot.target is not None
    status = target_status(snapshot.target, evaluations)
    assert status.state == "met"
    assert status.value == pytest.approx(579 * 256 / 3624)


def test_the_h200_baselines() -> None:
    evaluations = h200_baselines().opened()
    assert len(evaluations) == 43
    assert sum(len(e.baselines) for e in evaluations) == 152
    (short,) = (e for e in evaluations if e.problem == Problem(1, 1, 64, 64))
    assert short.latency is None
    assert short.variant == "sdpa"
    (fastest,) = (b for b in short.baselines if b.name == "efficient")
    assert fastest.latency is not None
    assert fastest.latency.median_us == 4.70768004655838
    assert fastest.other_latencies[0].kind == "end_to_end"
    assert fastest.other_latencies[0].median_us == 12.19441000003485
    assert any(note.startswith("efficient tflops: 0.22") for note in short.notes)


# -- tables


def test_a_table_with_other_names_units_and_a_comment() -> None:
    (one, two) = imported(
        "# a remark\n# another\nB,H,S,D,is_causal,precision,kernel,gpu,latency_ns,flash_ms,"
        "eager_us,block_n,mood\n"
        "1,2,64,32,yes,bf16,v02,NVIDIA A100-SXM4-80GB,12500,0.05,30,32,good\n"
        "\n"
        '1,2,64,32,0,half,v02,"Homemade, GPU",12.5e3,,,,\n'
    )
    assert one.problem == Problem(1, 2, 64, 32, causal=True, dtype="bfloat16")
    assert one.variant == "v02"
    assert one.config == {"block_n": 32}
    assert one.latency is not None
    assert one.latency.median_us == one.latency.low_us == one.latency.high_us == 12.5
    assert "its spread is not known" in one.latency.reason
    assert one.other_latencies[0].kind == "end_to_end"
    assert one.baselines[0].latency is not None
    assert one.baselines[0].latency.median_us == 50.0
    assert one.notes == ("mood: good",)
    assert two.problem == Problem(1, 2, 64, 32)
    assert two.device == "Homemade, GPU"
    assert two.notes == two.baselines == ()


def test_a_gzipped_table() -> None:
    assert len(imported(gzip.compress(b"kernel_ms\n1\n2\n"))) == 2


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "holds no measurement|has no column names|is empty"),
        ("kernel_ms\n", "holds no measurement"),
        ("kernel_ms\n1\nfast\n", "line 3, column kernel_ms must be a number above 0"),
        ("# c\nkernel_ms\n0\n", "line 3, column kernel_ms must be a number above 0"),
        ("kernel_ms\n-1\n", "line 2, column kernel_ms must be"),
        ("kernel_ms\nnan\n", "line 2, column kernel_ms must be"),
        ("kernel_ms\n1e999999999\n", "line 2, column kernel_ms must be"),
        ("kernel_ms,S\n1,64.5\n", "line 2, seqlen must be a whole number"),
        ("kernel_ms,S\n1,-64\n", "line 2: seqlen must be at least 1"),
        ("kernel_ms,causal\n1,maybe\n", "line 2, causal must be true or false"),
        ("kernel_ms,dtype\n1,fp8\n", "line 2, dtype must be float16 or bfloat16"),
        ("kernel_ms,block_m\n1,big\n", "line 2, block_m must be a whole number"),
        ("kernel_ms,a\n1\n", "line 2 has 1 cells, and there are 2 columns"),
        ("kernel_ms,a,a\n1,2,3\n", "line 1, column 2 has a name that comes twice"),
        ("kernel_ms,kernel_us\n1,2\n", "line 2 has two columns with the kernel's time"),
        ("mood\ngood\n", "line 2 has no time"),
        ("backend,mood\nflash,good\n", "line 2 has no time for the backend flash"),
        ('kernel_ms\n"1\n', "line 2 is not valid CSV"),
        (",,\n1,2,3\n", "line 1 has no column names"),
    ],
)
def test_a_wrong_table_is_named_by_line_and_column(table: str, said: str) -> None:
    import re

    assert re.search(said, refusal(table))


def test_what_the_file_does_not_say_has_to_be_said() -> None:
    nothing = ImportOptions()
    assert "does not say batch" in refusal("kernel_ms\n1\n", nothing)
    sizes = ImportOptions(batch=1, num_heads=1, seqlen=4, head_dim=4)
    assert "does not say which variant" in refusal("kernel_ms\n1\n", sizes)
    (found,) = imported("sdpa_ms\n1\n", options=sizes)
    assert (found.variant, found.device) == ("sdpa", "unknown")


def test_more_rows_than_a_session_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "MAX_EVALUATIONS", 3)
    assert "more than 3 measurements" in refusal("kernel_ms\n" + "1\n" * 5)


def test_json_rows() -> None:
    (found,) = imported([{"S": 64, "kernel_us": 3.25, "x": None, "y": True}])
    assert found.problem == Problem(2, 3, 64, 64)
    assert found.notes == ("y: True",)
    assert "row 1, column kernel_us must be" in refusal([{"kernel_us": "x"}])
    assert "not a list of flat objects" in refusal([{"kernel_us": [1]}])
    assert "not a list of flat objects" in refusal([1])
    assert "column kernel_us must be" in refusal([{"kernel_us": True}])


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


def test_a_cache_with_many_entries() -> None:
    many = {str(n): {"block_m": n, "time": 1.0} for n in range(1, 2_000)}
    assert len(imported(CACHE | {"cache": many})) == 1_999


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"time": "TookTooLong"}, "cache entry 1, time must be a number or the name of an error"),
        ({"time": -1}, "cache entry 1, time must be a number above 0"),
        ({"time": 1, "times": [1, "x"]}, "cache entry 1, time must be a number above 0"),
        ({}, "cache entry 1, time must be a number above 0"),
        (5, "cache entry 1 is not an object"),
    ],
)
def test_a_wrong_cache_entry_is_named(entry: Any, said: str) -> None:
    assert said in refusal(CACHE | {"cache": {"k": entry}})


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
    assert found.notes == ("Layout: bhsd", "relative standard deviation: 0.015")


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
    assert "benchmark 2, state 1 was skipped by NVBench: too small" in snapshot.log


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (nvbench(), "benchmark 1, state 1 has no GPU time"),
        (nvbench(summary("nv/cold/time/gpu/mean", "nan")), "state 1 has no GPU time"),
        (nvbench(summary("nv/cold/time/gpu/mean", None)), "state 1 has no GPU time"),
        (nvbench(summary("nv/cold/time/gpu/mean", "-1")), "mean must be a number above 0"),
        (nvbench(COLD, is_skipped=True), "holds no measurement"),
        (nvbench(COLD) | {"benchmarks": [{"states": [5]}]}, "state 1 is not an object"),
        (nvbench(COLD) | {"benchmarks": [5]}, "holds no measurement"),
    ],
)
def test_wrong_nvbench_results(results: Any, said: str) -> None:
    assert said in refusal(results)


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
    ("text", "said"),
    [
        (LONG + long_line("x", "%", "5"), "line 4 is of a launch without a duration"),
        (LONG + long_line("Duration", "%", "5"), "line 4, Duration has no unit of time"),
        (LONG + long_line("Duration", "us", "5,5"), "line 4, Duration must be a number above 0"),
        (LONG + long_line("Duration", "ns", "117.344"), "a dot between thousands"),
        (LONG + long_line("Duration", "us", "n/a"), "line 4, Duration must be a number above 0"),
        (LONG, "holds no measurement"),
    ],
)
def test_wrong_exports_of_nsight_compute(text: str, said: str) -> None:
    assert said in refusal(text)


# -- what is none of them


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "is not a file that can be imported"),
        ({"cache": 1}, "is not a file that can be imported"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_other_files(data: Any, said: str) -> None:
    assert said in refusal(data)


def test_a_snapshot_is_opened_and_not_imported() -> None:
    assert "is an Attune snapshot already" in refusal(dumps(snapshot_maker()))


def test_every_importer_is_reached() -> None:
    assert importers.__all__ == ["ImportOptions", "import_measurements"]
