"""What to try next: predicted from the limiter, the waves and the ladder, best gain first.

Every gain is a prediction over a prediction: the model's time of the kernel as it is over its time
of what is suggested. Nothing here is measured, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from engine.base.errors import AttuneError, InvalidKernel, UnknownName
from engine.base.status import Status
from engine.base.units import format_bytes, format_us
from engine.batch.alternatives import Option, Situation, rank_options
from engine.config import default_config
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.evaluation import Evaluation, Latency, Occupancy, Resources
from engine.model.estimate import (
    Estimate,
    FootprintOf,
    compiled_footprint,
    estimate,
    estimate_compiled,
)
from engine.names import find_variant
from engine.problem import Problem
from kernels.ladder import LADDER
from kernels.variant import Config, Variant

MAX_PROBLEMS = 6  # each costs the compile of the ladder's kernels
MAX_KERNELS = 6  # of a problem, so that a long ladder leaves room for other suggestions
MAX_SUGGESTIONS = 12
MIN_GAIN = 1.02  # the model does not tell smaller differences


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One thing to try. `gain` is predicted now / then, per query; None where none is computed."""

    title: str
    problem: Problem
    device: str
    gain: float | None
    latency: Latency | None  # predicted, with it
    reason: str
    variant: str
    config: dict[str, int]


def advise(
    evaluations: Sequence[Evaluation], footprint_of: FootprintOf = compiled_footprint
) -> tuple[Suggestion, ...]:
    """What to try next, in order of expected gain; empty where nothing can be predicted.

    Looks at the first `MAX_PROBLEMS` problems, at the fastest kernel of each that is not wrong.
    """
    suggestions: list[Suggestion] = []
    for best in _best_of_each(evaluations)[:MAX_PROBLEMS]:
        now = _as_evaluated(best, footprint_of)
        if now is not None:
            tried = [e for e in evaluations if e.problem == now.problem]
            suggestions += [*islice(_ladder(now, tried, footprint_of), MAX_KERNELS)]
            suggestions += _fill(now, footprint_of)
            suggestions += [*_limiter(now), *_spills(now)]
    worth = [s for s in suggestions if s.gain is None or s.gain >= MIN_GAIN]
    # What has no gain to be ranked by is said all the same, last.
    facts = [s for s in worth if s.gain is None][:MAX_SUGGESTIONS]
    gains = sorted((s for s in worth if s.gain is not None), key=lambda s: -(s.gain or 0.0))
    return (*gains[: MAX_SUGGESTIONS - len(facts)], *facts)


def advice_limits(evaluations: Iterable[Evaluation]) -> str:
    """What `advise` leaves out of these, as a sentence; empty when nothing."""
    problems = len(_best_of_each(evaluations))
    if problems <= MAX_PROBLEMS:
        return ""
    return (
        f"Only the first {MAX_PROBLEMS} of {problems} problems were looked at, and at most "
        f"{MAX_SUGGESTIONS} suggestions are listed."
    )


def _best_of_each(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Per problem and device the fastest one; a time that was taken comes before a prediction."""
    best: dict[tuple[Problem, str], Evaluation] = {}
    for e in evaluations:
        if e.status not in (Status.PASSED, Status.SKIPPED, Status.THROTTLED):
            continue
        key = (e.problem, e.device)
        if key not in best or _rank(e) < _rank(best[key]):
            best[key] = e
    return list(best.values())


def _rank(e: Evaluation) -> tuple[int, float]:
    if e.latency is None:
        return 2, 0.0
    return int(e.latency.origin == "predicted"), e.latency.median_us


@dataclass(frozen=True, slots=True)
class _Predicted:
    """A kernel whose latency can be predicted."""

    estimate: Estimate
    latency: Latency

    @property
    def variant(self) -> Variant:
        return self.estimate.variant

    @property
    def device(self) -> DeviceSpec:
        return self.estimate.device

    @property
    def problem(self) -> Problem:
        return self.estimate.plan.problem

    @property
    def config(self) -> dict[str, int]:
        return self.estimate.plan.config

    @property
    def main(self) -> Occupancy:
        return self.estimate.passes[0].occupancy

    @property
    def resources(self) -> tuple[Resources, ...]:
        return tuple(p.resources for p in self.estimate.passes)


def _as_evaluated(e: Evaluation, footprint_of: FootprintOf) -> _Predicted | None:
    """The evaluation's kernel, as the model sees it."""
    try:
        variant, device = find_variant(e.variant), find_device(e.device)
    except (InvalidKernel, UnknownName):
        return None
    return _predict(
        variant, e.problem, default_config(variant, e.config, device), device, footprint_of
    )


def _predict(
    variant: Variant,
    problem: Problem,
    config: Config,
    device: DeviceSpec,
    footprint_of: FootprintOf,
) -> _Predicted | None:
    """None where no latency can be predicted."""
    try:
        result = estimate_compiled(variant, problem, config, device, footprint_of)
    except AttuneError:
        return None
    return None if result.latency is None else _Predicted(result, result.latency)


def _suggestion(
    now: _Predicted, title: str, gain: float, latency: Latency, reason: str
) -> Suggestion:
    return Suggestion(
        title, now.problem, now.device.name, gain, latency, reason, now.variant.id, now.config
    )


def _ladder(
    now: _Predicted, tried: Sequence[Evaluation], footprint_of: FootprintOf
) -> Iterator[Suggestion]:
    """Other variants of the ladder, and other splits and tiles of this one, not tried yet."""
    situation = Situation(now.variant, now.config, now.problem, now.device, None, None)
    try:
        options, _ = rank_options(situation, LADDER, (), footprint_of, None)
    except AttuneError:
        return
    done = {(e.variant, tuple(sorted(e.config.items()))) for e in tried}
    for option in options:
        key = (option.variant, tuple(sorted(option.config.items())))
        if option.kind == "variant" and key not in done:
            yield _of_option(now, option, footprint_of)


def _of_option(now: _Predicted, option: Option, footprint_of: FootprintOf) -> Suggestion:
    variant = find_variant(option.variant)
    then = _predict(variant, now.problem, option.config, now.device, footprint_of)
    idea = (
        variant.idea
        if variant.id != now.variant.id
        else "The same kernel with other tiles or splits."
    )
    parts = [idea]
    if then is not None:
        parts.append(_launched(now.main, then.main))
    parts.append(f"Predicted {format_us(now.latency.median_us)} now. {option.reason}")
    latency = Latency("predicted", option.latency_us, option.low_us, option.high_us, option.reason)
    reason = " ".join(part for part in parts if part)
    return replace(
        _suggestion(now, option.title, option.speedup, latency, reason),
        variant=option.variant,
        config=option.config,
    )


def _launched(now: Occupancy, then: Occupancy) -> str:
    """How the launch changes, where it does."""
    if now.sm_fill is None or then.sm_fill is None or now.ctas == then.ctas:
        return ""
    launched = f"It launches {then.launched()} in place of {now.launched()}"
    return (
        f"{launched}: {then.sm_fill:.0%} of the SMs get work, not {now.sm_fill:.0%}."
        if now.sm_fill != then.sm_fill
        else f"{launched}."
    )


def _fill(now: _Predicted, footprint_of: FootprintOf) -> Iterator[Suggestion]:
    """A batch that fills the last wave, where that makes a query cheaper."""
    main = now.main
    if main.waves is None or main.wave_efficiency is None or main.wave_efficiency > 0.95:
        return
    capacity = main.ctas_per_sm * (main.num_sms or 0)
    full = -(-main.useful_ctas // capacity) * capacity
    batch = now.problem.batch * full // main.useful_ctas
    if batch <= now.problem.batch:
        return
    try:
        problem = replace(now.problem, batch=batch)
    except AttuneError:
        return
    then = _predict(now.variant, problem, now.config, now.device, footprint_of)
    if then is None:
        return
    gain = now.latency.median_us / then.latency.median_us * batch / now.problem.batch
    yield _suggestion(
        now,
        f"Grow the batch to {batch:,}",
        gain,
        then.latency,
        f"{_unfilled(main, capacity)}; {batch:,} sequences fill it. The gain is per query, not "
        "per launch.",
    )


def _unfilled(main: Occupancy, capacity: int) -> str:
    if main.useful_ctas < capacity:
        keys = " that have keys" if main.idle_ctas else ""
        return f"The GPU has room for {capacity:,} CTAs at once and gets {main.useful_ctas:,}{keys}"
    waves = main.useful_ctas / capacity
    return f"{main.launched()} are {waves:.3g} waves of {capacity:,}, and the last is not full"


def _limiter(now: _Predicted) -> Iterator[Suggestion]:
    """One more CTA per SM, from fewer registers or less shared memory in the main pass."""
    main, used = now.main, now.resources[0]
    if main.waves is None or main.waves <= 1:
        return  # there are no CTAs that wait for a place
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
        then = estimate(now.variant, now.estimate.plan, changed, now.device)
        if then.latency is None or then.passes[0].occupancy.ctas_per_sm <= main.ctas_per_sm:
            continue
        what = (
            f"{resources.registers_per_thread} registers per thread, not "
            f"{used.registers_per_thread}"
            if main.limiter == "registers"
            else f"{format_bytes(resources.smem_bytes)} of shared memory per CTA, not "
            f"{format_bytes(used.smem_bytes)}"
        )
        yield _suggestion(
            now,
            f"Get {now.variant.id} down to {what}",
            now.latency.median_us / then.latency.median_us,
            then.latency,
            f"{main.limiter.capitalize()} limits it to {main.ctas_per_sm} CTAs per SM, and "
            f"{main.waves:.3g} waves wait for a place; so one more fits. The model does not see "
            "what the change itself costs.",
        )
        return


def _spills(now: _Predicted) -> Iterator[Suggestion]:
    spilled = sum(r.spill_bytes for r in now.resources)
    if spilled:
        yield Suggestion(
            f"Stop {now.variant.id} from spilling",
            now.problem,
            now.device.name,
            None,
            None,
            f"{format_bytes(spilled)} of registers per thread go through local memory. The model "
            "does not count it, so no gain is given: a smaller tile or more threads would show.",
            now.variant.id,
            now.config,
        )
