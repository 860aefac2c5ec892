"""Evaluation ↔ snapshot record: nothing lost, nothing let in, origins told apart."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from sessions_data import evaluation_maker, make_latency
from words import says

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


def test_a_failed_evaluation_comes_back() -> None:
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


def test_figures_that_are_not_finite_are_null_in_the_file_and_nan_in_the_noun() -> None:
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


def test_texts_are_made_fit_for_a_file() -> None:
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


def test_opened_figures_are_recorded_and_predictions_stay_predictions() -> None:
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
    ("path", "value", "said"),
    [
        ("latency.median_us", "12", "latency.median_us must be a number"),
        ("latency.median_us", float("nan"), "latency.median_us must be a finite number"),
        ("latency.samples_us.3", float("inf"), "latency.samples_us[3] must be a finite number"),
        ("latency.low_us", 99.0, "latency is wrong: latency needs 0 < low ≤ median ≤ high"),
        ("latency.origin", "guessed", "latency.origin must be one of 'measured'"),
        ("baselines.0.name", KeyError, "baselines[0].name is missing"),
        ("surprise", 1, "surprise is a field this version does not know"),
        ("<b>surprise</b>", 1, "? is a field this version does not know"),
        ("problem.seqlen", 0, "problem is wrong: seqlen must be at least 1, not 0"),
        ("problem.seqlen", True, "problem.seqlen must be a whole number"),
        ("problem.causal", 1, "problem.causal must be true or false"),
        ("passes", {}, "passes must be a list"),
        ("passes.1.resources.registers_per_thread", -1, "must be at least 0"),
        ("status", "PERFECT", "status must be one of"),
        ("correctness.passed", False, "no timing is stored for an incorrect result"),
        ("correctness", None, "PASSED needs a correctness verdict"),
        ("config.x y", 1, "config"),
        ("log", "\x1b[2J", "log has characters or a form that are not allowed there"),
        ("notes.0", "x" * 3_000, "notes[0] must have at most 2,000 characters"),
        ("when", "2026-02-31T00:00:00Z", "when is wrong"),
        ("when", "yesterday", "when has characters or a form"),
        ("passes.1.occupancy.ctas", 10**400, "occupancy.ctas must be at most"),
        ("latency", KeyError, "latency is missing"),
        ("passes.0.occupancy", KeyError, "occupancy is missing"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(path: str, value: Any, said: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        decode(Evaluation, broken(path, value), name="e.json")
    sentence = str(caught.value)
    assert said in sentence
    assert sentence.startswith("e.json: ")
    assert "\n" not in sentence
    assert len(sentence) < 400


@pytest.mark.parametrize("raw", [None, [], 3, "text", True, {}])
def test_what_is_no_evaluation_at_all(raw: Any) -> None:
    with pytest.raises(SnapshotError, match=r"^the evaluation: "):
        decode(Evaluation, raw, name="the evaluation")
