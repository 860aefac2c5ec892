"""A sweep's rows as one DataFrame, updated incrementally."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

from engine.search.ranking import SweepRow
from engine.search.results import COLUMNS, row_dict

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_MAX_FILTERS = 6  # number of filters whose results per group are cached

_REBUILD_S = 2.0  # least time between two redraws of a running sweep's results


class ResultRows:
    """The rows of a sweep as of the last `update`.

    `frame` equals `engine.search.results.sweep_frame(rows)`; `cached` stores results until the rows
    change.
    """

    def __init__(self) -> None:
        self.rows: tuple[SweepRow, ...] = ()
        self.frame = pd.DataFrame()
        self.version = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._series: dict[str, pd.Series] = {}  # the columns at the last update
        self._cache: dict[Hashable, Any] = {}
        self._groups: dict[Hashable, dict[Any, tuple[list[SweepRow], Any]]] = {}
        self._built_at = float("-inf")
        self._cost_s = 0.0  # CPU time of results since the last update

    def update(self, rows: Sequence[SweepRow], *, is_over: bool) -> None:
        """Add new rows: at once when the sweep has ended, else at most every _REBUILD_S.

        Update less often if drawing is slow: drawing may take a fifth of the time.
        """
        now = time.monotonic()
        if not is_over and now - self._built_at < max(_REBUILD_S, 5 * self._cost_s):
            return
        if len(rows) < len(self.rows):
            self._columns = {name: [] for name in COLUMNS}
            self._series.clear()
            self.rows = ()
        known = len(self.rows)
        changed = [i for i in range(known) if rows[i] is not self.rows[i]]  # evaluated again
        if not changed and len(rows) == known and self.version:
            return
        for i in (*changed, *range(known, len(rows))):
            self._put(i, row_dict(rows[i]))
        if changed:
            self._series.clear()
        self.rows = tuple(rows)
        self.frame = self._frame()
        self.version += 1
        self._cache.clear()
        self._built_at = now
        self._cost_s = time.monotonic() - now

    def _put(self, index: int, line: Mapping[str, Any]) -> None:
        for name in line:
            if name not in self._columns:
                self._columns[name] = [None] * index
        for name, values in self._columns.items():
            values[index : index + 1] = [line.get(name)]

    def _frame(self) -> pd.DataFrame:
        """Return the frame; columns that pandas has converted before are only extended."""
        for name, values in self._columns.items():
            known = self._series.get(name)
            if known is None or known.empty:
                self._series[name] = pd.Series(values, name=name)
                continue
            new = values[len(known) :]
            if not new:
                continue
            # A series with only None would get dtype object; it also fits these dtypes.
            nothing = known.dtype.kind in "fO" and all(value is None for value in new)
            added = pd.Series(new, dtype=known.dtype if nothing else None)
            if known.dtype != added.dtype:  # combined they may have a third dtype
                self._series[name] = pd.Series(values, name=name)
            else:
                self._series[name] = pd.concat([known, added], ignore_index=True)
        return pd.DataFrame({name: series.array for name, series in self._series.items()})

    def per_group(
        self,
        what: Hashable,
        groups: Mapping[K, list[SweepRow]],
        make: Callable[[K, list[SweepRow]], T],
    ) -> dict[K, T]:
        """Return the result of `make` for every group, recomputed for groups whose rows have
        changed."""
        before = self._groups.pop(what, {})
        now: dict[K, tuple[list[SweepRow], T]] = {}
        for key, rows in groups.items():
            known = before.get(key)
            now[key] = known if known and known[0] == rows else (rows, make(key, rows))
        self._groups[what] = now
        while len(self._groups) > _MAX_FILTERS:
            del self._groups[next(iter(self._groups))]
        return {key: result for key, (_, result) in now.items()}

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`, computed once for these rows and this key."""
        if key not in self._cache:
            began = time.monotonic()
            self._cache[key] = make()
            self._cost_s += time.monotonic() - began
        value: T = self._cache[key]
        return value
