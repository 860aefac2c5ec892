"""Autotuning: search under a budget, race the best against each other, keep the winner.

Where candidates can be measured side by side (a `DeviceFactory`), the best of the search run a race
with paired rounds. Elsewhere the evaluations' own times rank them, and what runs differ by, or that
a time is only predicted, is taken into account: the origin is always said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from engine.evaluation import Origin
from engine.measure.sampler import SamplerSettings, TimedDevice
from engine.problem import Problem
from engine.request import EvaluationRequest
from engine.search.race import race
from engine.search.ranking import Place, by_problem, rank_rows, ranking_origin
from engine.search.rows import SweepRow
from engine.search.strategies import StrategyName
from engine.search.tuned import TunedConfig, problem_class

# Prepares compiled, checked candidates on a device; their names there are the keys given here.
DeviceFactory: TypeAlias = Callable[
    [dict[str, EvaluationRequest]], AbstractContextManager[TimedDevice]
]

RACERS = 16  # best of the search that enter the race


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The best of one problem on one GPU."""

    device: str
    problem: Problem
    origin: Origin
    places: tuple[Place, ...]  # fastest first; equal places are ties
    reason: str  # one sentence: how the places came about

    @property
    def winners(self) -> tuple[str, ...]:
        """The points that share the first place."""
        return tuple(p.point for p in self.places if p.place == 1)


def tune_results(
    rows: Sequence[SweepRow],
    open_device: DeviceFactory | None = None,
    requests: Callable[[SweepRow], EvaluationRequest] | None = None,
    settings: SamplerSettings | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[TuneResult]:
    """The final of every (GPU, problem) of a sweep that has times.

    Args:
        rows: all rows of the sweep, of any strategy.
        open_device: for paired measurements; None where there is no GPU.
        requests: the request of a row; needed with `open_device`.
    """
    found = []
    for (device, problem), group in by_problem(rows).items():
        ranked = rank_rows(group)
        origin = ranking_origin(group)
        if not ranked or origin is None:
            continue
        places, reason = tuple(ranked), _how(origin, len(ranked))
        if open_device is not None and requests is not None and origin == "measured":
            by_point = {row.point: row for row in group}
            racers = {p.point: requests(by_point[p.point]) for p in ranked[:RACERS]}
            with open_device(racers) as timed:
                result = race(timed, list(racers), settings, should_stop=should_stop)
            places = _behind(result.places, ranked)
            reason = (
                f"Measured side by side in {result.final.rounds} rounds, "
                f"{result.final.stop_reason}."
            )
            if result.throttled:
                reason = f"THROTTLED: {result.throttled}"
        found.append(TuneResult(device, problem, origin, places, reason))
    return found


def _behind(finalists: Sequence[Place], ranked: Sequence[Place]) -> tuple[Place, ...]:
    """The finalists, and after them everybody else as the search ranked them."""
    names = {place.point for place in finalists}
    others = [place for place in ranked if place.point not in names]
    return (*finalists, *(replace(p, place=len(names) + p.place, tied=False) for p in others))


def _how(origin: Origin, points: int) -> str:
    if origin == "predicted":
        return f"Predicted by the model for {points} points, not measured."
    return (
        f"{origin.capitalize()} one after another ({points} points): what differs by less than "
        "3 % is a tie."
    )


def tuned_config(
    result: TuneResult, rows: Sequence[SweepRow], strategy: StrategyName, variant: str
) -> TunedConfig | None:
    """The entry to keep for one variant: its best place. None when it has none.

    Of tied configs the one that ranks first is taken.
    """
    by_point = {row.point: row for row in rows}
    for place in result.places:
        row = by_point[place.point]
        if row.variant != variant:
            continue
        same = (result.device, result.problem, variant)
        tried = sum((r.device, r.problem, r.variant) == same for r in rows)
        return TunedConfig(
            gpu=result.device,
            variant=variant,
            problem_class=problem_class(result.problem),
            config=dict(row.config),
            problem=result.problem.label(),
            median_us=place.interval.median,
            origin=result.origin,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            strategy=strategy,
            evaluations=tried,
        )
    return None
