"""Changes of a rung relative to the previous one: header, source, counts, machine code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import dropwhile
from pathlib import Path

from engine.attention.config import find_variant
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, CompileError
from engine.base.table import Table
from engine.base.units import format_bytes, format_us
from engine.cuda_source.sources import read_source, without_descriptions
from engine.devices import find_device
from engine.history import History
from engine.history.known_time import are_comparable, not_comparable
from engine.kernel_figures.rung import Rung
from engine.model.kernel import Kernel
from engine.own_kernels.registry import parent_of
from engine.versions.figures import default_threshold, order_of
from kernels.ladder import LADDER
from kernels.variant import Variant

_HEADER = re.compile(r"//\s?(?:(?P<label>[A-Z][a-z]+): )?(?P<text>.*)")
_AGAINST = re.compile(r"\bagainst (?P<id>v\d\d)\b")
# Registers and predicates, whose numbers change with each compile.
_NAMES = re.compile(r"\b(U?[RP])\d+\b")
# Names of the compared pipes.
_PIPES = {
    "tensor": "tensor cores (HMMA)",
    "fma": "the FMA pipe",
    "alu": "the integer pipe",
    "xu": "the exp and conversion pipe",
    "shared": "shared memory",
    "global": "global memory",
    "sync": "barriers and waits",
}
_CONTEXT = 3  # lines around a change
_MIN_CHANGE = 0.005


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff, with the number of added and removed lines."""

    text: str
    added: int
    removed: int

    def summary(self) -> str:
        """`12 lines added, 3 removed`."""
        lines = "line" if self.added == 1 else "lines"
        return f"{self.added:,} {lines} added, {self.removed:,} removed"


def header_of(variant: Variant) -> tuple[tuple[str, str], ...]:
    """Return the header lines at the top of the file as (label, text); the title's label is empty.

    Empty if the file cannot be read.
    """
    try:
        text = read_source(variant.source)
    except CompileError:
        return ()
    lines: list[tuple[str, str]] = []
    for line in text.splitlines():
        match = _HEADER.fullmatch(line)
        if match is None:
            break
        if match["text"].startswith("  ") and lines:  # continues the previous line
            label, text = lines.pop()
            lines.append((label, f"{text} {match['text'].strip()}"))
        else:
            lines.append((match["label"] or "", match["text"]))
    return tuple(lines)


def rung_before(variant: Variant) -> Variant | None:
    """Return the rung that the header names as changed, else the previous one on the ladder."""
    changed = dict(header_of(variant)).get("Changed", "")
    if (match := _AGAINST.search(changed)) is not None and match["id"] != variant.id:
        return find_variant(match["id"])
    rungs = LADDER.backward if variant.is_backward else LADDER
    lower = [v for v in rungs if v.id < variant.id]
    return lower[-1] if lower else None


def lessons_tree() -> str:
    """Return an indented tree of which rung builds on which, with the share of lines kept.

    The percentage is the share of the parent's lines of code that the rung also has.
    """
    rungs = LADDER.every()
    builds_on = {variant.id: rung_before(variant) for variant in rungs}
    lines = []

    def add(variant: Variant, before: Variant | None, first: str, rest: str) -> None:
        kept = f"  {kept_share(before, variant):.0%}" if before is not None else ""
        lines.append(f"{first}{variant.id} {variant.title}{kept}")
        children = [v for v in rungs if (on := builds_on[v.id]) is not None and on.id == variant.id]
        for child in children:
            own, below = ("└─ ", "   ") if child is children[-1] else ("├─ ", "│  ")
            add(child, variant, rest + own, rest + below)

    for variant in rungs:
        if builds_on[variant.id] is None:
            add(variant, None, "", "")
    return "\n".join(lines)


def kept_share(before: Variant, after: Variant) -> float:
    """Return the share of a rung's lines of code that another rung also has, 0 to 1.

    Raises CompileError where a file cannot be read.
    """
    lines = len(_code_lines(before))
    return 1 - source_diff(before, after).removed / max(1, lines)


def source_diff(before: Variant, after: Variant) -> Diff:
    """Return the diff of two rungs' sources, without headers and description blocks.

    Raises CompileError where a file cannot be read.
    """
    return _diff(_code_lines(before), _code_lines(after), before.source.name, after.source.name)


def fork_diff(source: Path) -> tuple[str, Diff] | None:
    """Return (parent's id, diff) of a copy made by `fork_kernel`; None for other files.

    Raises CompileError where a file cannot be read.
    """
    parent = parent_of(source)
    if parent is None:
        return None
    diffs = []
    for name, text in parent.texts.items():
        path = source.with_name(name)
        now = read_source(path) if path.is_file() else ""
        old_name = parent.file if name == source.name else name
        diffs.append(_diff(text.splitlines(), now.splitlines(), old_name, name))
    together = "\n".join(diff.text for diff in diffs if diff.text)
    return parent.id, Diff(together, sum(d.added for d in diffs), sum(d.removed for d in diffs))


def machine_code_diff(before: Rung, after: Rung) -> Diff:
    """Return the diff of two rungs' main kernels, without register numbers.

    Raises:
        AttuneError: one of the two cannot run here, or there is no nvdisasm.
    """
    names = (before.variant.name, after.variant.name)
    return _diff(_instructions(before), _instructions(after), *names)


def counts_diff(before: Rung, after: Rung) -> Table:
    """Return figures in which two rungs differ, the most informative first."""
    rows = []
    for (name, old, shown_old), (_, new, shown_new) in zip(
        _figures(before), _figures(after), strict=True
    ):
        if old is None or new is None or max(old, new) == 0:
            continue
        ratio = new / old if old else None
        if ratio is not None and abs(ratio - 1) < _MIN_CHANGE:
            continue
        change = "new" if ratio is None else f"{ratio - 1:+.0%}"
        if name == _TIME:
            change = _incomparable(before, after) or change
        rows.append(
            {
                "figure": name,
                before.variant.id: shown_old,
                after.variant.id: shown_new,
                "change": change,
            }
        )
    return Table.of(
        f"{after.variant.id} beside {before.variant.id}",
        rows,
        "Counts are for 64 query rows and 64 keys, a warp's instructions.",
    )


def orders(rungs: Iterable[Rung]) -> dict[str, str]:
    """Return by id whether the order of a rung's and the previous rung's simulated times is
    reliable: `✓ faster than v08`; empty unless both are simulated, and both or neither
    calibrated."""
    by_id = {rung.variant.id: rung for rung in rungs}
    result: dict[str, str] = {}
    for name, rung in by_id.items():
        before = rung_before(rung.variant)
        earlier = by_id.get(before.id) if before is not None else None
        times = [r.latency for r in (rung, earlier) if r is not None and r.is_simulated]
        latency, earlier_latency = (*times, None, None)[:2]
        result[name] = ""
        if before is None or latency is None or earlier_latency is None:
            continue
        if are_comparable(latency.basis, earlier_latency.basis):
            order = order_of(latency.median_us, earlier_latency.median_us)
            word = "of" if order.startswith("?") else "than"
            result[name] = f"{order} {word} {before.id}"
    return result


def gain(before: Rung, after: Rung) -> str:
    """Return `Against v08: 33.7 µs instead of 39 µs, simulated, 1.16× as fast.`, without the ratio
    if only one of the two is calibrated; a calibrated time is called predicted."""
    where = f"Against {before.variant.id}:"
    old, new = before.latency, after.latency
    if old is None or new is None or not (before.is_simulated and after.is_simulated):
        return f"{where} only one of the two is simulated here, or neither."
    ratio = old.median_us / new.median_us
    how = "predicted" if old.is_calibrated or new.is_calibrated else "simulated"
    if why := _incomparable(before, after):
        verdict = why
    elif order_of(new.median_us, old.median_us).startswith("?"):
        share = default_threshold().share
        verdict = f"within error: the order is reliable from a difference of {share:.0%}"
    elif ratio > 1:
        verdict = f"{ratio:.2f}× as fast"
    else:
        verdict = f"{1 / ratio:.2f}× as slow"
    return (
        f"{where} {format_us(new.median_us)} instead of {format_us(old.median_us)}, {how}, "
        f"{verdict}."
    )


def _incomparable(before: Rung, after: Rung) -> str:
    """Return why no ratio of the two times is written; empty if they are comparable."""
    old, new = before.latency, after.latency
    if old is None or new is None or are_comparable(old.basis, new.basis):
        return ""
    return not_comparable(old.basis, new.basis)


# Speed-ups that the L4 study forecast for ideas not yet built, and the rungs that implement them.


@dataclass(frozen=True, slots=True)
class Forecast:
    """An idea and its forecast speed-up on `STUDY_PROBLEM` and `STUDY_GPU`."""

    idea: str
    before: str
    after: str
    low: float
    high: float


STUDY_GPU = "L4"
STUDY_PROBLEM = Problem(1, 1, 128, 64)
FORECASTS = (
    Forecast("All threads compute", "v01", "v02", 2.0, 3.0),
    Forecast("Small tiles", "v03", "v04", 1.5, 2.0),
    Forecast("KV split", "v01", "v05", 5.0, 10.0),
    Forecast("Persistent CTAs", "v11", "v13", 2.0, 4.0),
)


def forecasts_table(history: History) -> Table:
    """Return the study's forecasts beside simulated results. Both times of a pair come from the
    same simulator, not calibrated on times of sessions; its results may ship with Attune."""
    history = replace(history.with_shipped(), times=None)
    rows = []
    for forecast in FORECASTS:
        pair = (forecast.before, forecast.after)
        old, new = (_simulated_us(name, history) for name in pair)
        ratio = None if old is None or new is None else old / new
        rows.append(
            {
                "idea": forecast.idea,
                "expected": f"{forecast.low:g} to {forecast.high:g}×",
                "simulated": None if ratio is None else f"{ratio:.2g}×",
                "came out": None if ratio is None else _came_out(forecast, ratio),
                "rungs": f"{pair[1]} against {pair[0]}",
                "times": None
                if old is None or new is None
                else f"{format_us(new)} against {format_us(old)}",
            }
        )
    return Table.of(
        "The study's forecasts",
        rows,
        f"{STUDY_PROBLEM.label()} on {STUDY_GPU}, the study's own problem; each rung in its "
        "default config. None of these times was measured.",
    )


def _simulated_us(name: str, history: History) -> float | None:
    try:
        made = history.estimate(Kernel.of(name, find_device(STUDY_GPU)), STUDY_PROBLEM)
    except AttuneError:
        return None
    return made.latency.median_us if made.latency and made.by_machine_code else None


def _came_out(forecast: Forecast, ratio: float) -> str:
    if forecast.low <= round(ratio, 1) <= forecast.high:
        return "as expected"
    if ratio < 1:
        return "slower instead"
    return "less" if ratio < forecast.low else "more"


_TIME = "predicted time"
_Figure = tuple[str, float | None, str]


def _figures(rung: Rung) -> Iterable[_Figure]:
    c, r = rung.counts, rung.main.resources if rung.main is not None else None
    latency = rung.latency if rung.is_simulated else None
    time = latency.median_us if latency is not None else None
    yield _TIME, time, format_us(time) if time is not None else ""
    yield _counted("instructions", c.instructions if c else None)
    for pipe, name in _PIPES.items():
        yield _counted(f"of them on {name}", c.by_pipe.get(pipe, 0.0) if c else None)
    yield _counted("shared-memory wavefronts", c.wavefronts if c else None)
    yield _counted("wavefronts without conflicts", c.ideal_wavefronts if c else None)
    yield _counted("instructions in the code", c.code if c else None)
    yield _counted("registers per thread", r.registers_per_thread if r else None)
    smem = r.smem_bytes if r else None
    yield "shared memory of a CTA", smem, format_bytes(smem) if smem is not None else ""


def _counted(name: str, value: float | None) -> _Figure:
    return name, value, f"{value:,.0f}" if value is not None else ""


def _code_lines(variant: Variant) -> list[str]:
    lines = without_descriptions(read_source(variant.source)).splitlines()
    return list(dropwhile(lambda line: _HEADER.fullmatch(line) or not line.strip(), lines))


def _instructions(rung: Rung) -> list[str]:
    from engine.machine_code.analysis import program_of
    from engine.machine_code.cubin import read_cubin
    from engine.machine_code.disassembly import find_entry
    from engine.model.kernel import compile_plan
    from engine.pipeline.request import resolve

    kernel = resolve(rung.request).kernel
    assert kernel is not None  # a rung without a GPU has no machine code
    plan = kernel.plan(rung.request.problem)
    compiled = compile_plan(plan, kernel.device.arch)
    cubin = read_cubin(compiled.cubin)
    name = plan.passes[0].entry
    entry = find_entry(cubin, compiled.symbols.get(name, name))
    lines = []
    for each in program_of(cubin, entry.name).instructions:
        predicate = f"@{each.predicate} " if each.predicate else ""
        operands = "" if each.target is not None else ", ".join(each.operands)
        text = f"{predicate}{'.'.join([each.opcode, *each.modifiers])} {operands}"
        lines.append(_NAMES.sub(r"\1", text).rstrip())
    return lines


def _diff(old: Sequence[str], new: Sequence[str], old_name: str, new_name: str) -> Diff:
    lines = list(unified_diff(old, new, old_name, new_name, n=_CONTEXT, lineterm=""))
    body = lines[2:]
    added = sum(line.startswith("+") for line in body)
    removed = sum(line.startswith("-") for line in body)
    return Diff("\n".join(lines), added, removed)
