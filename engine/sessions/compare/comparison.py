"""Sessions beside each other: the same variant, config and problem, then and now.

A comparison is derived and never stored. A verdict is given where both times were really taken, on
the same GPU, driver and clocks; across those only when it is asked for, and then it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import AttuneError, UnknownName
from engine.evaluation import Evaluation, Latency
from engine.measure.verdict import Comparison, Verdict, interval_verdict
from engine.problem import Problem
from engine.records.snapshot import Snapshot
from engine.sessions.compare.environment import Differences, differences, environment_blockers
from engine.sessions.compare.times import (
    DEVICE_WARM,
    interval_of,
    latency_of_kind,
    may_be_compared,
    newest_by_question,
    was_checked,
)
from engine.sessions.compare.winners import Winner, winners


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One evaluation beside the baseline session's evaluation of the same question.

    `speedup` is baseline time / time, above 1 where the session is faster; None where a time is
    missing. `verdict` is None where none may be given; `reason` says why, or what it rests on.
    """

    session: str
    variant: str
    config: Mapping[str, int]
    problem: Problem
    device: str
    baseline_device: str
    baseline_status: str
    status: str
    baseline_us: float | None
    time_us: float | None
    baseline_origin: str
    origin: str
    speedup: float | None
    speedup_low: float | None  # 95 % interval
    speedup_high: float | None
    verdict: Verdict | None
    reason: str
    across: bool  # the verdict was asked for across GPUs, drivers or clocks

    @property
    def broken(self) -> bool:
        """It passed in the baseline session and does not any more."""
        return self.baseline_status == "PASSED" and self.status not in ("PASSED", "SKIPPED")

    @property
    def regressed(self) -> bool:
        return self.broken or self.verdict is Verdict.SLOWER


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A question that only one of the two sessions asked."""

    session: str  # the one that has it
    missing_in: str
    variant: str
    config: Mapping[str, int]
    problem: Problem


@dataclass(frozen=True, slots=True)
class SessionComparison:
    """Everything a comparison says, differences first, regressions at the top of the rows."""

    baseline: str
    sessions: tuple[str, ...]  # the others, in the order given
    across: bool
    differences: tuple[Differences, ...]  # one per other session
    rows: tuple[ComparedRow, ...]
    unmatched: tuple[Unmatched, ...]
    winners: tuple[Winner, ...]

    @property
    def regressions(self) -> tuple[ComparedRow, ...]:
        return tuple(row for row in self.rows if row.regressed)


def compare_sessions(
    sessions: Mapping[str, Snapshot],
    baseline: str | None = None,
    *,
    across: bool = False,
    kind: str = DEVICE_WARM,
    measured_now: str = "",
) -> SessionComparison:
    """Compare snapshots with one of them.

    Args:
        sessions: snapshots by the name they are shown under.
        baseline: the name of the pinned one; by default the first.
        across: give verdicts across different GPUs, drivers and clocks too.
        kind: which of an evaluation's times is compared: "device_warm", "device_cold" or
            "end_to_end".
        measured_now: the session that was made just now; what any other one has measured is shown
            as recorded.

    Raises:
        AttuneError: there is no session at all.
        UnknownName: `baseline` is none of the sessions.
    """
    if not sessions:
        raise AttuneError("There is nothing to compare: name at least one session.")
    pinned = next(iter(sessions)) if baseline is None else baseline
    if pinned not in sessions:
        known = ", ".join(sessions)
        raise UnknownName(f"There is no session called {pinned!r} here: known are {known}.")
    base = sessions[pinned]
    others = [name for name in sessions if name != pinned]
    evaluations = {
        name: snapshot.evaluations if name == measured_now else snapshot.opened()
        for name, snapshot in sessions.items()
    }
    rows: list[ComparedRow] = []
    unmatched: list[Unmatched] = []
    for name in others:
        blockers = environment_blockers(base.environment, sessions[name].environment)
        ours, theirs = (newest_by_question(evaluations[side]) for side in (pinned, name))
        for key, by_device in theirs.items():
            for device, after in by_device.items():
                if key in ours:
                    # On the same device if there is such a one, else on whichever came last.
                    before = ours[key].get(device) or list(ours[key].values())[-1]
                    rows.append(_row(name, before, after, blockers, across, kind))
        for here, there, have, lack in ((pinned, name, ours, theirs), (name, pinned, theirs, ours)):
            unmatched += [
                Unmatched(here, there, variant, dict(config), problem)
                for variant, config, problem in have
                if (variant, config, problem) not in lack
            ]
    environments = {name: snapshot.environment for name, snapshot in sessions.items()}
    return SessionComparison(
        baseline=pinned,
        sessions=tuple(others),
        across=across,
        differences=tuple(differences(name, base, sessions[name]) for name in others),
        rows=tuple(sorted(rows, key=_order)),
        unmatched=tuple(unmatched),
        winners=winners(evaluations, environments, kind),
    )


def _row(
    session: str,
    before: Evaluation,
    after: Evaluation,
    blockers: Sequence[str],
    across: bool,
    kind: str,
) -> ComparedRow:
    if before.device != after.device:
        blockers = [f"the GPU is {after.device}, not {before.device}", *blockers]
    first, second = latency_of_kind(before, kind), latency_of_kind(after, kind)
    verdict, interval, reason = _judge(before, after, first, second, blockers, across)
    speedup = low = high = None
    if first is not None and second is not None:
        speedup = first.median_us / second.median_us
    if interval is not None:
        speedup, low, high = (1 / x for x in (interval.ratio, interval.high, interval.low))
    return ComparedRow(
        session=session,
        variant=after.variant,
        config=after.config,
        problem=after.problem,
        device=after.device,
        baseline_device=before.device,
        baseline_status=str(before.status),
        status=str(after.status),
        baseline_us=first.median_us if first else None,
        time_us=second.median_us if second else None,
        baseline_origin=first.origin if first else "",
        origin=second.origin if second else "",
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        verdict=verdict,
        reason=reason,
        across=across and bool(blockers) and verdict is not None,
    )


def _judge(
    before: Evaluation,
    after: Evaluation,
    first: Latency | None,
    second: Latency | None,
    blockers: Sequence[str],
    across: bool,
) -> tuple[Verdict | None, Comparison | None, str]:
    """Verdict, the interval it rests on, and the sentence."""
    for e, latency, which in ((before, first, "The baseline"), (after, second, "This one")):
        if not may_be_compared(e, latency):
            return None, None, f"{which} is {e.status}: {e.reason}"
    if first is None or second is None:
        which = "The baseline has" if first is None else "This one has"
        return None, None, f"{which} no such time."
    if "predicted" in (first.origin, second.origin):
        return None, None, "No verdict on a predicted time."
    (a, a_samples), (b, b_samples) = interval_of(first), interval_of(second)
    if a is None or b is None:
        return None, None, "No verdict on a single figure, without samples or an interval."
    samples = min(a_samples, b_samples)
    compared = interval_verdict(a, b, samples=samples)
    reason = compared.reason
    if not samples:
        reason += " From stored intervals: the raw samples are missing."
    if not (was_checked(before) and was_checked(after)):
        reason += " Recorded elsewhere: the result was not checked."
    if not blockers:
        return compared.verdict, compared, reason
    listed = "; ".join(blockers)
    if not across:
        return None, compared, f"No verdict, because {listed}."
    return compared.verdict, compared, f"Across different conditions ({listed}): {reason}"


def _order(row: ComparedRow) -> tuple[int, float]:
    """Broken ones, then slower ones by how much, faster ones by how much, the rest."""
    speedup = row.speedup or 1.0
    if row.broken:
        return 0, 0.0
    if row.verdict is Verdict.SLOWER:
        return 1, speedup
    if row.verdict is Verdict.FASTER:
        return 2, -speedup
    return 3 + (row.verdict is None), 0.0
