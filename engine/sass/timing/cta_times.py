"""How long CTAs take on an SM, alone and together, as straight lines over their length.

A CTA's length is whatever its loop runs over: K/V rows, or executed instructions. Two lengths are
simulated; between and beyond them time is linear (tests/sass/test_timing.py holds it to 2 %).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.sass.timing.native import Kernel, simulate_sm
from engine.sass.timing.result import SmTiming
from engine.sass.trace import CtaTrace

FloatArray = NDArray[np.float64]
# The steady state is taken from the CTAs behind the first round of this many.
_ROUNDS = 3
_MOST_EXACT = 4  # resident CTAs up to here are all simulated; beyond, every doubling


@dataclass(frozen=True)
class CtaTimes:
    """Cycles of CTAs on one SM that holds `resident` at a time.

    `together[i, j]` is how long `counts[j]` CTAs of length `lengths[i]` take that start at once;
    `steady[i]` what each further CTA adds while the SM stays full.
    """

    resident: int
    lengths: tuple[float, float]  # equal where only one was simulated
    counts: tuple[int, ...]
    together: tuple[tuple[float, ...], tuple[float, ...]]
    steady: tuple[float, float]
    fetch_cycles: float  # what the first CTAs' code adds

    def of(self, count: int, length: float) -> float:
        """Cycles of `count` CTAs of one length; a slot that falls free is filled at once."""
        line = self.lines(length)
        rounds, rest = divmod(count, self.resident)
        if rounds == 0:
            return float(line[rest]) + self.fetch_cycles
        steady = self._at(length, self.steady)
        # CTAs that drift apart overlap: the last round gains what the full ones did.
        gain = min(1.0, self.resident * steady / max(float(line[self.resident]), 1.0))
        full = float(line[self.resident]) + (rounds - 1) * self.resident * steady
        return full + gain * float(line[rest]) + self.fetch_cycles

    def lines(self, length: float) -> FloatArray:
        """Cycles of 0, 1, … `resident` CTAs of the length that start at once."""
        at = [self._at(length, pair) for pair in zip(*self.together, strict=True)]
        return np.interp(np.arange(self.resident + 1), (0, *self.counts), (0.0, *at))

    def _at(self, length: float, pair: tuple[float, float]) -> float:
        (short, long), (low, high) = self.lengths, pair
        if short == long:
            return low
        return low + (high - low) * (length - short) / (long - short)

    @cached_property
    def alone(self) -> tuple[float, float]:
        """One CTA's cycles: (of length 0, per unit of length)."""
        start = self._at(0.0, (self.together[0][0], self.together[1][0]))
        return start, self._at(1.0, (self.together[0][0], self.together[1][0])) - start


def measure(
    kernel: Kernel,
    fetching: Kernel,
    traces: tuple[CtaTrace, CtaTrace],
    lengths: tuple[float, float],
    resident: int,
    most: int | None = None,
    quick: bool = False,
) -> CtaTimes:
    """Simulate what `CtaTimes` holds.

    Args:
        fetching: the same kernel, with its code still to come.
        traces: of a CTA of each length; the same one twice where the length does not change.
        most: CTAs that one SM gets at most, where fewer than `resident`.
        quick: simulates one CTA and `resident` CTAs alone; a straight line in between, and no
            gain from CTAs that drift apart.
    """
    full = min(resident, most or resident)
    counts = tuple(sorted({1, full})) if quick else _counts(full)
    together: list[tuple[float, ...]] = []
    steady: list[float] = []
    for i, trace in enumerate(traces):
        if i == 1 and lengths[0] == lengths[1]:
            together.append(together[0])
            steady.append(steady[0])
            continue
        times = [simulate_sm(kernel, [trace], [0] * n, resident).cycles for n in counts]
        together.append(tuple(times))
        if quick or (most is not None and most <= full):
            steady.append(times[-1] / full)
        else:
            long = simulate_sm(kernel, [trace], [0] * (_ROUNDS * full), full).cycles
            steady.append((long - times[-1]) / ((_ROUNDS - 1) * full))
    with_fetch = simulate_sm(fetching, [traces[0]], [0], resident).cycles
    return CtaTimes(
        resident=full,
        lengths=lengths,
        counts=counts,
        together=(together[0], together[1]),
        steady=(steady[0], steady[1]),
        fetch_cycles=max(0.0, with_fetch - together[0][0]),
    )


def _counts(resident: int) -> tuple[int, ...]:
    if resident <= _MOST_EXACT:
        return tuple(range(1, resident + 1))
    doubling = [1 << i for i in range(resident.bit_length()) if 1 << i < resident]
    return (*doubling, resident)


def steady_state(kernel: Kernel, trace: CtaTrace, resident: int) -> SmTiming:
    """One round of resident CTAs: the busy pipes and stalls that are shown."""
    return simulate_sm(kernel, [trace], [0] * resident, resident)
