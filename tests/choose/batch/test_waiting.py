"""Waiting to collect requests: quantiles against a simulation, plans, invalid input."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from words import raises, says

from engine.base.errors import InvalidProblem
from engine.choose.batch.cost import WaitPlan, plan_waiting, wait_quantile_us
from engine.history.known_time import not_comparable

# A launch of 1 ms at every batch.
FLAT = np.full(256, 1000.0)


def launches(latency_us: np.ndarray, known: dict[int, float] | None = None) -> pd.DataFrame:
    """Return launches of 1, 2, 3, … requests, predicted but for `known`: batch → µs recorded."""
    table = pd.DataFrame({"latency_us": latency_us, "predicted_us": latency_us})
    table["origin"] = "predicted"
    for batch, us in (known or {}).items():
        table.loc[batch - 1, ["latency_us", "origin"]] = us, "recorded"
    return table


@pytest.mark.parametrize("batch", [1, 2, 3, 16, 100])
@pytest.mark.parametrize("quantile", [0.5, 0.95])
def test_quantiles_match_a_simulation(batch: int, quantile: float) -> None:
    rate = 2000.0
    rng = np.random.default_rng(11)
    gaps = rng.exponential(1 / rate, size=(20_000, batch))
    arrivals = np.cumsum(gaps, axis=1)
    waits_us = 1e6 * (arrivals[:, -1:] - arrivals)
    expected = float(np.quantile(waits_us, quantile))
    assert wait_quantile_us(batch, rate, quantile) == pytest.approx(expected, rel=0.03, abs=8.0)


def test_waiting_grows_with_the_batch_and_shrinks_with_traffic() -> None:
    waits = [wait_quantile_us(b, 1000.0, 0.95) for b in (1, 2, 4, 8, 64)]
    assert waits == sorted(waits)
    assert waits[0] == 0.0
    assert wait_quantile_us(8, 2000.0, 0.95) == pytest.approx(waits[3] / 2)


def plan(latency_us: np.ndarray, rate: float, budget_ms: float) -> WaitPlan:
    found = plan_waiting(launches(latency_us), rate, budget_ms)
    assert isinstance(found, WaitPlan)
    return found


def test_waiting_stops_where_returns_diminish() -> None:
    """If the launch time grows with the batch, waiting longer gains almost nothing."""
    latency_us = 500.0 + 100.0 * np.arange(1, 2049)
    found = plan(latency_us, 5_000.0, 200.0)
    best = min(p.per_request_us for p in found.curve if p.in_budget and p.keeps_up)
    assert found.per_request_us <= 1.01 * best
    longest = max(p.batch for p in found.curve if p.in_budget)
    assert found.batch < 0.6 * longest
    assert says(found.reason, "waiting_longer_for")
    assert says(found.reason, "waiting_longer_for")
    assert [p.batch for p in found.curve] == sorted({p.batch for p in found.curve})
    assert found.batch in [p.batch for p in found.curve]
    added = [p.added_p95_us for p in found.curve]
    assert added == sorted(added)
    assert any(not p.in_budget for p in found.curve)


def test_the_largest_batch_within_the_budget() -> None:
    found = plan(FLAT, 10_000.0, 5.0)
    assert found.added_p95_us <= 5000.0
    assert wait_quantile_us(found.batch + 1, 10_000.0, 0.95) > 5000.0
    assert found.added_p50_us < found.added_p95_us
    assert found.throughput_per_s == 10_000.0
    assert found.capacity_per_s == pytest.approx(found.batch * 1000.0)
    assert found.utilisation == pytest.approx(10_000.0 / found.capacity_per_s)
    assert f"B={found.batch}" in found.reason


def test_the_launch_itself_counts_as_added_latency() -> None:
    growing = 1000.0 * np.arange(1, 257)  # time proportional to the batch: batching gains nothing
    found = plan(growing, 100.0, 50.0)
    assert found.batch == 1
    assert found.added_p95_us == 0.0
    assert says(found.reason, "nothing_is_gained")


def test_a_step_of_the_curve_is_crossed_only_for_a_gain() -> None:
    stepped = np.where(np.arange(1, 257) <= 58, 1000.0, 2500.0)
    found = plan(stepped, 1_000.0, 80.0)
    assert found.batch == 58


def test_a_recorded_launch_among_predicted_ones() -> None:
    """Its GPU time is its own; what it adds to the latency is a difference of predictions."""
    latency_us = 500.0 + 100.0 * np.arange(1, 65)
    predicted = plan_waiting(launches(latency_us), 5_000.0, 200.0)
    found = plan_waiting(launches(latency_us, {64: 6000.0, 32: 3500.0}), 5_000.0, 200.0)
    assert isinstance(found, WaitPlan)
    assert isinstance(predicted, WaitPlan)
    assert {p.batch for p in found.curve if p.origin == "recorded"} >= {64}
    assert {p.origin for p in found.curve} == {"predicted", "recorded"}
    added = [{p.batch: p.added_p95_us for p in made.curve} for made in (found, predicted)]
    assert all(added[0][b] == added[1][b] for b in set(added[0]) & set(added[1]))
    assert (found.batch, found.origin) == (64, "recorded")
    assert (found.latency_us, found.per_request_us) == (6000.0, 6000.0 / 64)

    found = plan_waiting(launches(latency_us, {64: 6890.0}), 5_000.0, 200.0)
    assert isinstance(found, WaitPlan)
    assert (found.batch, found.origin) != (64, "recorded")
    assert not says(found.reason, "waiting_longer_for")
    assert not_comparable("recorded", "predicted") in found.reason


def test_traffic_beyond_one_gpu() -> None:
    reason = plan_waiting(launches(FLAT), 1e6, 5.0)
    assert isinstance(reason, str)
    assert "4 GPUs" in reason  # 256 a ms are 256,000 a second


def test_a_latency_budget_too_small_for_the_arrivals_is_refused() -> None:
    reason = plan_waiting(launches(FLAT), 100_000.0, 0.1)
    assert isinstance(reason, str)
    assert says(reason, "over_the_budget")


@pytest.mark.parametrize(
    ("rate", "budget", "which"),
    [
        (0.0, 5.0, "arrival rate"),
        (-1.0, 5.0, "arrival rate"),
        (math.nan, 5.0, "arrival rate"),
        (10.0, 0.0, "time budget"),
        (10.0, math.inf, "time budget"),
    ],
)
def test_bad_input(rate: float, budget: float, which: str) -> None:
    with raises(InvalidProblem, "waiting_range", which):
        plan_waiting(launches(FLAT), rate, budget)
