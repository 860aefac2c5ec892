"""Places and ties, from side-by-side runs and from separate times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_data import SMALL, row
from simulated_gpu import SimulatedConditions, SimulatedDevice
from words import says

from engine.attention.evaluation import CALIBRATED, METHODS
from engine.base.errors import SnapshotError, Status
from engine.base.schema import decode, encode
from engine.history.known_time import NOT_COMPARABLE
from engine.measure.sampler import SamplerSettings, run_rounds
from engine.measure.statistics import MedianInterval, Verdict
from engine.search.autotune import problem_result
from engine.search.ranking import (
    RankedPoint,
    assign_places,
    by_problem,
    compare_rows,
    rank_rows,
    rank_run,
    ranking_origin,
    ties,
)
from engine.search.results import result_tables
from engine.search.sweep.journal import Tally


def test_ties_share_a_place() -> None:
    def slower(slow: float, fast: float) -> bool:
        return slow > fast + 1

    assert assign_places([10.0, 10.5, 11.0, 12.0, 13.0, 20.0], slower) == [1, 1, 1, 4, 4, 6]
    assert assign_places([5.0], slower) == [1]
    assert assign_places([], slower) == []


def test_a_side_by_side_run_distinguishes_two_percent_and_ties_equals() -> None:
    true_us = {"a": 10.0, "b": 10.0, "c": 10.3, "d": 12.0}
    device = SimulatedDevice(true_us, SimulatedConditions(noise=0.004), seed=1)
    run = run_rounds(device, "a", ["b", "c", "d"], SamplerSettings(kinds=("device_warm",)))
    ranked = {p.point: p for p in rank_run(run)}
    assert {name: p.place for name, p in ranked.items()} == {"a": 1, "b": 1, "c": 3, "d": 4}
    assert ties(ranked.values()) == {1}
    assert ranked["c"].ratio == pytest.approx(1.03, abs=0.01)


def test_separate_measurements_within_the_noise_of_runs_tie() -> None:
    close = [row("v05", t, config={"num_splits": s}) for s, t in ((1, 10.0), (2, 10.2), (4, 11.0))]
    places = rank_rows(close)
    assert [p.place for p in places] == [1, 1, 3]
    assert ties(places) == {1}


def test_a_calibrated_and_an_uncalibrated_prediction_have_no_ratio() -> None:
    made = [
        row("v05", t, config={"num_splits": s}, origin="predicted")
        for s, t in ((1, 10.0), (2, 20.0), (4, 40.0))
    ]
    plain = f"By {METHODS[0]}:"
    calibrated = f"{plain} {CALIBRATED} 3 points."
    reasons = (calibrated, plain, calibrated)
    rows = [
        replace(r, result={**r.result, "latency": {**r.result["latency"], "reason": reason}})
        for r, reason in zip(made, reasons, strict=True)
    ]
    places = rank_rows(rows)
    assert [(p.place, p.ratio) for p in places] == [(1, 1.0), (2, None), (3, 4.0)]
    found = problem_result("L4", rows)
    assert found is not None
    table, *_ = result_tables(rows, [found])
    assert list(table.frame()["ratio"]) == ["1.000", NOT_COMPARABLE, "4.000"]


def test_a_place_of_an_earlier_version_is_readable() -> None:
    """Older files store whether a place is shared, which now follows from all places."""
    old = {
        "place": 1,
        "point": "c0ffee",
        "interval": {"median": 10.0, "low": 9.9, "high": 10.1},
        "ratio": 1.0,
        "tied": True,
    }
    place = decode(RankedPoint, old)
    assert place == RankedPoint(1, "c0ffee", MedianInterval(10.0, 9.9, 10.1), 1.0)
    del old["tied"]
    assert encode(place) == old
    with pytest.raises(SnapshotError):
        decode(RankedPoint, {**old, "tie": True})


def test_predictions_within_the_error_of_ranking_share_a_place() -> None:
    rows = [
        row("v05", t, config={"num_splits": s}, origin="predicted")
        for s, t in ((1, 10.0), (2, 10.9), (4, 11.2))
    ]
    assert [p.place for p in rank_rows(rows)] == [1, 1, 3]


def test_a_prediction_never_beats_a_measurement() -> None:
    measured = row("v05", 10.0, config={"num_splits": 1})
    predicted = row("v05", 1.0, config={"num_splits": 2}, origin="predicted")
    assert ranking_origin([predicted, measured]) == "measured"
    assert [p.point for p in rank_rows([predicted, measured])] == [measured.point]
    assert compare_rows(predicted, measured) is Verdict.UNDECIDED


def test_predictions_of_different_methods_are_never_ranked_together() -> None:
    """A time by roofline may be off by a factor of four either way."""
    simulated = row("v01", 62.0, config={"block_n": 64}, origin="predicted")
    assumed = row("v01", 27.2, config={"block_n": 32}, origin="predicted")
    simulated, assumed = (
        replace(r, method=method)
        for r, method in ((simulated, "machine code"), (assumed, "roofline"))
    )
    assert [p.point for p in rank_rows([assumed, simulated])] == [simulated.point]
    assert compare_rows(assumed, simulated) is Verdict.UNDECIDED
    result = problem_result("L4", [assumed, simulated])
    assert result is not None
    assert says(result.reason, "predicted_tie", "by machine code", "1 point")
    assert says(result.reason, "without_simulated_time", "1 point")
    tally = Tally()
    tally.add(simulated)
    tally.add(assumed)
    assert list(tally.best.values()) == [simulated]


def test_different_gpus_or_problems_get_no_verdict() -> None:
    here = row("v05", 10.0)
    assert compare_rows(row("v05", 5.0, config={"num_splits": 1}), here) is Verdict.FASTER
    assert compare_rows(row("v05", 5.0, device="H200"), here) is Verdict.UNDECIDED
    other = row("v05", 5.0, problem=replace(SMALL, seqlen=256))
    assert compare_rows(other, here) is Verdict.UNDECIDED
    groups = by_problem([here, row("v05", 5.0, device="H200"), other])
    assert [key[0] for key in groups] == ["L4", "H200", "L4"]


ONE, TWO = "GPU-1111aaaa-1", "GPU-2222bbbb-2"


def test_two_gpus_of_one_model_get_no_verdict() -> None:
    one = row("v05", 10.0, config={"num_splits": 1}, gpu=ONE)
    two = row("v05", 5.0, config={"num_splits": 2}, gpu=TWO)
    old = row("v05", 5.0, config={"num_splits": 4})  # from a version that did not record the GPU
    assert compare_rows(two, one) is Verdict.UNDECIDED
    assert compare_rows(old, one) is Verdict.UNDECIDED
    assert compare_rows(row("v05", 5.0, gpu=ONE), one) is Verdict.FASTER
    failed = row("v05", None, config={"num_splits": 8}, status=Status.CRASHED, gpu=TWO)
    groups = by_problem([one, two, old, failed])
    unrecorded = next(name for name, _ in groups if says(name, "gpu_unrecorded", "L4"))
    assert {name: [r.point for r in group] for (name, _), group in groups.items()} == {
        "L4 (GPU-1111aaaa on node7)": [one.point],
        "L4 (GPU-2222bbbb on node7)": [two.point],
        unrecorded: [old.point],
        "L4": [failed.point],
    }
    alone = by_problem([one, failed, row("v01", 7.0, gpu=ONE)])
    assert [(name, len(group)) for (name, _), group in alone.items()] == [("L4", 3)]


def test_a_prediction_does_not_depend_on_the_gpu_that_made_it() -> None:
    one, two = (row("v05", 9.0, origin="predicted", gpu=gpu) for gpu in (ONE, TWO))
    assert compare_rows(two, one) is Verdict.SAME
    assert list(by_problem([one, two])) == [("L4", SMALL)]


def test_failures_have_no_place() -> None:
    wrong = row("v05", None, status=Status.INCORRECT)
    assert rank_rows([wrong]) == []
    assert compare_rows(wrong, row("v05", 10.0)) is Verdict.UNDECIDED
