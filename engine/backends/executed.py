"""Which lines of a kernel's source ran, as the CPU backend's check build saw it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from engine.evaluation import LineCoverage, LineRange


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

    def lines(self) -> tuple[LineCoverage, ...]:
        """By file, in the order in which the compiler read them."""
        ran: dict[str, set[int]] = defaultdict(set)
        skipped: dict[str, set[int]] = defaultdict(set)
        left_out: dict[str, set[int]] = defaultdict(set)
        for mark, file, first, last in self.statements:
            (ran if mark in self.marks else skipped)[file].update(range(first, last + 1))
        for file, first, last in self.not_compiled:
            left_out[file].update(range(first, last + 1))
        files = dict.fromkeys(
            file for file in (*(s[1] for s in self.statements), *(n[0] for n in self.not_compiled))
        )
        return tuple(
            LineCoverage(
                file=file,
                lines=len(ran[file] | skipped[file]),
                not_run=line_ranges(skipped[file] - ran[file]),
                partly_run=line_ranges(skipped[file] & ran[file]),
                not_compiled=line_ranges(left_out[file]),
            )
            for file in files
        )


def line_ranges(lines: Iterable[int]) -> tuple[LineRange, ...]:
    """Line numbers as (first, last) of each unbroken run, ascending."""
    ranges: list[LineRange] = []
    for line in sorted(lines):
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    return tuple(ranges)
