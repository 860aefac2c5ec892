"""What to try next, from the limiter, the waves and the ladder, with predicted gains, largest
first.

A gain is the ratio of two comparable times: the present kernel's divided by that with the
suggestion, both predicted by the same method, or both measured or recorded. Nothing is measured or
stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from engine.attention.evaluation import Evaluation, Latency, Occupancy
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidKernel, Status, UnknownName
from engine.base.units import format_bytes, format_us
from engine.choose.batch.alternatives import Option, Situation, rank_options
from engine.history import History
from engine.history.known_time import has_present_source, known_first
from engine.model.kernel import Estimate, Kernel, estimate, pass_reports
from kernels.ladder import LADDER

MAX_PROBLEMS = 6  # each costs the compile of the ladder's kernels
MAX_KERNELS = 6  # per problem, so that a long ladder leaves room for other suggestions
MAX_SUGGESTIONS = 12
MIN_GAIN = 1.02  # the model cannot resolve smaller differences


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One suggestion. `gain` is the time now / then, per query; None if it is not computed."""

    title: str
    problem: Problem
    device: str
    gain: float | None
    latency: Latency | None  # with the suggestion
    reason: str
    variant: str
    config: dict[str, int]


def advise(evaluations: Sequence[Evaluation], history: History) -> tuple[Suggestion, ...]:
    """Return suggestions in order of expected gain; empty if nothing can be predicted.

    Only the fastest correct kernel of each of the first `MAX_PROBLEMS` problems is considered.
    """
    suggestions: list[Suggestion] = []
    for best in _best_of_each(evaluations)[:MAX_PROBLEMS]:
        now = _as_evaluated(best, history)
        if now is not None:
            tried = [e for e in evaluations if e.problem == now.plan.problem]
            suggestions += [*islice(_ladder_options(now, tried, history), MAX_KERNELS)]
            suggestions += _suggest_batch(now, history)
            suggestions += [*_suggest_resources(now), *_spills(now)]
    worth = [s for s in suggestions if s.gain is None or s.gain >= MIN_GAIN]
    # Suggestions without a predicted gain come last.
    facts = [s for s in worth if s.gain is None][:MAX_SUGGESTIONS]
    gains = sorted((s for s in worth if s.gain is not None), key=lambda s: -(s.gain or 0.0))
    return (*gains[: MAX_SUGGESTIONS - len(facts)], *facts)


def advice_limits(evaluations: Iterable[Evaluation]) -> str:
    """Return a sentence on what `advise` leaves out; empty if nothing."""
    problems = len(_best_of_each(evaluations))
    if problems <= MAX_PROBLEMS:
        return ""
    return (
        f"Only the first {MAX_PROBLEMS} of {problems} problems were considered, and at most "
        f"{MAX_SUGGESTIONS} suggestions are listed."
    )


def _best_of_each(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Return the fastest evaluation per problem and device.

    Measured and recorded times come before predictions; last are times of other sources than the
    variant's present file.
    """
    best: dict[tuple[Problem, str], Evaluation] = {}
    for e in evaluations:
        if e.status not in (Status.PASSED, Status.SKIPPED, Status.THROTTLED):
            continue
        key = (e.problem, e.device)
        if key not in best or _rank(e) < _rank(best[key]):
            best[key] = e
    return list(best.values())


def _rank(e: Evaluation) -> tuple[int, float]:
    if e.latency is None or not has_present_source(e):
        return 2, 0.0
    return known_first(e.latency)


def _as_evaluated(e: Evaluation, history: History) -> Estimate | None:
    """Return the kernel of an evaluation, with the source as it is now."""
    try:
        kernel = Kernel.of(e.variant, e.device, e.config)
    except (InvalidKernel, UnknownName):
        return None
    return _predict(kernel, e.problem, history)


def _predict(kernel: Kernel, problem: Problem, history: History) -> Estimate | None:
    """Return the estimate; None if no latency can be predicted."""
    try:
        made = history.estimate(kernel, problem)
    except AttuneError:
        return None
    return made if made.latency is not None else None


def _us(made: Estimate) -> float:
    assert made.latency is not None  # `_predict` returns None otherwise
    return made.latency.median_us


def _suggestion(
    kernel: Kernel,
    problem: Problem,
    title: str,
    gain: float | None,
    latency: Latency | None,
    reason: str,
) -> Suggestion:
    return Suggestion(
        title,
        problem,
        kernel.device.name,
        gain,
        latency,
        reason,
        kernel.variant.id,
        kernel.config,
    )


def _ladder_options(
    now: Estimate, tried: Sequence[Evaluation], history: History
) -> Iterator[Suggestion]:
    """Yield other variants of the ladder, and other splits and tiles of this one, not tried yet."""
    situation = Situation(now.kernel, now.plan.problem, None)
    try:
        options, _ = rank_options(situation, LADDER.of(situation.problem), (), None, history)
    except AttuneError:
        return
    done = {(e.variant, tuple(sorted(e.config.items()))) for e in tried}
    (base,) = (option for option in options if option.kind == "accept")
    for option in options:
        key = (option.variant, tuple(sorted(option.config.items())))
        if option.kind == "variant" and key not in done and _may_be_faster(option, base):
            yield _of_option(now, base, option, history)


def _may_be_faster(option: Option, base: Option) -> bool:
    """False if the option is slower than the present kernel, and not by another method, calibrated
    or not."""
    methods = {o.by_machine_code for o in (option, base) if o.origin == "predicted"}
    return len(methods) == 2 or option.latency_us < base.latency_us


def _of_option(now: Estimate, base: Option, option: Option, history: History) -> Suggestion:
    problem = now.plan.problem
    kernel = Kernel.of(option.variant, now.kernel.device, option.config)
    then = _predict(kernel, problem, history)
    idea = (
        kernel.variant.idea
        if kernel.variant.id != now.kernel.variant.id
        else "The same kernel with other tiles or splits."
    )
    parts = [idea]
    if then is not None:
        main_of = now.plan.problem.main_of
        parts.append(_launched(main_of(now.passes).occupancy, main_of(then.passes).occupancy))
    parts.append(f"{base.origin.capitalize()} {format_us(base.latency_us)} now. {option.reason}")
    latency = Latency(
        option.origin, option.latency_us, option.low_us, option.high_us, option.reason
    )
    reason = " ".join(part for part in parts if part)
    return _suggestion(kernel, problem, option.title, option.speedup, latency, reason)


def _launched(now: Occupancy, then: Occupancy) -> str:
    """Return a sentence on how the launch changes, if it does."""
    if now.sm_fill is None or then.sm_fill is None or now.ctas == then.ctas:
        return ""
    launched = f"It launches {then.launched()} in place of {now.launched()}"
    return (
        f"{launched}: {then.sm_fill:.0%} of the SMs get work, not {now.sm_fill:.0%}."
        if now.sm_fill != then.sm_fill
        else f"{launched}."
    )


def _suggest_batch(now: Estimate, history: History) -> Iterator[Suggestion]:
    """Suggest a batch that fills the last wave, if that makes a query cheaper."""
    before = now.plan.problem
    main = before.main_of(now.passes).occupancy
    if main.waves is None or main.wave_efficiency is None or main.wave_efficiency > 0.95:
        return
    capacity = main.ctas_per_sm * (main.num_sms or 0)
    full = -(-main.useful_ctas // capacity) * capacity
    batch = before.batch * full // main.useful_ctas
    if batch <= before.batch:
        return
    try:
        problem = replace(before, batch=batch)
    except AttuneError:
        return
    then = _predict(now.kernel, problem, history)
    if then is None or then.by_machine_code != now.by_machine_code:
        return
    yield _suggestion(
        now.kernel,
        before,
        f"Grow the batch to {batch:,}",
        _us(now) / _us(then) * batch / before.batch,
        then.latency,
        f"{_unfilled(main, capacity)}; {batch:,} sequences fill all slots. The gain is per query, "
        "not per launch.",
    )


def _unfilled(main: Occupancy, capacity: int) -> str:
    if main.useful_ctas < capacity:
        keys = " that have keys" if main.idle_ctas else ""
        return f"The GPU can run {capacity:,} CTAs at once and gets {main.useful_ctas:,}{keys}"
    waves = main.useful_ctas / capacity
    return f"{main.launched()} are {waves:.3g} waves of {capacity:,}, and the last is not full"


def _suggest_resources(now: Estimate) -> Iterator[Suggestion]:
    """Suggest resources of the main pass with which one more CTA per SM fits.

    Both times are by roofline, because the changed kernel has no machine code yet.
    """
    if now.plan.is_backward:
        return  # a backward kernel's times are simulated per pass and have no such terms
    main_of, kernel = now.plan.problem.main_of, now.kernel
    main, used = main_of(now.passes).occupancy, main_of(now.resources)
    as_is = estimate(kernel, now.plan, now.passes)
    if main.waves is None or main.waves <= 1:
        return  # no CTA waits for a slot
    if main.limiter == "registers":
        candidates = [
            replace(used, registers_per_thread=n) for n in range(used.registers_per_thread, 15, -1)
        ]
    elif main.limiter == "shared memory":
        candidates = [
            replace(used, static_smem_bytes=used.static_smem_bytes - step)
            for step in range(1024, used.smem_bytes, 1024)
        ]
    else:
        return
    for resources in candidates:
        changed = (resources, *now.resources[1:])
        then = estimate(kernel, now.plan, pass_reports(kernel, now.plan, changed))
        if then.latency is None or main_of(then.passes).occupancy.ctas_per_sm <= main.ctas_per_sm:
            continue
        what = (
            f"{resources.registers_per_thread} registers per thread, not "
            f"{used.registers_per_thread}"
            if main.limiter == "registers"
            else f"{format_bytes(resources.smem_bytes)} of shared memory per CTA, not "
            f"{format_bytes(used.smem_bytes)}"
        )
        yield _suggestion(
            kernel,
            now.plan.problem,
            f"Get {kernel.variant.id} down to {what}",
            _us(as_is) / then.latency.median_us,
            None,
            f"{main.limiter.capitalize()} limits it to {main.ctas_per_sm} CTAs per SM, and "
            f"there are {main.waves:.3g} waves; with this, one more CTA fits. Both times are by "
            "roofline, which does not include the cost of the change itself.",
        )
        return


def _spills(now: Estimate) -> Iterator[Suggestion]:
    spilled = sum(r.spill_bytes for r in now.resources)
    if spilled:
        yield _suggestion(
            now.kernel,
            now.plan.problem,
            f"Stop {now.kernel.variant.id} from spilling",
            None,
            None,
            f"{format_bytes(spilled)} of registers per thread go through local memory. The model "
            "ignores that, so no gain is predicted: try a smaller tile or more threads.",
        )
