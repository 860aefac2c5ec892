"""The whole recommendation: JSON, the files of the study, alternatives, invalid input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_history import MadeUpHistory
from words import raises, says

from engine.attention.evaluation import Evaluation, Latency, Resources
from engine.attention.problem import Problem
from engine.base.errors import (
    AttuneError,
    CompileError,
    InvalidProblem,
    Status,
    ToolMissing,
    UnknownName,
)
from engine.choose.batch.recommend import BatchRequest, BatchResult, calibrate_for, recommend_batch
from engine.choose.batch.validate import from_evaluations
from engine.devices import find_device
from engine.history import History
from engine.model.backward import _between
from engine.model.kernel import Kernel, Known
from engine.model.measured_points import Measurement, read_measurements
from kernels.ladder import LADDER, by_id

STUDY = BatchRequest("v01", "L4", seqlen=128, head_dim=64)

Ask = Callable[..., BatchResult]


@pytest.fixture
def ask(known: Known) -> Ask:
    return lambda **changes: recommend_batch(replace(STUDY, **changes), known)


def strict_json(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data as strict JSON, without NaN and infinity."""
    parsed: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return parsed


def test_json_has_the_documented_fields(ask: Ask, reference_csv: Path) -> None:
    data = strict_json(ask(measured=reference_csv, predict=((2, 4, 128),)).to_dict())
    assert len(data["points"]) == 9
    wanted = {"batch", "heads", "seqlen", "ctas", "predicted_us", "low_us", "high_us"}
    for point in data["points"]:
        assert wanted <= set(point)
        assert point["low_us"] < point["predicted_us"] < point["high_us"]
    asked = data["points"][-1]
    assert (asked["batch"], asked["heads"], asked["seqlen"], asked["ctas"]) == (2, 4, 128, 16)
    assert asked["measured_us"] is None
    assert data["points"][0]["measured_us"] == 10.0
    assert data["points"][0]["sdpa_us"] == 81.0
    assert [r["target"] for r in data["recommendations"]] == [0.7, 0.9, 0.95]
    assert all(r["batch"] >= 1 and r["reason"] for r in data["recommendations"])
    assert data["model"]["calibrated"] is True
    assert 0 < data["model"]["loo_error"] < 0.1
    assert data["model"]["points"] == 8


@pytest.mark.parametrize(
    ("kept", "asked", "measured_us"),
    [
        (("length", 64, 256), (1, 1, 512), 2133.0),
        (("batch", 1, 8), (32, 8, 128), 3624.0),
        (("batch", 1, 32), (8, 4, 128), 752.0),
    ],
)
def test_two_points_predict_the_third(
    ask: Ask,
    reference_csv: Path,
    kept: tuple[str, int, int],
    asked: tuple[int, int, int],
    measured_us: float,
) -> None:
    name, *sizes = kept
    points = [
        p
        for p in read_measurements(reference_csv)
        if p.series == name and (p.problem.seqlen if name == "length" else p.problem.batch) in sizes
    ]
    assert len(points) == 2
    result = ask(measured=points, predict=(asked,))
    assert result.points[-1].predicted_us == pytest.approx(measured_us, rel=0.15)
    assert result.calibration is not None
    assert len(result.calibration.fitted) == 2


def test_a_point_asked_for_that_was_measured_shows_both(ask: Ask, reference_csv: Path) -> None:
    result = ask(measured=reference_csv, predict=((1, 1, 128),))
    assert result.points[-1].measured_us == pytest.approx((543 + 579) / 2)
    assert result.points[-1].difference is not None


def test_an_uncalibrated_result_is_labelled(ask: Ask) -> None:
    result = ask()
    model = result.to_dict()["model"]
    assert (model["calibrated"], model["fitted"], model["loo_error"]) == (False, [], None)
    assert any(says(note, "calibrated_predicted_roofline") for note in result.notes)
    assert result.points == ()


@pytest.mark.slow
def test_a_calibration_is_reused_while_dragging(
    known: Known, reference_csv: Path, tmp_path: Path
) -> None:
    points = tmp_path / "points.csv"
    shutil.copy(reference_csv, points)
    request = replace(STUDY, measured=points)
    calibrated = calibrate_for(request, known)
    lengths = (197, 1024)
    fresh = [recommend_batch(replace(request, seqlen=s), known) for s in lengths]
    points.unlink()  # another fit would read the points
    for seqlen, expected in zip(lengths, fresh, strict=True):
        kept = recommend_batch(replace(request, seqlen=seqlen), known, calibrated)
        assert strict_json(kept.to_dict()) == strict_json(expected.to_dict())


def test_the_curve_is_optional_and_complete(ask: Ask) -> None:
    result = ask(max_batch=100)
    assert "curve" not in result.to_dict()
    curve = strict_json(result.to_dict(with_curve=True))["curve"]
    assert [row["batch"] for row in curve] == list(range(1, 101))
    assert len(result.table) == 100


def test_recommendations_fill_the_gpu(ask: Ask) -> None:
    """S=128 has two CTAs a unit and two fit on each of 58 SMs: 58 units fill a wave."""
    result = ask()
    last = result.recommendations[-1]
    assert last.batch == last.same_latency_up_to == 58
    assert 52 <= last.enough_batch <= 58
    assert last.low_batch <= last.batch <= last.high_batch
    assert (last.speedup_per_unit or 0) > 30


def test_free_heads_make_units_the_axis(ask: Ask) -> None:
    fixed, free = ask(heads=8), ask(heads=8, heads_free=True)
    assert fixed.problem.num_heads == 8
    assert free.problem.num_heads == 1
    assert free.recommendations[-1].batch == ask().recommendations[-1].batch
    assert fixed.recommendations[-1].batch == -(-free.recommendations[-1].enough_batch // 8)


def test_the_present_batch_is_warned_about(ask: Ask) -> None:
    result = ask(batch_now=59)
    assert says(result.warnings, "cheaper_per_unit", "B=59", "58")
    assert says(result.warnings, "costs_wave", "second")


def test_cost_of_the_study(ask: Ask, reference_csv: Path) -> None:
    result = ask(measured=reference_csv, traffic_per_day=1e9)
    assert result.saving is not None
    assert result.saving.now.gpu_hours_per_day == pytest.approx(1.26, rel=0.1)
    assert result.saving.now.usd_per_year == pytest.approx(275, rel=0.1)
    assert result.saving.then.usd_per_year == pytest.approx(7, rel=0.2)
    assert (result.saving.now.origin, result.saving.then.origin) == ("recorded", "predicted")
    assert result.saving.usd_per_year is None
    dearer = ask(measured=reference_csv, traffic_per_day=1e9, prices={"L4": 6.0})
    assert dearer.saving is not None
    assert dearer.saving.now.usd_per_year == pytest.approx(10 * result.saving.now.usd_per_year)


def test_waiting_is_planned_within_the_latency_budget(ask: Ask) -> None:
    result = ask(arrivals_per_s=20_000.0, budget_ms=5.0)
    assert result.wait is not None
    assert 1 < result.wait.batch <= 116
    assert result.wait.added_p95_us <= 5000
    overload = ask(arrivals_per_s=1e9, budget_ms=5.0)
    assert overload.wait is None
    assert any("GPUs" in note for note in overload.notes)


def test_alternatives_are_ranked_with_numbers(ask: Ask, reference_csv: Path) -> None:
    result = ask(
        measured=reference_csv,
        alternatives=True,
        arrivals_per_s=20_000.0,
        budget_ms=5.0,
    )
    kinds = [o.kind for o in result.options]
    assert {"variant", "gpu", "wait", "accept"} == set(kinds)
    priced = [o.usd_per_billion_queries for o in result.options if o.usd_per_billion_queries]
    assert priced == sorted(priced)
    accept = next(o for o in result.options if o.kind == "accept")
    assert accept.speedup == 1.0
    assert accept.low_us <= accept.latency_us <= accept.high_us
    wait = next(o for o in result.options if o.kind == "wait")
    assert wait.speedup > 10
    assert wait.latency_us > accept.latency_us
    for option in result.options:
        assert option.reason.endswith(".")
        if option.kind == "gpu":
            assert option.device != "L4"
            price = find_device(option.device).price_usd_per_hour
            assert price is None or price < 0.60
            # On another GPU a calibration on the L4 keeps wide intervals.
            assert option.high_us / option.low_us > 5
    split = [o for o in result.options if o.variant == "v05"]
    assert len(split) == 1  # the best of its splits
    strict_json(result.to_dict())


class NoCompiler(MadeUpHistory):
    """A history that cannot compile v02, nor anything for a T4."""

    def resources(self, kernel: Kernel, problem: Problem) -> tuple[Resources, ...]:
        if kernel.variant.id == "v02" or kernel.device.name == "T4":
            raise ToolMissing("NVRTC is not installed.")
        return MadeUpHistory().resources(kernel, problem)


def test_alternatives_that_cannot_be_judged_are_noted() -> None:
    result = recommend_batch(replace(STUDY, alternatives=True), NoCompiler())
    assert any(o.kind == "accept" for o in result.options)
    assert not any(o.variant == "v02" for o in result.options)
    assert any("v02" in n and "NVRTC" in n for n in result.notes)
    assert any("T4" in n for n in result.notes)


def test_a_detected_gpu_is_used_unchanged(ask: Ask) -> None:
    """A GPU that is not in the table has no price and no memory size."""
    own = replace(
        find_device("L4"), name="Own GPU", num_sms=60, memory_bytes=None, price_usd_per_hour=None
    )
    result = ask(gpu=own, traffic_per_day=1e9)
    assert result.device == "Own GPU"
    assert result.recommendations[-1].same_latency_up_to == 60
    assert result.saving is not None
    assert result.saving.usd_per_day is None
    assert says(result.axis_notes, "memory_unknown", "Own GPU")
    with raises(InvalidProblem, "not_predicted", "number of SMs"):
        ask(gpu=replace(own, num_sms=None))


def test_memory_ends_the_curve(ask: Ask) -> None:
    result = ask(seqlen=65_536, heads=32, max_batch=4096)
    largest = result.table["device_bytes"].max()
    assert largest <= find_device("L4").memory_bytes
    assert len(result.table) < 4096
    assert any("memory" in note for note in result.axis_notes)


def test_the_grid_ends_the_curve(ask: Ask) -> None:
    result = ask(max_batch=65_536)
    assert len(result.table) == 65_535
    assert any("CUDA allows 65,535" in note for note in result.axis_notes)


@pytest.mark.parametrize(
    ("changes", "error", "code", "facts"),
    [
        ({"variant": "v99"}, UnknownName, "unknown_variant", ("v99",)),
        ({"variant": "v24"}, InvalidProblem, "launch_not_taken", ("v24", "backward")),
        ({"gpu": "L5"}, UnknownName, "gpu_unknown", ("L4",)),
        ({"seqlen": 0}, InvalidProblem, "size_too_small", ("seqlen",)),
        ({"head_dim": 80}, InvalidProblem, "launch_not_taken", ("head_dim 80",)),
        ({"heads": -1}, InvalidProblem, "size_too_small", ("num_heads",)),
        ({"config": {"block_n": 17}}, InvalidProblem, "launch_not_taken", ("block_n=17",)),
        ({"config": {"warp": 1}}, InvalidProblem, "launch_not_taken", ("warp", "block_n")),
        ({"max_batch": 0}, InvalidProblem, "count_form", ("max_batch",)),
        ({"max_batch": 10**9}, InvalidProblem, "max_batch", ("65,536",)),
        ({"batch_now": 0}, InvalidProblem, "count_form", ("batch_now",)),
        ({"targets": (1.2,)}, InvalidProblem, "target_range", ("1.2",)),
        ({"targets": ()}, InvalidProblem, "no_target", ()),
        ({"measured": "no/such.csv"}, UnknownName, "file_failed", ("no/such.csv",)),
        ({"measured": []}, None, "", ()),
        ({"predict": ((0, 1, 64),)}, InvalidProblem, "size_too_small", ("batch",)),
        ({"predict": ((70_000, 1, 64),)}, InvalidProblem, "prediction_not_taken", ("65,535",)),
        ({"traffic_per_day": -1.0}, InvalidProblem, "traffic_range", ()),
        ({"traffic_per_day": 1e9, "utilisation": 0.0}, InvalidProblem, "utilisation_range", ()),
        ({"traffic_per_day": 1e9, "prices": {"L4": -1.0}}, InvalidProblem, "price_range", ()),
        ({"arrivals_per_s": 10.0}, InvalidProblem, "waiting_incomplete", ()),
        ({"arrivals_per_s": -1.0, "budget_ms": 1.0}, InvalidProblem, "waiting_range", ("arrival",)),
        ({"seqlen": 4_000_000, "heads": 4096}, InvalidProblem, "no_batch_fits", ()),
    ],
)
def test_bad_input(
    ask: Ask,
    changes: dict[str, Any],
    error: type[AttuneError] | None,
    code: str,
    facts: tuple[str, ...],
) -> None:
    if error is None:
        ask(**changes)
        return
    with raises(error, code, *facts) as caught:
        ask(**changes)
    assert "\n" not in str(caught.value)


def test_a_compile_error_passes_through() -> None:
    class Broken(MadeUpHistory):
        def resources(self, *_: object) -> tuple[Resources, ...]:
            raise CompileError("v01_fa1_baseline.cu(7) is wrong.", code="nvrtc_error")

    with raises(CompileError, "nvrtc_error", "v01_fa1_baseline.cu(7)"):
        recommend_batch(STUDY, Broken())


def test_with_the_real_compiler(reference_csv: Path) -> None:
    """With the real compiler v01 has two CTAs per SM, and two points predict the third."""
    try:
        Kernel.of("v01", "L4").resources(Problem(1, 1, 64, 64))
    except ToolMissing as error:
        pytest.skip(str(error))
    points = [p for p in read_measurements(reference_csv) if p.series == "batch"]
    request = replace(STUDY, measured=points[:2], predict=((32, 8, 128),))
    result = recommend_batch(request, History())
    assert result.table["ctas_per_sm"].iloc[0] == 2
    assert result.points[-1].predicted_us == pytest.approx(3624, rel=0.15)


def test_recorded_evaluations_become_measurements() -> None:
    v01, l4 = by_id("v01"), find_device("L4")
    base = Evaluation(
        status=Status.SKIPPED,
        reason="recorded elsewhere",
        variant="v01",
        problem=Problem(1, 1, 128, 64),
        config={"block_n": 64},
        device="L4",
        when="2025-01-01T00:00:00+00:00",
        latency=Latency("recorded", 543.0, 540.0, 546.0, "imported"),
    )
    others = [
        replace(base, latency=None),
        replace(base, latency=replace(base.latency, origin="predicted")),
        replace(base, latency=replace(base.latency, kind="end_to_end")),
        replace(base, device="T4"),
        replace(base, variant="v02"),
        replace(base, config={"block_n": 32}),
    ]
    found = from_evaluations([base, *others], Kernel.of(v01, l4))
    assert [(p.problem, p.measured_us) for p in found] == [(base.problem, 543.0)]


@pytest.mark.slow
def test_every_variant_of_the_ladder_gets_a_recommendation(known: Known) -> None:
    for variant in LADDER:
        gpu = "H100" if variant.min_compute_capability >= (9, 0) else "L4"
        request = replace(STUDY, variant=variant.id, gpu=gpu, max_batch=256)
        result = recommend_batch(request, known)
        assert result.recommendations[0].batch >= 1


def test_costs_can_be_left_out(ask: Ask) -> None:
    assert ask().saving is not None
    assert ask(traffic_per_day=None).to_dict()["cost"] is None


def test_the_recommended_batch_is_the_middle_target(ask: Ask) -> None:
    result = ask()
    assert result.recommended.target == 0.9
    assert ask(targets=(0.5,)).recommended.target == 0.5


def test_intervals_follow_the_calibration(ask: Ask, reference_csv: Path) -> None:
    def width(result: BatchResult) -> int:
        return result.recommended.high_batch - result.recommended.low_batch

    unsure, sure = ask(), ask(measured=reference_csv)
    assert width(unsure) > 2 * width(sure)
    assert unsure.calibration_quality() == ()
    quality = sure.calibration_quality()
    assert says(quality[0], "worst_point_predicted", "3.9%", "12.5%", "line")


def test_measured_batches_keep_their_time(ask: Ask, reference_csv: Path) -> None:
    points = [p for p in read_measurements(reference_csv) if p.series == "batch"]
    table = ask(measured=points, heads=8).table.set_index("batch")
    assert (table["latency_us"][32], table["origin"][32]) == (3624.0, "recorded")
    # They also hold without calibration.
    loose = ask(measured=points, heads=8, calibrate=False)
    assert loose.calibration is None
    assert loose.table.set_index("batch")["latency_us"][32] == 3624.0
    free = ask(measured=points, heads_free=True).table.set_index("batch")
    assert [free["latency_us"][b] for b in (1, 32, 256)] == [579.0, 752.0, 3624.0]


def test_another_kernel_may_skip_absent_keys(ask: Ask, reference_csv: Path) -> None:
    """v01 pads one row more than a tile to two tiles; calibration finds a kernel that does not."""
    points = [p for p in read_measurements(reference_csv) if p.series == "length"]
    one_more = replace(points[1], problem=Problem(1, 1, 65, 64), measured_us=282.0, ctas=2)
    own = ask(measured=[*points, one_more], seqlen=65)
    other = ask(measured=[*points, one_more], seqlen=65, measured_kernel="L4 study")
    assert own.calibration is not None
    assert other.calibration is not None
    assert not own.calibration.skips_absent_keys
    assert other.calibration.skips_absent_keys
    assert other.kernel == "L4 study"
    assert any(says(n, "skips_absent_keys") for n in other.calibration_quality())
    assert other.table["predicted_us"].iloc[0] < 0.8 * own.table["predicted_us"].iloc[0]
    # Without evidence a kernel is assumed to pad like the variant.
    padded = ask(measured=points, measured_kernel="L4 study").calibration
    assert padded is not None
    assert not padded.skips_absent_keys


def test_the_knee_is_explained(ask: Ask) -> None:
    knee = ask().knee
    assert says(knee, "fit_on_sm", "2 CTAs")
    assert says(knee, "at_once_which", "116", "B=58")
    assert "B=174" in knee


def test_the_next_point_narrows_the_recommendation(ask: Ask) -> None:
    result = ask()
    point = result.next_point
    assert point is not None
    assert 1 <= point.batch <= 4096
    assert point.factor_then < point.factor_now
    assert says(point.reason, "measure_next_batch", f"{point.batch:,}")

    def half_width(measured: Any) -> float:
        r = ask(measured=measured).recommended
        return r.high_us / r.low_us

    # The point narrows the interval as promised, and more than a distant point.
    row = result.table.set_index("batch")["predicted_us"]
    there = [Measurement(Problem(b, 1, 128, 64), float(row[b])) for b in (point.batch,)]
    assert half_width(there) < 0.3 * result.recommended.high_us / result.recommended.low_us


def test_a_present_batch_beyond_the_axis_extends_it(ask: Ask) -> None:
    result = ask(max_batch=64, batch_now=100)
    assert result.problem.batch == 100
    assert result.table["batch"].iloc[-1] == 100
    assert any(says(n, "batches_go_run", "100") for n in result.axis_notes)


@pytest.mark.parametrize(
    ("changes", "name", "facts"),
    [
        ({"batch_now": 65_536}, "too_many_ctas_along", ("65,536", "z axis", "batch")),
        ({"batch_now": 900_000}, "cannot_run_now", ("B=900,000",)),
        ({"batch_now": 4096, "seqlen": 65_536, "heads": 32}, "do_fit_memory", ("L4",)),
    ],
)
def test_an_impossible_present_batch_is_reported(
    ask: Ask, changes: dict[str, Any], name: str, facts: tuple[str, ...]
) -> None:
    result = ask(**changes)
    assert says(result.warnings[0], "cannot_run_now")
    assert says(result.warnings[0], name, *facts)
    assert result.problem.batch == result.table["batch"].iloc[-1] < changes["batch_now"]


def test_traffic_in_requests_and_tokens(ask: Ask) -> None:
    """A request of 8 heads and 128 positions is 1,024 queries, for every unit of the axis."""
    queries = ask(heads=8, traffic_per_day=1.024e9).saving
    assert queries is not None
    for changes in (
        {"traffic_per_day": 1e6, "traffic_unit": "requests"},
        {"traffic_per_day": 1.28e8, "traffic_unit": "tokens"},
    ):
        assert ask(heads=8, **changes).saving == queries
    free = ask(heads=8, heads_free=True, traffic_per_day=1e6, traffic_unit="requests").saving
    assert free is not None
    assert free.requests_per_day == queries.requests_per_day == pytest.approx(1e6)


def test_own_prices_rank_the_options(ask: Ask) -> None:
    listed = ask(alternatives=True)
    assert any(says(n, "not_of_one") and "T4: whole instance" in n for n in listed.notes)
    dear = ask(alternatives=True, prices={"T4": 0.10, "L4": 0.60})
    before, after = (
        next(o.usd_per_billion_queries for o in r.options if o.device == "T4")
        for r in (listed, dear)
    )
    assert before is not None
    assert after == pytest.approx(before * 0.10 / 0.526)
    assert "RTX 6000 Ada" in {o.device for o in ask(alternatives=True, prices={"L4": 9.0}).options}


def test_the_backward_curve_continues_with_its_average_slope() -> None:
    """Beyond the simulated batches the curve continues with its average slope, not the last one."""
    batches = np.arange(1, 301)
    rows = np.array([0, 11, 23, 26])
    us = _between(np.array([25.7, 152.9, 308.5, 323.8]), rows, batches.astype(float), batches)
    assert us[26] == 323.8
    assert us[299] == pytest.approx(3560, rel=0.05)  # v24 on an A100, simulated at B = 300
