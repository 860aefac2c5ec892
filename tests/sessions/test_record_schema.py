"""Evaluation ↔ stored record: a lossless round trip, strict validation, origins."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from sessions_data import evaluation_maker, make_latency
from words import raises, says

from engine.attention.evaluation import BaselineTiming, Evaluation
from engine.attention.problem import Problem
from engine.base.errors import SnapshotError, Status
from engine.base.schema import decode, encode


def through_json(evaluation: Evaluation) -> Any:
    return json.loads(json.dumps(encode(evaluation), allow_nan=False))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"status": Status.SKIPPED, "reason": "v05 has no kernel for head_dim 4.", "passes": ()},
        {"latency": None, "other_latencies": (), "baselines": (), "execution": None},
        {"latency": make_latency(3.0, 0, origin="predicted", kind="end_to_end")},
        {"problem": Problem(2, 3, 65, 96, causal=True, dtype="bfloat16"), "config": {}},
        {"when": "", "log": "", "flags": (), "notes": (), "source_sha256": ""},
    ],
)
def test_round_trip(changes: dict[str, Any]) -> None:
    evaluation = evaluation_maker(**changes)
    assert decode(Evaluation, through_json(evaluation)) == evaluation


def test_a_failed_evaluation_is_read_back_unchanged() -> None:
    correctness = dataclasses.replace(
        evaluation_maker().correctness,  # type: ignore[type-var]
        passed=False,
        first_bad_index=(0, 1, 64, 3),
        bad_count=7,
    )
    evaluation = evaluation_maker(
        status=Status.INCORRECT,
        reason="7 elements are wrong",
        correctness=correctness,
        latency=None,
    )
    assert decode(Evaluation, through_json(evaluation)) == evaluation


def test_the_schema_knows_every_status() -> None:
    for status in Status:
        evaluation = evaluation_maker(
            status=status, reason="because", correctness=evaluation_maker().correctness
        )
        assert decode(Evaluation, through_json(evaluation)).status is status


def test_non_finite_figures_are_null_in_files() -> None:
    correctness = dataclasses.replace(
        evaluation_maker().correctness,  # type: ignore[type-var]
        max_abs_err=math.inf,
        rms_err=math.nan,
        passed=False,
    )
    evaluation = evaluation_maker(
        status=Status.INCORRECT, reason="NaN", correctness=correctness, latency=None
    )
    raw = encode(evaluation)
    assert raw["correctness"]["max_abs_err"] is None
    json.dumps(raw, allow_nan=False)
    back = decode(Evaluation, raw).correctness
    assert back is not None
    assert math.isnan(back.max_abs_err)
    assert math.isnan(back.rms_err)
    assert back.mean_abs_err == correctness.mean_abs_err


def test_texts_are_sanitised_for_files() -> None:
    evaluation = evaluation_maker(
        log="red \x1b[31mred\x1b[0m " + "x" * 200_000 + " end",
        notes=("tab\tstays, bell\x07 goes, override\u202e goes",),
        flags=("-I" + "y" * 1_000,),
    )
    back = decode(Evaluation, through_json(evaluation))
    assert "\x1b" not in back.log
    assert says(back.log, "characters_cut_here")
    assert back.log.endswith(" end")
    assert back.notes == ("tab\tstays, bell goes, override goes",)
    assert back.flags[0].endswith("…")


def test_opened_measurements_are_recorded_and_predictions_remain_predictions() -> None:
    predicted = make_latency(9.0, 0, origin="predicted")
    eager = make_latency(30.0, 0, kind="end_to_end")
    flash = BaselineTiming("flash", make_latency(25.0, 0), other_latencies=(eager, predicted))
    original = evaluation_maker(
        other_latencies=(predicted, make_latency(5.0, 1)), baselines=(flash,)
    )
    assert decode(Evaluation, through_json(original)) == original
    shown = original.as_recorded()
    assert shown.latency is not None
    assert shown.latency.origin == "recorded"
    assert [x.origin for x in shown.other_latencies] == ["predicted", "recorded"]
    assert shown.baselines[0].latency is not None
    assert shown.baselines[0].latency.origin == "recorded"
    assert [x.origin for x in shown.baselines[0].other_latencies] == ["recorded", "predicted"]
    assert shown.latency.samples_us == evaluation_maker().latency.samples_us  # type: ignore[union-attr]


def broken(path: str, value: Any) -> Any:
    raw = through_json(evaluation_maker())
    *parents, last = path.split(".")
    at = raw
    for part in parents:
        at = at[int(part)] if part.isdigit() else at[part]
    if value is KeyError:
        del at[last]
    else:
        at[int(last) if last.isdigit() else last] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "code", "place"),
    [
        ("latency.median_us", "12", "float_type", "latency.median_us "),
        ("latency.median_us", float("nan"), "finite_number", "latency.median_us "),
        ("latency.samples_us.3", float("inf"), "finite_number", "latency.samples_us[3] "),
        ("latency.origin", "guessed", "literal_error", "latency.origin "),
        ("baselines.0.name", KeyError, "missing", "baselines[0].name "),
        ("surprise", 1, "unexpected_keyword_argument", "surprise "),
        ("<b>surprise</b>", 1, "unexpected_keyword_argument", "? "),
        ("problem.seqlen", True, "int_type", "problem.seqlen "),
        ("problem.causal", 1, "bool_type", "problem.causal "),
        ("passes", {}, "tuple_type", "passes "),
        ("passes.1.resources.registers_per_thread", -1, "greater_than_equal", ""),
        ("status", "PERFECT", "enum", "status "),
        ("config.x y", 1, "string_pattern_mismatch", "config"),
        ("log", "\x1b[2J", "string_pattern_mismatch", "log "),
        ("notes.0", "x" * 3_000, "string_too_long", "notes[0] "),
        ("when", "2026-02-31T00:00:00Z", "value_error", "when "),
        ("when", "yesterday", "string_pattern_mismatch", "when "),
        ("passes.1.occupancy.ctas", 10**400, "less_than_equal", "occupancy.ctas "),
        ("latency", KeyError, "missing", "latency "),
        ("passes.0.occupancy", KeyError, "missing", "occupancy "),
    ],
)
def test_an_invalid_value_is_named_with_its_place(
    path: str, value: Any, code: str, place: str
) -> None:
    with raises(SnapshotError, code, place) as caught:
        decode(Evaluation, broken(path, value), name="e.json")
    is_one_short_line(str(caught.value))


@pytest.mark.parametrize(
    ("path", "value", "name", "facts"),
    [
        ("latency.low_us", 99.0, "latency_order", ("latency", "99.0")),
        ("problem.seqlen", 0, "size_too_small", ("problem", "seqlen", "0")),
        ("correctness.passed", False, "timing_of_incorrect", ()),
        ("correctness", None, "passed_unchecked", ()),
    ],
)
def test_fields_that_disagree_are_named(
    path: str, value: Any, name: str, facts: tuple[str, ...]
) -> None:
    with raises(SnapshotError, "value_error") as caught:
        decode(Evaluation, broken(path, value), name="e.json")
    assert says(str(caught.value), name, *facts)
    is_one_short_line(str(caught.value))


def is_one_short_line(sentence: str) -> None:
    assert sentence.startswith("e.json: ")
    assert "\n" not in sentence
    assert len(sentence) < 400


@pytest.mark.parametrize("raw", [None, [], 3, "text", True, {}])
def test_records_that_are_no_evaluation_are_refused(raw: Any) -> None:
    code = "missing" if isinstance(raw, dict) else "dataclass_type"
    with raises(SnapshotError, code, "the evaluation: "):
        decode(Evaluation, raw, name="the evaluation")
