"""DataFrames of the results of a sweep."""

from __future__ import annotations

import time
from dataclasses import replace

import pandas as pd
import pytest
from search_data import SMALL, bowl, point, row
from words import says

from app.sweep.charts import _win
from engine.attention.evaluation import Latency
from engine.base.errors import Status
from engine.base.schema import encode
from engine.history.known_time import NOT_COMPARABLE
from engine.search.ranking import SweepRow, by_problem
from engine.search.results import (
    COLUMNS,
    best_so_far,
    occupancy_frame,
    parallel_coordinates,
    row_dict,
    sweep_frame,
    tunable_importance,
    tunable_slices,
    winner_line,
)
from engine.search.space import Space, SweepOptions

LARGE = replace(SMALL, seqlen=1024)


def winner_map(rows: list[SweepRow]) -> pd.DataFrame:
    return pd.DataFrame([winner_line(*key, group) for key, group in by_problem(rows).items()])


def full_sweep() -> list[SweepRow]:
    points = Space(("v05",), (SMALL, LARGE)).points(SweepOptions(gpu="L4"))
    return [row("v05", bowl(p.request), p.request.problem, dict(p.request.config)) for p in points]


def test_the_frame_has_every_point_failures_too() -> None:
    rows = [
        row("v01", 100.0),
        row("v05", 50.0, config={"num_splits": 2}),
        row("v05", None, config={"num_splits": 4}, status=Status.INCORRECT),
    ]
    frame = sweep_frame(rows)
    assert list(frame["status"]) == ["PASSED", "PASSED", "INCORRECT"]
    assert frame["reason"][2] == "Made up to be INCORRECT."
    assert list(frame["median_us"][:2]) == [100.0, 50.0]
    assert pd.isna(frame["median_us"][2])
    assert frame["tflops"][0] == pytest.approx(SMALL.flops / 100e-6 / 1e12)
    assert pd.isna(frame["config.num_splits"][0])
    assert frame["config.num_splits"][1] == 2
    assert frame["occupancy"].between(0, 1).all()
    assert set(row_dict(rows[0])) <= set(frame.columns)
    assert list(sweep_frame([]).columns) == list(COLUMNS)


def test_an_incorrect_result_has_no_time_whatever_it_predicts() -> None:
    wrong = row("v01", 1.0, status=Status.INCORRECT, origin="predicted")
    assert wrong.interval is None
    assert pd.isna(sweep_frame([wrong])["median_us"][0])


def test_the_winner_map_names_variant_margin_and_ties() -> None:
    rows = [
        row("v01", 100.0),
        row("v02", 60.0),
        row("v05", 50.0, config={"num_splits": 2}),
        row("v05", 55.0, config={"num_splits": 4}),
        row("v01", 100.0, LARGE),
        row("v02", 101.0, LARGE),  # within the spread of runs
        row("v05", None, LARGE, status=Status.COMPILE_ERROR),
    ]
    found = winner_map(rows).set_index("seqlen")
    assert list(found.index) == [128, 1024]
    assert found.loc[128, "winner"] == "v05"
    assert found.loc[128, "label"].endswith("num_splits=2")
    assert found.loc[128, "runner_up"] == "v02"
    assert found.loc[128, "margin"] == pytest.approx(1.2)
    assert found.loc[128, "tied_with"] == ""
    assert found.loc[1024, "winner"] == "v01"
    assert found.loc[1024, "tied_with"] == "v02"


def test_the_winner_map_separates_gpus_and_origins() -> None:
    rows = [
        row("v01", 100.0),
        row("v05", 1.0, origin="predicted"),
        row("v02", 7.0, device="H200"),
    ]
    found = winner_map(rows).set_index("device")
    assert found.loc["L4", "winner"] == "v01"
    assert found.loc["L4", "origin"] == "measured"
    assert pd.isna(found.loc["L4", "margin"])
    assert found.loc["H200", "winner"] == "v02"


def test_importance_finds_the_tunable_that_matters() -> None:
    rows = []
    for p in Space(("v05",), (SMALL, LARGE)).points(SweepOptions(gpu="L4")):
        request = p.request
        scale = {SMALL: 1.0, LARGE: 64.0}[
            request.problem
        ]  # a difference of problems, not of tunables
        time_us = scale * (10.0 + 10.0 * (request.config["num_splits"] == 1))
        rows.append(row("v05", time_us, request.problem, dict(request.config)))
    found = tunable_importance(sweep_frame(rows)).set_index("tunable")
    assert found.loc["num_splits", "importance"] == pytest.approx(1.0)
    assert found.loc["block_n", "importance"] == pytest.approx(0.0, abs=1e-9)
    assert found.loc["num_splits", "gain"] == pytest.approx(2.0)
    assert found.loc["num_splits", "best_value"] != 1


def test_best_so_far_names_each_point_that_was_faster() -> None:
    frame = sweep_frame(full_sweep()).assign(evaluated_in_s=2.0)
    found = best_so_far(frame)
    for _, own in found.groupby("problem"):
        assert (own["median_us"].diff().dropna() < 0).all()
    best = frame.groupby("problem")["median_us"].min()
    assert (found.groupby("problem")["median_us"].last() == best).all()
    assert (found["spent_s"] == 2.0 * found["evaluated"]).all()
    assert found["evaluated"].iloc[0] == 1


def test_slices_have_the_best_time_at_each_value() -> None:
    frame = sweep_frame(full_sweep())
    frame = frame[frame["problem"] == frame["problem"].iloc[0]]
    found = tunable_slices(frame)
    assert {"num_splits", "block_n"} <= set(found["tunable"])
    for line in found.to_dict("records"):
        own = frame[frame[f"config.{line['tunable']}"] == line["value"]]
        assert line["best_us"] == own["median_us"].min()
        assert line["points"] == len(own)


def test_importances_of_independent_tunables_add_up() -> None:
    found = tunable_importance(sweep_frame(full_sweep())).set_index("tunable")
    # The times are products, so their logarithms are additive: no share is left to combinations.
    assert found["importance"].sum() == pytest.approx(1.0)
    assert dict(found["best_value"]) == {"block_n": 64, "threads_per_row": 4, "num_splits": 8}


def test_times_of_two_origins_or_methods_have_no_margin_and_no_importance() -> None:
    measured, predicted = row("v01", 100.0), row("v02", 10.0, origin="predicted")
    (line,) = winner_map([measured, predicted]).to_dict("records")
    assert (line["winner"], line["margin"]) == ("v01", None)
    code, roofline = (
        replace(row("v05", us, config={"num_splits": s}, origin="predicted"), method=method)
        for us, s, method in ((10.0, 1, "machine code"), (40.0, 2, "roofline"))
    )
    (line,) = winner_map([code, roofline, replace(predicted, method="roofline")]).to_dict("records")
    assert (line["winner"], line["margin"]) == ("v05", None)
    assert tunable_importance(sweep_frame([code, roofline])).empty


def test_a_calibrated_time_has_no_margin_over_one_that_is_not() -> None:
    def predicted(variant: str, us: float, reason: str = "") -> SweepRow:
        latency = Latency("predicted", us, us, us, f"By machine code. {reason}")
        made = row(variant, us, origin="predicted")
        result = made.result | {"latency": encode(latency)}
        return replace(made, method="machine code", result=result)

    simulated, calibrated = predicted("v01", 10.0), predicted("v02", 30.0, "Calibrated on 1 point.")
    (line,) = winner_map([simulated, calibrated]).to_dict("records")
    assert (line["winner"], line["runner_up"], line["margin"]) == ("v01", "v02", None)
    assert NOT_COMPARABLE in _win(line)
    (line,) = winner_map([simulated, predicted("v02", 30.0)]).to_dict("records")
    assert line["margin"] == 3.0
    assert "3.00" in _win(line)


def test_a_tunable_with_one_value_has_no_importance() -> None:
    rows = [row("v05", 10.0 + s, config={"num_splits": s}) for s in (1, 2, 4)]
    assert list(tunable_importance(sweep_frame(rows))["tunable"]) == ["num_splits"]
    assert tunable_importance(sweep_frame([])).empty


def test_occupancy_and_time_may_rank_differently() -> None:
    low = row("v01", 40.0, registers=168)  # few warps, yet fast
    high = row("v05", 60.0, registers=32)
    fair = row("v02", 30.0, registers=32)  # many warps and fastest, as occupancy suggests
    found = occupancy_frame(sweep_frame([low, high, fair])).set_index("variant")
    assert found.loc["v01", "occupancy"] < found.loc["v05", "occupancy"] - 0.1
    assert dict(found["outlier"]) == {"v01": False, "v05": True, "v02": False}
    assert found.loc["v05", "beaten_by"] == low.point
    assert says(found.loc["v05", "sentence"], "has_the_higher", "83%", "v01")
    assert "1.50× faster" in found.loc["v05", "sentence"]
    assert found.loc["v01", "sentence"] == ""


def test_outliers_are_relative_to_their_problem() -> None:
    low = row("v01", 40.0, registers=168)
    high = row("v05", 60.0, LARGE, registers=32)
    assert not occupancy_frame(sweep_frame([low, high]))["outlier"].any()
    close = row("v05", 41.0, registers=32)  # within 5 %
    assert not occupancy_frame(sweep_frame([low, close]))["outlier"].any()
    assert occupancy_frame(sweep_frame([])).empty


def test_two_gpus_of_one_model_are_never_mixed() -> None:
    """Times of two GPUs are analysed separately: num_splits has no effect on either of them."""
    rows = [
        row("v05", time_us, config={"num_splits": splits}, gpu=gpu, registers=registers)
        for gpu, time_us, splits, registers in (
            ("GPU-a", 10.0, 1, 168),
            ("GPU-a", 10.0, 2, 168),
            ("GPU-b", 20.0, 4, 32),
            ("GPU-b", 20.0, 8, 32),
        )
    ]
    both = ["L4 (GPU-a on node7)", "L4 (GPU-b on node7)"]
    frame = sweep_frame(rows)
    assert list(frame["device"]) == ["L4"] * 4
    assert list(frame["gpu"]) == ["GPU-a", "GPU-a", "GPU-b", "GPU-b"]
    assert set(frame["host"]) == {"node7"}
    assert list(winner_map(rows)["device"]) == both
    importance = tunable_importance(frame)
    assert list(importance["device"]) == both
    assert list(importance["importance"]) == [0.0, 0.0]
    assert not occupancy_frame(frame)["outlier"].any()
    # If they were of one GPU, more splits would be slower at any occupancy.
    same = [replace(r, location=rows[0].location) for r in rows]
    assert list(winner_map(same)["device"]) == ["L4"]
    assert tunable_importance(sweep_frame(same))["importance"][0] == pytest.approx(1.0)
    assert occupancy_frame(sweep_frame(same))["outlier"].any()


def test_parallel_coordinates_shows_what_varies() -> None:
    rows = [*full_sweep(), row("v01", 99.0), row("v02", None, status=Status.CRASHED)]
    shown, labels = parallel_coordinates(sweep_frame(rows))
    assert list(shown.columns)[-1] == "median_us"
    assert {"variant", "seqlen", "block_n", "threads_per_row", "num_splits"} <= set(shown.columns)
    assert "batch" not in shown.columns
    assert len(shown) == len(rows) - 1
    assert labels == {"variant": ["v01", "v05"]}
    assert set(shown["variant"]) == {0, 1}


def test_frames_of_ten_thousand_rows_are_quick() -> None:
    made = full_sweep()
    rows = [replace(made[i % len(made)], point=str(i)) for i in range(10_000)]
    sweep_frame(rows[:10])  # warm up: imports pandas
    start = time.process_time()
    frame = sweep_frame(rows)
    winner_map(rows)
    tunable_importance(frame)
    occupancy_frame(frame)
    parallel_coordinates(frame)
    assert time.process_time() - start < 2.0


def test_a_row_has_the_point_of_its_space() -> None:
    assert row("v05", 1.0, config={"num_splits": 2}).point == point("v05", num_splits=2).id
