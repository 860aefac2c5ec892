"""Choose the kernel for a problem on a GPU, and explain the choice.

Candidates are the first and second kernel of the tables' nearest rows, these rungs in their default
configs, the user's tuned configs, and every kernel with a known time. Kernels that spill registers
here and have no known time are left out. The others are ranked by their times for this problem on
this GPU (`engine.history`), and the fastest is chosen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from engine.attention.config import find_variant, fitting_config, problem_class
from engine.attention.evaluation import METHODS
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidProblem, StoreError
from engine.base.units import format_us
from engine.choose.auto.candidates import (
    Row,
    Table,
    code_digest,
    eligible,
    own_instructions,
    own_rungs,
    table_for,
    unused_instructions,
)
from engine.devices.spec import DeviceSpec
from engine.history import History, Time
from engine.history.known_time import (
    NOT_COMPARABLE,
    RANKING_ERROR,
    are_comparable,
    is_of_this_source,
)
from engine.model.kernel import Kernel, variant_sources
from kernels.variant import AUTO, Config, Variant

_NEAREST_ROWS = 4  # number of nearest rows, which may have several configs of one rung


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of `auto`."""

    kernel: Kernel
    reason: str  # a few sentences
    given: tuple[str, ...] = field(default=())  # tunables given by the user
    # False: not all candidates are simulated yet, so another may be faster.
    is_final: bool = True
    time: Time | None = None  # measured, recorded or simulated; None if unknown
    # False: no kernel supports the problem; evaluating this one reports why.
    is_supported: bool = True

    @property
    def variant(self) -> Variant:
        return self.kernel.variant

    @property
    def config(self) -> dict[str, int]:
        return self.kernel.config

    def describe(self) -> str:
        """`v12 num_warps=4 keys_per_warp=32`."""
        return self.kernel.describe()

    def note(self) -> str:
        """Return `auto takes v12 num_warps=4 …: reason`; only the reason if there is no kernel."""
        return (
            self.reason
            if not self.is_supported
            else f"{AUTO} takes {self.describe()}. {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class _Candidate:
    kernel: Kernel
    time: Time | None  # measured, recorded or simulated; None if unknown


def choose(
    problem: Problem,
    device: DeviceSpec | None,
    given: Config | None = None,
    history: History | None = None,
) -> Choice:
    """Return the kernel to use for a problem on a GPU.

    Args:
        device: None raises an error, because the fastest kernel depends on the GPU.
        given: tunables given by the user, which the chosen variant must offer.
        history: times to rank by; None: no times of sessions. Simulated times that ship with Attune
            are used. If it only looks up, candidates without a time are not ranked.

    Raises:
        InvalidProblem: there is no GPU to choose for, or the variant does not offer the given
            tunables.
    """
    if device is None:
        raise InvalidProblem(
            f"{AUTO} chooses for a GPU and this machine has none: name one, for instance --gpu L4, "
            "or name a variant.",
            code="no_gpu_to_choose_for",
        )
    history = (history or History()).with_shipped()
    table, note = _table(device, problem)
    tuned, tuned_note = _tuned(history, problem, device)
    kernels = candidates_for(problem, device, history)
    given = dict(given or {})
    offering = [k.with_config(**given) for k in kernels if k.variant.invalid_values(given) is None]
    if given:
        offering = [k for k in offering if k.fits(problem)]
    if not offering:
        kernel, why = (kernels[0], "") if kernels else _highest_rung(problem, device, note)
        if (invalid_values := kernel.variant.invalid_values(given)) is not None:
            raise InvalidProblem(
                f"{AUTO} takes {kernel.variant.id} here. {invalid_values}", code="auto_takes_other"
            )
        kernel = kernel.with_config(**given)
        reason = (
            why or f"{kernel.variant.idea} No kernel takes the problem with the given tunables."
        )
        is_supported = kernel.fits(problem)
        explanation = _sentences(device, problem, reason, tuned_note)
        return Choice(kernel, explanation, tuple(given), is_supported=is_supported)
    offering = list(dict.fromkeys(offering))
    # If all spill, rank them all.
    unspilled = _without_spills(offering, problem, history) or offering
    candidates = _ranked(unspilled, problem, history)
    pick = candidates[0]
    reason = _reason(candidates, problem, device, {k.values for k in tuned})
    if table is not None and pick.time is None:
        reason += (
            " Its time here is not known yet, so it is chosen by the nearest row of the table."
        )
    changed = _changed(table, pick.kernel.variant)
    return Choice(
        pick.kernel,
        _sentences(device, problem, reason, changed, tuned_note),
        tuple(given),
        all(c.time is not None for c in candidates) or history.work == "simulate",
        pick.time,
    )


def candidates_for(problem: Problem, device: DeviceSpec, history: History) -> list[Kernel]:
    """Return the kernels that may be the fastest: from the table, tuned and timed ones, each once.

    First come kernels with instructions that only this GPU has and that are not in the table.
    """
    own = [variant.id for variant in _own_and_not_ranked(device, problem)]
    return list(
        dict.fromkeys(
            (
                *_in_default_config(own, problem, device),
                *_table_kernels(_table(device, problem)[0], problem, device),
                *_tuned(history, problem, device)[0],
                *_kernels_with_times(history, problem, device),
            )
        )
    )


def decided_by(problem: Problem, device: DeviceSpec, history: History) -> tuple[object, ...]:
    """Return everything that determines a final choice (`Choice.is_final`), without predicting
    times.

    While the result compares equal, `choose` with a look-up-only history returns the same choice.
    """
    history = history.with_shipped()
    kernels = candidates_for(problem, device, history)
    variants = dict.fromkeys(kernel.variant.id for kernel in kernels)
    times = history.times
    return (
        problem,
        device,
        _table(device, problem),
        _tuned(history, problem, device),
        kernels,
        [_source_of(kernel.variant) for kernel in kernels],
        _without_spills(kernels, problem, history.doing("look up")),
        history.at(problem, device.name),
        [times.on(device.name, name=name) for name in variants] if times is not None else [],
    )


def _source_of(variant: Variant) -> str:
    """Return the hash of the kernel's source; empty if it cannot be read."""
    try:
        return variant_sources(variant).source_sha256
    except AttuneError:
        return ""


def rank_of(cost: float | None, variant: str) -> tuple[bool, float, str]:
    """Return a sort key for kernels: lowest cost first, then kernels that cannot be ranked.

    The one order of `auto` and of alternatives. Each kernel has the time that `History` prefers:
    measured, recorded, simulated and calibrated, or simulated; these are ranked by their values
    alone, although no ratio of two such times is written unless they are comparable. A time by
    roofline does not rank. Of equal kernels, the lower rung, which is simpler, comes first.
    What a session holds is listed by `known_first`, goals are judged by known times alone.

    Args:
        cost: a time or a figure derived from it; None if it cannot be ranked.
    """
    return cost is None, cost or 0.0, variant


def chosen_variants(
    names: Iterable[str],
    problems: Iterable[Problem],
    device: DeviceSpec | None,
    history: History,
) -> tuple[str, ...]:
    """Return the names, each once, with `auto` replaced by its choices for the problems.

    Problems that no kernel supports are skipped.

    Raises:
        InvalidProblem: as `choose`, or no kernel takes any of the problems.
    """
    names = tuple(names)
    taken: list[str] = []
    if AUTO in names:
        choices = [(p, choose(p, device, None, history)) for p in problems]
        taken = [c.variant.id for p, c in choices if c.kernel.fits(p)]
        if choices and not taken:
            raise InvalidProblem(choices[0][1].reason, code="auto_takes_none")
    chosen = [one for name in names for one in (taken if name == AUTO else [name])]
    return tuple(dict.fromkeys(chosen))


def _without_spills(kernels: Sequence[Kernel], problem: Problem, history: History) -> list[Kernel]:
    """Return the kernels without register spills (as in a table's rows), with a known time, or
    with unknown spills."""
    if history.work == "look up":
        history = history.doing("look up")  # missing compiles are reported by the ranking
        spill = [_spills(history, kernel, problem) for kernel in kernels]
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            spill = list(pool.map(lambda k: _spills(history, k, problem), kernels))
    return [kernel for kernel, spills in zip(kernels, spill, strict=True) if not spills]


def _spills(history: History, kernel: Kernel, problem: Problem) -> bool:
    if history.known_time(kernel, problem) is not None:
        return False
    try:
        return any(r.uses_local_memory for r in history.resources(kernel, problem))
    except AttuneError:
        return False


def _ranked(kernels: Sequence[Kernel], problem: Problem, history: History) -> list[_Candidate]:
    """Return the kernels, fastest first.

    The first of `kernels`, the table's choice, stays first while it has no comparable time, unless
    a measured or recorded time is the shortest known.
    """
    if history.work == "simulate":
        # Threads help, because compiling and simulating release the interpreter lock.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            times = list(pool.map(lambda k: _comparable(history, k, problem), kernels))
    else:
        times = [_comparable(history, kernel, problem) for kernel in kernels]
    candidates = [_Candidate(k, time) for k, time in zip(kernels, times, strict=True)]
    ranked = sorted(
        candidates, key=lambda c: rank_of(c.time.us if c.time else None, c.kernel.variant.id)
    )
    is_unknown = candidates[0].time is None and history.work != "simulate"
    first = ranked[0].time
    if first is None or (is_unknown and first.origin == "predicted"):
        return candidates
    return ranked


def _comparable(history: History, kernel: Kernel, problem: Problem) -> Time | None:
    """Return the kernel's time; None if by roofline, because assumed CTA times cannot rank
    kernels."""
    time = kernel.time(problem, history)
    return None if time is None or time.method == METHODS[1] else time


def _table(device: DeviceSpec, problem: Problem) -> tuple[Table | None, str]:
    try:
        return table_for(device.compute_capability, problem.direction), ""
    except AttuneError as error:
        return None, str(error)


def _table_kernels(table: Table | None, problem: Problem, device: DeviceSpec) -> Iterator[Kernel]:
    """Return the kernels of the nearest rows, then every rung of the table in its default config,
    if they support the problem.

    A rung that no row names was never close to the fastest when the table was made.
    """
    if table is None:
        return
    rows = table.nearest(problem, device.num_sms or table.num_sms)
    alike = _rows_of_same_phase(rows, problem)
    named: dict[Kernel, None] = {}
    seen: dict[str, None] = {}
    for row in alike:
        if row.variant in seen and len(named) >= _NEAREST_ROWS:
            continue
        kernel = _row_kernel(row, table, device)
        if kernel is None or kernel in named:
            continue
        if kernel.fits(problem):
            named.setdefault(kernel)
            seen.setdefault(row.variant)
    yield from named
    # Between rows, the default of a row's rung may be faster than the config of the nearest row.
    rungs = dict.fromkeys((*seen, *(row.beside for row in alike)))
    yield from _in_default_config((name for name in rungs if name), problem, device)


def _rows_of_same_phase(rows: Sequence[Row], problem: Problem) -> Sequence[Row]:
    """Return the rows that decode if the problem does, else those that do not.

    The fastest kernels for one query are not the fastest for many. With fewer keys than any row
    that decodes, one CTA has all of them, and a kernel for short prompts may be the fastest: then
    all rows are returned.
    """
    decoding = [row for row in rows if row.seqlen == 1]
    if problem.seqlen != 1:
        return [row for row in rows if row.seqlen != 1] or rows
    has_few_keys = problem.num_keys < min((row.keys for row in decoding), default=0)
    return rows if has_few_keys or not decoding else decoding


def _row_kernel(row: Row, table: Table, device: DeviceSpec) -> Kernel | None:
    """Return the row's kernel on this GPU, with the same number of persistent CTAs per SM."""
    try:
        variant = find_variant(row.variant)
    except AttuneError:
        return None  # no longer in the ladder
    config = dict(row.config)
    for tunable in variant.tunables:
        if tunable.per_sm and tunable.name in config and device.num_sms:
            each = max(1, round(config[tunable.name] / table.num_sms))
            config[tunable.name] = each * device.num_sms
    return Kernel.of(variant, device, config)


def _tuned(history: History, problem: Problem, device: DeviceSpec) -> tuple[list[Kernel], str]:
    """Return the user's tuned configs for the problem's class, and why they cannot be read."""
    try:
        entries = history.tuned()
    except StoreError as error:
        return [], str(error)
    kind = problem_class(problem)
    matching = [e for e in entries if (e.gpu, e.problem_class) == (device.name, kind)]
    return list(_fitting(((e.variant, e.config) for e in matching), problem, device)), ""


def _kernels_with_times(history: History, problem: Problem, device: DeviceSpec) -> Iterator[Kernel]:
    """Return kernels with the present source that have a known time on this problem."""
    times = (t for t in history.at(problem, device.name) if is_of_this_source(t))
    return _fitting(((t.name, t.config) for t in times), problem, device)


def _fitting(
    named: Iterable[tuple[str, Config]], problem: Problem, device: DeviceSpec
) -> Iterator[Kernel]:
    for name, config in named:
        try:
            kernel = Kernel.of(name, device, config)
        except AttuneError:
            continue
        if kernel.fits(problem):
            yield kernel


def _in_default_config(
    names: Iterable[str], problem: Problem, device: DeviceSpec
) -> Iterator[Kernel]:
    """Return the variants that support the problem, in the config that is used if nobody gives
    one."""
    for name in names:
        try:
            variant = find_variant(name)
        except AttuneError:
            continue  # no longer in the ladder
        kernel = Kernel.of(variant, device, fitting_config(variant, {}, problem, device))
        if kernel.fits(problem):
            yield kernel


def _highest_rung(problem: Problem, device: DeviceSpec, note: str) -> tuple[Kernel, str]:
    """Return the choice without a table: the highest rung that supports the problem."""
    variants = eligible(problem.direction)
    for variant in reversed(variants):
        kernel = next(_in_default_config([variant.id], problem, device), None)
        if kernel is not None:
            why = note or f"No table has a row for {device.name} ({device.arch}) and this problem."
            why += f" {variant.id} is the highest rung that takes the problem."
            return kernel, why
    # Evaluating it reports the reason.
    can = [v for v in variants if v.min_compute_capability <= device.compute_capability]
    last = (can or variants)[-1]
    return Kernel.of(last, device), note or _why_none(problem, device, can or variants)


def _why_none(problem: Problem, device: DeviceSpec, variants: Sequence[Variant]) -> str:
    if problem.head_dim in (dims := sorted({dim for v in variants for dim in v.head_dims})):
        return f"No kernel of the ladder takes {problem.label()} on {device.name}."
    return (
        f"No kernel of the ladder takes D = {problem.head_dim}: choose one of "
        f"{', '.join(map(str, dims))}."
    )


def _reason(
    candidates: Sequence[_Candidate],
    problem: Problem,
    device: DeviceSpec,
    tuned: set[tuple[tuple[str, int], ...]],
) -> str:
    pick, idea = candidates[0], candidates[0].kernel.variant.idea
    if pick.kernel.values in tuned:
        idea += " Its config is your tuned one."
    if (time := pick.time) is None:
        return idea
    shown = f"{_words(time)} {format_us(time.us)} for {problem.label()} on {device.name}"
    return f"{idea} {shown}{_beside_in_words(candidates, time)}."


def _beside_in_words(candidates: Sequence[_Candidate], time: Time) -> str:
    variant = candidates[0].kernel.variant
    others = [c for c in candidates[1:] if c.kernel.variant.id != variant.id and c.time is not None]
    if not others:
        return ""
    other, beside = others[0].kernel.variant.id, others[0].time
    assert beside is not None
    shown = f" beside {format_us(beside.us)} of {other}"
    if not are_comparable(beside.latency.basis, time.latency.basis):
        return f"{shown} ({_words(beside).rstrip(',').lower()}), {NOT_COMPARABLE}"
    if (ratio := beside.us / time.us) >= 1 + RANKING_ERROR or time.origin != "predicted":
        return f"{shown}, {ratio:.2f}×"
    return f"{shown}, within the error of the ranking ({RANKING_ERROR:.0%})"


def _words(time: Time) -> str:
    """`Measured (session …)`, `Simulated`, `Simulated, calibrated on 3 times,`."""
    if time.origin != "predicted":
        return f"{time.origin.capitalize()} ({time.where})"
    if not time.calibrated_on:
        return "Simulated"
    s = "" if time.calibrated_on == 1 else "s"
    return f"Simulated, calibrated on {time.calibrated_on} time{s},"


def _changed(table: Table | None, variant: Variant) -> str:
    if table is None or table.sources.get(variant.id) in (None, code_digest(variant)):
        return ""
    return (
        f"Its source has changed since the candidates were ranked ({table.made}): rank again with "
        "attune auto --renew."
    )


def _sentences(device: DeviceSpec, problem: Problem, *parts: str) -> str:
    return " ".join(
        filter(None, [*parts, unused_instructions(device), _not_ranked(device, problem)])
    )


def _not_ranked(device: DeviceSpec, problem: Problem) -> str:
    """Return a sentence on rungs with instructions that only this GPU has and that the table
    does not rank; else empty."""
    missing = [v.id for v in _own_and_not_ranked(device, problem)]
    if not missing:
        return ""
    use, are, their = ("uses", "is", "its") if len(missing) == 1 else ("use", "are", "their")
    return (
        f"{', '.join(missing)} {use} {own_instructions(device)} and {are} not in the table: only "
        f"{their} defaults are compared."
    )


def _own_and_not_ranked(device: DeviceSpec, problem: Problem) -> list[Variant]:
    table, note = _table(device, problem)
    if note:
        return []  # an unreadable table is reported earlier
    major, minor = device.compute_capability
    is_its_own = table is not None and table.compute_capability == f"{major}.{minor}"
    ranked = table.sources if table is not None and is_its_own else {}
    return [v for v in own_rungs(device, problem.direction) if v.id not in ranked]
