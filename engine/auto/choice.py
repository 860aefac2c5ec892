"""Which variant and config to take for a problem on a GPU, and why.

Times that were taken of the problem on that GPU go before a user's own tuned configs, and those
before the tables that ship (`engine.auto.table`), which are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from engine.auto.reach import out_of_reach, own_instructions, own_rungs
from engine.auto.table import Row, Table, code_digest, eligible, table_for
from engine.base.errors import AttuneError, InvalidProblem, StoreError
from engine.base.units import format_us
from engine.devices.spec import DeviceSpec
from engine.evaluation import Origin
from engine.measure.verdict import RANKING_ERROR
from engine.model.calibrate import fits, fitting_config
from engine.names import find_variant
from engine.problem import Problem
from engine.tuned import TunedConfig, load_tuned, problem_class
from kernels.variant import AUTO, Config, Variant


@dataclass(frozen=True, slots=True)
class Taken:
    """A time that was taken of one of our kernels, of the source that stands here today."""

    variant: str
    config: Mapping[str, int]
    median_us: float
    origin: Origin  # measured or recorded
    where: str  # `session L4 study`, `tuned configs`


# The times of a problem on the GPU of this name.
TakenAt: TypeAlias = Callable[[Problem, str], Sequence[Taken]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant and config that `auto` takes."""

    variant: Variant
    config: dict[str, int]  # without gaps
    reason: str  # a few sentences
    given: tuple[str, ...] = field(default=())  # tunables that were named

    def describe(self) -> str:
        """`v12 num_warps=4 keys_per_warp=32`."""
        return " ".join([self.variant.id, *(f"{k}={v}" for k, v in self.config.items())])

    def note(self) -> str:
        """`auto takes v12 num_warps=4 …: reason`."""
        return f"{AUTO} takes {self.describe()}. {self.reason}"


def choose(
    problem: Problem,
    device: DeviceSpec | None,
    given: Config | None = None,
    taken: Sequence[Taken] = (),
) -> Choice:
    """The kernel to take for a problem on a GPU.

    Args:
        device: None is refused: which kernel is fastest depends on the GPU.
        given: tunables that are named; the chosen variant must offer them.
        taken: times of this problem on this GPU, of the sources that stand here.

    Raises:
        InvalidProblem: there is no GPU to choose for, or the variant does not offer what is given.
    """
    if device is None:
        raise InvalidProblem(
            f"{AUTO} chooses for a GPU and this machine has none: name one, for instance --gpu L4, "
            "or name a variant."
        )
    pick, us = _from_table(problem, device)
    pick, times = _with_tuned(pick, problem, device, taken)
    pick = _with_taken(pick, us, times, problem, device)
    reason = " ".join(filter(None, [pick.reason, out_of_reach(device), _not_ranked(device)]))
    config = pick.config | dict(given or {})
    if (why := pick.variant.unoffered(given or {})) is not None:
        raise InvalidProblem(f"{AUTO} takes {pick.variant.id} here. {why}")
    return Choice(pick.variant, config, reason, tuple(given or ()))


def chosen_variants(
    names: Iterable[str],
    problems: Iterable[Problem],
    device: DeviceSpec | None,
    taken_at: TakenAt,
) -> tuple[str, ...]:
    """The names, each once, with `auto` replaced by the variants that it takes for the problems.

    Problems that no kernel takes add none.

    Raises:
        InvalidProblem: as `choose`, or no kernel takes any of the problems.
    """
    names = tuple(names)
    taken: list[str] = []
    if AUTO in names:
        choices = [(p, choose_at(p, device, None, taken_at)) for p in problems]
        taken = [c.variant.id for p, c in choices if fits(c.variant, p, c.config, device)]
        if choices and not taken:
            raise InvalidProblem(choices[0][1].reason)
    chosen = [one for name in names for one in (taken if name == AUTO else [name])]
    return tuple(dict.fromkeys(chosen))


def choose_at(
    problem: Problem, device: DeviceSpec | None, given: Config | None, taken_at: TakenAt
) -> Choice:
    """As `choose`, with the times that `taken_at` knows of the problem on the GPU."""
    taken = taken_at(problem, device.name) if device is not None else ()
    return choose(problem, device, given, taken)


def _from_table(problem: Problem, device: DeviceSpec) -> tuple[Choice, float | None]:
    """What the table of the GPU's compute capability says, and the time that is expected."""
    try:
        table, note = table_for(device.compute_capability), ""
    except AttuneError as error:
        table, note = None, str(error)
    for row in table.nearest(problem, device.num_sms or table.num_sms) if table else ():
        try:
            variant = find_variant(row.variant)
        except AttuneError:
            continue  # the ladder has it no more
        config = variant.default_config() | dict(row.config)
        if table is not None and fits(variant, problem, config, device):
            us = row.us * max(1.0, problem.flops / _flops(row))
            return Choice(variant, config, _reason(row, table, variant, problem, device)), us
    return _by_order(problem, device, note), None


def _by_order(problem: Problem, device: DeviceSpec, note: str) -> Choice:
    """Without a table: the highest rung that takes the problem."""
    variants = eligible()
    for variant in reversed(variants):
        if (config := fitting_config(variant, problem, device)) is not None:
            why = note or f"No table has a row for {device.name} ({device.arch}) and this problem."
            why += f" {variant.id} is the highest rung that takes it."
            return Choice(variant, config, why)
    # The pipeline says what is wrong with it.
    can = [v for v in variants if v.min_compute_capability <= device.compute_capability]
    last = (can or variants)[-1]
    return Choice(last, last.default_config(), note or _why_none(problem, device, can or variants))


def _why_none(problem: Problem, device: DeviceSpec, variants: Sequence[Variant]) -> str:
    if problem.head_dim in (dims := sorted({dim for v in variants for dim in v.head_dims})):
        return f"No kernel of the ladder takes {problem.label()} on {device.name}."
    return (
        f"No kernel of the ladder takes D = {problem.head_dim}: choose one of "
        f"{', '.join(map(str, dims))}."
    )


def _reason(row: Row, table: Table, variant: Variant, problem: Problem, device: DeviceSpec) -> str:
    where = row.label()
    if not (row.is_of(problem) and table.gpu == device.name):
        where = f"the nearest row, {where} on {table.gpu}"
    if problem.dtype == "bfloat16":
        where += " in FP16"
    sentences = [f"{variant.idea} Simulated {format_us(row.us)} for {where}{_beside(row)}."]
    if table.sources.get(variant.id) != code_digest(variant):
        sentences.append(
            f"Its source has changed since that was ranked ({table.made}): python -m engine auto "
            "--renew ranks again."
        )
    return " ".join(sentences)


def _beside(row: Row) -> str:
    if not row.beside:
        return "; no other variant takes it"
    ratio = row.beside_us / row.us
    beside = f" beside {format_us(row.beside_us)} of {row.beside}"
    if ratio >= 1 + RANKING_ERROR:
        return f"{beside}, {ratio:.2f}×, which is outside the error of ranking"
    if ratio >= 1:
        return f"{beside}, which is within the error of ranking ({RANKING_ERROR:.0%})"
    return (
        f"{beside}, which is within the error of ranking ({RANKING_ERROR:.0%}): of equals the "
        "lower rung is taken"
    )


def _flops(row: Row) -> float:
    return 4 * row.heads * row.seqlen * row.keys * row.head_dim / (2 if row.causal else 1)


def _with_tuned(
    pick: Choice, problem: Problem, device: DeviceSpec, taken: Sequence[Taken]
) -> tuple[Choice, list[Taken]]:
    """The pick with its tuned config, where one is kept; and the times of tuned configs."""
    times = list(taken)
    try:
        entries = load_tuned()
    except StoreError as error:
        return replace(pick, reason=f"{pick.reason} {error}"), times
    kind = problem_class(problem)
    mine = [e for e in entries if (e.gpu, e.problem_class) == (device.name, kind)]
    for entry in mine:
        if entry.origin != "predicted":
            where = f"tuned configs, for {entry.problem}"
            times.append(Taken(entry.variant, entry.config, entry.median_us, entry.origin, where))
        elif entry.variant == pick.variant.id:
            pick = _tuned_pick(pick, entry, problem, device)
    return pick, times


def _tuned_pick(pick: Choice, entry: TunedConfig, problem: Problem, device: DeviceSpec) -> Choice:
    config = pick.config | dict(entry.config)
    if not fits(pick.variant, problem, config, device):
        return pick
    reason = f"{pick.reason} Its config is your tuned one, for {entry.describe()}."
    return replace(pick, config=config, reason=reason)


def _with_taken(
    pick: Choice,
    expected_us: float | None,
    times: Sequence[Taken],
    problem: Problem,
    device: DeviceSpec,
) -> Choice:
    """The fastest kernel that was timed, unless the pick was not timed and promises to be faster.

    A time of one slow rung says nothing about the others.
    """
    fitting = []
    for time in times:
        try:
            variant = find_variant(time.variant)
        except AttuneError:
            continue
        config = variant.default_config() | dict(time.config)
        if fits(variant, problem, config, device):
            fitting.append((time, variant, config))
    if not fitting:
        return pick
    best, variant, config = min(fitting, key=lambda item: item[0].median_us)
    was_timed = any(v.id == pick.variant.id for _, v, _ in fitting)
    shown = f"{format_us(best.median_us)} {best.origin} ({best.where})"
    if was_timed or expected_us is None or best.median_us <= expected_us:
        others = len({v.id for _, v, _ in fitting}) - 1
        beside = f", the fastest of {others + 1} variants timed here" if others else ""
        reason = f"{variant.idea} {shown}{beside}; a time that was taken outranks the table"
        if variant.id != pick.variant.id:
            reason += f", which would take {pick.variant.id}"
        return Choice(variant, config, f"{reason}.")
    reason = f"{pick.reason} It was not timed here; {variant.id} was, at {shown}."
    return replace(pick, reason=reason)


def _not_ranked(device: DeviceSpec) -> str:
    """Which rungs with instructions of this GPU's own its table lacks; empty where it has all."""
    try:
        table = table_for(device.compute_capability)
    except AttuneError:
        return ""  # what is wrong with the table is said before
    ranked = table.sources if table is not None else {}
    missing = [v.id for v in own_rungs(device) if v.id not in ranked]
    if not missing:
        return ""
    use, are, one = ("uses", "is", "it") if len(missing) == 1 else ("use", "are", "one of them")
    return (
        f"{', '.join(missing)} {use} {own_instructions(device)}, and {are} not in the table yet: "
        f"name {one}, or rank again by python -m engine auto --renew."
    )
