"""A sweep's rows as one DataFrame, kept up to date: only new rows are read into it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

from engine.search.results import COLUMNS, row_dict
from engine.search.rows import SweepRow

T = TypeVar("T")

REBUILD_S = 2.0  # a running sweep's results are drawn anew no more often than this


class Found:
    """What a sweep has found, as of the last `update`.

    `frame` equals `engine.search.results.sweep_frame(rows)`; what is drawn from both is kept by
    `made` until they change.
    """

    def __init__(self) -> None:
        self.rows: tuple[SweepRow, ...] = ()
        self.frame = pd.DataFrame()
        self.version = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._made: dict[Hashable, Any] = {}
        self._built_at = float("-inf")
        self._cost_s = 0.0  # of what was made since

    def update(self, rows: Sequence[SweepRow], *, is_over: bool) -> None:
        """Take in what is new: at once when the sweep is over, else every REBUILD_S at most.

        Less often when it is dear: drawing may take a fifth of the time.
        """
        now = time.monotonic()
        if not is_over and now - self._built_at < max(REBUILD_S, 5 * self._cost_s):
            return
        if len(rows) < len(self.rows):
            self._columns = {name: [] for name in COLUMNS}
            self.rows = ()
        known = len(self.rows)
        changed = [i for i in range(known) if rows[i] is not self.rows[i]]  # done again
        if not changed and len(rows) == known and self.version:
            return
        for i in (*changed, *range(known, len(rows))):
            self._put(i, row_dict(rows[i]))
        self.rows = tuple(rows)
        self.frame = pd.DataFrame(self._columns)
        self.version += 1
        self._made.clear()
        self._built_at = now
        self._cost_s = time.monotonic() - now

    def _put(self, index: int, line: Mapping[str, Any]) -> None:
        for name in line:
            if name not in self._columns:
                self._columns[name] = [None] * index
        for name, values in self._columns.items():
            values[index : index + 1] = [line.get(name)]

    def made(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, made once for these rows and this key."""
        if key not in self._made:
            began = time.monotonic()
            self._made[key] = make()
            self._cost_s += time.monotonic() - began
        found: T = self._made[key]
        return found
