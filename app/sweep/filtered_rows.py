"""The rows of a sweep that match the filters, and results computed from them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import pandas as pd

from app.shared.widgets import theme
from app.sweep import frames
from app.sweep.result_rows import ResultRows
from engine.attention.evaluation import Origin
from engine.attention.problem import Problem
from engine.search.ranking import SweepRow, by_problem, comparable, ranking_origin

T = TypeVar("T")
Group: TypeAlias = tuple[str, Problem]  # GPU and problem


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """The rows that match the filters, with cached results."""

    all_rows: ResultRows
    name: str  # of the sweep
    problem: str | None  # None: all
    variants: tuple[str, ...]  # none: all

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`, cached until the rows or the filters change."""
        return self.all_rows.cached((key, self.problem, self.variants, theme()), make)

    @property
    def frame(self) -> pd.DataFrame:
        """Return the matching lines of `sweep_frame`."""
        return self.cached(
            "frame",
            lambda: frames.filtered(self.all_rows.frame, self.problem, self.variants),
        )

    @property
    def timed(self) -> pd.DataFrame:
        """Return the matching lines with a time."""
        return self.cached("timed", lambda: self.frame.dropna(subset=["median_us"]))

    @property
    def rows(self) -> list[SweepRow]:
        """Return the matching rows."""
        # The frame's index is the position among the rows.
        return self.cached("rows", lambda: [self.all_rows.rows[i] for i in self.frame.index])

    @property
    def groups(self) -> dict[Group, list[SweepRow]]:
        """Return the rows by GPU and problem."""
        return self.cached("groups", lambda: by_problem(self.rows))

    def per_group(
        self, key: Hashable, make: Callable[[Group, list[SweepRow]], T]
    ) -> dict[Group, T]:
        """Return the result of `make` for every group; only changed groups are recomputed."""
        return self.all_rows.per_group((key, self.problem, self.variants), self.groups, make)

    @property
    def origin(self) -> Origin | None:
        """Return the origin of the ranked times."""
        return self.cached("origin", lambda: ranking_origin(self._comparable))

    @property
    def ranked(self) -> pd.DataFrame:
        """Return the rows of `timed` with that origin and, if predicted, with one method."""
        return self.cached(
            "ranked",
            lambda: self.timed[self.timed["point"].isin({row.point for row in self._comparable})],
        )

    @property
    def _comparable(self) -> list[SweepRow]:
        return self.cached("comparable", lambda: comparable(self.rows))
