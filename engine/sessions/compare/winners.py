"""Which variant is the fastest for each problem, and which cannot be told from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.evaluation import Evaluation
from engine.measure.statistics import MedianInterval
from engine.measure.verdict import RUN_TO_RUN_FLOOR, Verdict, interval_verdict
from engine.problem import Problem
from engine.records.snapshot import Environment
from engine.sessions.compare.environment import environment_blockers
from engine.sessions.compare.times import (
    interval_of,
    latency_of_kind,
    may_be_compared,
    newest_by_question,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant's best time for a problem."""

    variant: str
    config: Mapping[str, int]
    session: str
    origin: str
    median_us: float
    interval: MedianInterval | None  # None for a single figure
    samples: int
    sdpa_name: str  # the fastest SDPA backend timed beside it
    sdpa_us: float | None


@dataclass(frozen=True, slots=True)
class SlowerBy:
    """A ratio of times above 1, with its 95 % interval where both times have one."""

    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest variant for one problem on one device, under one driver and clock.

    `tied` lists the variants of which it cannot be said that they are slower. `speedup` is the time
    of the next variant that is slower for sure over the winner's; None where there is none.
    """

    problem: Problem
    device: str
    sessions: tuple[str, ...]  # whose times were compared
    best: Entry
    tied: tuple[Entry, ...]
    runner_up: Entry | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None

    @property
    def speedup_over_sdpa(self) -> float | None:
        return self.best.sdpa_us / self.best.median_us if self.best.sdpa_us else None


def winners(
    evaluations: Mapping[str, Sequence[Evaluation]],
    environments: Mapping[str, Environment],
    kind: str,
) -> tuple[Winner, ...]:
    """The winner map of some sessions, in the order in which the problems first appear.

    Only times that were really taken count, of kernels that passed or were recorded elsewhere.
    Sessions are pooled where GPU, driver and clocks are the same; others never compete.
    """
    result = []
    for names in _pools(environments):
        entries: dict[tuple[Problem, str], list[Entry]] = {}
        for name in names:
            for by_device in newest_by_question(evaluations[name]).values():
                for e in by_device.values():
                    if (entry := _entry(name, e, kind)) is not None:
                        entries.setdefault((e.problem, e.device), []).append(entry)
        result += [
            _winner(problem, device, names, group) for (problem, device), group in entries.items()
        ]
    return tuple(result)


def _pools(environments: Mapping[str, Environment]) -> list[tuple[str, ...]]:
    """Sessions grouped so that the times within a group may be compared."""
    pools: list[list[str]] = []
    for name, environment in environments.items():
        for pool in pools:
            if not environment_blockers(environments[pool[0]], environment):
                pool.append(name)
                break
        else:
            pools.append([name])
    return [tuple(pool) for pool in pools]


def _entry(session: str, e: Evaluation, kind: str) -> Entry | None:
    latency = latency_of_kind(e, kind)
    if latency is None or latency.origin == "predicted" or not may_be_compared(e, latency):
        return None
    interval, samples = interval_of(latency)
    timed = [(b.latency.median_us, b.name) for b in e.baselines if b.latency is not None]
    sdpa_us, sdpa_name = min(timed, default=(None, ""))
    return Entry(
        variant=e.variant,
        config=e.config,
        session=session,
        origin=latency.origin,
        median_us=latency.median_us,
        interval=interval,
        samples=samples,
        sdpa_name=sdpa_name,
        sdpa_us=sdpa_us,
    )


def _winner(problem: Problem, device: str, names: tuple[str, ...], entries: list[Entry]) -> Winner:
    best_of: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda e: e.median_us):
        best_of.setdefault(entry.variant, entry)
    best, *others = best_of.values()
    tied: list[Entry] = []
    runner_up, speedup = None, None
    for other in others:
        ratio = _slower_by(best, other)
        if ratio is None:
            tied.append(other)
        elif runner_up is None:
            runner_up, speedup = other, ratio
    return Winner(
        problem=problem,
        device=device,
        sessions=names,
        best=best,
        tied=tuple(tied),
        runner_up=runner_up,
        speedup=speedup.ratio if speedup else None,
        speedup_low=speedup.low if speedup else None,
        speedup_high=speedup.high if speedup else None,
    )


def _slower_by(best: Entry, other: Entry) -> SlowerBy | None:
    """How much slower `other` is, or None where that cannot be said."""
    if best.interval is None or other.interval is None:
        # Single figures: only what identical kernels do not show from run to run is a difference.
        ratio = other.median_us / best.median_us
        return SlowerBy(ratio, None, None) if ratio > 1 + RUN_TO_RUN_FLOOR else None
    samples = min(best.samples, other.samples)
    compared = interval_verdict(best.interval, other.interval, samples=samples)
    if compared.verdict is not Verdict.SLOWER:
        return None
    return SlowerBy(compared.ratio, compared.low, compared.high)
