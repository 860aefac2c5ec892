"""The evaluations of a session: which question each answers, and in what time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from engine.base.status import Status
from engine.evaluation import Evaluation, Latency
from engine.history.known_time import kernel_name
from engine.measure.verdict import (
    MIN_SAMPLES,
    RUN_TO_RUN_FLOOR,
    MedianInterval,
    Verdict,
    interval_verdict,
    median_interval,
)
from engine.problem import Problem
from engine.sessions.compare.environment import environment_blockers
from engine.sessions.snapshot import Environment

# (variant, config, problem): what makes two evaluations the same question.
Key: TypeAlias = tuple[str, tuple[tuple[str, int], ...], Problem]

DEVICE_WARM = "device_warm"
_NOT_OURS = "recorded elsewhere: how it was timed is not known here"


def config_label(config: Mapping[str, int]) -> str:
    """`block_n=64, num_splits=4`; `default` where a variant has no tunables."""
    return ", ".join(f"{name}={value}" for name, value in sorted(config.items())) or "default"


def key_of(evaluation: Evaluation) -> Key:
    """The question that an evaluation answers."""
    return evaluation.variant, tuple(sorted(evaluation.config.items())), evaluation.problem


def newest_by_question(evaluations: Iterable[Evaluation]) -> dict[Key, dict[str, Evaluation]]:
    """The newest evaluation of each question by device."""
    newest: dict[Key, dict[str, Evaluation]] = {}
    for e in sorted(evaluations, key=lambda e: e.when):
        newest.setdefault(key_of(e), {})[e.device] = e
    return newest


def latency_of_kind(evaluation: Evaluation, kind: str) -> Latency | None:
    """The evaluation's latency of one kind; None where there is none."""
    latencies = (evaluation.latency, *evaluation.other_latencies)
    return next((x for x in latencies if x is not None and x.kind == kind), None)


def was_checked(evaluation: Evaluation) -> bool:
    """Whether the result was checked where it was timed; imported figures were not."""
    return evaluation.status is Status.PASSED


def may_be_compared(evaluation: Evaluation, latency: Latency | None) -> bool:
    """Whether it is the time of a kernel that passed, or was recorded elsewhere as it is."""
    return was_checked(evaluation) or (
        evaluation.status is Status.SKIPPED and latency is not None and latency.origin == "recorded"
    )


def interval_of(latency: Latency) -> tuple[MedianInterval | None, int]:
    """The median with its 95 % interval, and how many raw samples it comes from.

    Without enough raw samples it is the stored interval, and the number is 0. A single figure has
    no interval: None.
    """
    samples = latency.samples_us
    if len(samples) >= MIN_SAMPLES:
        return median_interval(samples), len(samples)
    if latency.low_us == latency.high_us:
        return None, 0
    return MedianInterval(latency.median_us, latency.low_us, latency.high_us), 0


# Which variant is the fastest for each problem, and which cannot be told from it.


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant's best time for a problem.

    `variant` is a reference's name where another kernel's time was recorded, as an import's is.
    """

    variant: str
    config: Mapping[str, int]
    session: str
    origin: str
    median_us: float
    interval: MedianInterval | None  # None for a single figure
    samples: int
    sdpa_name: str  # the fastest SDPA backend timed beside it
    sdpa_us: float | None
    is_reference: bool = False


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest kernel for one problem on one GPU, and the next one.

    `runner_up` is the next variant, or another config where one variant alone was timed; None where
    there is one kernel. `speedup` is its time over the winner's. `tied` lists those of which it
    cannot be said that they are slower. `caveat` says why the ranking is no verdict; empty where
    all were timed under the same conditions.
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
    caveat: str

    @property
    def speedup_over_sdpa(self) -> float | None:
        return self.best.sdpa_us / self.best.median_us if self.best.sdpa_us else None


def winners(
    evaluations: Mapping[str, Sequence[Evaluation]],
    environments: Mapping[str, Environment],
    kind: str,
    titles: Mapping[str, str],
) -> tuple[Winner, ...]:
    """The winner map of some sessions, in the order in which the problems first appear.

    Only times that were really taken count, of kernels that passed or were recorded elsewhere. A
    problem has one winner on a GPU: times of different drivers or clocks are ranked, and it is said
    that they are. `titles` are those of the sessions, after which another kernel's time is named.
    """
    entries: dict[tuple[Problem, str], list[Entry]] = {}
    sdpa: dict[tuple[Problem, str], list[tuple[float, str]]] = {}
    for name, session in evaluations.items():
        for e in session:
            sdpa.setdefault((e.problem, e.device), []).extend(_sdpa(e))
        for by_device in newest_by_question(session).values():
            for e in by_device.values():
                at = (e.problem, e.device)
                if (entry := _entry(name, e, kind, titles.get(name, name))) is not None:
                    entries.setdefault(at, []).append(entry)
    return tuple(
        _winner(problem, device, _beside(group, sdpa[problem, device]), environments)
        for (problem, device), group in entries.items()
    )


def _sdpa(e: Evaluation) -> list[tuple[float, str]]:
    return [
        (b.latency.median_us, b.name)
        for b in e.baselines
        if b.latency is not None and b.latency.origin != "predicted"
    ]


def _beside(entries: list[Entry], sdpa: list[tuple[float, str]]) -> list[Entry]:
    """Entries that were timed without SDPA take the fastest one known for the problem and GPU."""
    sdpa_us, sdpa_name = min(sdpa, default=(None, ""))
    return [
        e if e.sdpa_us is not None else replace(e, sdpa_us=sdpa_us, sdpa_name=sdpa_name)
        for e in entries
    ]


def _entry(session: str, e: Evaluation, kind: str, title: str) -> Entry | None:
    latency = latency_of_kind(e, kind)
    if latency is None or latency.origin == "predicted" or not may_be_compared(e, latency):
        return None
    interval, samples = interval_of(latency)
    sdpa_us, sdpa_name = min(_sdpa(e), default=(None, ""))
    name = kernel_name(e, title)
    is_reference = name != e.variant
    return Entry(
        variant=name,
        config={} if is_reference else e.config,
        session=session,
        origin=latency.origin,
        median_us=latency.median_us,
        interval=interval,
        samples=samples,
        sdpa_name=sdpa_name,
        sdpa_us=sdpa_us,
        is_reference=is_reference,
    )


def _winner(
    problem: Problem, device: str, entries: list[Entry], environments: Mapping[str, Environment]
) -> Winner:
    best, *others = sorted(entries, key=lambda e: e.median_us)
    rivals: dict[str, Entry] = {}
    for other in others:
        if other.variant != best.variant:
            rivals.setdefault(other.variant, other)
    ranked = list(rivals.values()) or [e for e in others if dict(e.config) != dict(best.config)]
    tied = [e for e in ranked if not _is_slower(best, e, environments)]
    runner_up = next((e for e in ranked if e not in tied), ranked[0] if ranked else None)
    speedup, low, high = _ratio(best, runner_up) if runner_up else (None, None, None)
    return Winner(
        problem=problem,
        device=device,
        sessions=tuple(dict.fromkeys(e.session for e in entries)),
        best=best,
        tied=tuple(tied),
        runner_up=runner_up,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        caveat="; ".join(
            dict.fromkeys(
                [
                    *(_NOT_OURS for e in entries if e.is_reference),
                    *(why for e in ranked for why in _conditions(best, e, environments)),
                ]
            )
        ),
    )


def _conditions(a: Entry, b: Entry, environments: Mapping[str, Environment]) -> list[str]:
    """Why the times of two entries cannot be judged against each other."""
    if a.session == b.session:
        return []
    return environment_blockers(environments[a.session], environments[b.session])


def _ratio(best: Entry, other: Entry) -> tuple[float, float | None, float | None]:
    """Times above 1, with the 95 % interval where both times have one."""
    if best.interval is None or other.interval is None:
        return other.median_us / best.median_us, None, None
    compared = interval_verdict(best.interval, other.interval)
    return compared.ratio, compared.low, compared.high


def _is_slower(best: Entry, other: Entry, environments: Mapping[str, Environment]) -> bool:
    """Whether it can be said that `other` is slower."""
    if best.interval is None or other.interval is None or _conditions(best, other, environments):
        # Single figures: only what identical kernels do not show from run to run is a difference.
        return other.median_us / best.median_us > 1 + RUN_TO_RUN_FLOOR
    samples = min(best.samples, other.samples)
    compared = interval_verdict(best.interval, other.interval, samples=samples)
    return compared.verdict is Verdict.SLOWER
