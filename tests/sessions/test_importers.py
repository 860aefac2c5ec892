"""Measurements of other tools as recorded sessions; errors name row and column."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from importing import imported, refused
from make_shipped import SHIPPED, h200_baselines, l4_study, shipped
from sessions_data import snapshot_maker
from words import says

from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.sessions.goal import goal_status
from engine.sessions.importers import ImportOptions
from engine.sessions.snapshot import dumps
from engine.sessions.store import Store

# -- the shipped sessions


def test_shipped_sessions_equal_the_output_of_the_importers() -> None:
    made = shipped()
    assert {path.name for path in SHIPPED.glob("*.json*")} >= set(made)
    for name, content in made.items():
        assert (SHIPPED / name).read_bytes() == content


def test_shipped_sessions_are_always_listed(tmp_path: Path) -> None:
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
    assert says(snapshot.provenance, "imported_from", "l4_fa1_baseline.csv")
    assert snapshot.target is not None
    status = goal_status(snapshot.target, evaluations)
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
    assert says(one.latency.reason, "its_spread_is")
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
    ("table", "code", "facts"),
    [
        ("", "import_columns_unnamed", ()),
        ("kernel_ms\n", "import_empty", ()),
        ("kernel_ms\n1\nfast\n", "import_time", ("line 3", "kernel_ms")),
        ("# c\nkernel_ms\n0\n", "import_time", ("line 3", "kernel_ms")),
        ("kernel_ms\n-1\n", "import_time", ("line 2", "kernel_ms")),
        ("kernel_ms\nnan\n", "import_time", ("line 2", "kernel_ms")),
        ("kernel_ms\n1e999999999\n", "import_time", ("line 2", "kernel_ms")),
        ("kernel_ms,S\n1,64.5\n", "import_no_whole_number", ("line 2", "seqlen")),
        ("kernel_ms,S\n1,-64\n", "size_too_small", ("line 2", "seqlen")),
        ("kernel_ms,causal\n1,maybe\n", "import_causal", ("line 2",)),
        ("kernel_ms,dtype\n1,fp8\n", "import_dtype", ("line 2",)),
        ("kernel_ms,block_m\n1,big\n", "import_no_whole_number", ("line 2", "block_m")),
        ("kernel_ms,a\n1\n", "csv_cells", ("line 2", " 1 ", " 2 ")),
        ("kernel_ms,a,a\n1,2,3\n", "csv_column_twice", ("line 1", "'a'")),
        ("kernel_ms,kernel_us\n1,2\n", "import_two_times", ("line 2",)),
        ("mood\ngood\n", "import_time_missing", ("line 2",)),
        ("backend,mood\nflash,good\n", "import_backend_time", ("line 2", "flash")),
        ('kernel_ms\n"1\n', "csv_invalid", ("line 2",)),
        (",,\n1,2,3\n", "import_columns_unnamed", ("line 1",)),
    ],
)
def test_a_wrong_table_is_named_by_line_and_column(
    table: str, code: str, facts: tuple[str, ...]
) -> None:
    refused(table, code, *facts)


def test_missing_facts_must_be_given_as_options() -> None:
    nothing = ImportOptions()
    refused("kernel_ms\n1\n", "import_size_missing", "batch", options=nothing)
    sizes = ImportOptions(batch=1, num_heads=1, seqlen=4, head_dim=4)
    refused("kernel_ms\n1\n", "import_variant_missing", options=sizes)
    (found,) = imported("sdpa_ms\n1\n", options=sizes)
    assert (found.variant, found.device) == ("sdpa", "unknown")


def test_more_rows_than_a_session_has() -> None:
    refused("kernel_ms\n" + "1\n" * 10_001, "import_too_long", " 10,000 ")


def test_json_rows() -> None:
    (found,) = imported([{"S": 64, "kernel_us": 3.25, "x": None, "y": True}])
    assert found.problem == Problem(2, 3, 64, 64)
    assert found.notes == ("y: True",)
    refused([{"kernel_us": "x"}], "import_time", "row 1", "kernel_us")
    refused([{"kernel_us": [1]}], "import_rows_form")
    refused([1], "import_rows_form")
    refused([{"kernel_us": True}], "import_time", "kernel_us")


# -- files of unknown format


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({}, "import_form_unknown"),
        ({"cache": 1}, "import_form_unknown"),
        (b"{", "snapshot_no_json"),
        (b"\xff\xfe", "snapshot_no_utf8"),
    ],
)
def test_files_of_unknown_format_are_refused(data: Any, code: str) -> None:
    refused(data, code)


def test_a_snapshot_is_opened_and_not_imported() -> None:
    refused(dumps(snapshot_maker()), "snapshot_already")
