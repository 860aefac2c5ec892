"""The pinned baseline: stored, damaged, removed; and its differences from an evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compare_data import evaluation, latency
from words import says

from engine.attention.evaluation import Evaluation, PassReport
from engine.attention.problem import Problem
from engine.history.known_time import NOT_COMPARABLE, not_comparable
from engine.sessions.goal import deltas, pin, pinned, pinned_path, unpin


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))


def against(
    baseline: Evaluation, now: Evaluation, problem: Problem | None = None
) -> dict[str, str]:
    return deltas(
        baseline,
        problem=problem or now.problem,
        device=now.device,
        correctness=now.correctness,
        main=now.main_pass,
        latency=now.latency,
    )


def test_a_pinned_run_is_kept_until_it_is_unpinned() -> None:
    assert pinned() is None
    pin(evaluation())
    kept = pinned()
    assert kept is not None
    assert kept.latency is not None
    assert kept.latency.origin == "recorded"
    pinned_path().write_text("{damaged")
    assert pinned() is None
    unpin()
    assert not pinned_path().exists()
    unpin()


def test_deltas_name_the_old_and_the_new_value() -> None:
    base = evaluation()
    main = base.passes[0]
    grown = replace(main.resources, registers_per_thread=103)
    now = replace(
        base,
        latency=latency(50.0),
        passes=(PassReport(grown, replace(main.occupancy, active_warps_per_sm=24)),),
    )
    told = against(base, now)
    assert says(told["latency"], "change_was", "2×", "faster", "100 µs measured")
    assert told["registers"] == "+7, was 96"
    assert told["occupancy"] == "+17, was 33%"
    assert told["correctness"] == told["waves"]
    assert says(told["waves"], "as_pinned")
    assert says(against(base, base)["latency"], "as_pinned")
    cold = replace(base, latency=replace(latency(50.0), kind="device_cold"))
    there = f"device cold ÷ device warm, {NOT_COMPARABLE}, was 50 µs measured"
    assert against(cold, now)["latency"] == there


def test_predicted_times_are_not_compared_with_measured_ones() -> None:
    base = evaluation()
    predicted = replace(base, latency=latency(50.0, origin="predicted"))
    there = f"{not_comparable('predicted', 'measured')}, was 100 µs measured"
    assert against(base, predicted)["latency"] == there
    other = replace(base, latency=latency(25.0, origin="predicted"))
    told = against(predicted, other)["latency"]
    assert says(told, "change_was", "2×", "faster", "50 µs predicted")


def test_predictions_by_two_methods_are_not_compared() -> None:
    base = evaluation()
    code, roofline = (
        replace(base, latency=latency(us, origin="predicted", reason=f"By {method}: test data."))
        for us, method in ((50.0, "machine code"), (25.0, "roofline"))
    )
    words = not_comparable("predicted by machine code", "predicted by roofline")
    assert against(code, roofline)["latency"] == f"{words}, was 50 µs predicted"


def test_times_of_another_problem_are_not_compared() -> None:
    told = against(evaluation(), evaluation(seqlen=256), Problem(1, 1, 256, 64))
    assert says(told["latency"], "another_problem")
    assert "correctness" not in told
    assert says(told["registers"], "as_pinned")
