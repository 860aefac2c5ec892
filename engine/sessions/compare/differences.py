"""Differences between two sessions: kernels' figures, environment, flags, sources."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args

from engine.attention.evaluation import CodeCounts, Evaluation, Latency, Origin
from engine.base.errors import Status
from engine.base.units import format_bytes, format_speedup, format_us
from engine.history.known_time import RECORDED, are_comparable, not_comparable
from engine.sessions.snapshot import Environment, Snapshot

# The date, and figures that change all the time.
_FLEETING = ("collected", "sm_clock_mhz", "memory_clock_mhz")
# Fields that affect times: if one differs, there is no verdict.
_DECISIVE = {
    "name": "the GPU",
    "driver": "the driver",
    "max_sm_clock_mhz": "the SM clock",
    "max_memory_clock_mhz": "the memory clock",
    "power_limit_w": "the power limit",
}


@dataclass(frozen=True, slots=True)
class EnvironmentDifference:
    """One field of the environment that differs."""

    field: str  # "driver", "gpus[0].name"
    baseline: Any
    other: Any
    decisive: bool  # rules out a verdict


@dataclass(frozen=True, slots=True)
class FlagsDifference:
    """Compiler flags of one kernel source."""

    source: str
    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceDifference:
    """One changed kernel source, as a unified diff from the baseline's text."""

    name: str
    diff: str
    added_lines: int
    removed_lines: int


@dataclass(frozen=True, slots=True)
class Differences:
    """What differs between the baseline and one session."""

    session: str
    environment: tuple[EnvironmentDifference, ...]
    flags: tuple[FlagsDifference, ...]
    sources: tuple[SourceDifference, ...]
    remarks: tuple[str, ...]  # parts that could not be compared

    @property
    def nothing(self) -> bool:
        """Return True if nothing differs."""
        return not (self.environment or self.flags or self.sources or self.remarks)


def differences(session: str, base: Snapshot, other: Snapshot) -> Differences:
    """Compare two snapshots' environments, flags and sources."""
    in_base, in_other = ({source.name: source for source in side.sources} for side in (base, other))
    both = [(in_base[name], in_other[name]) for name in sorted(set(in_base) & set(in_other))]
    remarks = []
    if alone := sorted(set(in_base) ^ set(in_other)):
        are = "is" if len(alone) == 1 else "are"
        remarks.append(f"{', '.join(alone)} {are} stored in only one of the two sessions.")
    remarks += _hidden_changes(base, other, [before.name for before, _ in both])
    return Differences(
        session=session,
        environment=_environment(base.environment, other.environment),
        flags=tuple(
            FlagsDifference(
                before.name,
                removed=tuple(f for f in before.flags if f not in after.flags),
                added=tuple(f for f in after.flags if f not in before.flags),
            )
            for before, after in both
            if set(before.flags) != set(after.flags)
        ),
        sources=tuple(
            _diff(before.name, before.text, after.text)
            for before, after in both
            if before.text != after.text
        ),
        remarks=tuple(remarks),
    )


# The fields of `_DECISIVE` of an environment, by their full names.
Conditions: TypeAlias = Mapping[str, Any]


def conditions_of(environment: Environment) -> Conditions:
    """Return the fields of an environment that affect times."""
    fields = _flat(environment)
    return {name: value for name, value in fields.items() if _meaning(name) is not None}


def _meaning(field: str) -> str | None:
    return _DECISIVE.get(field.rpartition(".")[2])


def environment_blockers(base: Conditions, other: Conditions) -> list[str]:
    """Return why times under the two conditions cannot be compared; empty if they can."""
    blockers = []
    for name, in_base, in_other in _beside(base, other):
        meaning = _meaning(name)
        if in_base is None or in_other is None:
            # A power limit may be missing in both environments; a driver is always there.
            if in_base is not in_other or name == "driver":
                blockers.append(f"{meaning} was not recorded")
        elif in_base != in_other:
            blockers.append(f"{meaning} is {in_other}, not {in_base}")
    return list(dict.fromkeys(blockers))


def _environment(base: Environment, other: Environment) -> tuple[EnvironmentDifference, ...]:
    changed = [
        EnvironmentDifference(name, in_base, in_other, _meaning(name) is not None)
        for name, in_base, in_other in _beside(_flat(base), _flat(other))
        if in_base != in_other
    ]
    return tuple(sorted(changed, key=lambda d: not d.decisive))


def _beside(in_base: Mapping[str, Any], in_other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (field, value in the baseline, value in the other), with None for unknown values."""
    return [(name, in_base.get(name), in_other.get(name)) for name in {**in_base, **in_other}]


def _flat(environment: Environment) -> dict[str, Any]:
    fields = environment.model_dump()
    for index, gpu in enumerate(fields.pop("gpus")):
        fields |= {f"gpus[{index}].{name}": value for name, value in gpu.items()}
    return {k: v for k, v in fields.items() if k.rpartition(".")[2] not in _FLEETING}


def _diff(name: str, before: str, after: str) -> SourceDifference:
    lines = list(
        difflib.unified_diff(
            before.splitlines(),
            after.splitlines(),
            f"{name} {_short_hash(before)}",
            f"{name} {_short_hash(after)}",
            lineterm="",
        )
    )
    body = lines[2:]
    if not body:
        return SourceDifference(name, "(only line endings or the last newline differ)", 0, 0)
    return SourceDifference(
        name,
        "\n".join(lines),
        sum(line.startswith("+") for line in body),
        sum(line.startswith("-") for line in body),
    )


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _hidden_changes(base: Snapshot, other: Snapshot, stored: Sequence[str]) -> list[str]:
    """Return variants whose sources are not the same ones and whose text is not stored in both
    sessions."""
    in_base, in_other = _hashes(base), _hashes(other)
    return [
        f"The source of {variant} differs, and its text is not stored in both sessions."
        for variant in sorted(set(in_base) & set(in_other))
        if in_base[variant] != in_other[variant]
        and not any(name.startswith(variant) for name in stored)
    ]


def _hashes(session: Snapshot) -> dict[str, set[str]]:
    """Return the source hashes of each variant."""
    hashes: dict[str, set[str]] = {}
    for e in session.evaluations:
        if e.source_sha256:
            hashes.setdefault(e.variant, set()).add(e.source_sha256)
    return hashes


# Figures of two kernels: before, after, and change.

ORIGINS: tuple[Origin, ...] = get_args(Origin)[::-1]
# Name → field of `CodeCounts`.
COUNTED = {
    "warp instructions": "instructions",
    "wavefronts of bank conflicts": "conflicts",
    "global sectors": "sectors",
    "local sectors": "local_sectors",
    "code, bytes": "code_bytes",
}
# The figures of `changes`, in display order.
FIGURES = (
    "status",
    "max |error|",
    "share of the tolerance",
    "registers per thread",
    "spills",
    "shared memory per CTA",
    "occupancy",
    "limited by",
    "CTAs per SM",
    "waves",
    *COUNTED,
    *(f"{origin} time" for origin in ORIGINS),
)


@dataclass(frozen=True, slots=True)
class TimeFigure:
    """A time with its interval, µs; without an interval, both ends equal the time."""

    median_us: float
    low_us: float
    high_us: float
    basis: str  # as `Latency.basis`


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """One kernel of one session on one problem. None if the session lacks a figure.

    Resources and occupancy are those of the main pass. `times` is by origin: what the session has
    predicted, recorded and measured of exactly this variant, config, problem and GPU.
    """

    status: str
    max_abs_err: float | None
    tolerance: float | None
    registers: int | None  # per thread
    spill_bytes: int | None  # per thread
    smem_bytes: int | None  # per CTA
    occupancy: float | None  # 0..1
    limiter: str
    ctas_per_sm: int | None
    waves: float | None
    arch: str
    counts: CodeCounts | None
    times: Mapping[str, TimeFigure]

    def time_us(self, origin: Origin) -> float | None:
        """Return the median time of this origin, µs; None if there is none."""
        time = self.times.get(origin)
        return time.median_us if time is not None else None

    @property
    def status_label(self) -> str:
        """Return the status to show, as of an evaluation."""
        is_recorded = self.status == Status.SKIPPED and set(self.times) - {"predicted"}
        return RECORDED if is_recorded else self.status

    @property
    def error_share(self) -> float | None:
        """Return the largest error divided by the tolerance; None if unknown."""
        if self.max_abs_err is None or not self.tolerance:
            return None
        return self.max_abs_err / self.tolerance


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after, as text; `change` is empty if there is none."""

    figure: str
    before: str
    after: str
    change: str


def kernel_figures(evaluation: Evaluation, times: Iterable[Latency]) -> KernelFigures:
    """Return the figures of an evaluation; `times` are all its times in the session, oldest
    first."""
    main, c = evaluation.main_pass, evaluation.correctness
    r, o = (main.resources, main.occupancy) if main else (None, None)
    return KernelFigures(
        status=str(evaluation.status),
        max_abs_err=c.max_abs_err if c else None,
        tolerance=c.tolerance if c else None,
        registers=r.registers_per_thread if r else None,
        spill_bytes=r.spill_bytes if r else None,
        smem_bytes=r.smem_bytes if r else None,
        occupancy=o.occupancy if o else None,
        limiter=o.limited_by() if o else "",
        ctas_per_sm=o.ctas_per_sm if o else None,
        waves=o.waves if o else None,
        arch=r.arch if r else "",
        counts=evaluation.counts,
        times={t.origin: TimeFigure(t.median_us, t.low_us, t.high_us, t.basis) for t in times},
    )


def changes(before: KernelFigures, after: KernelFigures) -> tuple[Change, ...]:
    """Return every figure that at least one of the two has, in the order of `FIGURES`."""
    statuses = before.status_label, after.status_label
    rows = [
        Change("status", *statuses, _if_unequal(*statuses)),
        _number("max |error|", before.max_abs_err, after.max_abs_err, lambda x: f"{x:.3g}"),
        _points("share of the tolerance", before.error_share, after.error_share),
        _number("registers per thread", before.registers, after.registers, str),
        _number("spills", before.spill_bytes, after.spill_bytes, format_bytes),
        _number("shared memory per CTA", before.smem_bytes, after.smem_bytes, format_bytes),
        _points("occupancy", before.occupancy, after.occupancy),
        Change("limited by", before.limiter, after.limiter, ""),
        _number("CTAs per SM", before.ctas_per_sm, after.ctas_per_sm, str),
        _number("waves", before.waves, after.waves, lambda x: f"{x:.3g}"),
        *(
            _number(
                name, getattr(before.counts, of, None), getattr(after.counts, of, None), _grouped
            )
            for name, of in COUNTED.items()
        ),
        *(_time(origin, before.times.get(origin), after.times.get(origin)) for origin in ORIGINS),
    ]
    return tuple(row for row in rows if row.before or row.after)


def _number(
    figure: str, before: float | None, after: float | None, text: Callable[[Any], str]
) -> Change:
    first, second = ("" if value is None else text(value) for value in (before, after))
    change = ""
    if before is not None and after is not None and before != after:
        change = f"{'+' if after > before else '−'}{text(abs(after - before))}"
        if before > 0 and figure == "max |error|":
            change = f"{after / before:.3g}×"
    return Change(figure, first, second, change)


def _points(figure: str, before: float | None, after: float | None) -> Change:
    """Return the difference of two shares in percentage points."""
    change = _number(figure, before, after, _percent)
    return replace(change, change=change.change.replace("%", " points"))


def _grouped(number: int) -> str:
    return f"{number:,}"


def _time(origin: str, before: TimeFigure | None, after: TimeFigure | None) -> Change:
    first, second = ("" if t is None else format_us(t.median_us) for t in (before, after))
    change = ""
    if before is not None and after is not None and before != after:
        change = (
            format_speedup(before.median_us / after.median_us)
            if are_comparable(before.basis, after.basis)
            else not_comparable(before.basis, after.basis)
        )
    return Change(f"{origin} time", first, second, change)


def _if_unequal(before: str, after: str) -> str:
    return "" if before == after else f"{before} → {after}"


def _percent(share: float) -> str:
    if share >= 10:  # an error far over the tolerance
        return f"{share:,.0f}×"
    return f"{share:.3g}%" if (share := 100 * share) < 1 else f"{share:.0f}%"
