"""The result of a search for each problem: its best points race against each other on a GPU.

Where candidates can be measured side by side (`OpenCandidates`), the best of the search run a race
with paired rounds. Elsewhere the evaluations' own times rank them, and what runs differ by, or that
a time is only predicted, is taken into account: the origin is always said.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

from engine.errors import AttuneError
from engine.evaluation import Origin
from engine.measure.sampler import SamplerSettings
from engine.measure.verdict import RANKING_ERROR
from engine.problem import Problem
from engine.schema import Stored
from engine.search.race import Candidates, RaceResult, race
from engine.search.ranking import (
    RankedPoint,
    by_problem,
    comparable,
    rank_rows,
    ranking_origin,
)
from engine.search.rows import SweepRow

# Makes the kernels of correct rows ready to be timed side by side; points are their names there.
OpenCandidates: TypeAlias = Callable[[Sequence[SweepRow]], AbstractContextManager[Candidates]]

RACERS = 16  # best of the search that enter the race
FINAL = SamplerSettings(kinds=("device_warm", "device_cold"))


@dataclass(frozen=True, slots=True)
class ProblemResult(Stored):
    """The best of one problem on one GPU."""

    device: str  # as `gpu_names` of the sweep's rows calls it
    problem: Problem
    origin: Origin
    places: tuple[RankedPoint, ...]  # fastest first; equal places are ties
    reason: str  # one sentence: how the places were determined

    @property
    def winners(self) -> tuple[str, ...]:
        """The points that share the first place."""
        return tuple(p.point for p in self.places if p.place == 1)


def problem_results(
    rows: Sequence[SweepRow],
    open_candidates: OpenCandidates | None = None,
    settings: SamplerSettings | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[ProblemResult]:
    """The result of every (GPU, problem) of a sweep that has times.

    Args:
        rows: all rows of the sweep, of any strategy.
        open_candidates: for a final with paired measurements; None where there is no GPU.
        settings: of the final.

    Raises:
        MeasureError: the GPU failed in a race.
    """
    results = (
        problem_result(device, group, open_candidates, settings, should_stop)
        for (device, _), group in by_problem(rows).items()
    )
    return [result for result in results if result is not None]


def problem_result(
    device: str,
    rows: Sequence[SweepRow],
    open_candidates: OpenCandidates | None = None,
    settings: SamplerSettings | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ProblemResult | None:
    """The result of one group of `by_problem`, or None when it has no times. See `problem_results`.

    Args:
        device: the group's GPU, as `by_problem` names it.
    """
    ranked = rank_rows(rows)
    origin = ranking_origin(rows)
    if not ranked or origin is None:
        return None
    places, reason = tuple(ranked), _without_final(origin, rows)
    if open_candidates is not None and origin == "measured":
        by_point = {row.point: row for row in rows}
        with open_candidates([by_point[p.point] for p in ranked[:RACERS]]) as candidates:
            if candidates.names:
                result = race(candidates, settings or FINAL, should_stop=should_stop)
                places = _finalists_first(result.places, ranked, candidates.failures)
                reason = _how_raced(result)
    return ProblemResult(device, rows[0].problem, origin, places, reason)


def result_with_final(
    device: str, rows: Sequence[SweepRow], final: Callable[[], ProblemResult | None] | None
) -> ProblemResult | None:
    """The result of a final, or where it fails the search's own times and why there is none.

    Args:
        final: runs it or waits for it; None where there is nothing to run it on.
    """
    own = problem_result(device, rows)
    if final is None or own is None:
        return own
    try:
        return final()
    except (AttuneError, BrokenExecutor) as error:
        return replace(own, reason=f"{own.reason} No final: {error}")


def _finalists_first(
    finalists: Sequence[RankedPoint], ranked: Sequence[RankedPoint], failures: Container[str]
) -> tuple[RankedPoint, ...]:
    """The finalists, and after them all others in the order of the search's own times."""
    names = {place.point for place in finalists}
    others = [p for p in ranked if p.point not in names and p.point not in failures]
    numbered = enumerate(others, start=len(finalists) + 1)
    return (*finalists, *(replace(p, place=n, tied=False) for n, p in numbered))


def _how_raced(result: RaceResult) -> str:
    if result.throttled:
        return f"THROTTLED: {result.throttled}"
    return (
        f"Measured side by side in {result.final.rounds} rounds, {result.final.stop_reason}; "
        "from the sixth place on by the search's own times."
    )


def _without_final(origin: Origin, rows: Sequence[SweepRow]) -> str:
    ranked = comparable(rows)
    points = _points(len(ranked))
    if origin == "predicted":
        method = f" by {ranked[0].method}" if ranked[0].method else ""
        others = sum(row.origin == origin for row in rows) - len(ranked)
        return (
            f"Predicted{method} for {points}, not measured: what differs by less than "
            f"{RANKING_ERROR:.0%} is a tie."
        ) + (
            f" {_points(others).capitalize()} without a simulated time, whose prediction by "
            f"roofline is of another kind, {'is' if others == 1 else 'are'} not ranked."
            if others
            else ""
        )
    return (
        f"{origin.capitalize()} one after another ({points}): what differs by less than "
        "3 % is a tie."
    )


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"
