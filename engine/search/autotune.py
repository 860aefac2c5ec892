"""The final round of a sweep, and the tuned configs saved from it.

Successive halving: slow candidates are dropped after few rounds, and the best are timed longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from engine.attention.config import TunedConfig, find_variant, problem_class, save_tuned
from engine.attention.evaluation import Correctness, Origin
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import AttuneError
from engine.base.schema import Stored, decode
from engine.correctness import inputs_of
from engine.history.known_time import RANKING_ERROR
from engine.measure.device_lock import gpu_lock, gpu_states
from engine.measure.sampler import Sample, SamplerSettings, SamplingRun
from engine.measure.side_by_side import TimingGroup
from engine.measure.statistics import Verdict
from engine.search.ranking import (
    RankedPoint,
    SweepRow,
    by_problem,
    comparable,
    gpu_names,
    rank_rows,
    rank_run,
    ranking_origin,
    ties,
)
from engine.search.space import local_gpu_id
from engine.search.strategies import StrategyName

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from engine.pipeline.evaluate import Evaluator

FINALISTS = 5
# Rounds of each heat (a short elimination run). Fewer than 6 give no interval; 6 are enough to find
# a kernel that is 10 % slower.
HEAT_ROUNDS = (6, 12, 24)


class Candidates(Protocol):
    """Candidates ready to be timed side by side, as in `engine.measure.side_by_side`."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def failures(self) -> Mapping[str, str]:
        """Return why candidates have failed, by name; a run may add to it."""
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
    """The ranking of the last candidates, and the heat after which each other was dropped."""

    places: tuple[RankedPoint, ...]  # of the finalists
    final: SamplingRun
    left_in_heat: dict[str, int]  # candidate → 1-based heat after which it was dropped
    throttled: str  # why the verdicts are unreliable; else empty


def race(
    candidates: Candidates,
    settings: SamplerSettings,
    should_stop: Callable[[], bool] = lambda: False,
) -> RaceResult:
    """Run successive halving, then time the remaining candidates in paired rounds.

    After each heat the slower half is dropped, except candidates that are not significantly slower
    than the leader. The final round uses the full stopping rule. A candidate that fails has no
    place.

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
        survivors = _survivors(candidates, remaining, rounds, settings, should_stop)
        left_in |= {c: heat for c in remaining if c not in survivors}
        remaining = survivors
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
    """Return the candidates that remain after one heat, fastest first."""
    heat = replace(settings, kinds=settings.kinds[:1], min_rounds=rounds, max_rounds=rounds)
    run = candidates.run(remaining[0], heat, remaining[1:], should_stop=should_stop)
    if run.stop == "cancelled":
        return list(remaining)
    kind = heat.kinds[0]
    ordered = [place.point for place in rank_run(run, without=candidates.failures)]
    half = max(FINALISTS, (len(ordered) + 1) // 2)
    survivors = [
        candidate
        for position, candidate in enumerate(ordered)
        if position < half
        or run.table.compare(candidate, ordered[0], kind).verdict is not Verdict.SLOWER
    ]
    return survivors or list(remaining[:1])


# The result of a search for each problem, from a final round of its best points on a GPU.
#
# If candidates can be measured side by side (`OpenCandidates`), the best of the search are timed in
# paired rounds. Otherwise they are ranked by the times of their evaluations, with allowance for
# run-to-run differences or prediction errors, and with the origin of the times.


# Prepares the kernels of correct rows for timing side by side; their names are the points' ids.
OpenCandidates: TypeAlias = Callable[[Sequence[SweepRow]], AbstractContextManager[Candidates]]

RACERS = 16  # number of best points in the final round
FINAL = SamplerSettings(kinds=("device_warm", "device_cold"))


@dataclass(frozen=True, slots=True)
class ProblemResult(Stored):
    """The best points of one problem on one GPU."""

    device: str  # its name in `gpu_names` of the sweep's rows
    problem: Problem
    origin: Origin
    places: tuple[RankedPoint, ...]  # fastest first; equal places are ties
    reason: str  # one sentence on how the places were determined

    @property
    def winners(self) -> tuple[str, ...]:
        """Return the points that share the first place."""
        return tuple(p.point for p in self.places if p.place == 1)

    @property
    def ties(self) -> frozenset[int]:
        """Return the places that several points share."""
        return ties(self.places)


def problem_results(
    rows: Sequence[SweepRow],
    open_candidates: OpenCandidates | None = None,
    settings: SamplerSettings | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[ProblemResult]:
    """Return the result of every (GPU, problem) of a sweep with times.

    Args:
        rows: all rows of the sweep, of any strategy.
        open_candidates: for a final round with paired measurements; None without a GPU.
        settings: of the final round.

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
    """Return the result of one group of `by_problem`, or None without times. See `problem_results`.

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
    """Return the result of a final round; if it fails, the result by the search's times and the
    reason.

    Args:
        final: runs the final round or waits for it; None without a GPU.
    """
    own = problem_result(device, rows)
    if final is None or own is None:
        return own
    try:
        return final()
    except (AttuneError, BrokenExecutor) as error:
        return replace(own, reason=f"{own.reason} Not timed side by side: {error}")


def _finalists_first(
    finalists: Sequence[RankedPoint], ranked: Sequence[RankedPoint], failures: Container[str]
) -> tuple[RankedPoint, ...]:
    """Return the finalists, then all others in the order of the search's times."""
    names = {place.point for place in finalists}
    others = [p for p in ranked if p.point not in names and p.point not in failures]
    numbered = enumerate(others, start=len(finalists) + 1)
    return (*finalists, *(replace(p, place=n) for n, p in numbered))


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
            f"Predicted{method} for {points}, not measured: times that differ by less than "
            f"{RANKING_ERROR:.0%} are a tie."
        ) + (
            f" {_points(others).capitalize()} without a simulated time "
            f"{'is' if others == 1 else 'are'} not ranked: a time by roofline is not comparable."
            if others
            else ""
        )
    return (
        f"{origin.capitalize()} one after another ({points}): times that differ by less than "
        "3 % are a tie."
    )


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"


# The final round on this machine's GPU: the kernels of a sweep's best rows, timed side by side.


def gpu_candidates(
    evaluator: Evaluator, on_wait: Callable[[str], None] = lambda _: None
) -> OpenCandidates:
    """Prepare rows that passed on this GPU for timing side by side; others are left out.

    Args:
        evaluator: its CUDA context is used; it is not closed.
        on_wait: called with a sentence about the process that holds the GPU's lock.
    """

    @contextmanager
    def opened(rows: Sequence[SweepRow]) -> Iterator[Candidates]:
        backend = cast("CudaBackend", evaluator.backend("cuda"))
        problem = rows[0].problem
        inputs = inputs_of(problem)
        with (
            gpu_lock(f"the best of {problem.label()}, side by side", on_wait),
            gpu_states() as read_state,
            TimingGroup(read_state) as group,
        ):
            here = local_gpu_id()
            for row in rows:
                if row.measured_on not in ("", here):
                    continue
                plan = make_plan(find_variant(row.variant), problem, row.config)
                correctness = decode(Correctness, row.result["correctness"])
                group.add(row.point, partial(backend.timer, plan, inputs, correctness))
            yield group

    return opened


def configs_to_save(
    results: Sequence[ProblemResult], rows: Sequence[SweepRow], strategy: StrategyName
) -> list[TunedConfig]:
    """Return the best config of every (GPU, variant, problem class), also of slow variants.

    If a sweep has several problems of a class, the config with the best geometric mean over all of
    them is chosen, if any has a time on each; the entry then names the largest problem.
    """
    by_class: dict[tuple[str, str, str], list[tuple[TunedConfig, ProblemResult]]] = {}
    variants = sorted({row.variant for row in rows})
    groups = by_problem(rows)
    # The largest problem last, so that the entry names it.
    for result in sorted(results, key=lambda r: r.problem.flops):
        group = groups[result.device, result.problem]
        for variant in variants:
            entry = tuned_config(result, group, strategy, variant)
            if entry is not None:
                tried = sum(row.variant == variant for row in group)
                key = (entry.gpu, entry.variant, entry.problem_class)
                by_class.setdefault(key, []).append((replace(entry, evaluations=tried), result))
    by_point = {row.point: row for row in rows}
    return [_best_of_class(entries, by_point) for _, entries in sorted(by_class.items())]


def tuned_config(
    result: ProblemResult, rows: Sequence[SweepRow], strategy: StrategyName, variant: str
) -> TunedConfig | None:
    """Return the best config of one variant; None if no point of it has a place.

    Of tied configs, the first-ranked is chosen.
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


def _best_of_class(
    entries: Sequence[tuple[TunedConfig, ProblemResult]], by_point: dict[str, SweepRow]
) -> TunedConfig:
    entry, largest = entries[-1]
    if len(entries) == 1:
        return entry
    times: dict[tuple[tuple[str, int], ...], list[float]] = {}
    on_largest = {}
    for _, result in entries:
        for place in result.places:
            row = by_point[place.point]
            if row.variant == entry.variant and result.origin == entry.origin:
                config = tuple(row.config.items())
                times.setdefault(config, []).append(math.log(place.interval.median))
                if result is largest:
                    on_largest[config] = place.interval.median
    everywhere = {c: sum(logs) for c, logs in times.items() if len(logs) == len(entries)}
    if not everywhere:
        return entry
    best = min(everywhere, key=lambda config: everywhere[config])
    return replace(entry, config=dict(best), median_us=on_largest[best])


def save_configs(entries: Iterable[TunedConfig]) -> list[str]:
    """Save entries; return a sentence on the outcome for each.

    Raises:
        StoreError: the file of tuned configs cannot be read or written.
    """
    sentences = []
    for entry in entries:
        key = f"{entry.variant} on {entry.gpu}, {entry.problem_class}"
        if save_tuned(entry):
            sentences.append(f"Saved for {key}: {entry.values()} ({entry.origin}).")
        else:
            sentences.append(
                f"Not saved for {key}: the saved config was measured, and this one is "
                f"{entry.origin}."
            )
    return sentences
