"""What differs between two sessions besides their times: environment, flags, source."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.sessions.snapshot import Environment, Snapshot

# When it was asked, and figures that change from one moment to the next.
_FLEETING = ("collected", "sm_clock_mhz", "memory_clock_mhz")
# What makes times of the same kernel differ: with one of these unequal there is no verdict.
_DECISIVE = {
    "name": "the GPU",
    "driver": "the driver",
    "max_sm_clock_mhz": "the SM clock",
    "max_memory_clock_mhz": "the memory clock",
    "power_limit_w": "the power limit",
}


@dataclass(frozen=True, slots=True)
class EnvironmentDifference:
    """One field of the environment that is not the same."""

    field: str  # "driver", "gpus[0].name"
    baseline: Any
    other: Any
    decisive: bool  # forbids a verdict


@dataclass(frozen=True, slots=True)
class FlagsDifference:
    """Compiler flags of one kernel source."""

    source: str
    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceDifference:
    """One kernel source that changed, as a unified diff from the baseline's text."""

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
    remarks: tuple[str, ...]  # what could not be compared

    @property
    def nothing(self) -> bool:
        return not (self.environment or self.flags or self.sources or self.remarks)


def differences(session: str, base: Snapshot, other: Snapshot) -> Differences:
    """Compare two snapshots' environments, flags and sources."""
    ours, theirs = ({source.name: source for source in side.sources} for side in (base, other))
    both = [(ours[name], theirs[name]) for name in sorted(set(ours) & set(theirs))]
    remarks = []
    if alone := sorted(set(ours) ^ set(theirs)):
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


def environment_blockers(base: Environment, other: Environment) -> list[str]:
    """Why times of the two environments cannot be judged against each other; empty if they can."""
    blockers = []
    for name, ours, theirs in _fields(base, other):
        meaning = _DECISIVE.get(name.rpartition(".")[2])
        if meaning is None:
            continue
        if ours is None or theirs is None:
            # A GPU that names no power limit names none in either; a driver there always is.
            if ours is not theirs or name == "driver":
                blockers.append(f"{meaning} was not recorded")
        elif ours != theirs:
            blockers.append(f"{meaning} is {theirs}, not {ours}")
    return list(dict.fromkeys(blockers))


def _environment(base: Environment, other: Environment) -> tuple[EnvironmentDifference, ...]:
    changed = [
        EnvironmentDifference(name, ours, theirs, name.rpartition(".")[2] in _DECISIVE)
        for name, ours, theirs in _fields(base, other)
        if ours != theirs
    ]
    return tuple(sorted(changed, key=lambda d: not d.decisive))


def _fields(base: Environment, other: Environment) -> list[tuple[str, Any, Any]]:
    """(field, in the baseline, in the other), with None where it is not known."""
    ours, theirs = _flat(base), _flat(other)
    return [(name, ours.get(name), theirs.get(name)) for name in {**ours, **theirs}]


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
    """Variants whose source hash changed though their text is not stored in both sessions."""
    ours, theirs = _hashes(base), _hashes(other)
    return [
        f"The source of {variant} differs, and its text is not stored in both sessions."
        for variant in sorted(set(ours) & set(theirs))
        if ours[variant].isdisjoint(theirs[variant])
        and not any(name.startswith(variant) for name in stored)
    ]


def _hashes(session: Snapshot) -> dict[str, set[str]]:
    """The source hashes of each variant."""
    hashes: dict[str, set[str]] = {}
    for e in session.evaluations:
        if e.source_sha256:
            hashes.setdefault(e.variant, set()).add(e.source_sha256)
    return hashes
