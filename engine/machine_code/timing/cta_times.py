"""Cycles of CTAs by their length: few loop iterations are simulated, the rest is extrapolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.machine_code.disassembly import Loop, Program, find_loops
from engine.machine_code.emulation import AccessKind, CtaTrace
from engine.machine_code.timing.constants import SmTiming
from engine.machine_code.timing.native import (
    Kernel,
    MachineRow,
    in_parallel,
    simulate_counts,
    simulate_sm,
)
from engine.machine_code.timing.traffic import share_sms

# Accesses of mbarrier phases: a trace without some of them would deadlock.
_PHASES = (AccessKind.MBARRIER_WAIT, AccessKind.MBARRIER_ARRIVE, AccessKind.BARRIER_ARRIVE)


def main_loop(program: Program, executed: NDArray[np.int64]) -> Loop | None:
    """The outermost loop that executes most instructions.

    Args:
        executed: how often each instruction is executed, `[instructions]`.
    """
    outer = [x for x in find_loops(program.instructions) if x.depth == 0]
    loops = [x for x in outer if executed[x.first]]
    return max(loops, key=lambda x: int(executed[x.first : x.last + 1].sum()), default=None)


def has_phases(trace: CtaTrace) -> bool:
    """Whether warps wait for mbarrier phases: such a trace cannot be cut."""
    return bool(np.isin(trace.kind, _PHASES).any())


def iterations_of(trace: CtaTrace, loop: Loop) -> int:
    """Iterations of a loop in the warp that executes most."""
    heads = np.flatnonzero(trace.instruction == loop.first)
    warps = np.searchsorted(trace.warp_start, heads, side="right")
    return int(np.bincount(warps).max()) if len(heads) else 0


def first_iterations(trace: CtaTrace, loop: Loop, iterations: int) -> CtaTrace:
    """The trace with only the first iterations of the loop."""
    inside = (trace.instruction >= loop.first) & (trace.instruction <= loop.last)
    number = np.cumsum(trace.instruction == loop.first)
    before = np.concatenate(([0], number))[trace.warp_start[:-1]]
    warp = np.repeat(np.arange(trace.num_warps), np.diff(trace.warp_start))
    return keep(trace, ~inside | (number - before[warp] <= iterations))


def keep(trace: CtaTrace, entries: NDArray[np.bool_]) -> CtaTrace:
    """The trace with only these entries."""
    counts = np.concatenate(([0], np.cumsum(entries)))
    return replace(
        trace,
        warp_start=counts[trace.warp_start].astype(np.int64),
        instruction=trace.instruction[entries],
        lanes=trace.lanes[entries],
        access=trace.access[entries],
    )


# Cycles of CTAs on an SM, alone and together, as a function of their length.
#
# The length of a CTA is what its loop runs over: K/V rows, or executed instructions. Few lengths
# are simulated; between and beyond them, time is linear (`tests/bench/bench_machine_code.py` prints
# the error against simulating other lengths).


FloatArray = NDArray[np.float64]
Shorter: TypeAlias = tuple[float, CtaTrace]  # a CTA's length and trace
_ROUNDS = 3  # waves of CTAs on an SM that are simulated at every count; further waves repeat
_MIN_SETTLED, _MAX_SETTLED = 2, 32  # waves after those that give the time of a further wave
_MAX_EXACT = 4  # for at most this many resident CTAs, every count is simulated
# Bound on the warp instructions of all lengths together. Lengths beyond it are simulated for one
# wave only; further waves scale as at the length before, except for the starts of CTAs.
_MAX_SIMULATED = 5_000_000
_MIN_SETTLING = 1_500_000  # part of it for the further waves, if these are short
_MAX_MIXED = 400_000  # warp instructions of the queue with CTAs of several lengths
_MIN_MIXED, _MAX_MIXED_ROUNDS = 3, 8  # waves of CTAs in it
_MAX_NEAR_ROUNDS = 16  # waves if CTAs differ little, because they converge slowly
_STEPS = 6  # iterations
_GOLDEN = 0.6180339887


@dataclass(frozen=True)
class CtaTimes:
    """Cycles of CTAs on one SM with `resident` of them at a time.

    `cycles[i][j]` is how long a queue of `counts[j]` CTAs of length `lengths[i]` takes. CTAs of one
    length start and end in waves (rounds); beyond the last count, each further round adds
    `round_cycles[i]`.
    """

    resident: int
    lengths: tuple[float, ...]  # ascending; only one if the length does not vary
    counts: tuple[int, ...]  # ascending; `resident` is one of them
    cycles: tuple[tuple[float, ...], ...]
    round_cycles: tuple[float, ...]  # one for each length
    # For each length, a round of CTAs of several lengths over a round of equal ones. Equal CTAs
    # stay in a fixed offset to each other, which may suit the pipes well or badly.
    mixed_shares: tuple[float, ...]
    # The share of that difference that CTAs of several lengths also show when they start together.
    start_share: float
    cta_spread: float  # relative standard deviation of the time of CTAs of several lengths
    fetch_cycles: float  # added by instruction fetches of the first CTAs
    cta_start_cycles: float  # from a CTA's end to its successor's first instruction

    def of(self, count: int, length: float) -> float:
        """Cycles of `count` CTAs of one length on one SM."""
        return float(self.launch([count], [length], 1)[0])

    def launch(self, ctas: ArrayLike, lengths: ArrayLike, num_sms: int) -> FloatArray:
        """Cycles until the last CTA of each launch ends, for launches whose CTAs all have one
        length.

        Equal CTAs keep all SMs in step, so the numbers of CTAs of two SMs differ by at most one.

        Args:
            ctas: CTAs of each launch, at least 1, `[n]`.
            lengths: length of the CTAs of each launch, `[n]`.

        Returns:
            Cycles, `[n]`.
        """
        per_sm = -(-np.asarray(ctas, np.int64) // num_sms)
        x = np.asarray(lengths, np.float64)
        more = np.maximum(0, -(-(per_sm - self.counts[-1]) // self.resident))
        base = self._queues(x, (per_sm - more * self.resident)[:, np.newaxis])[:, 0]
        result: FloatArray = (
            base + more * self._at(x, self.round_cycles, self.resident, 1) + self.fetch_cycles
        )
        return result

    def table(self, lengths: ArrayLike) -> FloatArray:
        """Cycles of 0, 1, … `resident` CTAs that start together, `[n, resident + 1]`."""
        x = np.asarray(lengths, np.float64)
        return self._queues(x, np.arange(self.resident + 1)[np.newaxis])

    def beside(self, lengths: ArrayLike) -> FloatArray:
        """Cycles of one CTA that runs with 0, 1, … `resident` CTAs of other lengths, which are at
        other points of their code, `[n, resident + 1]`."""
        x, at_once = np.asarray(lengths, np.float64), self.table(lengths)
        shares = np.interp(x, self.lengths, self.mixed_shares)
        full = shares * self._at(x, self.round_cycles, self.resident, 1) / at_once[:, -1]
        others = np.arange(self.resident + 1) - (self.resident > 1)
        share = np.clip(others / max(1, self.resident - 1), 0.0, 1.0)
        result: FloatArray = at_once * (1 + (full - 1)[:, np.newaxis] * share)
        return result

    def shared(self, order: ArrayLike, kinds: ArrayLike, num_sms: int = 1) -> float:
        """Cycles of CTAs of several lengths on all SMs, without the first instruction fetches.

        Args:
            order: for each CTA in order of starting, which of `kinds` it is, `[ctas]`.
            kinds: lengths.

        Raises as `share_sms`.
        """
        return self._shared_each([order], kinds, num_sms)[0]

    def _shared_each(
        self, orders: Sequence[ArrayLike], kinds: ArrayLike, num_sms: int = 1
    ) -> list[float]:
        # The shortest CTA is little more than a prologue; one of length 0 is less than that.
        shortest = [next(x for x in self.lengths if x > 0)]
        start = self.start_share * (self.table(shortest)[0] - self.beside(shortest)[0])
        beside, equal = self.beside(kinds), self.table(kinds)
        return [share_sms(o, beside, equal, start, num_sms, self.cta_spread) for o in orders]

    def _queues(self, lengths: FloatArray, queued: NDArray[np.int64]) -> FloatArray:
        """Cycles of `queued` `[n or 1, m]` CTAs, at most the last of `counts`: `[n, m]`."""
        counts = np.array((0, *self.counts))
        columns = [
            np.maximum(1.0, self._at(lengths, column, count, (count - 1) // self.resident))
            for column, count in zip(zip(*self.cycles, strict=True), self.counts, strict=True)
        ]
        known = np.stack([np.zeros(len(lengths)), *columns], axis=1)
        above = np.clip(np.searchsorted(counts, queued), 1, len(counts) - 1)
        below = above - 1
        share = (queued - counts[below]) / (counts[above] - counts[below])
        row = np.arange(len(lengths))[:, np.newaxis]
        result: FloatArray = known[row, below] * (1 - share) + known[row, above] * share
        return result

    def _at(
        self, lengths: FloatArray, known: Sequence[float], count: int, starts: int
    ) -> FloatArray:
        """Interpolate `known`, the cycles of `count` CTAs of each length, at other lengths.

        Args:
            starts: successive starts that have to wait for the end of another CTA.
        """
        if len(self.lengths) == 1:
            return np.full(len(lengths), known[0])
        x, y = np.array(self.lengths), np.array(known)
        first = (y[1] - y[0]) / (x[1] - x[0])
        result: FloatArray = np.interp(lengths, x, y)
        result += np.minimum(0.0, lengths - x[0]) * first
        if (beyond := np.maximum(0.0, lengths - x[-1])).any():
            result += beyond * self._slope(known, count, starts)
        return result

    def _slope(self, known: Sequence[float], count: int, starts: int) -> float:
        """Slope of `known` beyond the longest length.

        For up to `resident` CTAs it is the slope over the last three quarters of the longest
        length. Longer queues grow in proportion to those, except for the starts of their CTAs.
        """
        x, counts = self.lengths, (0, *self.counts)
        far = min(int(np.searchsorted(x[:-1], x[-1] / 4)), len(x) - 2)
        at_once = min(count, self.resident)
        long, short = (np.interp(at_once, counts, (0.0, *self.cycles[i])) for i in (-1, far))
        grown = 1.0
        if count >= self.resident:
            alike = dict(zip(self.counts, self.cycles[-1], strict=True))
            start = starts * self.cta_start_cycles
            grown = (
                known[-1] - _start_cycles(known[-1], alike, self.resident, count, start)
            ) / long
        return float(grown * (long - short) / (x[-1] - x[far]))


def _start_cycles(
    cycles: float, known: Mapping[int, float], resident: int, count: int, most: float
) -> float:
    """The part of the cycles of `count` CTAs that is due to starts after another CTA's end, which
    does not depend on length: the excess over rounds of CTAs that start together.

    Args:
        known: cycles of 1, … `resident` CTAs that start together.
        most: upper bound: cycles of these starts if nothing overlaps with them.
    """
    rounds, rest = divmod(count, resident)
    counts = (0, *known)
    apart = rounds * known[resident] + float(np.interp(rest, counts, (0.0, *known.values())))
    return min(max(0.0, cycles - apart), most)


def _scaled_except_starts(
    cycles: float, longer: float, known: Mapping[int, float], resident: int, count: int, most: float
) -> float:
    """Scale `cycles` to CTAs that take `longer` times as long, except for their starts.

    Other parameters as in `_start_cycles`.
    """
    start = _start_cycles(cycles, known, resident, count, most)
    return start + longer * (cycles - start)


class _Queue(NamedTuple):
    """A queue of equal CTAs to simulate on one SM."""

    trace: CtaTrace
    # Counts whose cycles are wanted, ascending. Counts beyond the last of `CtaTimes.counts` give
    # the time of a further round.
    counts: tuple[int, ...]


def measure(
    kernel: Kernel,
    fetching: Kernel,
    traces: Sequence[CtaTrace],
    lengths: Sequence[float],
    resident: int,
    most: int | None = None,
    quick: bool = False,
    mixed: bool = False,
    slightly_shorter: Mapping[float, Shorter] | None = None,
    most_simulated: int = _MAX_SIMULATED,
    least_settling: int = _MIN_SETTLING,
) -> CtaTimes:
    """Run the simulations for a `CtaTimes`.

    Args:
        fetching: the same kernel with cold instruction caches.
        traces: trace of a CTA of each length.
        lengths: ascending; of equal ones the last is used.
        most: the most CTAs that one SM gets.
        quick: simulate only one CTA and `resident` CTAs. Between them, cycles are linear, and every
            further round takes as long as the first.
        mixed: whether CTAs of several lengths will run on the same SM.
        slightly_shorter: for some of `lengths`, a slightly shorter CTA, if the CTAs that run on the
            same SM differ by no more than that.
        most_simulated: bound on the warp instructions of all simulations together.
        least_settling: part of it for the further rounds, if these are short.
    """
    full = min(resident, most or resident)
    by_length = dict(zip(lengths, traces, strict=True))
    counts = _counts(full, most, quick)
    settles = not quick and (most is None or most > counts[-1])
    # The rest of the bound goes to further rounds: more for short CTAs, which converge slowly.
    executed = sum(len(trace.instruction) for trace in by_length.values())
    spare = most_simulated - executed * _simulated_ctas(counts, full)
    spare = max(spare, least_settling)
    queues: list[_Queue] = []
    simulated = 0.0
    for done, trace in enumerate(by_length.values()):
        of_round = full * len(trace.instruction)
        share = spare / (len(by_length) - done)
        settled = max(_MIN_SETTLED, min(_MAX_SETTLED, int(share / of_round)))
        spare -= settled * of_round
        wanted = counts
        if settles:
            wanted = (*counts, 3 if full == 1 else (_ROUNDS + settled) * full)
        simulated += len(trace.instruction) * _simulated_ctas(wanted, full)
        if queues and simulated > most_simulated:
            wanted = tuple(n for n in counts if n <= full)
        queues.append(_Queue(trace, wanted))

    def run(queue: _Queue) -> FloatArray:
        return simulate_counts(kernel, queue.trace, queue.counts, resident)

    start_cycles = float(kernel.machine.cta_start_cycles)
    cycles: list[tuple[float, ...]] = []
    rounds: list[float] = []
    for queue, ends in zip(queues, in_parallel(run, queues), strict=True):
        if len(queue.counts) < len(counts) + settles:
            shorter = dict(zip(counts, cycles[-1], strict=True))
            alone = dict(zip(queue.counts, ends.tolist(), strict=True))
            longer = alone[full] / shorter[full]
            extended = [
                _scaled_except_starts(
                    shorter[n], longer, shorter, full, n, (n - 1) // full * start_cycles
                )
                for n in counts
            ]
            cycles.append(tuple(alone.get(n, x) for n, x in zip(counts, extended, strict=True)))
            rounds.append(
                _scaled_except_starts(rounds[-1], longer, shorter, full, full, start_cycles)
            )
            continue
        cycles.append(tuple(ends[: len(counts)].tolist()))
        if settles:
            further = (queue.counts[-1] - counts[-1]) / full
            rounds.append(float(ends[-1] - ends[-2]) / further)
        else:
            rounds.append(cycles[-1][counts.index(full)])
    first = int(min(by_length) == 0)  # a CTA of length 0 does not fetch all code
    with_fetch = simulate_sm(fetching, traces[first : first + 1], [0], resident, stalls=False)
    times = CtaTimes(
        resident=full,
        lengths=tuple(by_length),
        counts=counts,
        cycles=tuple(cycles),
        round_cycles=tuple(rounds),
        mixed_shares=(1.0,) * len(by_length),
        start_share=1.0,
        cta_spread=0.0,
        fetch_cycles=max(0.0, with_fetch.cycles - cycles[first][0]),
        cta_start_cycles=start_cycles,
    )
    if not mixed or len(by_length) == 1 or (most is not None and most == 1):
        return times
    if slightly_shorter:
        return _with_near_shares(kernel, by_length, slightly_shorter, times)
    return _with_shares(kernel, by_length, times)


def _with_near_shares(
    kernel: Kernel,
    by_length: Mapping[float, CtaTrace],
    shorter: Mapping[float, Shorter],
    times: CtaTimes,
) -> CtaTimes:
    """Add the shares for CTAs of which some are slightly shorter.

    Whether these run in step depends on their length; if they start together, they behave like
    equal ones.
    """

    def share_and_errors(length: float) -> tuple[float, FloatArray]:
        shorter_length, trace = shorter[length]
        traces = by_length[length], trace
        executed = times.resident * len(traces[0].instruction)
        rounds = max(_MIN_MIXED, min(_MAX_NEAR_ROUNDS, _MAX_MIXED // executed))
        queue = [int(2 * (i * _GOLDEN % 1)) for i in range(rounds * times.resident)]
        timing = simulate_sm(kernel, traces, queue, times.resident, stalls=False)
        is_amid = (timing.started > 0) & (timing.finished <= timing.started.max())
        of_amid = np.array((length, shorter_length))[np.array(queue)[is_amid]]
        equal = times._at(of_amid, times.round_cycles, times.resident, 1)
        # Includes the wait for a free slot, as a round of equal CTAs does.
        took = (timing.finished - timing.started)[is_amid] + times.cta_start_cycles
        share = float(took.sum() / equal.sum())
        return share, took / (share * equal) - 1

    known, errors = zip(*in_parallel(share_and_errors, list(shorter)), strict=True)
    shares = np.interp(times.lengths, list(shorter), known)
    spread = float(np.std(np.concatenate(errors)))
    return replace(times, mixed_shares=tuple(shares.tolist()), cta_spread=spread)


def _with_shares(kernel: Kernel, by_length: dict[float, CtaTrace], times: CtaTimes) -> CtaTimes:
    """Fit the shares with which `share_sms` agrees with simulated queues of several lengths: a long
    queue, and several of little more than one wave."""
    lengths = list(by_length)  # as long as the bound allows; if they are short, in many rounds

    def allowed_rounds() -> int:
        return 2 * _MAX_MIXED // (times.resident * len(by_length[lengths[-1]].instruction))

    while len(lengths) > 2 and allowed_rounds() < _MAX_MIXED_ROUNDS:
        lengths.pop()
    ctas = max(_MIN_MIXED, min(_MAX_MIXED_ROUNDS, allowed_rounds())) * times.resident
    traces = [by_length[x] for x in lengths]
    # Neighbours differ in length, and no order repeats. Short CTAs are mostly prologue.
    places = [i * _GOLDEN % 1 for i in range(ctas)]
    first_long = next(i for i, x in enumerate(lengths) if x >= lengths[-1] / 4)
    order = [first_long + int((len(lengths) - first_long) * place) for place in places]
    short_ones = [int((len(lengths) + 1) // 2 * place) for place in places]
    starts = [short_ones[i : i + times.resident] for i in range(0, ctas, times.resident)]

    @cache
    def simulated(queue: tuple[int, ...]) -> float:
        return simulate_sm(kernel, traces, queue, times.resident, stalls=False).cycles

    long, short = simulated(tuple(order)), np.array([simulated(tuple(queue)) for queue in starts])

    def shared(share: float) -> FloatArray:
        return np.array(replace(times, start_share=share)._shared_each(starts, lengths))

    for _ in range(_STEPS):
        share = times.mixed_shares[0] * long / times.shared(order, lengths)
        times = replace(times, mixed_shares=(share,) * len(times.lengths))
        without, at_once = shared(0.0).sum(), shared(1.0).sum()
        if at_once > without:
            share = float((short.sum() - without) / (at_once - without))
            times = replace(times, start_share=min(1.0, max(0.0, share)))
    return replace(times, cta_spread=float(np.std(short / shared(times.start_share))))


def counts_of(resident: int) -> tuple[int, ...]:
    """Numbers of CTAs that are simulated starting together; cycles are linear between them."""
    if resident <= _MAX_EXACT:
        return tuple(range(1, resident + 1))
    doubling = [1 << i for i in range(resident.bit_length()) if 1 << i < resident]
    return (*doubling, resident)


def _counts(resident: int, most: int | None, quick: bool) -> tuple[int, ...]:
    """Queue lengths that are simulated: of further rounds the first CTA, one between, the last."""
    if quick:
        return tuple(sorted({1, resident}))
    counts = set(counts_of(resident))
    for before in range(resident, (_ROUNDS if resident > 1 else 1) * resident, resident):
        if resident > _MAX_EXACT:
            counts |= {before + 1, before + (resident + 1) // 2, before + resident}
        else:
            counts |= {before + n for n in range(1, resident + 1)}
    return tuple(sorted(n for n in counts if most is None or n <= most))


def _simulated_ctas(counts: Sequence[int], resident: int) -> float:
    """Cost of `simulate_counts` in CTAs; beyond a round, the end of a queue costs half a round."""
    return counts[-1] + sum(n if n < resident else resident / 2 for n in counts)


def steady_state(kernel: Kernel, trace: CtaTrace, resident: int) -> SmTiming:
    """Timing of one round of resident CTAs: the source of the busy pipes and stalls shown."""
    return simulate_sm(kernel, [trace], [0] * resident, resident)


# Start offsets, in cycles, of an SM's first CTAs, besides 0: shorter and longer than an iteration
# of a loop, but for short CTAs small enough that all of them still overlap.
_STAGGERS = (70, 290, 710)
_MAX_STAGGER_SHARE = 1 / 16  # of a CTA's time: largest offset of the last from the first CTA


def start_spread(kernel: Kernel, trace: CtaTrace, resident: int) -> float:
    """Relative spread of the time of resident CTAs over their start offsets: standard deviation
    over the mean.

    It is computed from how long a CTA stays on the SM, which is inverse to the throughput. CTAs
    that run in step need the same pipe at once, and a difference of a few cycles decides whether
    they stay in step, so no single start offset is representative.
    """
    if resident < 2:
        return 0.0

    def stay_cycles(stagger: int) -> float:
        shifted = staggered(kernel, stagger)
        found = simulate_sm(shifted, [trace], [0] * resident, resident, stalls=False)
        return float((found.finished - found.started).mean())

    in_step = stay_cycles(0)
    stays = np.array([in_step, *in_parallel(stay_cycles, staggers_of(in_step, resident))])
    return float(stays.std() / stays.mean())


def staggers_of(stay_cycles: float, resident: int) -> list[int]:
    """Start offsets, in cycles, of CTAs that start on the same SM, besides 0.

    Args:
        stay_cycles: cycles from a CTA's start to its end.
        resident: CTAs per SM, at least two.
    """
    most = int(stay_cycles * _MAX_STAGGER_SHARE / (resident - 1))
    return sorted({min(cycles, most) for cycles in _STAGGERS})


def staggered(kernel: Kernel, cycles: int) -> Kernel:
    """The kernel with a start offset, in cycles, between the first CTAs of each SM."""
    machine = MachineRow.from_buffer_copy(kernel.machine)
    machine.stagger_cycles = cycles
    return Kernel(kernel.ops, machine)


_MAX_FOLLOWED_IN_GRID = 10_000  # CTAs scheduled one by one; above it, full SMs are assumed


def grid_cycles(times: CtaTimes, lengths: ArrayLike, num_sms: int, repeats: int = 1) -> float:
    """Cycles until the last CTA of a launch ends.

    Args:
        lengths: lengths of the CTAs in order of starting, `[n]`.
        repeats: how many times this sequence is repeated.

    Raises as `CtaTimes.shared`.
    """
    of_ctas = np.asarray(lengths, np.float64)
    kinds, order = np.unique(of_ctas, return_inverse=True)
    if len(kinds) == 1:
        return float(times.launch([len(of_ctas) * repeats], kinds, num_sms)[0])
    beside = times.beside(kinds)
    followed = min(repeats, max(1, _MAX_FOLLOWED_IN_GRID // len(of_ctas)))
    cycles = times.shared(np.tile(order, followed), kinds, num_sms)
    one_more = beside[order, -1].sum() / (times.resident * num_sms)
    return cycles + (repeats - followed) * float(one_more) + times.fetch_cycles
