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
    CRASHED = "CRASHED"
    TIMEOUT = "TIMEOUT"
    THROTTLED = "THROTTLED"
    CANCELLED = "CANCELLED"
