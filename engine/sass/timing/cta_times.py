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
_ROUNDS = 4  # of CTAs on a full SM, from which a further one's time is taken
# Longer CTAs drift apart by as much as short ones: of those, but for the shortest length, no queue
# is simulated.
_MOST_DRIFTING = 60_000
# How much of a launch of several rounds still begins and ends in step: between what full simulation
# of such launches showed of several kernels.
_IN_STEP = 0.75
_MOST_EXACT = 4  # resident CTAs up to here are all simulated; beyond, every doubling


@dataclass(frozen=True)
class CtaTimes:
    """Cycles of CTAs on one SM that holds `resident` at a time.

    `together[i][j]` is how long `counts[j]` CTAs of length `lengths[i]` take that start at once;
    `round_cycles[i]` what a further `resident` of them add. It is less: CTAs drift apart, and what
    they do first and last stands beside the others' products.
    """

    resident: int
    lengths: tuple[float, ...]  # ascending; a single one where the length does not change
    counts: tuple[int, ...]
    together: tuple[tuple[float, ...], ...]
    round_cycles: tuple[float, ...]  # one for each length
    # What one CTA more than `resident` on each SM adds, for each length: those that are done first
    # take several, and others none.
    more_cycles: tuple[float, ...]
    fetch_cycles: float  # what the first CTAs' code adds

    def of(self, count: int, length: float) -> float:
        """Cycles of `count` CTAs of one length on one SM."""
        return float(self.launch(np.array([count]), np.array([length]), 1)[0])

    def launch(self, ctas: ArrayLike, lengths: ArrayLike, num_sms: int) -> FloatArray:
        """Cycles until the last CTA is done of launches of so many CTAs of one length each.

        CTAs beyond full rounds go to the SMs that are done first. Those of a round begin and end in
        step at first, so that such an SM takes several, and later on spread over their round.

        Args:
            ctas: at least 1, `[n]`, on all SMs together.
            lengths: `[n]`.
        """
        count, x = np.asarray(ctas, np.int64), np.asarray(lengths, np.float64)
        lines = self.table(lengths)
        rounds, extra = np.divmod(count, self.resident * num_sms)
        row, rest = np.arange(len(count)), -(-extra // num_sms)
        full, one_round = lines[:, -1], self.rounds(lengths)
        shares = np.array(self.more_cycles) / np.array(self.together)[:, -1]
        more = full * np.clip(np.interp(x, self.lengths, shares), 0.0, 1.0)
        among = np.maximum(1, self.resident - 1)
        in_step = more + np.maximum(0.0, one_round - more) * (rest - 1) / among
        evenly = one_round * lines[row, rest] / full
        behind = np.where(rounds > 1, _IN_STEP * in_step + (1 - _IN_STEP) * evenly, in_step)
        behind = np.where(rest > 0, behind, 0.0)
        cycles = np.where(rounds > 0, full + (rounds - 1) * one_round + behind, lines[row, rest])
        result: FloatArray = cycles + self.fetch_cycles
        return result

    def rounds(self, lengths: ArrayLike) -> FloatArray:
        """Cycles of one more round on a full SM, `[n]`."""
        x, full = np.asarray(lengths, np.float64), np.array(self.together)[:, -1]
        # What CTAs that drift apart gain does not grow with their length for ever.
        gains = np.interp(x, self.lengths, full - np.array(self.round_cycles))
        together = self.table(lengths)[:, -1]
        result: FloatArray = np.clip(together - gains, 0.5 * together, together)
        return result

    def table(self, lengths: ArrayLike) -> FloatArray:
        """Cycles of 0, 1, … `resident` CTAs that start at once, `[n, resident + 1]`."""
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
        # Beyond the longest by what the last three quarters of its length take.
        far = int(np.searchsorted(x[:-1], x[-1] / 4))
        far = min(far, len(x) - 2)
        below = known[0] + (lengths - x[0]) * (known[1] - known[0]) / (x[1] - x[0])
        above = known[-1] + (lengths - x[-1]) * (known[-1] - known[far]) / (x[-1] - x[far])
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
        quick: simulates one CTA and `resident` CTAs alone; a straight line in between, and no gain
            from CTAs that drift apart.
    """
    full = min(resident, most or resident)
    counts = tuple(sorted({1, full})) if quick else counts_of(full)
    together: list[tuple[float, ...]] = []
    rounds: list[float] = []
    more: list[float] = []
    by_length = dict(zip(lengths, traces, strict=True))
    for trace in by_length.values():
        executed = len(trace.instruction)
        at_once = [_cycles(kernel, trace, count, resident) for count in counts]
        begun = at_once[-1]
        together.append(tuple(at_once))
        if quick or (most is not None and most <= full):
            rounds.append(begun)
            more.append(begun)
            continue
        if rounds and executed > _MOST_DRIFTING:
            before = together[-2][-1]
            rounds.append(begun - (before - rounds[-1]))
            more.append(begun * more[-1] / before)
            continue
        rounds.append((_cycles(kernel, trace, _ROUNDS * full, full) - begun) / (_ROUNDS - 1))
        more.append(_cycles(kernel, trace, full + 1, full) - begun)
    first = next(iter(by_length.values()))
    with_fetch = _cycles(fetching, first, 1, resident)
    return CtaTimes(
        resident=full,
        lengths=tuple(by_length),
        counts=counts,
        together=tuple(together),
        round_cycles=tuple(rounds),
        more_cycles=tuple(more),
        fetch_cycles=max(0.0, with_fetch - together[0][0]),
    )


def _cycles(kernel: Kernel, trace: CtaTrace, count: int, resident: int) -> float:
    return simulate_sm(kernel, [trace], [0] * count, resident, stalls=False).cycles


def counts_of(resident: int) -> tuple[int, ...]:
    """Of CTAs on one SM, those that are simulated; straight lines in between."""
    if resident <= _MOST_EXACT:
        return tuple(range(1, resident + 1))
    doubling = [1 << i for i in range(resident.bit_length()) if 1 << i < resident]
    return (*doubling, resident)


def steady_state(kernel: Kernel, trace: CtaTrace, resident: int) -> SmTiming:
    """One round of resident CTAs: the busy pipes and stalls that are shown."""
    return simulate_sm(kernel, [trace], [0] * resident, resident)
