"""A sweep's rows and what is derived from them, kept between updates of the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

from engine.search.ranking import SweepRow
from engine.search.results import SweepFrame

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_MAX_FILTERS = 6  # number of filters whose results per group are cached

_REBUILD_S = 2.0  # least time between two redraws of a running sweep's results


class ResultRows:
    """The rows and frame of a sweep as of the last `update`.

    `cached` stores results until the rows change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._sweep = SweepFrame()
        self._cache: dict[Hashable, Any] = {}
        self._groups: dict[Hashable, dict[Any, tuple[list[SweepRow], Any]]] = {}
        self._built_at = float("-inf")
        self._cost_s = 0.0  # CPU time of results since the last update

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        return self._sweep.rows

    @property
    def frame(self) -> pd.DataFrame:
        return self._sweep.frame

    def update(self, rows: Sequence[SweepRow], *, is_over: bool) -> None:
        """Add new rows: at once when the sweep has ended, else at most every _REBUILD_S.

        Update less often if drawing is slow: drawing may take a fifth of the time.
        """
        now = time.monotonic()
        if not is_over and now - self._built_at < max(_REBUILD_S, 5 * self._cost_s):
            return
        if not self._sweep.update(rows):
            return
        self.version += 1
        self._cache.clear()
        self._built_at = now
        self._cost_s = time.monotonic() - now

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
