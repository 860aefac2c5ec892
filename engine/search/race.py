"""A race of many candidates: few rounds first, in which losers leave, then a final of the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.measure.rounds import Sample
from engine.measure.sampler import SamplerSettings, SamplingRun
from engine.measure.verdict import Verdict
from engine.search.ranking import RankedPoint, rank_run

FINALISTS = 5
# Rounds of each heat. Fewer than 6 have no interval, and 6 already find what is 10 % slower.
HEAT_ROUNDS = (6, 12, 24)


class Candidates(Protocol):
    """Candidates ready to be timed side by side, as in `engine.measure.side_by_side`."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def failures(self) -> Mapping[str, str]:
        """Why candidates cannot take part (any more), by name; a run may add to it."""
        ...

    def run(
        self,
        incumbent: str,
        settings: SamplerSettings,
        candidates: Sequence[str],
        on_round: Callable[[Sequence[Sample]], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> SamplingRun: ...


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The places of the finalists, and when the others left."""

    places: tuple[RankedPoint, ...]  # of the finalists
    final: SamplingRun
    left_in_heat: dict[str, int]  # candidate → 1-based heat after which it was out
    throttled: str  # why no verdict can be trusted; empty when all is well


def race(
    candidates: Candidates,
    settings: SamplerSettings,
    should_stop: Callable[[], bool] = lambda: False,
) -> RaceResult:
    """Successive halving, then a paired shoot-out of those that are left.

    After each heat the slower half leaves, except candidates not yet known to be slower than the
    leader. The final runs by the full stopping rule. A candidate that fails has no place.

    Raises:
        ValueError: no candidates.
    """
    remaining = list(candidates.names)
    if not remaining:
        raise ValueError("a race needs a candidate")
    left_in: dict[str, int] = {}
    for heat, rounds in enumerate(HEAT_ROUNDS, start=1):
        if len(remaining) <= FINALISTS or should_stop():
            break
        staying = _survivors(candidates, remaining, rounds, settings, should_stop)
        left_in |= {c: heat for c in remaining if c not in staying}
        remaining = staying
    left_in |= {c: len(HEAT_ROUNDS) for c in remaining[FINALISTS:]}
    remaining = remaining[:FINALISTS]
    final = candidates.run(remaining[0], settings, remaining[1:], should_stop=should_stop)
    places = rank_run(final, without=candidates.failures)
    return RaceResult(tuple(places), final, left_in, final.throttled)


def _survivors(
    candidates: Candidates,
    remaining: Sequence[str],
    rounds: int,
    settings: SamplerSettings,
    should_stop: Callable[[], bool],
) -> list[str]:
    """The candidates that remain after one heat, fastest first."""
    heat = replace(settings, kinds=settings.kinds[:1], min_rounds=rounds, max_rounds=rounds)
    run = candidates.run(remaining[0], heat, remaining[1:], should_stop=should_stop)
    if run.stop == "cancelled":
        return list(remaining)
    kind = heat.kinds[0]
    ordered = [place.point for place in rank_run(run, without=candidates.failures)]
    half = max(FINALISTS, (len(ordered) + 1) // 2)
    staying = [
        candidate
        for position, candidate in enumerate(ordered)
        if position < half
        or run.table.compare(candidate, ordered[0], kind).verdict is not Verdict.SLOWER
    ]
    return staying or list(remaining[:1])
