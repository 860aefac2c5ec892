"""Which samples of a long, growing series a chart draws: few, and none of the extremes lost."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IndexArray: TypeAlias = npt.NDArray[np.intp]

_FIRST_WIDTH_S = 1 / 16


class Thinned:
    """Of every slice of time the lowest, the middle and the highest sample.

    Slices lie at fixed places, and their width only ever doubles: what is drawn stays where it is
    while data grow, instead of flickering. Each update looks at the new samples alone, but for the
    few updates in which the width doubles.
    """

    def __init__(self, max_slices: int = 500) -> None:
        self.width_s = _FIRST_WIDTH_S
        self._max_slices = max_slices
        self._closed: IndexArray = np.empty(0, dtype=np.intp)  # of slices that are complete
        self._open = 0  # the first sample of the slice that still grows

    def update(self, at_s: FloatArray, values: FloatArray) -> IndexArray:
        """Indices to draw, ascending; at most three per slice.

        Args:
            at_s: the time of every sample so far, ascending from 0.
            values: as many; in the next call both have grown at their end.
        """
        if at_s.size == 0:
            return self._closed
        while at_s[-1] >= self._max_slices * self.width_s:
            self.width_s *= 2
            self._closed, self._open = self._closed[:0], 0
        start = self._open
        slices = (at_s[start:] / self.width_s).astype(np.intp)
        order = np.lexsort((values[start:], slices))
        first = np.flatnonzero(np.diff(slices, prepend=-1))
        last = np.append(first[1:], slices.size) - 1
        picked = order[np.concatenate([first, last, (first + last) // 2])]
        drawn = np.union1d(self._closed, picked + start)
        self._open = start + int(first[-1])
        self._closed = drawn[drawn < self._open]
        return drawn


def spans(on: npt.NDArray[np.bool_], at_s: FloatArray, least_s: float) -> list[tuple[float, float]]:
    """From when to when `on` holds, as (start, end) in seconds.

    A span lasts until the next sample in which it no longer holds, and at least `least_s`; gaps
    shorter than that are closed.
    """
    edges = np.diff(on.astype(np.int8), prepend=0, append=0)
    starts = at_s[np.flatnonzero(edges == 1)]
    if starts.size == 0:
        return []
    ends = at_s[np.minimum(np.flatnonzero(edges == -1), at_s.size - 1)]
    ends = np.maximum(ends, starts + least_s)
    apart = starts[1:] - ends[:-1] >= least_s
    first, last = np.append(True, apart), np.append(apart, True)
    return list(zip(starts[first].tolist(), ends[last].tolist(), strict=True))
