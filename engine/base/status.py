"""What became of an evaluation or of one of its steps."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    PASSED = "PASSED"
    SKIPPED = "SKIPPED"
    COMPILE_ERROR = "COMPILE_ERROR"
    LAUNCH_ERROR = "LAUNCH_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INCORRECT = "INCORRECT"
    RACE = "RACE"  # two accesses that nothing orders
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS"  # memory that is not its own
    CRASHED = "CRASHED"
    TIMEOUT = "TIMEOUT"
    THROTTLED = "THROTTLED"
    CANCELLED = "CANCELLED"


# What a kernel's execution ends with where it does what it must not: a log may say more.
FAULTS = frozenset({Status.LAUNCH_ERROR, Status.RACE, Status.OUT_OF_BOUNDS, Status.CRASHED})
