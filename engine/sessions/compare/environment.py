"""What differs between two sessions besides their times: environment, flags, source."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from typing import Any

from engine.sessions.compare.times import Json

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


def differences(session: str, base: Json, other: Json) -> Differences:
    """Compare two snapshots' environments, flags and sources."""
    ours, theirs = _sources(base), _sources(other)
    shared = sorted(set(ours) & set(theirs))
    remarks = [
        f"{name} is stored in only one of the two sessions."
        for name in sorted(set(ours) ^ set(theirs))
    ]
    remarks += _hidden_changes(base, other, set(shared))
    return Differences(
        session=session,
        environment=_environment(base.get("environment") or {}, other.get("environment") or {}),
        flags=tuple(
            FlagsDifference(name, *found)
            for name in shared
            if any(found := _flags(ours[name].get("flags"), theirs[name].get("flags")))
        ),
        sources=tuple(
            _diff(name, ours[name]["text"], theirs[name]["text"])
            for name in shared
            if ours[name]["text"] != theirs[name]["text"]
        ),
        remarks=tuple(remarks),
    )


def environment_blockers(base: Json, other: Json) -> list[str]:
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


def _environment(base: Json, other: Json) -> tuple[EnvironmentDifference, ...]:
    found = [
        EnvironmentDifference(name, ours, theirs, name.rpartition(".")[2] in _DECISIVE)
        for name, ours, theirs in _fields(base, other)
        if ours != theirs
    ]
    return tuple(sorted(found, key=lambda d: not d.decisive))


def _fields(base: Json, other: Json) -> list[tuple[str, Any, Any]]:
    """(field, in the baseline, in the other), with None where it is not known.

    The driver is there even if neither environment names it.
    """
    ours, theirs = _flat(base), _flat(other)
    names = dict.fromkeys(["driver", *ours, *theirs])
    return [(name, ours.get(name), theirs.get(name)) for name in names]


def _flat(environment: Json) -> dict[str, Any]:
    flat = {k: v for k, v in environment.items() if k != "gpus" and k not in _FLEETING}
    for index, gpu in enumerate(environment.get("gpus") or ()):
        flat |= {f"gpus[{index}].{k}": v for k, v in gpu.items() if k not in _FLEETING}
    return flat


def _sources(session: Json) -> dict[str, Json]:
    return {source["name"]: source for source in session.get("sources") or ()}


def _flags(before: Any, after: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ours, theirs = tuple(before or ()), tuple(after or ())
    return (
        tuple(f for f in ours if f not in theirs),
        tuple(f for f in theirs if f not in ours),
    )


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


def _hidden_changes(base: Json, other: Json, shown: set[str]) -> list[str]:
    """Variants whose source hash changed though their text is not stored in both sessions."""
    ours, theirs = _hashes(base), _hashes(other)
    return [
        f"The source of {variant} differs, and its text is not stored in both sessions."
        for variant in sorted(set(ours) & set(theirs))
        if ours[variant].isdisjoint(theirs[variant])
        and not any(name.startswith(variant) for name in shown)
    ]


def _hashes(session: Json) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for evaluation in session["evaluations"]:
        if evaluation.get("source_sha256"):
            found.setdefault(evaluation["variant"], set()).add(evaluation["source_sha256"])
    return found
