"""Which evaluation of one session stands against which of another, problem by problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from engine.base.errors import InvalidProblem, UnknownName
from engine.evaluation import Evaluation
from engine.problem import Problem
from engine.sessions.compare.winners import (
    Key,
    config_label,
    latency_of_kind,
    may_be_compared,
    newest_by_question,
)

# "auto": the same variant and config where both sessions have it, else the best of each.
Pairing: TypeAlias = Literal["auto", "same", "best"]
# (problem, device) → the newest evaluation of every variant and config.
ByProblem: TypeAlias = Mapping[Problem, Mapping[str, Sequence[Evaluation]]]

_PICK = "A kernel is picked as VARIANT or VARIANT,NAME=VALUE, with 2: before it for the second file"


@dataclass(frozen=True, slots=True)
class Pick:
    """One side of a pair: a variant, some of its tunables, and the session; what is empty is any.

    Of several evaluations that fit, the fastest stands for it.
    """

    variant: str
    config: Mapping[str, int] = field(default_factory=dict)
    session: str = ""

    def fits(self, evaluation: Evaluation) -> bool:
        return evaluation.variant == self.variant and all(
            evaluation.config.get(name) == value for name, value in self.config.items()
        )

    @property
    def label(self) -> str:
        """`v05 (num_splits=4)`."""
        return f"{self.variant} ({config_label(self.config)})" if self.config else self.variant


@dataclass(frozen=True, slots=True)
class Pair:
    """Two evaluations of one problem, with the sessions that hold them."""

    before_session: str
    after_session: str
    before: Evaluation
    after: Evaluation


def parse_pick(text: str, sessions: Sequence[str]) -> Pick:
    """`v05`, `v05,num_splits=4` or `2:v05`: the number is that of the session, from 1.

    Raises:
        InvalidProblem: it is not of that form.
        UnknownName: there is no session of that number.
    """
    number, colon, rest = text.rpartition(":")
    session = ""
    if colon:
        if not number.isdecimal() or not 1 <= int(number) <= len(sessions):
            raise UnknownName(
                f"{text!r} names file {number!r}: write a number from 1 to {len(sessions)}."
            )
        session = sessions[int(number) - 1]
    variant, *tunables = [part.strip() for part in rest.split(",")]
    config = {}
    for tunable in tunables:
        name, _, value = tunable.partition("=")
        try:
            config[name] = int(value)
        except ValueError:
            raise InvalidProblem(f"{_PICK}, not {text!r}.") from None
    if not variant or "" in config:
        raise InvalidProblem(f"{_PICK}, not {text!r}.")
    return Pick(variant, config, session)


def newest_that_share(asked: Mapping[str, Collection[tuple[str, str]]]) -> list[str]:
    """The newest session that has a problem in common with another, and the newest of those; the
    two newest where none have.

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
    ours: Iterable[Evaluation],
    theirs: Iterable[Evaluation],
    pairing: Pairing,
    kind: str,
) -> list[Pair]:
    """The evaluations of two sessions that stand against each other."""
    before, after = newest_by_question(ours), newest_by_question(theirs)
    pairs = []
    if pairing != "best":
        for key, by_device in after.items():
            for device, e in by_device.items():
                if key in before:
                    # On the same device if there is such a one, else on whichever came last.
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
    """Two picked kernels against each other on every problem that both have.

    Where a pick names no session, `before` is looked for in the pinned one first and `after` in the
    others first.

    Raises:
        UnknownName: a pick fits nothing in any session.
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
    """Problem → device → the session that has the pick first in `order`, and its best one."""
    picked: dict[Problem, dict[str, tuple[str, Evaluation]]] = {}
    for session in [pick.session] if pick.session else order:
        newest = newest_by_question(e for e in evaluations[session] if pick.fits(e))
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
            f"No session here has {pick.label}: known are {', '.join(list(known)[:12])}."
        )
    return picked


def _by_problem(newest: Mapping[Key, Mapping[str, Evaluation]]) -> ByProblem:
    grouped: dict[Problem, dict[str, list[Evaluation]]] = {}
    for by_device in newest.values():
        for device, e in by_device.items():
            if e.latency is not None or e.variant != "sdpa":  # baselines alone are no kernel
                grouped.setdefault(e.problem, {}).setdefault(device, []).append(e)
    return grouped


def _best(candidates: Sequence[Evaluation], kind: str) -> Evaluation:
    """The fastest that may be compared; a time that was taken comes before a prediction."""

    def rank(e: Evaluation) -> tuple[bool, int, float]:
        latency = latency_of_kind(e, kind)
        if latency is None:
            return not may_be_compared(e, None), 2, 0.0
        taken = latency.origin != "predicted"
        return not may_be_compared(e, latency), int(not taken), latency.median_us

    return min(candidates, key=rank)
