"""Calibration: the L4 study's series, recovery of known parameters, and errors for bad points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from words import raises, says

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.choose.batch.validate import validate
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.model.calibrate import Points, calibrate, leave_one_out, prepare
from engine.model.equations import Calibration, Parameters, evaluate, machine, predict_arrays
from engine.model.kernel import Kernel, Known
from engine.model.measured_points import Measurement, read_measurements
from kernels.ladder import by_id
from kernels.variant import Variant

L4 = find_device("L4")
V01 = by_id("v01")
KERNEL = Kernel.of(V01, L4)

Prepare = Callable[[Sequence[Measurement]], Points]


@pytest.fixture
def prepared(known: Known) -> Prepare:
    return lambda points: prepare(KERNEL, points, known)


def series(path: Path, name: str) -> list[Measurement]:
    return [p for p in read_measurements(path) if p.series == name]


def errors(calibration: Calibration, points: Points, device: DeviceSpec = L4) -> np.ndarray:
    m = machine(device, V01, "float16")
    spread = predict_arrays(V01, points.launches, points.resident, m, calibration)
    return spread.terms.total_us / points.measured_us - 1


@pytest.mark.parametrize("name", ["length", "batch"])
def test_any_two_points_predict_the_rest_of_their_series(
    reference_csv: Path, prepared: Prepare, name: str
) -> None:
    points = series(reference_csv, name)
    for pair in itertools.combinations(points, 2):
        calibration = calibrate(prepared(pair))
        rest = prepared([p for p in points if p not in pair])
        assert np.abs(errors(calibration, rest)).max() < 0.15, [p.place for p in pair]
        assert np.abs(errors(calibration, prepared(pair))).max() < 0.001
        assert len(calibration.fitted) == 2


def test_leave_one_out_on_both_series_together(reference_csv: Path, prepared: Prepare) -> None:
    """Measured on different days: one problem took 543 and 579 µs, which no model can fit."""
    loo = leave_one_out(prepared(read_measurements(reference_csv)))
    assert loo is not None
    assert len(loo.errors) == len(loo.inside) == 8
    assert loo.mean_error < 0.08
    assert loo.worst_error < 0.20
    assert sum(loo.inside) >= 7


def test_uncalibrated_intervals_contain_the_recorded_values(
    reference_csv: Path, known: Known
) -> None:
    points = read_measurements(reference_csv)
    found = validate(KERNEL, points, known)
    assert found.share_inside >= 0.8
    assert f"{found.inside} of 8" in found.reason


def exact(problems: Sequence[Problem], truth: Parameters, prepared: Prepare) -> list[Measurement]:
    """Return points whose times the model itself predicts with these parameters."""
    blank = [Measurement(p, measured_us=1e9) for p in problems]
    points = prepared(blank)
    m = machine(L4, V01, "float16")
    total = evaluate(V01, points.launches, points.resident, m, truth).total_us
    return [replace(b, measured_us=t) for b, t in zip(blank, total.tolist(), strict=True)]


def test_known_parameters_are_recovered(prepared: Prepare) -> None:
    truth = Parameters(floor_us=7.0, pace=0.6, contention=1.7)
    problems = [Problem(b, 1, s, 64) for b, s in ((1, 64), (1, 512), (60, 64), (200, 128))]
    problems.append(Problem(1, 1, 4, 4))
    calibration = calibrate(prepared(exact(problems, truth, prepared)))
    found = calibration.parameters
    assert calibration.fitted == ("floor_us", "pace", "contention")
    assert found.floor_us == pytest.approx(7.0, rel=0.01)
    assert found.pace == pytest.approx(0.6, rel=0.001)
    assert found.contention == pytest.approx(1.7, rel=0.01)
    assert found.bandwidth == Parameters().bandwidth


def test_noise_is_estimated_and_widens_the_interval(prepared: Prepare) -> None:
    rng = np.random.default_rng(3)
    problems = [Problem(b, 1, s, 64) for b in (1, 30, 90, 200) for s in (64, 128, 512)]
    clean = exact(problems, Parameters(), prepared)
    errors_put_in = rng.normal(0, 0.15, len(clean))
    noisy = [
        replace(p, measured_us=p.measured_us * np.exp(e))
        for p, e in zip(clean, errors_put_in, strict=True)
    ]
    quiet, loud = (calibrate(prepared(p)) for p in (clean, noisy))
    assert quiet.noise == 0.02
    assert loud.noise == pytest.approx(np.std(errors_put_in), rel=0.3)


def test_one_point_fits_one_parameter_with_a_note(reference_csv: Path, prepared: Prepare) -> None:
    calibration = calibrate(prepared(series(reference_csv, "length")[2:3]))
    assert calibration.fitted == ("pace",)
    assert says(calibration.notes[0], "point_can_tell", "1", "1", "4")
    assert says(calibration.notes[0], "launch_floor")
    assert "floor_us" not in calibration.notes[0]
    assert leave_one_out(prepared(series(reference_csv, "length")[2:3])) is None


def test_repeated_points_do_not_narrow_the_fit(reference_csv: Path, prepared: Prepare) -> None:
    twice = series(reference_csv, "length")[2:3] * 2
    assert calibrate(prepared(twice)).fitted == ("pace",)


def test_a_calibration_narrows_the_interval(
    reference_csv: Path, prepared: Prepare, known: Known
) -> None:
    points = series(reference_csv, "length")
    calibration = calibrate(prepared(points[:3]))
    wide = validate(KERNEL, points[3:], known)
    narrow = validate(KERNEL, points[3:], known, calibration)
    assert narrow.share_inside == 1.0
    for a, b in zip(narrow.rows, wide.rows, strict=True):
        assert a.high_us / a.low_us < 0.2 * b.high_us / b.low_us


def test_a_note_names_the_point_that_does_not_fit_one_kernel(
    reference_csv: Path, prepared: Prepare
) -> None:
    points = series(reference_csv, "length")
    points[3] = replace(points[3], measured_us=3 * points[3].measured_us)
    calibration = calibrate(prepared(points))
    assert says(calibration.notes, "model_misses_a_point", points[3].place)
    assert calibration.noise > 0.2


def _with(point: Measurement, **changes: object) -> list[Measurement]:
    return [replace(point, **changes)]  # type: ignore[arg-type]


def test_invalid_points_are_refused(reference_csv: Path, prepared: Prepare) -> None:
    point = series(reference_csv, "batch")[2]
    for points, code, *facts in (
        ([], "no_point"),
        (_with(point, ctas=64), "point_launched_otherwise", "line 12, column ctas", "64", "512"),
        (_with(point, measured_us=0.1), "point_too_fast", "line 12, column kernel_ms", "L4"),
        (_with(point, problem=Problem(1, 1, 64, 80)), "point_not_taken", "line 12", "head_dim 80"),
    ):
        with raises(InvalidProblem, code, *facts):
            prepared(points)


def test_a_gpu_without_figures_is_refused(reference_csv: Path, known: Known) -> None:
    unknown = replace(L4, boost_clock_mhz=None)
    with raises(InvalidProblem, "not_predicted", "clock"):
        prepare(Kernel.of(V01, unknown), series(reference_csv, "length"), known)


def test_validation_verdicts(reference_csv: Path, known: Known) -> None:
    base = series(reference_csv, "length")[2]
    points = [replace(base, measured_us=t) for t in (20.0, 543.0, 50_000.0)]
    found = validate(KERNEL, points, known)
    assert [row.verdict for row in found.rows] == [
        "faster than predicted",
        "as predicted",
        "slower than predicted",
    ]
    assert found.share_inside == pytest.approx(1 / 3)
    assert found.rows[1].difference == pytest.approx(found.rows[1].predicted_us / 543 - 1)
    assert found.rows[0].name == f"B1 H1 S{base.problem.seqlen} D64"


def test_two_pass_variants_calibrate_too(known: Known) -> None:
    v05: Variant = by_id("v05")
    kernel = Kernel.of(v05, L4)
    problems = [Problem(b, 8, s, 64) for b in (1, 4, 16) for s in (256, 1024)]
    m = machine(L4, v05, "float16")
    points = prepare(kernel, [Measurement(p, 1e9) for p in problems], known)
    total = evaluate(v05, points.launches, points.resident, m, Parameters(pace=2.5)).total_us
    measured = [Measurement(p, t) for p, t in zip(problems, total.tolist(), strict=True)]
    calibration = calibrate(prepare(kernel, measured, known))
    assert calibration.parameters.pace == pytest.approx(2.5, rel=0.02)
