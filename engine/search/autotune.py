"""Autotuning: search under a budget, race the best against each other, keep the winner.

Where candidates can be measured side by side (`OpenEntrants`), the best of the search run a race
with paired rounds. Elsewhere the evaluations' own times rank them, and what runs differ by, or that
a time is only predicted, is taken into account: the origin is always said.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from engine.evaluation import Origin
from engine.measure.sampler import SamplerSettings
from engine.problem import Problem
from engine.search.race import Entrants, RaceResult, race
from engine.search.ranking import Place, by_problem, gpu_names, rank_rows, ranking_origin
from engine.search.strategies import StrategyName
from engine.search.sweep.rows import SweepRow
from engine.search.tuned.store import TunedConfig, problem_class

# Makes the kernels of correct rows ready to be timed side by side; points are their names there.
OpenEntrants: TypeAlias = Callable[[Sequence[SweepRow]], AbstractContextManager[Entrants]]

RACERS = 16  # best of the search that enter the race
FINAL = SamplerSettings(kinds=("device_warm", "device_cold"))


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The best of one problem on one GPU."""

    device: str  # as `gpu_names` of the sweep's rows calls it
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
    open_entrants: OpenEntrants | None = None,
    settings: SamplerSettings | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[TuneResult]:
    """The final of every (GPU, problem) of a sweep that has times.

    Args:
        rows: all rows of the sweep, of any strategy.
        open_entrants: for paired measurements; None where there is no GPU.
        settings: of the final.

    Raises:
        MeasureError: the GPU failed in a race.
    """
    found = (
        tune_group(device, group, open_entrants, settings, should_stop)
        for (device, _), group in by_problem(rows).items()
    )
    return [result for result in found if result is not None]


def tune_group(
    device: str,
    rows: Sequence[SweepRow],
    open_entrants: OpenEntrants | None = None,
    settings: SamplerSettings | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TuneResult | None:
    """The final of one group of `by_problem`, or None when it has no times. See `tune_results`.

    Args:
        device: the group's GPU, by the name it goes by there.
    """
    ranked = rank_rows(rows)
    origin = ranking_origin(rows)
    if not ranked or origin is None:
        return None
    places, reason = tuple(ranked), _how(origin, len(ranked))
    if open_entrants is not None and origin == "measured":
        by_point = {row.point: row for row in rows}
        with open_entrants([by_point[p.point] for p in ranked[:RACERS]]) as entrants:
            if entrants.names:
                result = race(entrants, settings or FINAL, should_stop=should_stop)
                places = _behind(result.places, ranked, entrants.failures)
                reason = _raced(result)
    return TuneResult(device, rows[0].problem, origin, places, reason)


def _behind(
    finalists: Sequence[Place], ranked: Sequence[Place], failures: Container[str]
) -> tuple[Place, ...]:
    """The finalists, and after them everybody else in the order that the search found."""
    names = {place.point for place in finalists}
    others = [p for p in ranked if p.point not in names and p.point not in failures]
    behind = enumerate(others, start=len(finalists) + 1)
    return (*finalists, *(replace(p, place=n, tied=False) for n, p in behind))


def _raced(result: RaceResult) -> str:
    if result.throttled:
        return f"THROTTLED: {result.throttled}"
    return (
        f"Measured side by side in {result.final.rounds} rounds, {result.final.stop_reason}; "
        "from the sixth place on by the search's own times."
    )


def _how(origin: Origin, count: int) -> str:
    points = "1 point" if count == 1 else f"{count} points"
    if origin == "predicted":
        return f"Predicted by the model for {points}, not measured."
    return (
        f"{origin.capitalize()} one after another ({points}): what differs by less than "
        "3 % is a tie."
    )


def tuned_config(
    result: TuneResult, rows: Sequence[SweepRow], strategy: StrategyName, variant: str
) -> TunedConfig | None:
    """The entry to keep for one variant: its best place. None when it has none.

    Of tied configs the one that ranks first is taken.
    """
    by_point = {row.point: row for row in rows}
    name_of = gpu_names(rows)
    for place in result.places:
        row = by_point[place.point]
        if row.variant != variant:
            continue
        same = (result.device, result.problem, variant)
        tried = sum((name_of(r), r.problem, r.variant) == same for r in rows)
        return TunedConfig(
            gpu=row.device,
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
