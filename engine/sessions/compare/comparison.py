"""Compare sessions problem by problem: regressions, verdicts and their reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import BadInput, UnknownName
from engine.history.known_time import (
    are_comparable,
    as_launched,
    on_timed_devices,
    other_sources,
    status_label,
)
from engine.measure.statistics import Comparison, Verdict, interval_verdict
from engine.sessions.compare.differences import (
    Conditions,
    Differences,
    KernelFigures,
    conditions_of,
    differences,
    environment_blockers,
    kernel_figures,
)
from engine.sessions.compare.pairing import (
    DEVICE_WARM,
    Key,
    Pair,
    Pairing,
    Pick,
    Winner,
    interval_of,
    key_of,
    latency_of_kind,
    may_be_compared,
    pairs_between,
    picked_pairs,
    was_checked,
    winners,
)
from engine.sessions.snapshot import Snapshot
from engine.versions.figures import (
    Finding,
    GateVerdict,
    Thresholds,
    answer_of,
    compare_figures,
    default_threshold,
    finding,
    simulated_finding,
)

Kind: TypeAlias = Literal["correctness", "time", "counts", "registers"]

# Share of the tolerance by which errors of a correct kernel may differ between compilers.
_MIN_ERROR_GROWTH = 0.1
# Verdicts on measured times and the equivalent verdicts of the gate.
_OF_TIMES = {
    Verdict.FASTER: GateVerdict.MEASURED_FASTER,
    Verdict.SLOWER: GateVerdict.MEASURED_SLOWER,
    Verdict.SAME: GateVerdict.MEASURED_SAME,
}
_NOT_OF_TIMES = (GateVerdict.UNDECIDED, GateVerdict.COUNTED_WORSE, GateVerdict.COUNTED_BETTER)
_TIMES = (
    *_OF_TIMES.values(),
    GateVerdict.SIMULATED_FASTER,
    GateVerdict.SIMULATED_SLOWER,
)


@dataclass(frozen=True, slots=True)
class Regression:
    """One regression. `is_failure`: it also counts as a regression for the gate."""

    kind: Kind
    sentence: str

    @property
    def is_failure(self) -> bool:
        """Return True unless only the number of registers grew."""
        return self.kind != "registers"


def regressions_of(
    before: KernelFigures,
    after: KernelFigures,
    *,
    verdict: Verdict | GateVerdict | None,
    code: Sequence[Finding],
    same_kernel: bool,
    why: str,
) -> tuple[Regression, ...]:
    """Return the regressions, failures first.

    Args:
        code: the gate's findings on the machine code.
        same_kernel: the same variant and config. Only then are more registers a regression and not
            another design.
        why: sentence of the verdict or the status.
    """
    findings = list(_correctness(before, after, why))
    if verdict in (Verdict.SLOWER, GateVerdict.SIMULATED_SLOWER):
        findings.append(Regression("time", why))
    findings += [Regression("counts", f"{f.verdict}: {f.what}.") for f in code if f.is_regression]
    first, second = before.registers, after.registers
    grew = first is not None and second is not None and second > first
    if grew and same_kernel and before.arch == after.arch:
        findings.append(
            Regression("registers", f"It takes {second} registers per thread, {first} before.")
        )
    return tuple(findings)


def is_broken(before: KernelFigures, after: KernelFigures) -> bool:
    """True if it passed in the baseline and fails now."""
    return before.status == "PASSED" and after.status not in ("PASSED", "SKIPPED")


def _correctness(before: KernelFigures, after: KernelFigures, why: str) -> Iterable[Regression]:
    first, second = before.error_share, after.error_share
    if is_broken(before, after):
        yield Regression("correctness", f"It passed before. {why}")
    elif first is not None and second is not None and second > first + _MIN_ERROR_GROWTH:
        yield Regression(
            "correctness",
            f"The largest error takes {second:.0%} of the tolerance, {first:.0%} before.",
        )


# Compare sessions problem by problem: a kernel before and one after.
#
# `engine.sessions.compare.pairing` pairs the kernels. A comparison is computed and never stored.
# Two measured or recorded times get a verdict if GPU, driver and clocks are the same; otherwise
# only on request, and the verdict says so. Two simulated times get the gate's verdict, which is
# labelled as one on simulated times.


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One kernel and its counterpart on the same problem.

    `speedup` is baseline time / time, above 1 if the kernel is faster; None if only one of the
    times is predicted or one is missing. `verdict` is None if none can be given; `reason` explains
    the verdict or its absence. The sources of a variant are compared: `source` and
    `baseline_source` name those that are not its present one (`other_source`), else are empty.
    """

    session: str
    variant: str
    config: Mapping[str, int]
    problem: Problem
    device: str
    baseline_session: str
    baseline_variant: str
    baseline_config: Mapping[str, int]
    baseline_device: str
    before: KernelFigures
    after: KernelFigures
    baseline_us: float | None
    time_us: float | None
    baseline_origin: str
    origin: str
    speedup: float | None
    speedup_low: float | None  # 95 % interval
    speedup_high: float | None
    verdict: Verdict | GateVerdict | None  # a GateVerdict is on simulated times
    reason: str
    code: tuple[Finding, ...]  # the gate's verdicts on the machine code
    across: bool  # verdict across GPUs, drivers or clocks, by request
    findings: tuple[Regression, ...]  # regressions, failures first
    baseline_source: str
    source: str

    @property
    def same_kernel(self) -> bool:
        """True if variant and config are the same on both sides."""
        ours = (self.variant, dict(self.config))
        return ours == (self.baseline_variant, dict(self.baseline_config))

    @property
    def is_too_near(self) -> bool:
        """True if two simulated times differ by less than the decision threshold."""
        is_predicted = self.baseline_origin == self.origin == "predicted"
        return is_predicted and self.speedup is not None and self.verdict in _NOT_OF_TIMES

    @property
    def broken(self) -> bool:
        """True if the baseline passed and this kernel does not."""
        return is_broken(self.before, self.after)

    @property
    def regressed(self) -> bool:
        """True if the kernel is newly incorrect, less accurate, slower, or executes more."""
        return any(finding.is_failure for finding in self.findings)

    @property
    def is_judged(self) -> bool:
        """True if there is a verdict, or none is needed because the kernel does not support the
        problem."""
        return self.verdict is not None or self.broken or self.after.status == "SKIPPED"


@dataclass(frozen=True, slots=True)
class Unmatched:
    """An evaluation without a counterpart in the other session."""

    session: str  # the session that has it
    missing_in: str
    variant: str
    config: Mapping[str, int]
    problem: Problem
    source: str  # as in `ComparedRow`


@dataclass(frozen=True, slots=True)
class SessionComparison:
    """The result of a comparison, with regressions at the top of the rows."""

    baseline: str
    sessions: tuple[str, ...]  # the others, in the order given
    across: bool
    differences: tuple[Differences, ...]  # one per other session
    rows: tuple[ComparedRow, ...]
    unmatched: tuple[Unmatched, ...]
    winners: tuple[Winner, ...]

    @property
    def regressions(self) -> tuple[ComparedRow, ...]:
        """Return the rows that became worse (`ComparedRow.regressed`)."""
        return tuple(row for row in self.rows if row.regressed)

    @property
    def findings(self) -> tuple[tuple[ComparedRow, Regression], ...]:
        """Return all regressions, failures first."""
        findings = [(row, finding) for row in self.rows for finding in row.findings]
        return tuple(sorted(findings, key=lambda pair: not pair[1].is_failure))

    @property
    def exit_code(self) -> int:
        """Return the exit code, as the gate's. 1: a regression; 3: no verdict on something; else
        0."""
        if self.regressions:
            return 1
        return 0 if self.rows and all(row.is_judged for row in self.rows) else 3


def compare_sessions(
    sessions: Mapping[str, Snapshot],
    baseline: str | None = None,
    *,
    pairing: Pairing = "auto",
    pairs: Sequence[tuple[Pick, Pick]] = (),
    across: bool = False,
    kind: str = DEVICE_WARM,
    measured_now: str = "",
) -> SessionComparison:
    """Compare snapshots with a baseline among them.

    Args:
        sessions: snapshots by displayed name.
        baseline: name of the baseline; by default the first.
        pairing: pairs of kernels on a problem: "same" variant and config, the "best" of each
            session, or "auto": the same if both have it, else the best.
        pairs: pairs of kernels (before, after), used instead of `pairing`. Both may be of one
            session.
        across: also give verdicts across different GPUs, drivers and clocks.
        kind: kind of time to compare: "device_warm", "device_cold" or "end_to_end".
        measured_now: name of the session that was just measured; measurements of other sessions are
            shown as recorded.

    Raises:
        BadInput: there is no session at all.
        UnknownName: `baseline` is not among the sessions, or a pick is in none of them.
    """
    if not sessions:
        raise BadInput(
            "There is nothing to compare: name at least one session.", code="nothing_to_compare"
        )
    pinned = next(iter(sessions)) if baseline is None else baseline
    if pinned not in sessions:
        known = ", ".join(sessions)
        raise UnknownName(
            f"There is no session called {pinned!r} here: known are {known}.",
            code="session_unknown",
        )
    base = sessions[pinned]
    others = [name for name in sessions if name != pinned]
    evaluations = {
        name: on_timed_devices(snapshot.evaluations if name == measured_now else snapshot.opened())
        for name, snapshot in sessions.items()
    }
    # Another kernel's time is not paired as the variant's that it was launched like.
    named = {name: as_launched(es, sessions[name].title) for name, es in evaluations.items()}
    matched: list[Pair] = []
    if pairs:
        for before, after in pairs:
            picked = picked_pairs(evaluations, pinned, before, after, kind)
            matched += [_as_launched(pair, sessions) for pair in picked]
    else:
        for name in others:
            matched += pairs_between(pinned, name, named[pinned], named[name], pairing, kind)
    times = {name: _times_of_each(es, kind) for name, es in named.items()}
    conditions = {name: conditions_of(snapshot.environment) for name, snapshot in sessions.items()}
    rows = [
        _row(pair, sources, conditions, times, across, kind)
        for pair, sources in zip(matched, _sources(matched), strict=True)
    ]
    return SessionComparison(
        baseline=pinned,
        sessions=tuple(others),
        across=across,
        differences=tuple(differences(name, base, sessions[name]) for name in others),
        rows=tuple(sorted(rows, key=_order)),
        unmatched=() if pairs else tuple(_unmatched(pinned, others, named, matched)),
        winners=winners(
            evaluations, conditions, kind, {name: s.title for name, s in sessions.items()}
        ),
    )


def _as_launched(pair: Pair, sessions: Mapping[str, Snapshot]) -> Pair:
    (before,) = as_launched([pair.before], sessions[pair.before_session].title)
    (after,) = as_launched([pair.after], sessions[pair.after_session].title)
    return Pair(pair.before_session, pair.after_session, before, after)


def _sources(pairs: Iterable[Pair]) -> list[tuple[str, str]]:
    """Return the `other_source` of both sides of each pair."""
    both = other_sources(e for pair in pairs for e in (pair.before, pair.after))
    return list(zip(both[::2], both[1::2], strict=True))


# Variant, config and problem; the SHA-256 of the source; the GPU.
_Launch: TypeAlias = tuple[Key, str, str]


def _launch_of(e: Evaluation) -> _Launch:
    return key_of(e), e.source_sha256, e.device


def _times_of_each(evaluations: Sequence[Evaluation], kind: str) -> dict[_Launch, list[Latency]]:
    """Return all times of each launch, oldest first."""
    times: dict[_Launch, list[Latency]] = {}
    for e in sorted(evaluations, key=lambda e: e.when):
        if (latency := latency_of_kind(e, kind)) is not None:
            times.setdefault(_launch_of(e), []).append(latency)
    return times


def _unmatched(
    pinned: str,
    others: Sequence[str],
    evaluations: Mapping[str, Sequence[Evaluation]],
    matched: Sequence[Pair],
) -> Iterator[Unmatched]:
    """Return the evaluations without a counterpart, of all sessions and the baseline: also those
    of sources that only one of the two has, of a variant whose newest sources are compared."""
    for name in others:
        pairs = [pair for pair in matched if pair.after_session == name]
        sides = (
            (pinned, name, [pair.before for pair in pairs]),
            (name, pinned, [pair.after for pair in pairs]),
        )
        for here, there, compared in sides:
            used = {key_of(e) for e in compared}
            sources = {(key_of(e), e.source_sha256) for e in (*compared, *evaluations[there])}
            newest = {(key_of(e), e.source_sha256): e for e in evaluations[here]}
            alone = [
                e
                for (key, source), e in newest.items()
                if key not in used or (source and (key, source) not in sources)
            ]
            for e, source in zip(alone, other_sources(alone), strict=True):
                config = dict(sorted(e.config.items()))
                yield Unmatched(here, there, e.variant, config, e.problem, source)


def _row(
    pair: Pair,
    sources: tuple[str, str],
    conditions: Mapping[str, Conditions],
    times: Mapping[str, Mapping[_Launch, Sequence[Latency]]],
    across: bool,
    kind: str,
) -> ComparedRow:
    before, after = pair.before, pair.after
    blockers: list[str] = []  # two kernels of one session ran under the same conditions
    if pair.before_session != pair.after_session:
        blockers = environment_blockers(
            conditions[pair.before_session], conditions[pair.after_session]
        )
    if before.device != after.device:
        blockers = [f"the GPU is {after.device}, not {before.device}", *blockers]
    first, second = latency_of_kind(before, kind), latency_of_kind(after, kind)
    same_kernel = key_of(before)[:2] == key_of(after)[:2]
    verdict, interval, reason = _judge(before, after, first, second, blockers, across)
    # The ratio of two predictions without a verdict is meaningless.
    says_nothing = second is not None and second.origin == "predicted" and verdict is None
    code: tuple[Finding, ...] = ()
    if may_be_compared(before, first) and may_be_compared(after, second):
        code = _code_findings(before, after, verdict, same_kernel)
        verdict, reason = _with_code(verdict, reason, code)
    speedup = low = high = None
    comparable = first and second and are_comparable(first.basis, second.basis)
    if first is not None and second is not None and comparable and not says_nothing:
        speedup = first.median_us / second.median_us
    if interval is not None:
        speedup, low, high = (1 / x for x in (interval.ratio, interval.high, interval.low))
    figures = [
        kernel_figures(e, times[session].get(_launch_of(e), ()))
        for session, e in ((pair.before_session, before), (pair.after_session, after))
    ]
    return ComparedRow(
        session=pair.after_session,
        variant=after.variant,
        config=after.config,
        problem=after.problem,
        device=after.device,
        baseline_session=pair.before_session,
        baseline_variant=before.variant,
        baseline_config=before.config,
        baseline_device=before.device,
        before=figures[0],
        after=figures[1],
        baseline_us=first.median_us if first else None,
        time_us=second.median_us if second else None,
        baseline_origin=first.origin if first else "",
        origin=second.origin if second else "",
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        verdict=verdict,
        reason=reason,
        code=code,
        across=across and bool(blockers) and verdict is not None,
        findings=regressions_of(
            *figures,
            verdict=verdict,
            code=code,
            same_kernel=same_kernel,
            why=reason,
        ),
        baseline_source=sources[0],
        source=sources[1],
    )


def _code_findings(
    before: Evaluation,
    after: Evaluation,
    verdict: Verdict | GateVerdict | None,
    same_kernel: bool,
) -> tuple[Finding, ...]:
    """Return the gate's verdicts on two kernels' machine code; empty for different GPUs."""
    first, second = answer_of(before), answer_of(after)
    if first is None or second is None or before.device != after.device:
        return ()
    if first.code and first.code == second.code:
        return (finding(GateVerdict.SAME_CODE, "The machine code is bit-equal"),)
    assert first.figures is not None
    assert second.figures is not None
    of_times = _OF_TIMES.get(verdict) if isinstance(verdict, Verdict) else None
    times = finding(of_times, "") if of_times is not None else None
    found = compare_figures(first.figures, second.figures, Thresholds(), times)
    counted = (f for f in found if f.verdict not in _TIMES)
    if same_kernel:
        return tuple(counted)
    # A different design may use more resources.
    return tuple(replace(f, is_regression=False) for f in counted)


def _with_code(
    verdict: Verdict | GateVerdict | None, reason: str, code: Sequence[Finding]
) -> tuple[Verdict | GateVerdict | None, str]:
    """Return the row's verdict: on equal code, else on times, else on counts."""
    if not code:
        return verdict, reason
    if code[0].verdict is GateVerdict.SAME_CODE:
        what = code[0].what
        if isinstance(verdict, Verdict):  # measured times decide, whatever the code
            return verdict, f"{reason} {what}."
        return GateVerdict.SAME_CODE, f"{what}: nothing to measure."
    if verdict is None or verdict is GateVerdict.UNDECIDED:
        verdict = code[0].verdict
    for counted in (GateVerdict.COUNTED_WORSE, GateVerdict.COUNTED_BETTER):
        if found := "; ".join(f.what for f in code if f.verdict is counted):
            reason += f" {counted.capitalize()}: {found}."
    return verdict, reason


def _judge(
    before: Evaluation,
    after: Evaluation,
    first: Latency | None,
    second: Latency | None,
    blockers: Sequence[str],
    across: bool,
) -> tuple[Verdict | GateVerdict | None, Comparison | None, str]:
    """Return the verdict, its interval and its sentence."""
    for e, latency, which in ((before, first, "The baseline"), (after, second, "This session's")):
        if not may_be_compared(e, latency):
            return None, None, f"{which} is {status_label(e)}: {e.reason}"
    if first is None or second is None:
        which = "The baseline has" if first is None else "This session has"
        return None, None, f"{which} no time of this kind."
    if "predicted" in (first.origin, second.origin):
        return _judge_predicted(before, after, first, second)
    (a, a_samples), (b, b_samples) = interval_of(first), interval_of(second)
    if a is None or b is None:
        return None, None, "No verdict on a single value without samples or an interval."
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


def _judge_predicted(
    before: Evaluation, after: Evaluation, first: Latency, second: Latency
) -> tuple[GateVerdict | None, None, str]:
    """Return the gate's verdict on two predicted times; None unless both are simulated for one
    GPU."""
    if before.device != after.device:
        return None, None, "No verdict on times predicted for different GPUs."
    if not (first.is_simulated and second.is_simulated):
        return None, None, "No verdict on predicted times unless both are simulated."
    threshold = default_threshold()
    found = simulated_finding(first.median_us, second.median_us, threshold.share)
    if found is None:
        why = (
            "No verdict on times: the simulated times differ by less than "
            f"{threshold.share:.0%}. {threshold}"
        )
        return GateVerdict.UNDECIDED, None, why
    return found.verdict, None, f"{found.verdict}: {found.what}, not measured."


def _order(row: ComparedRow) -> tuple[int, float]:
    """Sort key: broken kernels, slower ones by how much, other findings, faster ones, the rest."""
    speedup = row.speedup or 1.0
    if row.broken:
        return 0, 0.0
    if row.verdict in (Verdict.SLOWER, GateVerdict.SIMULATED_SLOWER):
        return 1, speedup
    if row.findings:
        return 2, 0.0
    if row.verdict in (Verdict.FASTER, GateVerdict.SIMULATED_FASTER):
        return 3, -speedup
    return 4 + (row.verdict is None), 0.0
