"""Search strategies: each finds the optimum of known times, and none repeats a point."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from search_data import SMALL, bowl
from words import raises

from engine.base.errors import ToolMissing
from engine.pipeline.request import EvaluationRequest
from engine.search.space import Space, SweepOptions, SweepPoint
from engine.search.strategies import STRATEGIES, StrategyName, make_strategy

LARGE = replace(SMALL, seqlen=1024)


def points(*problems: object) -> list[SweepPoint]:
    return Space(("v05",), problems or (SMALL,)).points(SweepOptions())  # type: ignore[arg-type]


def search(
    name: StrategyName,
    among: list[SweepPoint],
    time_us: Callable[[EvaluationRequest], float | None] = bowl,
    limit: int = 10_000,
    seed: int = 0,
) -> list[SweepPoint]:
    strategy = make_strategy(name, among, seed)
    asked: list[SweepPoint] = []
    while len(asked) < limit and (point := strategy.ask()) is not None:
        asked.append(point)
        strategy.tell(point, time_us(point.request))
    return asked


@pytest.mark.parametrize("name", STRATEGIES)
def test_without_a_limit_every_point_is_evaluated_once(name: StrategyName) -> None:
    among = points(SMALL, LARGE)
    asked = search(name, among)
    assert len(asked) == len(among)
    assert {p.id for p in asked} == {p.id for p in among}


@pytest.mark.parametrize("name", STRATEGIES)
def test_points_that_cannot_run_are_never_evaluated(name: StrategyName) -> None:
    space = Space(("v01", "v02"), (SMALL, replace(SMALL, head_dim=4)))
    among = space.points(SweepOptions())
    asked = search(name, among)
    assert all(p.why_not is None for p in asked)
    assert len(asked) == sum(p.why_not is None for p in among) < len(among)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_search_is_repeatable(name: StrategyName) -> None:
    first, again = (search(name, points(), limit=20, seed=3) for _ in range(2))
    assert [p.id for p in first] == [p.id for p in again]


@pytest.mark.parametrize("name", ["random", "coordinate", "bayesian"])
def test_another_seed_is_another_search(name: StrategyName) -> None:
    first, other = (search(name, points(), limit=25, seed=s) for s in (1, 2))
    assert [p.id for p in first] != [p.id for p in other]


@pytest.mark.parametrize(("name", "limit"), [("coordinate", 8), ("bayesian", 20)])
def test_the_best_is_found_without_trying_all(name: StrategyName, limit: int) -> None:
    among = points()
    best = min(among, key=lambda p: bowl(p.request))
    assert len(among) == 36
    found = 0
    for seed in range(10):
        asked = search(name, among, limit=limit, seed=seed)
        found += best.id in {p.id for p in asked}
    # Random search with 8 and 20 of 36 points would find it in 2 and 6 of 10 searches.
    assert found >= 9


@pytest.mark.parametrize("name", ["coordinate", "bayesian"])
def test_the_default_config_is_evaluated_first(name: StrategyName) -> None:
    first = search(name, points(), limit=1)[0]
    assert first.request.config == {"block_n": 64, "threads_per_row": 4, "num_splits": 4}


@pytest.mark.parametrize("name", ["coordinate", "bayesian"])
def test_failures_are_ignored_by_the_strategy(name: StrategyName) -> None:
    def time_us(request: EvaluationRequest) -> float | None:
        return None if request.config["num_splits"] > 2 else bowl(request)

    among = points()
    assert len(search(name, among, time_us)) == len(among)
    assert len(search(name, among, lambda _: None)) == len(among)


@pytest.mark.parametrize("name", ["coordinate", "bayesian"])
def test_a_budget_is_divided_evenly_among_problems(name: StrategyName) -> None:
    asked = search(name, points(SMALL, LARGE), limit=20)
    assert sum(p.request.problem == SMALL for p in asked) == 10


def test_points_are_ordered_by_simulated_time_unknown_last() -> None:
    among = points(SMALL, LARGE)
    unknown = among[3].request

    def expected_us(request: EvaluationRequest) -> float | None:
        return None if request is unknown else bowl(request)

    strategy = make_strategy("simulated", among, expected_us=expected_us)
    asked = [strategy.ask() for _ in among]
    small = [p.request for p in asked if p is not None and p.request.problem == SMALL]
    times = [bowl(request) for request in small[:-1]]
    assert times == sorted(times)
    assert small[-1] is unknown
    first, second = asked[:2]
    assert first is not None
    assert second is not None
    assert (
        first.request.problem != second.request.problem
    )  # the budget is split evenly over problems


def test_several_points_can_be_evaluated_at_once() -> None:
    strategy = make_strategy("coordinate", points(SMALL, LARGE))
    one, two = strategy.ask(), strategy.ask()
    assert one is not None
    assert two is not None
    assert one.request.problem != two.request.problem
    assert strategy.ask() is None  # both problems wait for answers
    strategy.tell(two, 5.0)
    three = strategy.ask()
    assert three is not None
    assert three.request.problem == two.request.problem


def test_a_variant_without_a_choice_is_tried_once() -> None:
    space = Space(("v01",), (SMALL,), {"block_n": (64,)})
    for name in STRATEGIES:
        assert len(search(name, space.points(SweepOptions()))) == 1


def test_missing_optuna_gives_installation_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with raises(ToolMissing, "optuna_missing"):
        make_strategy("bayesian", points())
