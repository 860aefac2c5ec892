"""Pair the evaluations of two sessions, and find the fastest of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, Status, UnknownName
from engine.history.known_time import known_first, launched_as, under_own_names
from engine.measure.statistics import (
    MIN_SAMPLES,
    RUN_TO_RUN_FLOOR,
    MedianInterval,
    Verdict,
    interval_verdict,
    median_interval,
)
from engine.sessions.compare.differences import Conditions, environment_blockers

# Keys (variant, config, problem) of evaluations, and their times.

# (variant, config, problem): equal for evaluations of the same kernel and problem.
Key: TypeAlias = tuple[str, tuple[tuple[str, int], ...], Problem]

DEVICE_WARM = "device_warm"
_NOT_OURS = "recorded elsewhere: how it was timed is not known here"


def config_label(config: Mapping[str, int]) -> str:
    """Return `block_n=64, num_splits=4`; `default` for a variant without tunables."""
    return ", ".join(f"{name}={value}" for name, value in sorted(config.items())) or "default"


def key_of(evaluation: Evaluation) -> Key:
    """Return the key of an evaluation: variant, config and problem."""
    return evaluation.variant, tuple(sorted(evaluation.config.items())), evaluation.problem


def newest_by_key(evaluations: Iterable[Evaluation]) -> dict[Key, dict[str, Evaluation]]:
    """Return the newest evaluation of each key by device."""
    newest: dict[Key, dict[str, Evaluation]] = {}
    for e in sorted(evaluations, key=lambda e: e.when):
        newest.setdefault(key_of(e), {})[e.device] = e
    return newest


def latency_of_kind(evaluation: Evaluation, kind: str) -> Latency | None:
    """Return the evaluation's latency of one kind, or None."""
    latencies = (evaluation.latency, *evaluation.other_latencies)
    return next((x for x in latencies if x is not None and x.kind == kind), None)


def was_checked(evaluation: Evaluation) -> bool:
    """True if the output of the timed kernel was checked, which it is not for imports."""
    return evaluation.status is Status.PASSED


def may_be_compared(evaluation: Evaluation, latency: Latency | None) -> bool:
    """True for the time of a kernel that passed or was recorded elsewhere."""
    return was_checked(evaluation) or (
        evaluation.status is Status.SKIPPED and latency is not None and latency.origin == "recorded"
    )


def interval_of(latency: Latency) -> tuple[MedianInterval | None, int]:
    """Return the median with its 95 % interval, and the number of raw samples.

    Without enough raw samples, return the stored interval and 0; None for a time without an
    interval.
    """
    samples = latency.samples_us
    if len(samples) >= MIN_SAMPLES:
        return median_interval(samples), len(samples)
    if latency.low_us == latency.high_us:
        return None, 0
    return MedianInterval(latency.median_us, latency.low_us, latency.high_us), 0


# The fastest variant of each problem, and those that cannot be distinguished from it.


@dataclass(frozen=True, slots=True)
class Entry:
    """The best time of a variant on a problem.

    `variant` is the kernel's own name (`kernel_name`) if another source was timed, as for imports
    and before an edit; `is_reference` means that it did not run as the variant.
    """

    variant: str
    config: Mapping[str, int]
    session: str
    origin: str
    median_us: float
    interval: MedianInterval | None  # None: no interval is known
    samples: int
    sdpa_name: str  # the fastest SDPA backend timed beside it
    sdpa_us: float | None
    sdpa_origin: str = ""
    sdpa_session: str = ""  # the session of that time
    is_sdpa_checked: bool = False  # timed beside a checked kernel, so not imported
    is_reference: bool = False


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest kernel for a problem on a GPU, and the runner-up.

    `runner_up` is the next variant, or another config if only one variant was timed; None if there
    is only one kernel. `speedup` is its time divided by the winner's. `tied` lists kernels that are
    not significantly slower. `caveat` says why the ranking is no verdict; empty if all were timed
    under the same conditions.
    """

    problem: Problem
    device: str
    sessions: tuple[str, ...]  # sessions of the compared times
    best: Entry
    tied: tuple[Entry, ...]
    runner_up: Entry | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    caveat: str
    # SDPA's time divided by the winner's; None if they were timed differently.
    speedup_over_sdpa: float | None


def winners(
    evaluations: Mapping[str, Sequence[Evaluation]],
    conditions: Mapping[str, Conditions],
    kind: str,
    titles: Mapping[str, str],
) -> tuple[Winner, ...]:
    """Return the winners of some sessions, in the order in which the problems first appear.

    Only measured and recorded times count, of kernels that passed or were recorded elsewhere. A
    problem has one winner per GPU: times of different drivers or clocks are ranked, with a caveat.
    `titles` are the sessions' titles, used in names of references.
    """
    entries: dict[tuple[Problem, str], list[Entry]] = {}
    sdpa: dict[tuple[Problem, str], list[_Sdpa]] = {}
    for name, session in evaluations.items():
        for e in session:
            sdpa.setdefault((e.problem, e.device), []).extend(_sdpa(name, e, kind))
        title = titles.get(name, name)
        kernels: dict[str, list[Evaluation]] = {}  # two series of a variant are two kernels
        for e, named in zip(session, under_own_names(session, title), strict=True):
            kernels.setdefault(named.variant, []).append(e)
        newest = (
            (own, by_device.values())
            for own, each in kernels.items()
            for by_device in newest_by_key(each).values()
        )
        for own, e in ((own, e) for own, of_one in newest for e in of_one):
            is_reference = launched_as(e, title) != e.variant
            if (entry := _entry(name, e, kind, own, is_reference)) is not None:
                entries.setdefault((e.problem, e.device), []).append(entry)
    return tuple(
        _winner(problem, device, _beside(group, sdpa[problem, device]), conditions)
        for (problem, device), group in entries.items()
    )


class _Sdpa(NamedTuple):
    """A time of a PyTorch backend."""

    time_us: float
    name: str
    origin: str
    session: str
    is_checked: bool

    def beside(self, entry: Entry) -> Entry:
        return replace(
            entry,
            sdpa_us=self.time_us,
            sdpa_name=self.name,
            sdpa_origin=self.origin,
            sdpa_session=self.session,
            is_sdpa_checked=self.is_checked,
        )


def _sdpa(session: str, e: Evaluation, kind: str) -> list[_Sdpa]:
    """Return the baselines' times of this kind."""
    return [
        _Sdpa(latency.median_us, b.name, latency.origin, session, was_checked(e))
        for b in e.baselines
        for latency in (b.latency, *b.other_latencies)
        if latency is not None and latency.kind == kind and latency.origin != "predicted"
    ]


def _beside(entries: list[Entry], sdpa: list[_Sdpa]) -> list[Entry]:
    """Fill in the fastest known SDPA time of problem and GPU for entries that were timed without
    SDPA."""
    if not sdpa:
        return entries
    return [e if e.sdpa_us is not None else min(sdpa).beside(e) for e in entries]


def _entry(session: str, e: Evaluation, kind: str, name: str, is_reference: bool) -> Entry | None:
    latency = latency_of_kind(e, kind)
    if latency is None or latency.origin == "predicted" or not may_be_compared(e, latency):
        return None
    interval, samples = interval_of(latency)
    entry = Entry(
        variant=name,
        config={} if is_reference else e.config,
        session=session,
        origin=latency.origin,
        median_us=latency.median_us,
        interval=interval,
        samples=samples,
        sdpa_name="",
        sdpa_us=None,
        is_reference=is_reference,
    )
    sdpa = _sdpa(session, e, kind)
    return min(sdpa).beside(entry) if sdpa else entry


def _winner(
    problem: Problem, device: str, entries: list[Entry], conditions: Mapping[str, Conditions]
) -> Winner:
    best, *others = sorted(entries, key=lambda e: e.median_us)
    rivals: dict[str, Entry] = {}
    for other in others:
        if other.variant != best.variant:
            rivals.setdefault(other.variant, other)
    ranked = list(rivals.values()) or [e for e in others if dict(e.config) != dict(best.config)]
    tied = [e for e in ranked if not _is_slower(best, e, conditions)]
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
                    *(why for e in ranked for why in _conditions(best, e, conditions)),
                ]
            )
        ),
        speedup_over_sdpa=_over_sdpa(best, conditions),
    )


def _over_sdpa(best: Entry, conditions: Mapping[str, Conditions]) -> float | None:
    """Return the ratio to SDPA; None if the methods are not known or conditions differ."""
    if best.sdpa_us is None or best.is_reference or not best.is_sdpa_checked:
        return None
    if best.session != best.sdpa_session and environment_blockers(
        conditions[best.session], conditions[best.sdpa_session]
    ):
        return None
    return best.sdpa_us / best.median_us


def _conditions(a: Entry, b: Entry, conditions: Mapping[str, Conditions]) -> list[str]:
    """Return why the times of two entries cannot be compared."""
    if a.session == b.session:
        return []
    return environment_blockers(conditions[a.session], conditions[b.session])


def _ratio(best: Entry, other: Entry) -> tuple[float, float | None, float | None]:
    """Return the ratio of two times, above 1, with its 95 % interval if both have one."""
    if best.interval is None or other.interval is None:
        return other.median_us / best.median_us, None, None
    compared = interval_verdict(best.interval, other.interval)
    return compared.ratio, compared.low, compared.high


def _is_slower(best: Entry, other: Entry, conditions: Mapping[str, Conditions]) -> bool:
    """True if `other` is significantly slower."""
    if best.interval is None or other.interval is None or _conditions(best, other, conditions):
        # Without intervals, only a difference larger than run-to-run noise counts.
        return other.median_us / best.median_us > 1 + RUN_TO_RUN_FLOOR
    samples = min(best.samples, other.samples)
    compared = interval_verdict(best.interval, other.interval, samples=samples)
    return compared.verdict is Verdict.SLOWER


# "auto": the same variant and config if both sessions have it, else the best of each.
Pairing: TypeAlias = Literal["auto", "same", "best"]
# (problem, device) → the newest evaluation of every variant and config.
ByProblem: TypeAlias = Mapping[Problem, Mapping[str, Sequence[Evaluation]]]


@dataclass(frozen=True, slots=True)
class Pick:
    """One side of a pair: a variant, some of its tunables, the session, and the first digits of
    its source's SHA-256; empty fields match all.

    Of several evaluations of a config, the newest is used; of several configs, the fastest.
    """

    variant: str
    config: Mapping[str, int] = field(default_factory=dict)
    session: str = ""
    source: str = ""

    def fits(self, evaluation: Evaluation) -> bool:
        """Return True if the evaluation has the picked variant, tunables and source."""
        return (
            evaluation.variant == self.variant
            and evaluation.source_sha256.startswith(self.source)
            and all(evaluation.config.get(name) == value for name, value in self.config.items())
        )

    @property
    def label(self) -> str:
        """Return `v05 (num_splits=4, source 3f2a91ab)`."""
        config = config_label(self.config) if self.config else ""
        source = f"source {self.source}" if self.source else ""
        about = ", ".join(filter(None, (config, source)))
        return f"{self.variant} ({about})" if about else self.variant


@dataclass(frozen=True, slots=True)
class Pair:
    """Two evaluations of one problem, with their sessions."""

    before_session: str
    after_session: str
    before: Evaluation
    after: Evaluation


def parse_pick(text: str, sessions: Sequence[str]) -> Pick:
    """Parse `v05`, `v05,num_splits=4`, `v05,source=3f2a91ab` or `2:v05`; 2 is the number of the
    session, from 1.

    Raises:
        InvalidProblem: it is not of that form.
        UnknownName: there is no session of that number.
    """
    number, colon, rest = text.rpartition(":")
    session = ""
    if colon:
        if not number.isdecimal() or not 1 <= int(number) <= len(sessions):
            raise UnknownName(
                f"{text!r} names file {number!r}: write a number from 1 to {len(sessions)}.",
                code="file_number",
            )
        session = sessions[int(number) - 1]
    variant, *tunables = [part.strip() for part in rest.split(",")]
    config, source = {}, ""
    for tunable in tunables:
        name, _, value = tunable.partition("=")
        if name == "source":
            source = value
            continue
        try:
            config[name] = int(value)
        except ValueError:
            raise _not_a_pick(text) from None
    if not variant or "" in config:
        raise _not_a_pick(text)
    return Pick(variant, config, session, source)


def _not_a_pick(text: str) -> InvalidProblem:
    return InvalidProblem(
        "A kernel is picked as VARIANT, VARIANT,NAME=VALUE or VARIANT,source=HEX, with 2: before "
        f"it for the second file, not {text!r}.",
        code="pick_form",
    )


def newest_that_share(asked: Mapping[str, Collection[tuple[str, str]]]) -> list[str]:
    """Return the newest two sessions that share a problem; if none do, the two newest.

    Args:
        asked: session → (problem, GPU) of its kernels, the newest session first.
    """
    names = list(asked)
    for place, newest in enumerate(names):
        for other in names[place + 1 :]:
            if not set(asked[newest]).isdisjoint(asked[other]):
                return [newest, other]
    return names[:2]


def pairs_between(
    pinned: str,
    other: str,
    before_evaluations: Iterable[Evaluation],
    after_evaluations: Iterable[Evaluation],
    pairing: Pairing,
    kind: str,
) -> list[Pair]:
    """Return the pairs of evaluations of two sessions."""
    before, after = newest_by_key(before_evaluations), newest_by_key(after_evaluations)
    pairs = []
    if pairing != "best":
        for key, by_device in after.items():
            for device, e in by_device.items():
                if key in before:
                    # On the same device if possible, else on the last evaluated.
                    known = before[key].get(device) or list(before[key].values())[-1]
                    pairs.append(Pair(pinned, other, known, e))
    if pairing == "same":
        return pairs
    paired = {(pair.after.problem, pair.after.device) for pair in pairs}
    first, second = _by_problem(before), _by_problem(after)
    for problem, devices in second.items():
        for device, candidates in devices.items():
            against = first.get(problem, {})
            if (problem, device) in paired or not against:
                continue
            rivals = against.get(device) or list(against.values())[-1]
            pairs.append(Pair(pinned, other, _best(rivals, kind), _best(candidates, kind)))
    return pairs


def picked_pairs(
    evaluations: Mapping[str, Sequence[Evaluation]],
    pinned: str,
    before: Pick,
    after: Pick,
    kind: str,
) -> list[Pair]:
    """Pair two picked kernels on every problem that both have.

    If a pick names no session, `before` is searched in the baseline first and `after` in the others
    first.

    Raises:
        UnknownName: a pick matches nothing in any session.
    """
    others = [name for name in evaluations if name != pinned]
    first = _found(evaluations, before, [pinned, *others], kind)
    second = _found(evaluations, after, [*others, pinned], kind)
    pairs = []
    for problem, devices in second.items():
        for device, (session, e) in devices.items():
            against = first.get(problem, {})
            known = against.get(device) or next(iter(against.values()), None)
            if known is not None and known[1] is not e:
                pairs.append(Pair(known[0], session, known[1], e))
    return pairs


def _found(
    evaluations: Mapping[str, Sequence[Evaluation]], pick: Pick, order: Sequence[str], kind: str
) -> dict[Problem, dict[str, tuple[str, Evaluation]]]:
    """Return problem → device → (first session in `order` with the pick, its best evaluation)."""
    picked: dict[Problem, dict[str, tuple[str, Evaluation]]] = {}
    for session in [pick.session] if pick.session else order:
        newest = newest_by_key(e for e in evaluations[session] if pick.fits(e))
        for problem, devices in _by_problem(newest).items():
            for device, candidates in devices.items():
                best = session, _best(candidates, kind)
                picked.setdefault(problem, {}).setdefault(device, best)
    if not picked:
        known = dict.fromkeys(
            f"{e.variant} ({config_label(e.config)})" if e.config else e.variant
            for session in evaluations.values()
            for e in session
        )
        raise UnknownName(
            f"No session here has {pick.label}: known are {', '.join(list(known)[:12])}.",
            code="filter_matches_nothing",
        )
    return picked


def _by_problem(newest: Mapping[Key, Mapping[str, Evaluation]]) -> ByProblem:
    grouped: dict[Problem, dict[str, list[Evaluation]]] = {}
    for by_device in newest.values():
        for device, e in by_device.items():
            # Evaluations with only baselines are not kernels.
            if e.latency is not None or e.variant != "sdpa":
                grouped.setdefault(e.problem, {}).setdefault(device, []).append(e)
    return grouped


def _best(candidates: Sequence[Evaluation], kind: str) -> Evaluation:
    """Return the fastest comparable evaluation; known times come before predictions."""

    def rank(e: Evaluation) -> tuple[bool, int, float]:
        latency = latency_of_kind(e, kind)
        if latency is None:
            return not may_be_compared(e, None), 2, 0.0
        return not may_be_compared(e, latency), *known_first(latency)

    return min(candidates, key=rank)
