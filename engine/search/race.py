"""Early stop of losers, and the final: many candidates, few rounds; few candidates, many rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.measure.rounds import Sample
from engine.measure.sampler import SamplerSettings, SamplingRun
from engine.measure.verdict import Verdict
from engine.search.ranking import Place, rank_run

FINALISTS = 5
# Rounds of each heat. Fewer than 6 have no interval, and 6 already find what is 10 % slower.
HEAT_ROUNDS = (6, 12, 24)


class Entrants(Protocol):
    """Candidates ready to be timed in one run, as `engine.measure.side_by_side.TimingGroup` is."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def failures(self) -> Mapping[str, str]:
        """Who cannot take part (any more), and why; a run may add to it."""
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
    """Who came in where, and who left when."""

    places: tuple[Place, ...]  # of the finalists
    final: SamplingRun
    left_in_heat: dict[str, int]  # candidate → 1-based heat after which it was out
    throttled: str  # why no verdict can be trusted; empty when all is well


def race(
    entrants: Entrants,
    settings: SamplerSettings,
    finalists: int = FINALISTS,
    should_stop: Callable[[], bool] = lambda: False,
) -> RaceResult:
    """Successive halving, then a paired shoot-out of those that are left.

    After each heat the slower half leaves, except who is not yet known to be slower than the
    leader. The final runs by the full stopping rule. Who fails on the way has no place.

    Raises:
        ValueError: no candidates.
    """
    group = list(entrants.names)
    if not group:
        raise ValueError("a race needs a candidate")
    left: dict[str, int] = {}
    for heat, rounds in enumerate(HEAT_ROUNDS, start=1):
        if len(group) <= finalists or should_stop():
            break
        staying = _survivors(entrants, group, rounds, settings, finalists, should_stop)
        left |= {c: heat for c in group if c not in staying}
        group = staying
    left |= {c: len(HEAT_ROUNDS) for c in group[finalists:]}
    group = group[:finalists]
    final = entrants.run(group[0], settings, group[1:], should_stop=should_stop)
    places = rank_run(final, without=entrants.failures)
    return RaceResult(tuple(places), final, left, final.throttled)


def _survivors(
    entrants: Entrants,
    group: Sequence[str],
    rounds: int,
    settings: SamplerSettings,
    finalists: int,
    should_stop: Callable[[], bool],
) -> list[str]:
    """The group after one heat, fastest first."""
    heat = replace(settings, kinds=settings.kinds[:1], min_rounds=rounds, max_rounds=rounds)
    run = entrants.run(group[0], heat, group[1:], should_stop=should_stop)
    if run.stop == "cancelled":
        return list(group)
    kind = heat.kinds[0]
    ordered = [place.point for place in rank_run(run, without=entrants.failures)]
    half = max(finalists, (len(ordered) + 1) // 2)
    staying = [
        candidate
        for position, candidate in enumerate(ordered)
        if position < half
        or run.table.compare(candidate, ordered[0], kind).verdict is not Verdict.SLOWER
    ]
    return staying or list(group[:1])
