"""How long CTAs take on an SM, alone and together, over their length.

A CTA's length is whatever its loop runs over: K/V rows, or executed instructions. Few lengths are
simulated; between them and beyond time is linear (`tests/bench/bench_machine_code.py` prints how
far that is from simulating other lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.sass.timing.native import Kernel, simulate_sm
from engine.sass.timing.result import SmTiming
from engine.sass.trace import CtaTrace

FloatArray = NDArray[np.float64]
# The steady state is taken from the CTAs behind the first round of this many.
_ROUNDS = 3
# Long CTAs drift apart as short ones do, and take long to simulate: those of more instructions are
# left out, but for the shortest length.
_MOST_DRIFTING = 150_000
_MOST_EXACT = 4  # resident CTAs up to here are all simulated; beyond, every doubling


@dataclass(frozen=True)
class CtaTimes:
    """Cycles of CTAs on one SM that holds `resident` at a time.

    `together[i][j]` is how long `counts[j]` CTAs of length `lengths[i]` take that start at once.
    While the SM stays full CTAs drift apart, and each round starts `overlap_cycles` before the one
    in front of it is done: what CTAs do first and last stands beside the others' products, however
    long they are.
    """

    resident: int
    lengths: tuple[float, ...]  # ascending; a single one where the length does not change
    counts: tuple[int, ...]
    together: tuple[tuple[float, ...], ...]
    overlap_cycles: float
    fetch_cycles: float  # what the first CTAs' code adds

    def of(self, count: int, length: float) -> float:
        """Cycles of `count` CTAs of one length; a slot that falls free is filled at once."""
        line = self.lines(length)
        rounds, rest = divmod(count, self.resident)
        if rounds == 0:
            return float(line[rest]) + self.fetch_cycles
        # The last round gains what the full ones did.
        gain = self.gain(float(line[-1]))
        full = float(line[-1]) * (1 + (rounds - 1) * gain)
        return full + gain * float(line[rest]) + self.fetch_cycles

    def gain(self, together: float) -> float:
        """A round's time while the SM stays full, over `together`, that of CTAs in step."""
        return min(1.0, max(0.5, 1 - self.overlap_cycles / max(together, 1.0)))

    def lines(self, length: float) -> FloatArray:
        """Cycles of 0, 1, … `resident` CTAs of the length that start at once."""
        line: FloatArray = self.table([length])[0]
        return line

    def table(self, lengths: ArrayLike) -> FloatArray:
        """The same for several lengths, `[n, resident + 1]`."""
        at, where = np.unique(np.asarray(lengths, np.float64), return_inverse=True)
        known = np.array(self.together)
        columns = np.stack([self._at(at, known[:, j]) for j in range(len(self.counts))], axis=1)
        columns = np.concatenate([np.zeros((len(at), 1)), np.maximum(columns, 1.0)], axis=1)
        steps = np.arange(self.resident + 1)
        rows = np.stack([np.interp(steps, (0, *self.counts), row) for row in columns])
        result: FloatArray = rows[where]
        return result

    def _at(self, lengths: FloatArray, known: FloatArray) -> FloatArray:
        if len(self.lengths) == 1:
            return np.full(len(lengths), known[0])
        x = np.array(self.lengths)
        inside = np.interp(lengths, x, known)
        # Beyond the longest by the mean of the whole range, which irregular rounds bend least.
        below = known[0] + (lengths - x[0]) * (known[1] - known[0]) / (x[1] - x[0])
        above = known[-1] + (lengths - x[-1]) * (known[-1] - known[0]) / (x[-1] - x[0])
        result: FloatArray = np.where(
            lengths < x[0], below, np.where(lengths > x[-1], above, inside)
        )
        return result


def measure(
    kernel: Kernel,
    fetching: Kernel,
    traces: Sequence[CtaTrace],
    lengths: Sequence[float],
    resident: int,
    most: int | None = None,
    quick: bool = False,
) -> CtaTimes:
    """Simulate what `CtaTimes` holds.

    Args:
        fetching: the same kernel, with its code still to come.
        traces: of a CTA of each length.
        lengths: ascending; of equal ones the last is taken.
        most: CTAs that one SM gets at most, where fewer than `resident`.
        quick: simulates one CTA and `resident` CTAs alone; a straight line in between, and no
            gain from CTAs that drift apart.
    """
    full = min(resident, most or resident)
    counts = tuple(sorted({1, full})) if quick else _counts(full)
    together: list[tuple[float, ...]] = []
    overlaps: list[float] = []
    by_length = dict(zip(lengths, traces, strict=True))
    for trace in by_length.values():
        times = [simulate_sm(kernel, [trace], [0] * n, resident).cycles for n in counts]
        together.append(tuple(times))
        is_short = not overlaps or len(trace.instruction) <= _MOST_DRIFTING
        if is_short and not quick and (most is None or most > full):
            long = simulate_sm(kernel, [trace], [0] * (_ROUNDS * full), full).cycles
            overlaps.append((_ROUNDS * times[-1] - long) / (_ROUNDS - 1))
    first = next(iter(by_length.values()))
    with_fetch = simulate_sm(fetching, [first], [0], resident).cycles
    return CtaTimes(
        resident=full,
        lengths=tuple(by_length),
        counts=counts,
        together=tuple(together),
        overlap_cycles=max(0.0, float(np.mean(overlaps))) if overlaps else 0.0,
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
