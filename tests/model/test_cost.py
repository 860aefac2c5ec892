"""Cost: the study's own case, arithmetic, bad input."""

from __future__ import annotations

import math

import pytest

from engine.errors import InvalidProblem
from engine.model.batch.cost import cost, saving


def test_the_study_case() -> None:
    """10⁹ queries a day at 4.521 against 0.111 µs on an L4 at $0.60 an hour."""
    now, then = (cost(us, 1e9, 0.60) for us in (4.521, 0.111))
    assert now.gpu_hours_per_day == pytest.approx(1.26, abs=0.005)
    assert then.gpu_hours_per_day == pytest.approx(0.031, abs=0.0005)
    assert now.usd_per_day == pytest.approx(0.75, abs=0.005)
    assert then.usd_per_day == pytest.approx(0.02, abs=0.005)
    assert now.usd_per_billion_queries == pytest.approx(now.usd_per_day)
    found = saving(now, then)
    assert found.usd_per_year == pytest.approx(270, abs=5)
    assert (now.gpus_needed, then.gpus_needed) == (1, 1)
    assert "$0.75 against $0.02 a day" in found.reason
    assert "$268 a year" in found.reason


def test_the_price_of_a_billion_does_not_depend_on_traffic() -> None:
    small, large = (cost(2.0, q, 1.5) for q in (1e3, 1e12))
    assert small.usd_per_billion_queries == large.usd_per_billion_queries
    assert large.usd_per_day == pytest.approx(1e9 * small.usd_per_day)


@pytest.mark.parametrize(
    ("per_query_us", "queries", "utilisation", "gpus"),
    [
        (1.0, 86_400e6, 1.0, 1),  # exactly one GPU, all day
        (1.0, 86_401e6, 1.0, 2),
        (1.0, 86_400e6, 0.5, 2),
        (4.521, 1e12, 0.6, math.ceil(4.521e12 / 86_400e6 / 0.6)),
    ],
)
def test_gpus_needed(per_query_us: float, queries: float, utilisation: float, gpus: int) -> None:
    assert cost(per_query_us, queries, 1.0, utilisation).gpus_needed == gpus


def test_without_a_price_there_are_hours_and_no_dollars() -> None:
    found = cost(4.521, 1e9, None)
    assert found.gpu_hours_per_day == pytest.approx(1.26, abs=0.005)
    assert (found.usd_per_day, found.usd_per_year, found.usd_per_billion_queries) == (None,) * 3
    difference = saving(found, cost(0.111, 1e9, None))
    assert difference.usd_per_year is None
    assert "$" not in difference.reason
    assert difference.gpu_hours_per_day == pytest.approx(1.225, abs=0.005)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((0.0, 1e9, 0.6), "time of a query"),
        ((-1.0, 1e9, 0.6), "time of a query"),
        ((math.nan, 1e9, 0.6), "time of a query"),
        ((1.0, 0.0, 0.6), "Traffic"),
        ((1.0, math.inf, 0.6), "Traffic"),
        ((1.0, 1e9, -0.1), "price"),
        ((1.0, 1e9, math.nan), "price"),
        ((1.0, 1e9, 0.6, 0.0), "Utilisation"),
        ((1.0, 1e9, 0.6, 60.0), "Utilisation"),
    ],
)
def test_bad_input(args: tuple[float, ...], words: str) -> None:
    with pytest.raises(InvalidProblem, match=words):
        cost(*args)
