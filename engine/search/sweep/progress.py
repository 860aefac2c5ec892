"""How far a sweep has come: counts of its rows, and the fastest of each problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from engine.evaluation import Status
from engine.problem import Problem
from engine.schema import Stored
from engine.search.ranking import comparable
from engine.search.rows import SweepRow

BestKey: TypeAlias = tuple[str, str, Problem]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCounts(Stored):
    """The figures of a sweep's progress."""

    done: int  # rows there are, those of an earlier run and skipped ones included
    total: int  # that there will be, as far as budget and strategy let one know
    passed: int
    skipped: int  # excluded by constraints
    failed: int  # everything else
    resumed: int  # taken over from an earlier run
    elapsed_s: float  # of this run
    per_minute: float | None  # recent rate; None before the first evaluation
    eta_s: float | None  # None when nothing was timed yet
    workers: int = 1  # that evaluate beside each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(SweepCounts):
    """The progress of a sweep, with rows."""

    # Fastest so far by GPU (its model, and which one) and problem; measured before predicted.
    best: Mapping[BestKey, SweepRow]
    last: SweepRow | None


@dataclass(slots=True)
class Tally:
    """Counts rows and remembers the fastest of each GPU and problem."""

    passed: int = 0
    skipped: int = 0
    failed: int = 0
    best: dict[BestKey, SweepRow] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return self.passed + self.skipped + self.failed

    def add(self, row: SweepRow) -> None:
        time_us = row.median_us
        if row.status is Status.PASSED or time_us is not None:
            self.passed += 1
        elif row.status is Status.SKIPPED:
            self.skipped += 1
        else:
            self.failed += 1
        if time_us is not None:
            key = best_key(row)
            if key not in self.best or _is_better(row, self.best[key]):
                self.best[key] = row


def best_key(row: SweepRow) -> BestKey:
    """The key of a row in `Progress.best`."""
    return (row.device, row.measured_on, row.problem)


def _is_better(row: SweepRow, best: SweepRow) -> bool:
    """Faster; but what is measured is better than whatever is predicted, and so on."""
    ranked = comparable([row, best])
    if len(ranked) < 2:
        return row in ranked
    return (row.median_us or 0.0) < (best.median_us or 0.0)
