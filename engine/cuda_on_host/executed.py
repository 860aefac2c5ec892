"""Which statements of a kernel's source ran, as the check build saw it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutedStatements:
    """The statements of one build, and those that were reached."""

    # (mark, file, first line, last line); statements that run together share a mark
    statements: tuple[tuple[int, str, int, int], ...]
    not_compiled: tuple[tuple[str, int, int], ...]  # (file, first line, last line), by `#if`
    marks: frozenset[int]  # of what ran

    def __or__(self, other: ExecutedStatements) -> ExecutedStatements:
        """What ran in one execution or in the other, of the same build."""
        return ExecutedStatements(self.statements, self.not_compiled, self.marks | other.marks)


def line_ranges(lines: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Line numbers as (first, last) of each unbroken run, ascending."""
    ranges: list[tuple[int, int]] = []
    for line in sorted(lines):
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    return tuple(ranges)
