"""The rows of a sweep that the filters leave, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import pandas as pd

from app.shared.widgets import theme
from app.sweep import frames
from app.sweep.rows import Found
from engine.evaluation import Origin
from engine.problem import Problem
from engine.search.ranking import by_problem, ranking_origin
from engine.search.sweep.rows import SweepRow

T = TypeVar("T")
Group: TypeAlias = tuple[str, Problem]  # GPU and problem


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that the filters leave; what is drawn from them is made once."""

    found: Found
    name: str  # of the sweep
    problem: str | None  # None: all
    variants: tuple[str, ...]  # none: all

    def made(self, what: Hashable, make: Callable[[], T]) -> T:
        return self.found.made((what, self.problem, self.variants, theme()), make)

    @property
    def frame(self) -> pd.DataFrame:
        return self.made(
            "frame",
            lambda: frames.narrowed(self.found.frame, self.problem, self.variants),
        )

    @property
    def timed(self) -> pd.DataFrame:
        return self.made("timed", lambda: self.frame.dropna(subset=["median_us"]))

    @property
    def rows(self) -> list[SweepRow]:
        # The frame's index is the place among the rows.
        return self.made("rows", lambda: [self.found.rows[i] for i in self.frame.index])

    @property
    def groups(self) -> dict[Group, list[SweepRow]]:
        """The rows by GPU and problem."""
        return self.made("groups", lambda: by_problem(self.rows))

    def each(self, what: Hashable, make: Callable[[Group, list[SweepRow]], T]) -> dict[Group, T]:
        """What `make` returns for every group; only those that have changed are made again."""
        return self.found.each((what, self.problem, self.variants), self.groups, make)

    @property
    def origin(self) -> Origin | None:
        """Of the times that are ranked."""
        return self.made("origin", lambda: ranking_origin(self._timed_rows()))

    def _timed_rows(self) -> list[SweepRow]:
        return [row for row in self.rows if row.interval is not None]
