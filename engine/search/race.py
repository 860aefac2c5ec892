"""Early stop of losers, and the final: many candidates, few rounds; few candidates, many rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.measure.sampler import SamplerSettings, SamplingRun, TimedDevice, run_rounds
from engine.measure.verdict import Verdict
from engine.search.ranking import Place, rank_run

FINALISTS = 5
# Rounds of each heat. Fewer than 6 have no interval, and 6 already find what is 10 % slower.
HEAT_ROUNDS = (6, 12, 24)


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Who came in where, and who left when."""

    places: tuple[Place, ...]  # of the finalists
    final: SamplingRun
    left_in_heat: dict[str, int]  # candidate → 1-based heat after which it was out
    throttled: str  # why no verdict can be trusted; empty when all is well


def race(
    device: TimedDevice,
    candidates: Sequence[str],
    settings: SamplerSettings | None = None,
    finalists: int = FINALISTS,
    should_stop: Callable[[], bool] = lambda: False,
) -> RaceResult:
    """Successive halving, then a paired shoot-out of those that are left.

    After each heat the slower half leaves, except who is not yet known to be slower than the
    leader. The final runs by the full stopping rule.

    Raises:
        ValueError: no candidates.
    """
    field = list(dict.fromkeys(candidates))
    if not field:
        raise ValueError("a race needs a candidate")
    settings = settings or SamplerSettings()
    left: dict[str, int] = {}
    for heat, rounds in enumerate(HEAT_ROUNDS, start=1):
        if len(field) <= finalists or should_stop():
            break
        staying = _survivors(device, field, rounds, settings, finalists, should_stop)
        left |= {c: heat for c in field if c not in staying}
        field = staying
    out_before_final = field[finalists:]
    left |= {c: len(HEAT_ROUNDS) for c in out_before_final}
    field = field[:finalists]
    final = run_rounds(device, field[0], field[1:], settings, should_stop=should_stop)
    return RaceResult(tuple(rank_run(final)), final, left, final.throttled)


def _survivors(
    device: TimedDevice,
    field: Sequence[str],
    rounds: int,
    settings: SamplerSettings,
    finalists: int,
    should_stop: Callable[[], bool],
) -> list[str]:
    """The field after one heat, fastest first."""
    heat = replace(settings, kinds=settings.kinds[:1], min_rounds=rounds, max_rounds=rounds)
    run = run_rounds(device, field[0], field[1:], heat, should_stop=should_stop)
    kind = heat.kinds[0]
    ordered = [place.point for place in rank_run(run)]
    if len(ordered) < len(field):  # cut short before everybody ran
        return list(field)
    half = max(finalists, (len(ordered) + 1) // 2)
    return [
        candidate
        for position, candidate in enumerate(ordered)
        if position < half
        or run.table.compare(candidate, ordered[0], kind).verdict is not Verdict.SLOWER
    ]
