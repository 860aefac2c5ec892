"""Times of persistent CTAs, from the costs of their start and of each K/V tile.

Short launches of the kernel with one or few CTAs are simulated. The time of a CTA is the sum of its
pieces (query tiles or parts of them), each a linear function of its length. The schedule gives the
pieces of each CTA of another launch, and the last SM to finish determines the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.machine_code.cubin import Entry
from engine.machine_code.disassembly import Program
from engine.machine_code.emulation import CtaTrace, Emulator
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US, SmTiming, kernel_class, spread
from engine.machine_code.timing.cta_times import counts_of
from engine.machine_code.timing.native import Kernel as SmKernel
from engine.machine_code.timing.native import (
    Regime,
    allocated_smem,
    gpu_rates,
    in_parallel,
    simulate_sm,
    sm_kernel,
)
from engine.machine_code.timing.traffic import share_sms
from engine.model.equations import CtaCurve, visited_share
from engine.model.kernel import Kernel, launch_of_pass
from engine.model.launches import CurveTraffic, Launches
from engine.model.occupancy import IntArray
from kernels.variant import Config, Schedule

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
# K/V rows of the longest simulated pieces: of a CTA's first piece, which gives the steady cost of a
# tile, and of its later pieces.
FIRST_ROWS, LATER_ROWS = 4096, 1024
# Query tiles of a CTA that are scheduled one by one; a CTA with more is scaled from this many.
_MAX_PIECES = 48
_STEPS = 4  # iterations for the factor between predicted and simulated time
# Computed points of a curve: the first, where one query tile more for a CTA changes a time by up to
# an eighth, and some beyond, with linear interpolation.
_FIRST_POINTS, _MAX_POINTS = 32, 12


@dataclass(frozen=True, slots=True)
class Pieces:
    """Query tiles, or parts of them that CTAs share: arrays `[n]`, ordered by CTA."""

    cta: IntArray  # ascending
    place: IntArray  # index within the CTA: 0, 1, …
    tiles: IntArray  # K/V tiles of the piece
    masked: IntArray  # of these, tiles that cross the end of the keys or the diagonal
    is_cut: BoolArray  # other CTAs have the query tile's remaining K/V tiles

    @property
    def num_ctas(self) -> int:
        """Return the number of CTAs."""
        return int(self.cta[-1]) + 1


def pieces_of(kernel: Kernel, problem: Problem, ctas: int) -> Pieces:
    """Return the pieces of all CTAs of a launch, from the variant's schedule."""
    work, config = kernel.variant.work, kernel.config
    schedule = work.schedule
    assert schedule is not None
    # CTAs of a cluster take neighbouring query tiles, and visit all keys that any of them sees.
    cluster = _cluster_of(kernel, problem)
    rows = cluster * work.query_rows(problem, config)
    tiles, visible = _query_tiles(problem, rows, config)
    if schedule.shares == "key tiles":
        start = 0
        if schedule.start_tiles is not None:
            start = schedule.start_tiles(problem, config)
        return _key_tiles(problem, tiles, visible, start, ctas)
    pieces = _query_tiles_in_turn(problem, config, schedule, tiles, visible, ctas // cluster)
    return pieces if cluster == 1 else _of_each_cta(pieces, cluster)


def _cluster_of(kernel: Kernel, problem: Problem) -> int:
    """Return the cluster size of the main pass."""
    of_pass = kernel.variant.passes[0].cluster
    return 1 if of_pass is None else prod(of_pass(problem, kernel.config))


def _query_tiles(problem: Problem, query_rows: int, config: Config) -> tuple[IntArray, IntArray]:
    """Return the K/V tiles of each query tile of a head, and how many of them need no mask."""
    first = np.arange(-(-problem.seqlen // query_rows)) * query_rows
    position = first + problem.kv_offset
    end = np.full(len(first), problem.num_keys)
    begin, seen_by_all, all_see = np.zeros_like(end), np.zeros_like(end), end
    if problem.window is not None:
        begin = np.maximum(0, position - problem.window + 1)
        seen_by_all = np.maximum(0, position + query_rows - problem.window)
        end = np.minimum(end, position + query_rows - 1 + problem.window)
        all_see = np.minimum(end, position + problem.window)
    if problem.causal:
        end, all_see = np.minimum(end, position + query_rows), np.minimum(end, position + 1)
    rows = config.get("block_n", 1)
    tiles = -(-end // rows) - begin // rows
    return tiles, np.maximum(0, all_see // rows - -(-seen_by_all // rows))


def _key_tiles(
    problem: Problem, tiles: IntArray, visible: IntArray, start: int, ctas: int
) -> Pieces:
    """Return the pieces of CTAs that share all K/V tiles evenly (stream-K).

    Args:
        start: cost of a query tile before its first K/V tile, in K/V tiles.
    """
    heads = problem.batch * problem.num_heads
    of_head, seen = tiles[::-1], visible[::-1]
    costs = np.tile(of_head + start, heads)
    starts = np.cumsum(costs) - costs
    begins = int(costs.sum()) * np.arange(ctas + 1) // ctas
    cuts = np.union1d(starts, begins)
    first, last = cuts[:-1], cuts[1:]
    cta = np.searchsorted(begins, first, "right") - 1
    tile = np.searchsorted(starts, first, "right") - 1
    begin, end = (np.maximum(0, at - starts[tile] - start) for at in (first, last))
    visits = begin < end  # has K/V tiles, not only the query tile's start
    cta, within, begin, end = cta[visits], (tile % len(tiles))[visits], begin[visits], end[visits]
    masked = end - np.clip(seen[within], begin, end)
    return _ordered(cta, end - begin, masked, end - begin < of_head[within])


def _query_tiles_in_turn(
    problem: Problem,
    config: Config,
    schedule: Schedule,
    tiles: IntArray,
    visible: IntArray,
    ctas: int,
) -> Pieces:
    heads, of_head = problem.batch * problem.num_heads, len(tiles)
    at_once = 1
    if schedule.heads_at_once is not None:
        at_once = schedule.heads_at_once(problem, config)
    turn, place = np.divmod(np.arange(-(-heads * of_head // ctas) * ctas), ctas)
    position = turn * ctas + np.where(turn % 2 == 0, place, ctas - 1 - place)
    there = position < heads * of_head
    cta, position = place[there], position[there]
    section = position // (of_head * at_once)
    in_section = np.minimum(at_once, heads - section * at_once)
    tile = (position - section * of_head * at_once) // in_section
    if problem.causal:
        is_falling = ((heads - 1) // at_once - section) % 2 == 0
        tile = np.where(is_falling, of_head - 1 - tile, tile)
    order = np.argsort(cta, kind="stable")
    tile = tile[order]
    masked = tiles[tile] - visible[tile]
    return _ordered(cta[order], tiles[tile], masked, np.zeros(len(tile), np.bool_))


def _of_each_cta(pieces: Pieces, cluster: int) -> Pieces:
    """Return the pieces of CTAs, given those of their clusters."""
    cta = (pieces.cta * cluster + np.arange(cluster)[:, np.newaxis]).ravel()
    order = np.argsort(cta, kind="stable")
    of = order % len(pieces.cta)
    return _ordered(cta[order], pieces.tiles[of], pieces.masked[of], pieces.is_cut[of])


def _ordered(cta: IntArray, tiles: IntArray, masked: IntArray, is_cut: BoolArray) -> Pieces:
    first = np.searchsorted(cta, cta, "left")
    return Pieces(cta, np.arange(len(cta)) - first, tiles, masked, is_cut)


# Costs of pieces, from simulated short launches.


@dataclass(frozen=True, slots=True)
class Sample:
    """A CTA of a short launch, with its trace and features."""

    trace: CtaTrace
    features: FloatArray  # [costs]


@dataclass(frozen=True, slots=True)
class PersistentCtas:
    """The main pass of one persistent kernel on one GPU."""

    counts: tuple[int, ...]  # numbers of resident CTAs, ascending from 1
    # Costs in cycles, one row per count, columns as in `features_of`: of CTAs that execute the same
    # work at the same time, and of CTAs at different places, where one's start overlaps with
    # another's products.
    costs: tuple[tuple[float, ...], ...]
    mixed: tuple[tuple[float, ...], ...]
    # Share of its work that each of the CTAs has completed when the first ends, if an SM's CTAs
    # start together and execute the same.
    first_work: tuple[float, ...]
    resident: int
    fetch_cycles: float  # instruction fetch of the first CTAs
    cycles_per_us: float
    spread: float  # standard deviation of the logarithm of its error, from the validation
    dram_share: float = 1.0  # time with all data from DRAM divided by the time with data from L2

    def curve(self, kernel: Kernel, launches: Launches, traffic: CurveTraffic) -> CtaCurve:
        """Return the CTA times of launches, which may only differ in their batch."""
        beyond = np.geomspace(1, launches.size, _MAX_POINTS).astype(np.int64) - 1
        some = np.union1d(np.arange(min(launches.size, _FIRST_POINTS)), beyond)
        ctas, query_rows = launches.ctas[0], launches.query_rows
        cycles = [
            _cycles(self, kernel, _problem(launches, i), int(ctas[i]), int(query_rows[i]))
            for i in some.tolist()
        ]
        usual = launches.kv_rows * visited_share(launches)
        shares = np.array(cycles) / usual[some][:, np.newaxis]
        us = usual / self.cycles_per_us
        us = us * (1 + traffic.miss_share * (self.dram_share - 1))
        at, known = launches.batch, launches.batch[some]
        alone, together, all_sms = (us * np.interp(at, known, column) for column in shares.T)
        return CtaCurve(
            cta_us=alone,
            added_us=together - alone,
            sm_us=all_sms,
            spread=self.spread,
            floor_us=LAUNCH_FLOOR_US,
            dram_bytes=traffic.dram_bytes,
        )

    def cycles(
        self, kernel: Kernel, problem: Problem, ctas: int, query_rows: int
    ) -> tuple[float, float, float]:
        """Return the cycles of the longest CTA alone on an SM, of `resident` such CTAs, and of
        the launch of `ctas` CTAs."""
        config, num_sms = kernel.config, kernel.device.num_sms or 1
        tiles = -(-problem.seqlen // query_rows)
        heads = problem.batch * problem.num_heads
        followed = min(heads, max(1, _MAX_PIECES * ctas // tiles))
        thinned = problem
        if followed < heads:
            thinned = replace(problem, batch=followed, num_heads=1, num_heads_kv=None)
        pieces = pieces_of(kernel, thinned, ctas)
        features = features_of(pieces, config)
        in_step, mixed = (
            self._of_ctas(pieces, features, costs) for costs in (self.costs, self.mixed)
        )
        longest = in_step[in_step[:, 0].argmax()]
        whole = longest[0] if ctas <= num_sms else _shared(in_step, mixed, self.first_work, num_sms)
        rows = kernel.variant.work.kv_rows
        scale = rows(problem, config) / rows(thinned, config)
        return scale * longest[0], scale * longest[-1], scale * whole + self.fetch_cycles

    def _of_ctas(
        self, pieces: Pieces, features: FloatArray, costs: tuple[tuple[float, ...], ...]
    ) -> FloatArray:
        """Return the cycles of each CTA beside 0, 1, … other CTAs, `[ctas, resident]`."""
        of_pieces = features @ np.array(costs).T
        sums = [np.bincount(pieces.cta, column) for column in of_pieces.T]
        of_ctas: FloatArray = np.stack(sums, axis=1)
        steps = np.arange(1, self.resident + 1)
        weights = [np.interp(steps, self.counts, row) for row in np.eye(len(self.counts))]
        beside: FloatArray = of_ctas @ np.stack(weights)
        return beside


@lru_cache(maxsize=4096)  # of the batches that a slider draws again
def _cycles(
    of: PersistentCtas, kernel: Kernel, problem: Problem, ctas: int, query_rows: int
) -> tuple[float, float, float]:
    return of.cycles(kernel, problem, ctas, query_rows)


def _problem(launches: Launches, i: int) -> Problem:
    keys, seqlen = int(launches.num_keys[i]), int(launches.seqlen[i])
    return Problem(
        batch=int(launches.batch[i]),
        num_heads=int(launches.num_heads[i]),
        num_heads_kv=int(launches.kv_heads[i]),
        seqlen=seqlen,
        seqlen_kv=None if keys == seqlen else keys,
        head_dim=int(launches.head_dim[i]),
        causal=bool(launches.causal[i]),
        window=int(launches.window[i]) or None,
    )


def features_of(pieces: Pieces, config: Config) -> FloatArray:
    """Return the features of each piece: its multiples of each cost, `[pieces, costs]`.

    The cost of first and of later pieces depends on their K/V tiles: few tiles do not hide the
    copies of Q and O, and two warpgroups may be timed differently before the first mask. Masked
    tiles and shared query tiles add costs; with few tiles, the second piece saves some, as its
    copies start early. Tiles beyond the longest simulated pieces cost as much as those of first
    pieces, because warpgroups may settle into a different timing in short pieces.
    """
    is_first = (pieces.place == 0)[:, np.newaxis]
    is_second = (pieces.place == 1)[:, np.newaxis]
    of_first = _knots(config, FIRST_ROWS, (1, 2, 4))
    of_later = _knots(config, LATER_ROWS, (1, 2, 3, 4, 8))
    first, later = is_first * _hats(pieces.tiles, of_first), _hats(pieces.tiles, of_later)
    last = np.where(pieces.place == 0, of_first[-1], of_later[-1])
    beyond = np.maximum(0, pieces.tiles - last) / (of_first[-1] - of_first[-2])
    first[:, -1] += beyond
    first[:, -2] -= beyond
    return np.concatenate(
        [
            first,
            ~is_first * later,
            is_second * later[:, :2],
            pieces.masked[:, np.newaxis],
            pieces.is_cut[:, np.newaxis],
        ],
        axis=1,
    )


def _knots(config: Config, rows: int, tiles: tuple[int, ...]) -> list[int]:
    """Return the numbers of K/V tiles of simulated pieces, up to `rows` K/V rows."""
    return sorted({*tiles, max(tiles[-1], rows // config.get("block_n", 1))})


def _hats(x: npt.NDArray[np.int64], knots: list[int]) -> FloatArray:
    """Return the weights of knots in linear interpolation at x, `[n, knots]`; constant beyond
    them."""
    return np.stack([np.interp(x, knots, row) for row in np.eye(len(knots))], axis=1)


def simulate_persistent(
    program: Program,
    entry: Entry,
    kernel: Kernel,
    plan: LaunchPlan,
    resident: int,
    regimes: Sequence[Regime],
) -> dict[Regime, PersistentCtas]:
    """Simulate the main pass of a persistent kernel. Raises as `Emulator` and `simulate_sm`."""
    device = kernel.device
    gpu = gpu_rates(device)
    known = _samples(program, entry, kernel, plan.problem)
    smem_bytes = program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes
    taken = resident * allocated_smem(device, smem_bytes)

    def of_regime(regime: Regime) -> PersistentCtas:
        # If few SMs are busy, each has at most one CTA.
        held = 1 if regime == "alone" else resident
        sm, fetching = (
            sm_kernel(program, gpu, regime, taken, fetches_code) for fetches_code in (False, True)
        )
        counts = counts_of(held)
        features = np.stack([sample.features for sample in known])
        in_step_timings = in_parallel(
            lambda sample: [_in_step(sm, sample, count, held) for count in counts], known
        )
        cycles = np.array([[timing.cycles for timing in of] for of in in_step_timings])
        in_step = tuple(_costs(features, column) for column in cycles.T)
        mixed = [in_step[0]]
        for at, count in enumerate(counts[1:], start=2):
            upto = np.stack([np.interp(range(1, count + 1), counts[:at], c[:at]) for c in cycles])
            mixed.append(_costs(features, _mixed_cycles(sm, known, upto, count, held)))
        fetch_cycles = _in_step(fetching, known[0], 1, held).cycles - float(cycles[0, 0])
        longest = int(cycles[:, -1].argmax())
        from_dram = sm_kernel(program, gpu, "streaming", taken, fetches_code=False)
        streamed = _in_step(from_dram, known[longest], counts[-1], held).cycles
        return PersistentCtas(
            counts=counts,
            costs=in_step,
            mixed=tuple(mixed),
            first_work=_first_work([of[-1] for of in in_step_timings], counts, cycles),
            resident=held,
            fetch_cycles=max(0.0, fetch_cycles),
            cycles_per_us=gpu.cycles_per_us,
            spread=spread(gpu.constants.arch, kernel_class(program, known[longest].trace)),
            dram_share=max(1.0, streamed / float(cycles[longest, -1])),
        )

    return dict(zip(regimes, in_parallel(of_regime, regimes), strict=True))


def _samples(program: Program, entry: Entry, kernel: Kernel, like: Problem) -> list[Sample]:
    """Return CTAs of short launches, from which all costs of problems like `like` can be
    determined."""
    variant, config, cluster = kernel.variant, kernel.config, _cluster_of(kernel, like)
    wanted: list[tuple[Emulator, list[int]]] = []
    taken: list[FloatArray] = []
    for problem, clusters, chosen in _short_launches(kernel, like):
        short, ctas = make_plan(variant, problem, config), clusters * cluster
        launch = replace(launch_of_pass(short, 0), grid=(ctas, 1, 1))
        pieces = pieces_of(kernel, problem, ctas)
        features = features_of(pieces, config)
        of_launch = [n * cluster for n in chosen]
        wanted.append((Emulator(program, entry, launch), of_launch))
        taken += [features[pieces.cta == cta].sum(axis=0) for cta in of_launch]

    def emulated(launch: tuple[Emulator, list[int]]) -> list[CtaTrace]:
        emulator, ctas = launch
        return [emulator.trace((cta, 0, 0))[0] for cta in ctas]

    traces = [trace for of_launch in in_parallel(emulated, wanted) for trace in of_launch]
    return [Sample(trace, features) for trace, features in zip(traces, taken, strict=True)]


def _short_launches(
    kernel: Kernel, problem: Problem
) -> Iterator[tuple[Problem, int, tuple[int, ...]]]:
    """Yield (problem, clusters, index) with pieces of all lengths, first and later, whole and
    shared."""
    work, config = kernel.variant.work, kernel.config
    rows, keys = work.query_rows(problem, config), config.get("block_n", 1)
    rows *= _cluster_of(kernel, problem)
    schedule = work.schedule
    cuts = schedule is not None and schedule.shares == "key tiles"

    def short(heads: int, seqlen: int, num_keys: int) -> Problem:
        kv = None if num_keys == seqlen else num_keys
        one = replace(problem, batch=1, num_heads=heads, num_heads_kv=None, seqlens=None)
        return replace(one, seqlen=seqlen, seqlen_kv=kv)

    first = _knots(config, FIRST_ROWS, (1, 2, 4))
    later = _knots(config, LATER_ROWS, (3, 4, 8))
    long = [FIRST_ROWS // 2 // keys, FIRST_ROWS // keys]
    if not problem.causal:
        for tiles in first:
            yield short(1, rows, tiles * keys), 1, (0,)
        for heads, tiles in ((2, 1), (6, 1), (2, 2), (4, 2), *((3, n) for n in [*later, *long])):
            yield short(heads, rows, tiles * keys), 1, (0,)
        yield short(4, rows, 3 * keys - keys // 2), 1, (0,)
        if cuts:
            yield short(7, rows, 4 * keys), 4, (1, 2, 3)
        return
    for tiles in first:
        yield short(1, tiles * keys, tiles * keys), -(-tiles * keys // rows), (0,)
    several = [(2, 1), (4, 1), (4, 2), (1, 3), (2, 4), (1, 6), (1, 8), *((1, n) for n in long)]
    for heads, tiles in several:
        yield short(heads, tiles * keys, tiles * keys), 1, (0,)
    if cuts:
        yield short(5, rows, rows), 3, (0, 1, 2)
        yield short(3, 2 * rows, 2 * rows), 4, (1, 2)
    # Four pieces each, of several lengths.
    for heads, seqlen in ((4, LATER_ROWS), (2, FIRST_ROWS)):
        ctas = max(1, -(-seqlen // rows) * heads // 4)
        yield short(heads, seqlen, seqlen), ctas, (0, ctas - 1)


def _costs(features: FloatArray, cycles: FloatArray) -> tuple[float, ...]:
    """Fit the costs in cycles to CTAs' cycles and features."""
    # Relative errors: short and long launches have the same weight.
    costs = np.linalg.lstsq(features / cycles[:, np.newaxis], np.ones(len(cycles)))[0]
    return tuple(costs.tolist())


def _mixed_cycles(
    kernel: SmKernel, samples: list[Sample], beside: FloatArray, count: int, resident: int
) -> FloatArray:
    """Return the cycles of each sample beside others of about its length, `[samples]`.

    Args:
        beside: cycles of each beside 0, 1, … CTAs in step, `[samples, count]`.
    """
    order = np.argsort(beside[:, 0])
    groups = [order[at : at + count] for at in range(len(order) - count + 1)]

    def simulated(group: IntArray) -> float:
        traces = [samples[i].trace for i in group]
        return simulate_sm(kernel, traces, range(count), resident, stalls=False).cycles

    factors: list[list[float]] = [[] for _ in samples]
    for group, cycles in zip(groups, in_parallel(simulated, groups), strict=True):
        factor = 1.0
        for _ in range(_STEPS):  # factor applied to the other CTAs
            scaled = beside[group] * np.array([1.0, *[factor] * (count - 1)])
            factor *= cycles / _shared(scaled, scaled, (1.0,) * count, 1)
        for i in group:
            factors[i].append(factor)
    mixed: FloatArray = beside[:, -1] * np.array([np.mean(f) for f in factors])
    return mixed


def _first_work(
    timings: Sequence[SmTiming], counts: tuple[int, ...], cycles: FloatArray
) -> tuple[float, ...]:
    """Return `PersistentCtas.first_work` (the share of work done when the first CTA ends), averaged
    over the samples.

    Args:
        timings: timings of as many CTAs of each sample in step as an SM holds.
        cycles: cycles of each sample's CTAs in step, `[samples, counts]`.
    """
    held = counts[-1]
    work = []
    for timing, of_sample in zip(timings, cycles, strict=True):
        ends = np.sort(timing.finished)
        ends[-1] = timing.cycles
        left = np.interp(np.arange(held, 0, -1), counts, of_sample)  # CTAs running until each end
        work.append(np.cumsum(np.diff(ends, prepend=0.0) / left))
    return tuple(np.mean(work, axis=0).tolist())


def _in_step(kernel: SmKernel, sample: Sample, count: int, resident: int) -> SmTiming:
    """Simulate `count` CTAs of a sample that start together."""
    return simulate_sm(kernel, [sample.trace], [0] * count, resident, stalls=False)


def _shared(
    in_step: FloatArray, mixed: FloatArray, first_work: Sequence[float], num_sms: int
) -> float:
    """Return the cycles until the last CTA has ended, if each SM takes the next CTA as one ends.

    Args:
        in_step: cycles of each CTA beside others that execute the same, `[ctas, resident]`.
        mixed: the same beside any others.
        first_work: as `share_sms`.
    """
    both = np.hstack([mixed, in_step])
    rows, kinds = np.unique(both, axis=0, return_inverse=True)
    beside, equal = (np.pad(part, ((0, 0), (1, 0))) for part in np.hsplit(rows, 2))
    start = np.zeros(beside.shape[1])
    return share_sms(kinds, beside, equal, start, num_sms, first_work=first_work)
