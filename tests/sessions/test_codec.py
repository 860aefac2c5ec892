"""Snapshot files: round trip, all earlier schema versions, and damaged or invalid files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sessions_data import evaluation_maker, map_stub, snapshot_maker
from words import raises, says

from engine.attention.problem import MAX_HEAD_DIM, MAX_HEADS, MAX_SEQLEN, Problem
from engine.base.errors import SnapshotError
from engine.correctness import ErrorMap
from engine.sessions.session import make_error_map, make_source
from engine.sessions.snapshot import (
    SCHEMA_VERSION,
    StoredErrorMap,
    dumps,
    loads,
    summarise,
)

V1 = Path(__file__).parent / "data" / "v1.json"


def as_json(**changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(dumps(snapshot_maker(), compress=False))
    return raw | changes


def refusal(raw: Any, name: str = "x.json") -> str:
    data = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    with pytest.raises(SnapshotError) as caught:
        loads(data, name=name)
    return str(caught.value)


@pytest.mark.parametrize("compress", [True, False])
def test_round_trip(compress: bool) -> None:
    snapshot = snapshot_maker()
    data = dumps(snapshot, compress=compress)
    assert loads(data, name="x") == snapshot
    assert dumps(loads(data, name="x"), compress=compress) == data
    assert data.startswith(b"\x1f\x8b" if compress else b'{"format":"attune-snapshot"')


def test_evaluations_are_read_back_unchanged_and_labelled_recorded() -> None:
    evaluation = evaluation_maker(samples=200)
    snapshot = loads(dumps(snapshot_maker(evaluations=[evaluation])), name="x")
    assert snapshot.evaluations[0] == evaluation
    (shown,) = snapshot.opened()
    assert shown.latency is not None
    assert shown.latency.origin == "recorded"


def test_version_1_is_readable() -> None:
    """A file of schema version 1, which is never rewritten, is read with its original figures."""
    snapshot = loads(V1.read_bytes(), name="v1.json")
    assert snapshot.title == "Test data: KV-split on an L4"
    assert snapshot.target is not None
    assert (snapshot.target.metric, snapshot.target.value) == ("speedup", 1.5)
    assert snapshot.environment.gpus[0].power_limit_w == 72.0
    assert snapshot.problems == (
        Problem(1, 1, 128, 64),
        Problem(2, 8, 512, 512, causal=True, dtype="bfloat16"),
    )
    first, second = snapshot.evaluations
    assert first.latency is not None
    assert (first.latency.origin, first.latency.median_us) == ("measured", 12.5)
    assert len(first.latency.samples_us) == 5
    assert first.passes[1].resources.registers_per_thread == 96
    assert first.main_pass is not None
    assert first.main_pass.occupancy.limits["shared memory"] == 2
    assert first.baselines[1].reason == "not built into this torch"
    assert second.status == "SKIPPED"
    assert snapshot.error_maps[0].values[5] == 5e-4
    assert snapshot.sources[0].text == "// test data\n"
    assert [entry.outcome for entry in snapshot.timeline] == ["tried", "dropped"]


def test_a_summary_is_what_is_in_the_snapshot() -> None:
    evaluations = [evaluation_maker(samples=5, seed=i) for i in range(40)]
    summary = summarise(snapshot_maker(evaluations=evaluations))
    assert (summary.devices, summary.variants, summary.num_evaluations) == (("L4",), ("v05",), 40)
    assert summary.origins == ("measured",)


def test_every_problem_of_a_file_can_be_in_its_summary() -> None:
    """The longest label has more characters than a title may have."""
    problem = Problem(
        *(5, MAX_HEADS, 1, MAX_HEAD_DIM),
        num_heads_kv=MAX_HEADS // 2,
        seqlen_kv=MAX_SEQLEN,
        head_dim_v=MAX_HEAD_DIM // 2,
        window=MAX_SEQLEN,
        softcap=1.23457e-05,
        alibi=True,
        sinks=True,
        kv_dtype="float8_e4m3",
        lse=True,
        causal=True,
        seqlens=(*range(MAX_SEQLEN - 4, MAX_SEQLEN), MAX_SEQLEN),
    )
    assert len(problem.label()) > 120
    snapshot = snapshot_maker(evaluations=[evaluation_maker(problem=problem)])
    assert summarise(loads(dumps(snapshot), name="x")).problems == (problem.label(),)


def test_the_order_of_fields_has_no_meaning() -> None:
    rewritten = json.dumps(as_json(), indent=1, sort_keys=True).encode()
    assert loads(rewritten, name="x") == snapshot_maker()


@pytest.mark.parametrize(
    ("raw", "code", "fact"),
    [
        (b"", "snapshot_empty", ""),
        (b"  \n", "snapshot_empty", ""),
        (b"[]", "no_snapshot", ""),
        (b'"text"', "no_snapshot", ""),
        (b"{}", "no_snapshot", ""),
        ({"format": "something else"}, "no_snapshot", ""),
        (b"\xff\xfe{}", "snapshot_no_utf8", "byte 0"),
        (b'{"a": 1,}', "snapshot_no_json", "line 1, column 9"),
        (b'{"format": "attune-snapshot", "format": 1}', "snapshot_field_twice", "format"),
        (b"[" * 100_000, "snapshot_deep", ""),
        (b"1" * 5_000, "snapshot_long_number", ""),
        (b"\x1f\x8b garbage", "snapshot_gzip", ""),
        (gzip.compress(b"{}", mtime=0) + b"more", "snapshot_data_behind", ""),
        (gzip.compress(b"{}" * 9, mtime=0)[:-9], "snapshot_cut_short", ""),
    ],
)
def test_files_that_are_no_json_are_refused(raw: Any, code: str, fact: str) -> None:
    data = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    with raises(SnapshotError, code, "x.json", fact):
        loads(data, name="x.json")


@pytest.mark.parametrize(
    ("changes", "code", "place"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "newer_schema", ""),
        ({"schema_version": 10**30}, "newer_schema", ""),
        ({"schema_version": 0}, "schema_version_form", ""),
        ({"schema_version": True}, "schema_version_form", ""),
        ({"schema_version": None}, "schema_version_form", ""),
        ({"environment": None}, "model_type", "environment "),
        ({"title": 5}, "string_type", "title "),
        ({"created": ""}, "string_pattern_mismatch", "created "),
        ({"id": "../../etc/passwd"}, "string_pattern_mismatch", "id "),
        ({"extra": 1}, "extra_forbidden", "extra "),
        (
            {"timeline": [{"when": "2026-11-21T00:00:00Z", "what": "", "evaluation": 2}]},
            "value_error",
            "timeline[0].evaluation is 2, ",
        ),
        ({"environment": {"gpus": [{"name": 3}]}}, "string_type", "environment.gpus[0].name "),
        ({"evaluations": 5}, "tuple_type", "evaluations "),
        ({"target": {"metric": "speedup", "value": 0}}, "greater_than", "target.value "),
    ],
)
def test_json_that_is_no_snapshot_is_refused(
    changes: dict[str, Any], code: str, place: str
) -> None:
    with raises(SnapshotError, code, place):
        loads(json.dumps(as_json(**changes)).encode(), name="x.json")


def test_a_changed_source_is_found() -> None:
    raw = as_json()
    raw["sources"][0]["text"] += "// one more line"
    assert says(refusal(raw), "sha256_of_other_text", "sources[0]")


def test_a_place_deep_inside_is_named() -> None:
    raw = as_json()
    raw["evaluations"][0]["latency"]["median_us"] = "fast"
    with raises(SnapshotError, "float_type", "tune.json: evaluations[0].latency.median_us "):
        loads(json.dumps(raw).encode(), name="tune.json")


def test_a_snapshot_too_large_to_open_is_not_saved() -> None:
    many = [make_source(f"{number}.cu", "," * 1_000_000) for number in range(2)]
    with raises(SnapshotError, "session_too_large"):
        dumps(snapshot_maker(sources=many))


def test_error_maps_are_pooled_by_their_largest_value() -> None:
    values = np.zeros((130, 10))
    values[129, 9], values[0, 0], values[2, 1] = 0.123456, np.nan, -1
    pooled = make_error_map(3, ErrorMap("m", "row", "column", values, 2, 5))
    assert (pooled.rows, pooled.columns) == (44, 10)
    assert (pooled.rows_per_cell, pooled.columns_per_cell) == (6, 5)
    assert pooled.values[-1] == 0.1235
    assert pooled.values[0] is None
    assert pooled.evaluation == 3


def test_an_error_map_has_as_many_values_as_cells() -> None:
    whole = make_error_map(0, map_stub()).model_dump()
    with raises(ValueError, "not_rows_columns", "12"):
        StoredErrorMap.model_validate(whole | {"values": [1.0]})


def test_a_source_that_misleads_the_reader_is_refused() -> None:
    with raises(SnapshotError, "string_pattern_mismatch", "The source: text "):
        make_source("v.cu", "int a; /*\u202e } \u2066if (false)\u2069 */")


def test_garbage_collection_is_enabled_again() -> None:
    import gc

    assert gc.isenabled()
    refusal(as_json(title=5))
    loads(dumps(snapshot_maker()), name="x")
    assert gc.isenabled()
