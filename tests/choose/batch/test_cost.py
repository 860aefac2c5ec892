"""Cost: the case of the study, arithmetic, invalid input."""

from __future__ import annotations

import math

import pytest
from words import raises, says

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.choose.batch.cost import Cost, cost, queries_in, saving
from engine.history.known_time import not_comparable

# A request of 4 heads and 128 positions.
PROBLEM = Problem(7, 4, 128, 64)


def of(*args: float | None) -> Cost:
    return cost(*args, problem=PROBLEM, origin="predicted")  # type: ignore[arg-type]


def test_the_study_case() -> None:
    """10⁹ queries a day at 4.521 against 0.111 µs on an L4 at $0.60 an hour."""
    now, then = (of(us, 1e9, 0.60) for us in (4.521, 0.111))
    assert now.gpu_hours_per_day == pytest.approx(1.26, abs=0.005)
    assert then.gpu_hours_per_day == pytest.approx(0.031, abs=0.0005)
    assert now.usd_per_day == pytest.approx(0.75, abs=0.005)
    assert then.usd_per_day == pytest.approx(0.02, abs=0.005)
    assert now.usd_per_billion_queries == pytest.approx(now.usd_per_day)
    found = saving(now, then, 1e9, PROBLEM)
    assert found.usd_per_year == pytest.approx(270, abs=5)
    assert (now.gpus_needed, then.gpus_needed) == (1, 1)
    assert says(found.reason, "against_a_day", "$0.753", "$0.0185")
    assert says(found.reason, "difference_a_year", "$268.27")


def test_the_price_of_a_billion_does_not_depend_on_traffic() -> None:
    small, large = (of(2.0, q, 1.5) for q in (1e3, 1e12))
    assert small.usd_per_billion_queries == large.usd_per_billion_queries
    assert large.usd_per_day == pytest.approx(1e9 * small.usd_per_day)


@pytest.mark.parametrize(
    ("per_query_us", "queries", "utilisation", "gpus"),
    [
        (1.0, 86_400e6, 1.0, 1),  # one GPU, busy all day
        (1.0, 86_401e6, 1.0, 2),
        (1.0, 86_400e6, 0.5, 2),
        (4.521, 1e12, 0.6, math.ceil(4.521e12 / 86_400e6 / 0.6)),
    ],
)
def test_gpus_needed(per_query_us: float, queries: float, utilisation: float, gpus: int) -> None:
    assert of(per_query_us, queries, 1.0, utilisation).gpus_needed == gpus


def test_without_a_price_there_are_hours_and_no_dollars() -> None:
    found = of(4.521, 1e9, None)
    assert found.gpu_hours_per_day == pytest.approx(1.26, abs=0.005)
    assert (found.usd_per_day, found.usd_per_year, found.usd_per_billion_queries) == (None,) * 3
    difference = saving(found, of(0.111, 1e9, None), 1e9, PROBLEM)
    assert difference.usd_per_year is None
    assert "$" not in difference.reason
    assert difference.gpu_hours_per_day == pytest.approx(1.225, abs=0.005)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((0.0, 1e9, 0.6), "query_time_range"),
        ((-1.0, 1e9, 0.6), "query_time_range"),
        ((math.nan, 1e9, 0.6), "query_time_range"),
        ((1.0, 0.0, 0.6), "traffic_range"),
        ((1.0, math.inf, 0.6), "traffic_range"),
        ((1.0, 1e9, -0.1), "price_range"),
        ((1.0, 1e9, math.nan), "price_range"),
        ((1.0, 1e9, 0.6, 0.0), "utilisation_range"),
        ((1.0, 1e9, 0.6, 60.0), "utilisation_range"),
    ],
)
def test_bad_input(args: tuple[float, ...], code: str) -> None:
    with raises(InvalidProblem, code):
        of(*args)


def test_costs_speak_of_requests_and_tokens() -> None:
    """A request is 4 · 128 queries, a token 4 of them."""
    found = of(2.0, 1e9, 3.6)
    assert found.usd_per_billion_queries == pytest.approx(2.0)
    assert found.usd_per_million_requests == pytest.approx(2e-3 * 512)
    assert found.usd_per_million_tokens == pytest.approx(2e-3 * 4)
    assert [queries_in(u, PROBLEM) for u in ("queries", "tokens", "requests")] == [1, 4, 512]
    change = saving(found, of(1.0, 1e9, 3.6), 1e9, PROBLEM)
    assert change.requests_per_day == pytest.approx(1e9 / 512)
    assert change.tokens_per_day == pytest.approx(2.5e8)
    assert says(change.reason, "requests_day_tokens", "1.95 million", "250 million")


def test_a_small_saving_is_not_rounded_to_zero() -> None:
    change = saving(of(2.0, 1e6, 0.6), of(1.9, 1e6, 0.6), 1e6, PROBLEM)
    assert "$0.00 " not in change.reason
    assert says(change.reason, "against_a_day", "$0.000333", "$0.000317", "$0.00608")


def test_amounts_of_different_origins_have_no_difference() -> None:
    now, then = (
        cost(us, 1e9, 0.6, problem=PROBLEM, origin=origin)
        for us, origin in ((4.521, "recorded"), (0.111, "predicted"))
    )
    change = saving(now, then, 1e9, PROBLEM)
    assert (change.gpu_hours_per_day, change.usd_per_day, change.usd_per_year) == (None,) * 3
    assert says(change.reason, "against_a_day", "$0.753", "$0.0185")
    assert not says(change.reason, "difference_a_year")
    assert says(change.reason, "origins_of_cost", "recorded", "predicted")
    assert not_comparable("recorded", "predicted") in change.reason

    measured = cost(0.111, 1e9, 0.6, problem=PROBLEM, origin="measured")
    change = saving(now, measured, 1e9, PROBLEM)
    assert change.usd_per_year == pytest.approx(268.3, abs=0.1)
    assert says(change.reason, "origins_of_cost", "recorded", "measured")
