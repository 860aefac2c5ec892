"""Which variant is the fastest for each problem, and which cannot be told from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.measure.statistics import MedianInterval
from engine.measure.verdict import RUN_TO_RUN_FLOOR, Verdict, interval_verdict
from engine.sessions.compare.environment import environment_blockers
from engine.sessions.compare.times import Json, counts, interval_of, last_of_each, time_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant's best time for a problem."""

    variant: str
    config: Json
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

    problem: Json
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


def winners(sessions: Mapping[str, Json], kind: str) -> tuple[Winner, ...]:
    """The winner map, in the order in which the problems first appear.

    Only times that were really taken count, of kernels that passed or were recorded elsewhere.
    Sessions are pooled where GPU, driver and clocks are the same; others never compete.
    """
    found = []
    for names in _pools(sessions):
        entries: dict[tuple[tuple[tuple[str, object], ...], str], list[Entry]] = {}
        for name in names:
            for (_, _, problem), by_device in last_of_each(sessions[name]["evaluations"]).items():
                for device, evaluation in by_device.items():
                    entry = _entry(name, evaluation, kind)
                    if entry is not None:
                        entries.setdefault((problem, device), []).append(entry)
        found += [
            _winner(dict(problem), device, names, group)
            for (problem, device), group in entries.items()
        ]
    return tuple(found)


def _pools(sessions: Mapping[str, Json]) -> list[tuple[str, ...]]:
    """Sessions grouped so that the times within a group may be compared."""
    pools: list[list[str]] = []
    for name, session in sessions.items():
        environment = session.get("environment") or {}
        for pool in pools:
            first = sessions[pool[0]].get("environment") or {}
            if not environment_blockers(first, environment):
                pool.append(name)
                break
        else:
            pools.append([name])
    return [tuple(pool) for pool in pools]


def _entry(session: str, evaluation: Json, kind: str) -> Entry | None:
    latency = time_of(evaluation, kind)
    if latency is None or latency["origin"] == "predicted" or not counts(evaluation, latency):
        return None
    interval, samples = interval_of(latency)
    timed = [b for b in evaluation.get("baselines") or () if b.get("latency")]
    sdpa = min(timed, key=lambda b: float(b["latency"]["median_us"]), default=None)
    return Entry(
        variant=evaluation["variant"],
        config=dict(evaluation["config"]),
        session=session,
        origin=latency["origin"],
        median_us=latency["median_us"],
        interval=interval,
        samples=samples,
        sdpa_name=sdpa["name"] if sdpa else "",
        sdpa_us=sdpa["latency"]["median_us"] if sdpa else None,
    )


def _winner(problem: Json, device: str, names: tuple[str, ...], entries: list[Entry]) -> Winner:
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
