"""Predictions by machine code: method, caching, and calibration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_history import estimate_of
from words import says

from engine.attention.config import find_variant
from engine.attention.evaluation import Resources
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.choose.batch.recommend import BatchRequest, recommend_batch
from engine.devices import find_device
from engine.history import History
from engine.model.calibrate import Points, calibrate
from engine.model.equations import (
    Calibration,
    CtaCurve,
    Parameters,
    evaluate,
    machine,
    predict_arrays,
)
from engine.model.kernel import Estimate, Kernel
from engine.model.launches import collect
from engine.model.measured_points import Measurement

VARIANT, DEVICE = find_variant("v08"), find_device("L4")
KERNEL = Kernel.of(VARIANT, DEVICE)
PROBLEM = Problem(batch=8, num_heads=8, seqlen=1024, head_dim=64)


def curve_of(cta_us: float, dram_bytes: float | None = None) -> CtaCurve:
    return CtaCurve(
        cta_us=np.array([cta_us]),
        added_us=np.array([cta_us]),
        sm_us=np.array([10 * cta_us]),
        spread=0.1,
        floor_us=0.51,
        dram_bytes=None if dram_bytes is None else np.array([dram_bytes]),
    )


def estimated(curve: CtaCurve | None, calibration: Calibration | None = None) -> Estimate:
    plan = make_plan(VARIANT, PROBLEM, VARIANT.default_config())
    resources = (Resources("attention_forward", "sm_89", 128, 128, 0, 18432, 0, 0, 0),)
    return estimate_of(VARIANT, plan, resources, DEVICE, calibration, curve)


def test_the_prediction_names_its_method() -> None:
    simulated, assumed = estimated(curve_of(40.0)), estimated(None)
    assert simulated.by_machine_code
    assert says(simulated.reason, "cta_time_simulated")
    assert not assumed.by_machine_code
    assert says(assumed.reason, "roofline_ctas_time")


def test_a_longer_cta_is_a_longer_launch_and_the_interval_is_the_validations() -> None:
    short, long = estimated(curve_of(40.0)).latency, estimated(curve_of(80.0)).latency
    assert short is not None
    assert long is not None
    assert long.median_us == pytest.approx(2 * short.median_us, rel=0.02)
    assert short.high_us is not None
    assert short.high_us < 1.5 * short.median_us


def test_keys_that_are_read_again_add_time() -> None:
    once, often = estimated(curve_of(40.0, 0.0)), estimated(curve_of(40.0, 4.29e9))
    assert once.latency is not None
    assert often.latency is not None
    assert once.latency.median_us < 2_000
    read = DEVICE.read_efficiency * 300e3  # O, which is written, is 4 MB of it
    assert often.latency.median_us == pytest.approx(4.29e9 / read, rel=0.01)
    assert often.terms is not None
    assert often.terms.limited_by() == "DRAM"


def test_a_calibration_scales_the_simulated_time() -> None:
    """Kernels take 1.3 times the simulated time plus 5 µs: two points determine both."""
    problems = [replace(PROBLEM, batch=batch) for batch in (1, 8, 32)]
    launches = collect(KERNEL, problems)
    curve = CtaCurve.joined([curve_of(40.0)] * 3)
    resident = np.full((1, 3), 4)
    m = machine(DEVICE, VARIANT, "float16")
    truth = Parameters(floor_us=5.0, pace=1.3)
    measured = evaluate(VARIANT, launches, resident, m, truth, curve).total_us
    places = tuple(Measurement(p, measured_us=t) for p, t in zip(problems, measured, strict=True))
    points = Points(KERNEL, places, launches, resident, measured, curve)
    calibration = calibrate(points.without(1))
    assert calibration.by_machine_code
    held = points.only(1)
    spread = predict_arrays(VARIANT, held.launches, held.resident, m, calibration, held.curve)
    assert spread.terms.total_us == pytest.approx(measured[1:2], rel=0.02)
    assert spread.low_us < measured[1] < spread.high_us
    alone = predict_arrays(VARIANT, held.launches, held.resident, m, None, held.curve)
    assert alone.terms.total_us < 0.9 * measured[1]
    # A calibration of assumed times does not change simulated ones.
    assumed = calibrate(replace(points, curve=None))
    spreads = [
        predict_arrays(VARIANT, launches, resident, m, assumed, x).terms.total_us
        for x in (curve, None)
    ]
    assert np.array_equal(*spreads)
    assert not assumed.by_machine_code


def test_a_calibrated_prediction_names_its_method() -> None:
    calibration = Calibration(
        Parameters(floor_us=2.0, pace=1.5), ((0.01, 0, 0, 0),) * 4, 0.02, ("pace",), 2
    )
    on_top = replace(calibration, by_machine_code=True)
    plain, calibrated = estimated(curve_of(40.0)), estimated(curve_of(40.0), on_top)
    assert plain.latency is not None
    assert calibrated.latency is not None
    assert calibrated.by_machine_code
    assert says(calibrated.reason, "cta_time_simulated")
    assert says(calibrated.reason, "calibrated_on_known_times", "2")
    assert calibrated.latency.median_us > 1.4 * plain.latency.median_us


@pytest.mark.slow
def test_a_batch_curve_equals_the_predictions_of_its_launches() -> None:
    pytest.importorskip("cupy")
    # D = 96, which no other test simulates, so that nothing is cached.
    request = BatchRequest("v08", "L4", seqlen=512, head_dim=96, heads=16, max_batch=64)
    compiles = History().doing("compile")
    assert recommend_batch(request, compiles).method == "roofline"
    result = recommend_batch(request, History())
    if result.method == "roofline":
        pytest.skip("no nvdisasm or no C++ compiler")
    assert says(result.notes, "curve_simulated")
    for batch in (1, 8, 64):
        kernel = Kernel.of(VARIANT, DEVICE, result.config)
        latency = History().estimate(kernel, replace(result.problem, batch=batch)).latency
        assert latency is not None
        row = result.table[result.table["batch"] == batch].iloc[0]
        figures = [row["predicted_us"], row["low_us"], row["high_us"]]
        assert figures == pytest.approx([latency.median_us, latency.low_us, latency.high_us])
    assert recommend_batch(request, compiles).method == "machine code"
