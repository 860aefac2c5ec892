"""Rungs that the ladder is to get: what a reader of its last page can know of them already."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.ladder import LADDER


@dataclass(frozen=True, slots=True)
class PlannedRung:
    """A rung that has no file yet."""

    id: str
    idea: str


_PLANNED = (PlannedRung("v21", "paged K/V for decoding: a block table"),)


def planned() -> tuple[PlannedRung, ...]:
    """Those that have no file yet."""
    known = {variant.id for variant in LADDER}
    return tuple(rung for rung in _PLANNED if rung.id not in known)
