"""Search strategies: the order in which points are tried, and which are skipped.

A strategy is asked for points and told their times. Each (variant, problem) is a separate search;
the searches take turns, so a budget is shared evenly. Excluded points are never proposed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, Protocol, TypeAlias, get_args

from engine.attention.config import find_variant, fitting_config
from engine.attention.problem import Problem
from engine.base.errors import ToolMissing
from engine.pipeline.request import EvaluationRequest, target_device
from engine.search.space import SweepPoint

StrategyName: TypeAlias = Literal["exhaustive", "random", "coordinate", "bayesian", "simulated"]
STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)

# The expected time of a request in µs; None if unknown.
Expected: TypeAlias = Callable[[EvaluationRequest], float | None]

# One search: yields points, receives their times in µs (None: no time), and ends after its last
# point.
Search: TypeAlias = Generator[SweepPoint, float | None, None]

# Bayesian: consecutive repeated proposals after which an untried point is drawn instead.
_MAX_STALE_PROPOSALS = 10


class Strategy(Protocol):
    """Proposes points. Several may be pending at once; each result is told once."""

    def ask(self) -> SweepPoint | None:
        """Return the next point; None if there is none, or none until another result is told."""
        ...

    def tell(self, point: SweepPoint, time_us: float | None) -> None:
        """Report a point's time; None if it has none."""
        ...


def make_strategy(
    name: StrategyName,
    points: Sequence[SweepPoint],
    seed: int = 0,
    expected_us: Expected = lambda _: None,
) -> Strategy:
    """Return the strategy with this name over the points that can run.

    Args:
        expected_us: expected times for "simulated".

    Raises:
        ToolMissing: "bayesian" without optuna.
    """
    runnable = [p for p in points if p.why_not is None]
    if name == "exhaustive":
        return InOrder(runnable)
    if name == "random":
        random.Random(seed).shuffle(runnable)
        return InOrder(runnable)
    if name == "simulated":
        return InOrder(by_expected_time(runnable, expected_us))
    if name == "bayesian":
        _import_optuna()  # fail now, not after the sweep has started
    search = _SEARCHES[name]
    groups: dict[tuple[Any, ...], dict[tuple[int, ...], SweepPoint]] = {}
    for point in runnable:
        group = groups.setdefault((point.request.variant, point.request.problem), {})
        group[_key(point)] = point
    return TakingTurns([search(Group(g), seed + i) for i, g in enumerate(groups.values())])


def by_expected_time(points: Sequence[SweepPoint], expected_us: Expected) -> list[SweepPoint]:
    """Order points by expected time, with problems taking turns.

    Points with unknown times come last, in the given order.
    """
    groups: dict[Problem, list[tuple[float, SweepPoint]]] = {}
    for point in points:
        time_us = expected_us(point.request)
        key = math.inf if time_us is None else time_us
        groups.setdefault(point.request.problem, []).append((key, point))
    ordered = [sorted(group, key=lambda item: item[0]) for group in groups.values()]
    return [item[1] for turn in zip_longest(*ordered) for item in turn if item is not None]


class InOrder:
    """Proposes the points in their given order."""

    def __init__(self, points: Sequence[SweepPoint]) -> None:
        self._points = iter(points)

    def ask(self) -> SweepPoint | None:
        return next(self._points, None)

    def tell(self, point: SweepPoint, time_us: float | None) -> None:
        """Ignore the time: the order is fixed."""


class TakingTurns:
    """Several searches, each with at most one pending point."""

    def __init__(self, searches: Sequence[Search]) -> None:
        # Searches that can propose their next point, each with the time to send (None at the
        # start).
        self._ready: list[tuple[Search, float | None]] = [(s, None) for s in searches]
        self._out: dict[str, Search] = {}

    def ask(self) -> SweepPoint | None:
        while self._ready:
            search, answer = self._ready.pop(0)
            try:
                point = search.send(answer)
            except StopIteration:
                continue
            self._out[point.id] = search
            return point
        return None

    def tell(self, point: SweepPoint, time_us: float | None) -> None:
        self._ready.append((self._out.pop(point.id), time_us))


class Group:
    """The points of one (variant, problem) as a grid of tunable values, with gaps."""

    def __init__(self, points: Mapping[tuple[int, ...], SweepPoint]) -> None:
        self.points = points
        request = next(iter(points.values())).request
        self.names = tuple(request.config)
        self.axes = tuple(tuple(sorted(set(values))) for values in zip(*points, strict=True))
        device = target_device(request.gpu)
        default = fitting_config(find_variant(request.variant), {}, request.problem, device)
        wanted = tuple(default[name] for name in self.names)
        self.start = wanted if wanted in points else next(iter(points))


def _key(point: SweepPoint) -> tuple[int, ...]:
    return tuple(point.request.config.values())


def coordinate_descent(group: Group, seed: int) -> Search:
    """Improve one tunable at a time, first from the default config, then from untried configs.

    A line search tries every value of one axis with the others fixed and keeps the best; a descent
    ends when no axis improves.
    """
    rng = random.Random(seed)
    times: dict[tuple[int, ...], float | None] = {}

    def visit(key: tuple[int, ...]) -> Generator[SweepPoint, float | None, float]:
        if key not in times:
            times[key] = yield group.points[key]
        time_us = times[key]
        return float("inf") if time_us is None else time_us

    here = group.start
    while True:
        best = yield from visit(here)
        improved = True
        while improved:
            improved = False
            for axis in rng.sample(range(len(group.axes)), len(group.axes)):
                for value in group.axes[axis]:
                    there = (*here[:axis], value, *here[axis + 1 :])
                    if there not in group.points:
                        continue
                    time_us = yield from visit(there)
                    if time_us < best:
                        here, best, improved = there, time_us, True
        untried = [key for key in group.points if key not in times]
        if not untried:
            return
        here = rng.choice(untried)


def bayesian(group: Group, seed: int) -> Search:
    """Search with Optuna's TPE over the indices of values, starting from the default config.

    Raises:
        ToolMissing: optuna is not installed.
    """
    optuna = _import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    axes = {
        name: optuna.distributions.IntDistribution(0, len(axis) - 1)
        for name, axis in zip(group.names, group.axes, strict=True)
    }
    failed = optuna.trial.TrialState.FAIL
    rng = random.Random(seed)
    untried = dict(group.points)
    times: dict[tuple[int, ...], float | None] = {}

    def positions(key: tuple[int, ...]) -> dict[str, int]:
        where = zip(group.names, group.axes, key, strict=True)
        return {name: axis.index(value) for name, axis, value in where}

    study.enqueue_trial(positions(group.start))
    stale = 0
    while untried:
        if stale > _MAX_STALE_PROPOSALS:
            study.enqueue_trial(positions(rng.choice(list(untried))))
        trial = study.ask(axes)
        key = tuple(
            axis[trial.params[name]] for name, axis in zip(group.names, group.axes, strict=True)
        )
        if key in untried:
            stale = 0
            times[key] = yield untried.pop(key)
        else:
            stale += 1  # tried before, or a gap in the grid
        time_us = times.get(key)
        if time_us is None:
            study.tell(trial, state=failed)
        else:
            study.tell(trial, time_us)


_SEARCHES: dict[str, Callable[[Group, int], Search]] = {
    "coordinate": coordinate_descent,
    "bayesian": bayesian,
}


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ToolMissing(
            "The Bayesian strategy needs optuna: pip install 'attune[tune]', or choose coordinate.",
            code="optuna_missing",
        ) from error
    return optuna
