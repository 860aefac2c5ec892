"""The gain of each step of a session, and whether its target is met; computed, never stored.

The rules are conservative. A target covers every problem that it matches, and the worst of them
decides. Predictions never meet a target. The interval of a ratio uses the extreme ends of both
times; a target inside it is undecided. Of several evaluations of the same variant, config, problem
and GPU, the last of the present source counts, else the last, whose source is then named.

Known times and predictions are not put into one order here, as they are by `rank_of`: a prediction
shows what is expected, and does not compete with a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.attention.evaluation import Correctness, Evaluation, Latency, PassReport
from engine.attention.problem import Problem
from engine.base import files
from engine.base.errors import AttuneError, Status
from engine.base.files import data_folder
from engine.base.schema import MAX_SENTENCE, clean_lines, decode, encode
from engine.base.units import format_speedup, format_us
from engine.history.known_time import (
    are_comparable,
    as_launched,
    launched_as,
    not_comparable,
    under_own_names,
    with_sources,
)
from engine.sessions.snapshot import Goal, TimelineEntry

# Timeline entries, with their gain since the session's start.


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One entry. `gain` is start / now for the same problem and device; None without such a start.

    A predicted latency is only compared with one predicted by the same method.
    """

    index: int
    when: str
    what: str
    outcome: str
    evaluation: int | None
    latency: Latency | None
    gain: float | None


def describe(evaluation: Evaluation) -> str:
    """Return `v05 num_splits=4 · B1 H1 S128 D64 fp16 · 12.5 µs predicted`."""
    config = " ".join(f"{name}={value}" for name, value in sorted(evaluation.config.items()))
    result = str(evaluation.status)
    if evaluation.latency is not None:
        result = f"{format_us(evaluation.latency.median_us)} {evaluation.latency.origin}"
    name = f"{evaluation.variant} {config}".strip()
    return f"{name} · {evaluation.problem.label()} · {result}"


def timeline_rows(
    entries: Sequence[TimelineEntry], evaluations: Sequence[Evaluation], session: str
) -> list[TimelineRow]:
    """Return the timeline in order, with gains relative to the first timed evaluation of each
    problem.

    Args:
        session: its title, used in names of references.
    """
    named = under_own_names(evaluations, session)
    rows = []
    for index, entry in enumerate(entries):
        what, latency, gain = entry.what, None, None
        if entry.evaluation is not None:
            now = evaluations[entry.evaluation]
            what = clean_lines(describe(named[entry.evaluation]), MAX_SENTENCE)
            latency = now.latency
            gain = _gain(now, evaluations)
        rows.append(
            TimelineRow(
                index,
                entry.when,
                what,
                entry.outcome,
                entry.evaluation,
                latency,
                gain,
            )
        )
    return rows


def _gain(now: Evaluation, evaluations: Sequence[Evaluation]) -> float | None:
    if now.latency is None or now.status is Status.INCORRECT:
        return None
    for start in evaluations:
        if (
            start.latency is not None
            and start.status is not Status.INCORRECT
            and (start.problem, start.device) == (now.problem, now.device)
            and _is_reference(start) == _is_reference(now)
            and start.latency.kind == now.latency.kind
            and are_comparable(start.latency.basis, now.latency.basis)
        ):
            return start.latency.median_us / now.latency.median_us
    return None


def _is_reference(evaluation: Evaluation) -> bool:
    """True if the time was recorded elsewhere, of a kernel other than the variant's file."""
    return launched_as(evaluation, "") != evaluation.variant


State = Literal["met", "missed", "undecided"]


@dataclass(frozen=True, slots=True)
class GoalStatus:
    """The status of a target. `value` is the deciding figure (a ratio, or µs for `latency_us`),
    or None."""

    state: State
    sentence: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    problem: Problem | None = None  # the deciding problem


@dataclass(frozen=True, slots=True)
class Figure:
    """A derived value with its interval. `hard` is False if it depends on a prediction."""

    value: float
    low: float
    high: float
    problem: Problem
    what: str
    hard: bool


def describe_goal(goal: Goal) -> str:
    """Return `speed-up ≥ 1.5× over flash at S=128, v05`."""
    limit = {
        "speedup": f"speed-up ≥ {goal.value:g}× over {goal.baseline or 'the best baseline'}",
        "latency_us": f"latency ≤ {format_us(goal.value)}",
        "per_unit_gain": f"time per (batch, head) ≥ {goal.value:g}× less than at the smallest",
    }[goal.metric]
    sizes = [
        f"{letter}={size}"
        for letter, size in zip(
            "BHSD",
            (goal.batch, goal.num_heads, goal.seqlen, goal.head_dim),
            strict=True,
        )
        if size is not None
    ]
    at = f" at {' '.join(sizes)}" if sizes else ""
    return limit + at + (f", {goal.variant}" if goal.variant else "")


def goal_status(goal: Goal, evaluations: Sequence[Evaluation], session: str = "") -> GoalStatus:
    """Return whether a session has met its target.

    Args:
        session: its title, used in names of references, whose times never meet a target for a
            variant.
    """
    fitting = [e for e in as_launched(evaluations, session) if _fits(goal, e)]
    fitting = _last_of_each(fitting)
    rule = {"speedup": _speedups, "latency_us": _latencies, "per_unit_gain": _per_unit_gains}
    figures = list(rule[goal.metric](goal, fitting))
    if not figures:
        why = _why_incomparable(goal, fitting) or f"nothing yet to compare with {_aim(goal)}"
        return GoalStatus("undecided", f"Undecided: {why}.")
    hard = [f for f in figures if f.hard]
    if not hard:
        expected = _verdict(goal, figures)
        words = {"met": "be met", "missed": "be missed", "undecided": "stay open"}
        figure = _worst(goal, figures)
        return GoalStatus(
            "undecided",
            f"Undecided: there are only predictions, by which it would {words[expected.state]} "
            f"({_shown(goal, figure)}); {_aim(goal)} needs a measured or recorded latency.",
        )
    return _verdict(goal, hard)


def _verdict(goal: Goal, figures: Sequence[Figure]) -> GoalStatus:
    less_is_better = goal.metric == "latency_us"
    worst = _worst(goal, figures)
    surely = worst.high <= goal.value if less_is_better else worst.low >= goal.value
    never = worst.low > goal.value if less_is_better else worst.high < goal.value
    state: State = "met" if surely else "missed" if never else "undecided"
    share = abs(worst.value / goal.value - 1) * 100
    by = f"{share:.2g}" if share < 99.5 else f"{share:,.0f}"
    many = f" on {len(figures)} problems, the worst of them" if len(figures) > 1 else ""
    text = {
        "met": f"Met{many}: {_shown(goal, worst)} against {_aim(goal)}.",
        "missed": f"Missed by {by}%{many}: {_shown(goal, worst)} against {_aim(goal)}.",
        "undecided": f"Undecided{many}: {_shown(goal, worst)}, an interval that includes "
        f"{_aim(goal)}.",
    }[state]
    return GoalStatus(state, text, worst.value, worst.low, worst.high, worst.problem)


def _worst(goal: Goal, figures: Sequence[Figure]) -> Figure:
    """Return the deciding figure, the worst."""
    # As a gain, of which a higher value is always better.
    return min(figures, key=lambda f: -f.value if goal.metric == "latency_us" else f.value)


def _aim(goal: Goal) -> str:
    if goal.metric == "latency_us":
        return f"the target of {format_us(goal.value)}"
    return f"the target of {goal.value:g}×"


def _shown(goal: Goal, figure: Figure) -> str:
    def one(x: float) -> str:
        return format_us(x) if goal.metric == "latency_us" else f"{x:.3g}×"

    interval = (
        "a single figure without an interval"
        if figure.low == figure.high
        else f"{one(figure.low)} to {one(figure.high)}"
    )
    return f"{one(figure.value)} ({interval}) with {figure.what}"


def _fits(goal: Goal, e: Evaluation) -> bool:
    p = e.problem
    wanted = (
        (goal.batch, p.batch),
        (goal.num_heads, p.num_heads),
        (goal.seqlen, p.seqlen),
        (goal.head_dim, p.head_dim),
    )
    return (
        e.latency is not None
        and e.status is not Status.INCORRECT
        and (not goal.variant or e.variant == goal.variant)
        and all(size is None or size == actual for size, actual in wanted)
    )


def _what(e: Evaluation) -> str:
    return f"{e.variant} at {e.problem.label()}"


def _last_of_each(launched: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the last evaluation of each variant, config, problem and GPU, of the present source if
    one is, under its own name."""
    both = zip(launched, with_sources(launched), strict=True)
    last = {
        (e.variant, tuple(sorted(e.config.items())), e.problem, e.device): named
        for e, named in sorted(both, key=lambda pair: pair[0].variant == pair[1].variant)
    }
    return list(last.values())


def _best_per_problem(figures: Iterable[Figure], key: Callable[[Figure], float]) -> list[Figure]:
    best: dict[tuple[Problem, bool], Figure] = {}
    for figure in figures:
        at = (figure.problem, figure.hard)
        if at not in best or key(figure) > key(best[at]):
            best[at] = figure
    return list(best.values())


def _baselines(goal: Goal, e: Evaluation) -> list[tuple[str, Latency]]:
    return [
        (b.name, b.latency)
        for b in e.baselines
        if b.latency is not None and goal.baseline in ("", b.name)
    ]


def _why_incomparable(goal: Goal, evaluations: list[Evaluation]) -> str:
    """Return `predicted ÷ measured, not comparable` if baselines were timed without a kernel;
    else empty."""
    if goal.metric != "speedup":
        return ""
    return next(
        (
            not_comparable(against.basis, e.latency.basis)
            for e in evaluations
            if e.latency is not None
            for _, against in _baselines(goal, e)
        ),
        "",
    )


def _speedups(goal: Goal, evaluations: list[Evaluation]) -> list[Figure]:
    """Yield the speed-ups of times that are comparable with their baseline's."""
    figures = []
    for e in evaluations:
        if e.latency is None or not (baselines := _baselines(goal, e)):
            continue
        name, against = min(baselines, key=lambda pair: pair[1].median_us)
        if not are_comparable(against.basis, e.latency.basis):
            continue
        figures.append(_ratio(against, e.latency, e.problem, f"{_what(e)} over {name}"))
    return _best_per_problem(figures, lambda f: f.value)


def _latencies(_: Goal, evaluations: list[Evaluation]) -> list[Figure]:
    figures = [
        Figure(t.median_us, t.low_us, t.high_us, e.problem, _what(e), _hard(t))
        for e in evaluations
        if (t := e.latency) is not None
    ]
    return _best_per_problem(figures, lambda f: -f.value)


def _per_unit_gains(_: Goal, evaluations: list[Evaluation]) -> list[Figure]:
    """Yield one figure: the largest gain of a variant and config over its smallest batch."""
    groups: dict[object, list[Evaluation]] = {}
    for e in evaluations:
        p = e.problem
        how = None
        if e.latency is not None:
            is_predicted = e.latency.origin == "predicted"
            how = (e.latency.kind, e.latency.basis if is_predicted else "known")
        rest = (p.head_group, p.rest, how)
        key = (e.variant, tuple(sorted(e.config.items())), e.device, rest)
        groups.setdefault(key, []).append(e)
    figures = []
    for group in groups.values():
        start = min(group, key=_units)
        for e in group:
            if _units(e) == _units(start) or e.latency is None or start.latency is None:
                continue
            scale = _units(e) / _units(start)
            what = f"{_what(e)} over {start.problem.label()}"
            figures.append(_ratio(start.latency, e.latency, e.problem, what, scale))
    return [
        max((f for f in figures if f.hard is hard), key=lambda f: f.value)
        for hard in (True, False)
        if any(f.hard is hard for f in figures)
    ]


def _ratio(start: Latency, now: Latency, problem: Problem, what: str, scale: float = 1.0) -> Figure:
    """Return start / now, times `scale`."""
    return Figure(
        scale * start.median_us / now.median_us,
        scale * start.low_us / now.high_us,
        scale * start.high_us / now.low_us,
        problem,
        what,
        _hard(start, now),
    )


def _units(e: Evaluation) -> int:
    return e.problem.batch * e.problem.num_heads


def _hard(*latencies: Latency) -> bool:
    return all(latency.origin != "predicted" for latency in latencies)


_MAX_BYTES = 16 << 20


def pinned_path() -> Path:
    """Return the file of the pinned baseline."""
    return data_folder() / "pinned.json"


def pin(evaluation: Evaluation) -> None:
    """Make this the baseline. Raises StoreError on a write error."""
    path = pinned_path()
    with files.explain_os_error(f"{path} cannot be written"):
        files.make_folder(path.parent)
        files.write(path, json.dumps(encode(evaluation)).encode())


def unpin() -> None:
    """Remove the baseline. Raises StoreError on a write error."""
    with files.explain_os_error(f"{pinned_path()} cannot be deleted"):
        pinned_path().unlink(missing_ok=True)


def pinned() -> Evaluation | None:
    """Return the baseline; None if there is none or its file is damaged."""
    try:
        raw = json.loads(files.read(pinned_path(), _MAX_BYTES))
        return decode(Evaluation, raw, name="The pinned evaluation").as_recorded()
    except (OSError, ValueError, AttuneError):
        return None


def deltas(
    baseline: Evaluation,
    *,
    problem: Problem,
    device: str,
    correctness: Correctness | None,
    main: PassReport | None,
    latency: Latency | None,
) -> dict[str, str]:
    """Return the change of each of Tune's figures, for example `registers` → `+7, was 64`.

    Keys: correctness, latency, registers, occupancy, waves, gpu_fill; figures that are unknown on
    one side are left out. Times and errors are only compared for the same problem and GPU.
    """
    changes: dict[str, str] = {}
    same = (baseline.problem, baseline.device) == (problem, device)
    before, c = baseline.main_pass, baseline.correctness
    if same and correctness is not None and c is not None:
        changes["correctness"] = _change(c.max_abs_err, correctness.max_abs_err, ".2g")
    if latency is not None and baseline.latency is not None:
        was = f"{format_us(baseline.latency.median_us)} {baseline.latency.origin}"
        if baseline.latency.kind != latency.kind:
            change = f"{not_comparable(baseline.latency.kind, latency.kind)}, was {was}"
        elif was == f"{format_us(latency.median_us)} {latency.origin}":
            change = "as pinned"
        elif not are_comparable(baseline.latency.basis, latency.basis):
            change = f"{not_comparable(baseline.latency.basis, latency.basis)}, was {was}"
        else:
            speedup = baseline.latency.median_us / latency.median_us
            change = f"{format_speedup(speedup)}, was {was}"
        changes["latency"] = change if same else "another problem"
    if main is not None and before is not None:
        changes["registers"] = _change(
            before.resources.registers_per_thread, main.resources.registers_per_thread, "d"
        )
        spilled = main.resources.spill_bytes - before.resources.spill_bytes
        if spilled:
            changes["registers"] += f"; spills {spilled:+,} B"
        changes["occupancy"] = _change(
            100 * before.occupancy.occupancy, 100 * main.occupancy.occupancy, ".0f", "%"
        )
        for name in ("waves", "gpu_fill"):
            old, new = getattr(before.occupancy, name), getattr(main.occupancy, name)
            if old is not None and new is not None:
                unit, scale = ("%", 100) if name == "gpu_fill" else ("", 1)
                changes[name] = _change(scale * old, scale * new, ".3g", unit)
    return changes


def _change(before: float, after: float, form: str, unit: str = "") -> str:
    """Return `+7, was 64`, or `as pinned`."""
    if format(before, form) == format(after, form):
        return "as pinned"
    return (
        f"{'+' if after > before else '−'}{abs(after - before):{form}}, was {before:{form}}{unit}"
    )
