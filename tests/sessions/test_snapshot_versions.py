"""Files of earlier schema versions stay readable; a problem has one form in a file."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from importing import imported, refused
from sessions_data import evaluation_maker, snapshot_maker
from words import raises, says

from engine.attention.problem import Problem
from engine.base.errors import SnapshotError
from engine.base.schema import encode
from engine.sessions.folders import names_for
from engine.sessions.goal import timeline_rows
from engine.sessions.rerun import their_source
from engine.sessions.session import make_source
from engine.sessions.snapshot import SCHEMA_VERSION, Snapshot, dumps, loads, summarise
from engine.sessions.store import Store
from engine.sessions.tables import batch_table
from kernels.ladder import by_id

V2 = Path(__file__).parent / "data" / "v2.json"
V3 = V2.with_name("v3.json")
V8 = V2.with_name("v8.json")
V9 = V2.with_name("v9.json")
V10 = V2.with_name("v10.json")
DECODE = Problem(1, 32, 1, 128, seqlen_kv=4096)
GQA = replace(DECODE, num_heads_kv=8)


def decoding(**changes: Any) -> Snapshot:
    return snapshot_maker(evaluations=[evaluation_maker(problem=DECODE)], **changes)


def test_version_2_is_readable() -> None:
    """A file of schema version 2, which is never rewritten, is read with its original figures."""
    snapshot = loads(V2.read_bytes(), name="v2.json")
    assert snapshot.title == "Test data: decoding on an L4"
    assert snapshot.problems == (DECODE, Problem(1, 1, 128, 64))
    first, second = snapshot.evaluations
    assert first.problem == DECODE
    assert first.latency is not None
    assert (first.latency.origin, first.latency.median_us) == ("measured", 12.5)
    assert second.variant == "v06"


def test_version_3_is_readable() -> None:
    """A file of schema version 3, which is never rewritten, is read with its original figures."""
    snapshot = loads(V3.read_bytes(), name="v3.json")
    assert snapshot.title == "Test data: grouped-query attention on an L4"
    prefill = Problem(1, 32, 2048, 128, True, "bfloat16", num_heads_kv=8)
    assert snapshot.problems == (GQA, prefill, Problem(1, 1, 128, 64))
    first, second, third = snapshot.evaluations
    assert (first.problem, second.problem, third.problem) == snapshot.problems
    assert first.latency is not None
    assert (first.latency.origin, first.latency.median_us) == ("measured", 31.5)
    assert third.variant == "v05"


DERIVED = {
    *("resources", "smem_bytes", "spill_bytes"),
    *("occupancy", "limiter", "wave_efficiency", "within_fixed_bound"),
}


def test_version_8_stores_derived_fields_and_version_9_does_not() -> None:
    """A file of schema version 8, never rewritten, has derived fields; version 9 omits them."""
    old = json.loads(V8.read_bytes())
    snapshot = loads(V8.read_bytes(), name="v8.json")
    assert [e.status for e in snapshot.evaluations] == ["PASSED", "RACE", "INCORRECT"]
    first, raced, wrong = snapshot.evaluations
    assert (first.problem.num_heads_kv, first.problem.kv_dtype) == (2, "float8_e4m3")
    assert (first.problem.lse, raced.problem.window, raced.problem.softcap) == (True, 32, 20.0)
    assert first.counts is not None
    assert first.counts.instructions == 120_000
    assert raced.passes[0].occupancy.idle_ctas == 60
    assert wrong.correctness is not None
    assert first.correctness is not None
    assert (first.correctness.within_fixed_bound, wrong.correctness.within_fixed_bound) == (
        *(True, False),
    )
    of, was = first.passes[0], old["evaluations"][0]["passes"][0]
    assert (of.resources.smem_bytes, of.resources.spill_bytes) == (
        was["resources"]["smem_bytes"],
        was["resources"]["spill_bytes"],
    )
    assert of.occupancy.occupancy == was["occupancy"]["occupancy"]
    assert of.occupancy.limiter == was["occupancy"]["limiter"]

    new = json.loads(dumps(snapshot, compress=False))
    assert (old["schema_version"], new["schema_version"]) == (8, SCHEMA_VERSION)
    assert new["evaluations"] == [_without_derived(e) for e in old["evaluations"]]
    assert loads(dumps(snapshot), name="x") == snapshot


def test_version_9_stores_the_text_of_the_timelines_evaluations_and_version_10_does_not() -> None:
    """It is computed when it is read, with the name of the source that ran."""
    old = json.loads(V9.read_bytes())
    snapshot = loads(V9.read_bytes(), name="v9.json")
    assert [e["what"] for e in old["timeline"]] == ["v05 as it is", "a dead end"]
    new = json.loads(dumps(snapshot, compress=False))
    assert [e["what"] for e in new["timeline"]] == ["", "a dead end"]
    first, note = timeline_rows(snapshot.timeline, snapshot.opened(), snapshot.title)
    assert first.what.startswith("v05 ")
    assert first.what.endswith("12.5 µs recorded")
    assert note.what == "a dead end"


def _without_derived(raw: Any) -> Any:
    """Return the fields of a file of version 8 without those that version 9 omits."""
    if isinstance(raw, list):
        return [_without_derived(each) for each in raw]
    if not isinstance(raw, dict):
        return raw
    is_pass = raw.keys() == {"resources", "occupancy"}
    return {k: _without_derived(v) for k, v in raw.items() if is_pass or k not in DERIVED}


def test_json_output_still_has_the_derived_fields() -> None:
    evaluation = loads(V8.read_bytes(), name="v8.json").evaluations[0]
    old = json.loads(V8.read_bytes())["evaluations"][0]
    shown = encode(evaluation, derived=True)
    for of in (old["occupancy"], *(p["occupancy"] for p in old["passes"])):
        of["wave_efficiency"] = 4.41 / 5  # rounded in the test data of the file
    timed = [old, *(b for b in old["baselines"] if b["latency"] is not None)]
    for of in (x for each in timed for x in (each["latency"], *each["other_latencies"])):
        assert of["origin"] == "measured"
        of["method"] = ""  # derived since version 11: how a prediction was made
    assert shown == old


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    ("problem", "label"),
    [(DECODE, "B1 H32 S1 KV4096 D128 fp16"), (GQA, "B1 H32 HKV8 S1 KV4096 D128 fp16")],
)
def test_round_trip(compress: bool, problem: Problem, label: str) -> None:
    snapshot = snapshot_maker(evaluations=[evaluation_maker(problem=problem)])
    data = dumps(snapshot, compress=compress)
    assert loads(data, name="x") == snapshot
    assert loads(data, name="x").evaluations[0].problem == problem
    assert summarise(snapshot).problems == (label,)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        {"title": "forged", "origins": ["predicted"], "devices": ["T4"], "variants": []},
        {"title": 5, "unknown": "<script>"},
        None,
    ],
)
def test_the_summary_of_a_file_of_version_10_is_not_read(
    compress: bool, wrong: Any, tmp_path: Path
) -> None:
    """A file of schema version 10, which is never rewritten, begins with its summary."""
    text = V10.read_bytes()
    snapshot = loads(text, name="v10.json")
    true = json.dumps(json.loads(text)["summary"], ensure_ascii=False, separators=(",", ":"))
    assert json.loads(true) == summarise(snapshot).model_dump(mode="json")
    changed = {**json.loads(true), **wrong} if wrong else wrong
    head = json.dumps(changed, ensure_ascii=False, separators=(",", ":"))
    text = text.replace(true.encode(), head.encode(), 1)
    assert text.startswith(
        b'{"format":"attune-snapshot","schema_version":10,"summary":' + head[:9].encode()
    )
    store = Store(str(tmp_path / "own"), shipped=None, index_folder=tmp_path / "index")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "v10.json").write_bytes(gzip.compress(text) if compress else text)
    (info,) = store.list()
    assert info.summary == summarise(snapshot)
    assert store.open("v10.json") == snapshot
    assert "summary" not in json.loads(dumps(snapshot, compress=False))


def test_a_later_version_is_refused() -> None:
    version = b'"schema_version":%d'
    data = dumps(decoding(), compress=False)
    data = data.replace(version % SCHEMA_VERSION, version % (SCHEMA_VERSION + 1))
    with raises(SnapshotError, "newer_schema"):
        loads(data, name="x.json")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("seqlen_kv", 1, "equal_left_out"),
        ("seqlen_kv", 0, "size_too_small"),
        ("num_heads_kv", 32, "equal_left_out"),
        ("num_heads_kv", 5, "heads_not_shared"),
    ],
)
def test_one_problem_has_one_form_in_a_file(name: str, value: Any, said: str) -> None:
    raw = json.loads(dumps(decoding(), compress=False))
    raw["evaluations"][0]["problem"][name] = value
    with raises(SnapshotError, "value_error", "evaluations[0].problem") as refused:
        loads(json.dumps(raw).encode(), name="x.json")
    assert says(str(refused.value), said, name)


def test_a_length_of_keys_is_a_number_in_a_file() -> None:
    raw = json.loads(dumps(decoding(), compress=False))
    raw["evaluations"][0]["problem"]["seqlen_kv"] = "4096"
    with raises(SnapshotError, "int_type", "evaluations[0].problem.seqlen_kv "):
        loads(json.dumps(raw).encode(), name="x.json")


def test_the_file_name_has_both_lengths() -> None:
    assert "_b1-h32-s1-kv4096-d128." in next(names_for(decoding()))
    shared = snapshot_maker(evaluations=[evaluation_maker(problem=GQA)])
    assert "_b1-h32-hkv8-s1-kv4096-d128." in next(names_for(shared))


def test_batches_are_compared_at_one_length_of_keys() -> None:
    problems = [replace(DECODE, batch=b, seqlen_kv=kv) for b, kv in ((1, 512), (2, 512), (4, 1024))]
    rows = batch_table([evaluation_maker(problem=p) for p in problems]).rows
    assert [row[1] for row in rows] == [p.label() for p in problems[:2]]


def test_a_table_with_both_lengths_is_imported() -> None:
    csv = "variant,B,H,S,KV,D,median_us\nv05,1,32,1,4096,128,40\nv05,1,32,64,64,128,41\n"
    csv += "v05,1,32,64,,128,42\n"
    problems = [e.problem for e in imported(csv)]
    assert problems == [DECODE, Problem(1, 32, 64, 128), Problem(1, 32, 64, 128)]
    csv = "variant,B,H,num_kv_heads,S,KV,D,median_us\nv08,1,32,8,1,4096,128,40\n"
    assert [e.problem for e in imported(csv)] == [GQA]
    causal = "variant,B,H,S,seqlen_k,D,causal,median_us\nv05,1,1,128,64,64,true,40\n"
    refused(causal, "causal_without_keys", "line 2")


def test_a_source_of_another_interface_is_not_run(tmp_path: Path) -> None:
    """A source with other arguments is refused, since a GPU would misread the ones it is given."""
    text = (
        'extern "C" __global__ void __launch_bounds__(256)\n'
        "attention_partial(const element* q,  // [batch, num_heads, seqlen, HEAD_DIM]\n"
        "                  int num_heads, /* (so many) */ int seqlen) {\n}\n"
    )
    source = make_source("v05_kv_split.cu", text)
    evaluation = evaluation_maker(source_sha256=source.sha256)
    snapshot = snapshot_maker(evaluations=[evaluation], sources=[source])
    with raises(SnapshotError, "argument_count_differs", "3", "10"):
        their_source(snapshot, evaluation, tmp_path)
    text = by_id("v05").source.read_text(encoding="utf-8")
    ours = make_source("v05_kv_split.cu", text)
    evaluation = evaluation_maker(source_sha256=ours.sha256)
    snapshot = snapshot_maker(evaluations=[evaluation], sources=[ours])
    assert their_source(snapshot, evaluation, tmp_path).read_text(encoding="utf-8") == text
