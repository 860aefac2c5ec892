"""Renew budgets: write the kernels' present figures to `attune-gate.toml` and commit the
changes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.base import files
from engine.base.errors import UnknownName, unknown
from engine.gate.running import Work, do_work
from engine.gate.settings import Budget, Settings, SettingsError, read_settings
from engine.gate.trees import SETTINGS_NAME, Found, Tree, commit_file, find_kernels, settings_of
from engine.versions.figures import LABELS, Figures, figure_text
from engine.versions.workers import Failed, Workers

_HEADER = re.compile(r"^\s*\[\[\s*budget\s*\]\]\s*(#.*)?$")
_OTHER_HEADER = re.compile(r"^\s*\[")
_ENTRY = re.compile(r"^(?P<before>\s*(?P<name>\w+)\s*=\s*)(?P<value>[-+0-9._eE]+)(?P<after>.*)$")
_NEW = ("simulated_us", "registers", "spill_bytes")  # limits of a new budget
_DIGITS = 2  # of a simulated time, rounded up, so that rounding in the model breaks no budget


@dataclass(frozen=True, slots=True)
class Renewed:
    """What `accept` wrote."""

    path: Path
    moved: tuple[str, ...]  # a line for each changed budget
    commit: str  # its hash; empty if nothing changed


def accept(tree: Tree, kernels: Sequence[str], processes: int = 0) -> Renewed:
    """Write the present figures as budgets, and commit only that file.

    Args:
        tree: the working tree.
        kernels: ids of kernels whose budgets are renewed, or added if missing; empty: all with a
            budget.

    Raises:
        SettingsError: there are no budgets, or figures for one cannot be computed.
        UnknownName: there is no such kernel.
    """
    settings = read_settings(tree.root)
    found = find_kernels(tree, settings.kernels)
    for name in kernels:
        if name not in found:
            raise unknown("kernel", name, found)
    old = [b for b in settings.budgets if not kernels or b.kernel in kernels]
    new = [b for name in kernels for b in _added(name, settings, {o.kernel for o in old}, found)]
    if not old and not new:
        raise SettingsError(
            f"{SETTINGS_NAME} has no budget: name a kernel to add budgets for, with --kernel NAME."
        )
    works = []
    for budget in (*old, *new):
        if budget.kernel not in found:
            raise UnknownName(
                f"There is a budget for {budget.label}, which does not exist any more: remove it.",
                code="budget_without_kernel",
            )
        config = settings.config.get(budget.kernel, {})
        path = found[budget.kernel].path
        works.append(Work(budget.kernel, None, path, budget.gpu, (budget.problem,), config))
    results = Workers(do_work, settings.seconds, settings.memory_gib, processes).run(works)
    now: dict[int, Mapping[str, float]] = {}
    moved: list[str] = []
    for budget, done in zip((*old, *new), results, strict=True):
        figures = done.answers[0][1].figures if not isinstance(done, Failed) else None
        if figures is None:
            why = done.sentence if isinstance(done, Failed) else done.answers[0][1].fault
            raise SettingsError(f"The budget of {budget.label} cannot be renewed: {why}")
        limits = {name: _limit(figures, name, budget) for name in budget.limits or _NEW}
        now[id(budget)] = limits
        if (line := _moved(budget, limits)) is not None:
            moved.append(line)
    path = settings_of(tree.root)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    numbers = {settings.budgets.index(b): now[id(b)] for b in old}
    written = _edited(text, numbers) + "".join(_block(b, now[id(b)]) for b in new)
    if written == text:
        return Renewed(path, (), "")
    with files.explain_os_error(f"{path} cannot be written", "make it writable"):
        files.write(path, written.encode())
    subject = "Budgets of the gate renewed" if old else "Budgets of the gate"
    message = f"{subject}\n\n" + "\n".join(moved) + "\n"
    return Renewed(path, tuple(moved), commit_file(tree.root, path.name, message))


def _added(
    name: str, settings: Settings, have: set[str], found: Mapping[str, Found]
) -> Iterable[Budget]:
    kernel = found[name]
    if name in have or kernel.variant is None:
        return
    for gpu in settings.gpus:
        for problem in settings.problems_of(kernel.variant):
            if kernel.variant.unsupported(problem, kernel.variant.default_config()) is None:
                yield Budget(name, gpu, problem, {})


def _limit(figures: Figures, name: str, budget: Budget) -> float:
    value = getattr(figures, name)
    if value is None:
        raise SettingsError(f"{LABELS[name]} of {budget.label} is unknown: leave it out.")
    if name != "simulated_us":
        return int(value)
    scale = 10.0 ** (math.floor(math.log10(value)) - _DIGITS + 1)
    rounded = round(math.ceil(value / scale - 1e-9) * scale, 6)
    return int(rounded) if rounded == int(rounded) else rounded


def _moved(budget: Budget, limits: Mapping[str, float]) -> str | None:
    changes = []
    for name, value in limits.items():
        before = budget.limits.get(name)
        if before != value:
            old = "" if before is None else f"{figure_text(name, before)} → "
            changes.append(f"{LABELS[name]} {old}{figure_text(name, value)}")
    return f"{budget.label}: {', '.join(changes)}" if changes else None


def _edited(text: str, now: Mapping[int, Mapping[str, float]]) -> str:
    """Return the file with new numbers; everything else is unchanged."""
    number, inside, lines, replaced = -1, False, [], 0
    for line in text.splitlines(keepends=True):
        if _HEADER.match(line):
            number, inside = number + 1, True
        elif _OTHER_HEADER.match(line):
            inside = False
        elif (
            inside
            and (match := _ENTRY.match(line.rstrip("\n")))
            and match["name"] in now.get(number, {})
        ):
            end = line[len(line.rstrip("\n")) :]
            line = f"{match['before']}{now[number][match['name']]}{match['after']}{end}"
            replaced += 1
        lines.append(line)
    if replaced != sum(map(len, now.values())):
        raise SettingsError(
            f"{SETTINGS_NAME}: budgets can be renewed only if each is a [[budget]] table with one "
            "line per limit: write them in this form.",
            code="budgets_layout",
        )
    return "".join(lines)


def _block(budget: Budget, limits: Mapping[str, float]) -> str:
    head = f'\n[[budget]]\nkernel = "{budget.kernel}"\ngpu = "{budget.gpu}"\n'
    values = "".join(f"{name} = {value}\n" for name, value in limits.items())
    return f'{head}problem = "{budget.problem.label()}"\n{values}'
