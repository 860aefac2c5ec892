"""Which CTAs of a kernel are simulated, and what other CTAs of it take by their times.

One CTA is traced for each of a few lengths; the CTAs of a launch take the time of their length. Of
a persistent kernel, the pieces of query tiles that each CTA takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.errors import InvalidProblem
from engine.devices.spec import DeviceSpec
from engine.machine_code.cubin import Entry
from engine.machine_code.disassembly import Program
from engine.machine_code.emulation import EXECUTED, CtaTrace, Emulator
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US
from engine.machine_code.timing.cta_times import CtaTimes, Shorter, grid_cycles
from engine.machine_code.timing.simulate import SlotTimes
from engine.model.equations import CtaCurve, visited_share
from engine.model.launches import Launches
from engine.model.occupancy import IntArray
from engine.plan import LaunchPlan, launch_of_pass, make_plan
from engine.problem import Problem
from kernels.variant import Config, Schedule, Variant

BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Query tiles and, where CTAs cut them, parts of such: arrays `[n]`, CTA after CTA."""

    cta: IntArray  # ascending
    place: IntArray  # among its CTA's pieces: 0, 1, …
    tiles: IntArray  # K/V tiles that it visits
    masked: IntArray  # those of them that cross the end of the keys or the diagonal
    is_cut: BoolArray  # other CTAs visit the rest of the query tile's K/V tiles

    @property
    def num_ctas(self) -> int:
        return int(self.cta[-1]) + 1


def pieces_of(variant: Variant, problem: Problem, config: Config, ctas: int) -> Pieces:
    """The pieces of all CTAs of a launch, by the schedule that the variant describes."""
    schedule = variant.work.schedule
    assert schedule is not None
    tiles, visible = _query_tiles(problem, variant.work.query_rows(problem, config), config)
    if schedule.shares == "key tiles":
        start = 0
        if schedule.start_tiles is not None:
            start = schedule.start_tiles(problem, config)
        return _key_tiles(problem, tiles, visible, start, ctas)
    return _query_tiles_in_turn(problem, config, schedule, tiles, visible, ctas)


def _query_tiles(problem: Problem, query_rows: int, config: Config) -> tuple[IntArray, IntArray]:
    """K/V tiles of each query tile of a head, and how many of them need no mask."""
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
    """The pieces of CTAs that share all K/V tiles evenly (stream-K).

    Args:
        start: what a query tile costs before its first K/V tile, in K/V tiles.
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
    visits = begin < end  # some key tiles, not only what comes before them
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


def _ordered(cta: IntArray, tiles: IntArray, masked: IntArray, is_cut: BoolArray) -> Pieces:
    first = np.searchsorted(cta, cta, "left")
    return Pieces(cta, np.arange(len(cta)) - first, tiles, masked, is_cut)


# The CTAs of one kernel on one GPU: their time over the K/V rows that they visit.


FloatArray: TypeAlias = npt.NDArray[np.float64]
_MOST_MIXED = 8  # points of a curve at which CTAs are followed one by one
_MOST_DISPATCHED = 4_000  # CTAs of a launch beyond which who takes the last ones matters little


@dataclass(frozen=True, slots=True)
class CurveTraffic:
    """What n launches bring from DRAM, by the order of their CTAs."""

    dram_bytes: FloatArray | None  # [n]; None: the order is not known
    miss_share: FloatArray  # [n] as `Traffic.miss_share`


@dataclass(frozen=True, slots=True)
class SimulatedCtas:
    """The main pass of one kernel on one GPU."""

    times: CtaTimes  # lengths are K/V rows
    cycles_per_us: float
    spread: float  # standard deviation of the logarithm of its error, from the validation
    longest_first: bool  # of a causal launch's query tiles
    has_even_splits: bool = False  # of K/V: neighbours that differ by a tile at most
    # Keys that a last K/V tile lacks, ascending, and what that adds to one CTA and to as many as an
    # SM holds.
    cut_keys: tuple[int, ...] = ()
    cut_cycles: tuple[tuple[float, float], ...] = ()
    # (K/V rows, what one CTA takes more and as many as an SM holds) where all comes from DRAM.
    dram_cycles: tuple[tuple[float, float, float], ...] = ()
    slots: SlotTimes | None = None  # of SMs with and without a CTA whose query tile is cut

    @property
    def fetch_cycles(self) -> float:
        """What fetching the code adds to an SM's first CTAs."""
        return self.times.fetch_cycles

    def curve(
        self,
        config: Config,
        launches: Launches,
        device: DeviceSpec,
        traffic: CurveTraffic,
    ) -> CtaCurve:
        """For launches of the same kernel."""
        us, num_sms = 1 / self.cycles_per_us, device.num_sms or 1
        rows = launches.kv_rows * visited_share(launches)
        slices = _slices(config, launches)
        own = launches.has_own_lengths
        longest = np.where(own | (slices > 0), launches.kv_rows, rows)
        lines = self.times.table(longest)
        cycles = self.times.launch(launches.useful_ctas, longest, num_sms)
        slices = np.where(own, 0, slices)
        several = own | launches.causal | (launches.window > 0) | (config.get("num_splits", 1) > 1)
        absent = np.where(several, 0, launches.kv_rows - launches.num_keys)
        lines = lines + self.cut(np.arange(self.times.resident + 1), absent[:, np.newaxis])
        cycles += self.cut(-(-launches.useful_ctas // num_sms), absent)
        if self.slots is not None:
            ctas, is_cut = launches.useful_ctas, launches.seqlen % launches.query_rows > 0
            few = (ctas > self.times.resident * num_sms) & (ctas <= _MOST_DISPATCHED)
            of_some = np.flatnonzero(~several & is_cut & few & (slices > 0))
            self._follow(
                cycles, launches, of_some, lambda i: self._dispatched(launches, i, num_sms)
            )
        self._follow(
            cycles,
            launches,
            np.flatnonzero(several & (slices > 0)),
            lambda i: grid_cycles(
                self.times, self._slice(config, launches, i), num_sms, int(slices[i])
            ),
        )
        for i in np.flatnonzero(own).tolist():
            cycles[i] = self._sequences(config, launches.of_each[i], num_sms)
        if self.dram_cycles and traffic.miss_share.any():
            alone, together = self._from_dram(longest)
            more = np.linspace(alone, together, self.times.resident, axis=1)
            of_round = self._from_dram(rows)[1] / self.times.table(rows)[:, -1]
            lines[:, 1:] += traffic.miss_share[:, np.newaxis] * more
            cycles = cycles * (1 + traffic.miss_share * of_round)
        return CtaCurve(
            cta_us=us * lines[:, 1],
            added_us=us * (lines[:, -1] - lines[:, 1]),
            sm_us=us * cycles,
            spread=self.spread,
            floor_us=LAUNCH_FLOOR_US,
            dram_bytes=traffic.dram_bytes,
        )

    def _from_dram(self, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Cycles that reading from DRAM adds to one CTA of so many rows, and to as many as an SM
        holds: `[n]` each."""
        lengths, *added = (np.array(column) for column in zip(*self.dram_cycles, strict=True))
        share = (rows - lengths[0]) / max(1.0, lengths[-1] - lengths[0])
        one, full = (np.maximum(0.0, a[0] + share * (a[-1] - a[0])) for a in added)
        return one, full

    @staticmethod
    def _follow(
        cycles: FloatArray, launches: Launches, which: IntArray, exact: Callable[[int], float]
    ) -> None:
        """Put `exact` cycles in, at some batches of a curve; straight in between, as shares of what
        equal CTAs would take."""
        if len(which) == 0:
            return
        last = len(which) - 1
        some = which[np.unique(np.geomspace(1, last + 1, _MOST_MIXED).astype(np.int64) - 1)]
        shares = np.array([exact(i) for i in some.tolist()]) / cycles[some]
        cycles[which] *= np.interp(launches.batch[which], launches.batch[some], shares)

    def _dispatched(self, launches: Launches, i: int, num_sms: int) -> float:
        """Cycles of a launch whose last query tiles are cut."""
        assert self.slots is not None
        ctas, rows = int(launches.useful_ctas[i]), float(launches.kv_rows[i])
        tiles = -(-int(launches.seqlen[i]) // int(launches.query_rows[i]))
        queued = np.arange(1, ctas // num_sms + 3 * self.times.resident + 1)
        ends = self.times.launch(queued, np.full(len(queued), rows), 1)
        ends += self.cut(queued, launches.kv_rows[i : i + 1] - launches.num_keys[i : i + 1])
        is_cut = np.arange(ctas) % tiles == tiles - 1
        rest = int(launches.seqlen[i] % launches.query_rows[i])
        return self.slots.launch(rest, is_cut, np.concatenate([[0.0], ends]), num_sms)

    def cut(self, queued: IntArray, absent: IntArray) -> FloatArray:
        """Cycles that last tiles without some of their keys add to queues of equal CTAs on one SM.

        Args:
            queued: CTAs on that SM.
            absent: keys that are lacking; none where the last tile is whole. Both broadcast.
        """
        if not self.cut_keys:
            return np.zeros(np.broadcast_shapes(queued.shape, absent.shape))
        ones, fulls = zip(*self.cut_cycles, strict=True)
        one, full = (np.interp(absent, self.cut_keys, added) for added in (ones, fulls))
        resident = self.times.resident
        rounds, rest = np.divmod(queued, resident)
        share = (rest - 1) / max(1, resident - 1)
        of_rest = np.where(rest > 0, one + share * (full - one), 0.0)
        result: FloatArray = np.where(absent > 0, rounds * full + of_rest, 0.0)
        return result

    def _sequences(self, config: Config, each: Launches, num_sms: int) -> float:
        """Cycles of sequences of different lengths, whose CTAs start one sequence after the other.

        CTAs behind a sequence's end leave at once, and are taken to cost nothing.
        """
        found: dict[tuple[int, int], FloatArray] = {}
        of_all = []
        for i, size in enumerate(zip(each.num_keys.tolist(), each.seqlen.tolist(), strict=True)):
            if size not in found:
                heads, group = _heads(config, each, i)
                of_head = self._slice(config, each, i, group) if heads else each.kv_rows[i : i + 1]
                repeats = heads or int(each.useful_ctas[i])
                found[size] = np.tile(of_head.astype(np.float64), repeats)
            of_all.append(found[size])
        return grid_cycles(self.times, np.concatenate(of_all), num_sms)

    def _slice(self, config: Config, launches: Launches, i: int, group: int = 1) -> FloatArray:
        """K/V rows of the CTAs of one head, in the order in which they start.

        Args:
            group: query heads whose rows are packed beside each other in a tile.
        """
        keys, chunk = int(launches.num_keys[i]), int(launches.kv_rows[i])
        query_rows, step = int(launches.query_rows[i]), config.get("block_n", 1)
        tiles = -(-int(launches.seqlen[i]) * group // query_rows)
        ends = np.full(tiles, keys)
        # Query tiles see the keys up to their own rows. A window does not show here: the CTAs
        # that were followed have it, and their times are by the keys up to their ends.
        if launches.causal[i] or launches.window[i]:
            reach = 0 if launches.causal[i] else int(launches.window[i]) - 1
            rows = -(-np.arange(1, tiles + 1) * query_rows // group)
            own = keys - int(launches.seqlen[i]) + rows
            ends = np.minimum(keys, own + reach)
        ends, splits = -(-ends // step), config.get("num_splits", 1)
        if self.longest_first:
            ends = ends[::-1]
        if self.has_even_splits:
            # Those without a tile begin and end as the others.
            visited = step * np.diff(ends[:, np.newaxis] * np.arange(splits + 1) // splits)
            return visited.reshape(-1).astype(np.float64)
        begins = chunk * np.arange(splits)[:, np.newaxis]
        visited = np.clip(step * ends - begins, 0, chunk)
        return visited[visited > 0].astype(np.float64)


def _heads(config: Config, launches: Launches, i: int) -> tuple[int, int]:
    """(times that a launch repeats the CTAs of a head, query heads packed in a tile); (0, 1) where
    the grid is another."""
    batch, heads, kv_heads = (
        int(x[i]) for x in (launches.batch, launches.num_heads, launches.kv_heads)
    )
    rows, splits = int(launches.query_rows[i]), config.get("num_splits", 1)
    for repeats, group in ((batch * heads, 1), (batch * kv_heads, heads // kv_heads)):
        tiles = -(-int(launches.seqlen[i]) * group // rows)
        if repeats * tiles * splits == int(launches.ctas[0, i]):
            return repeats, group
    return 0, 1


def _slices(config: Config, launches: Launches) -> IntArray:
    """Heads of all batches, where each has a CTA for each split of each query tile; 0 elsewhere."""
    heads = launches.batch * launches.num_heads
    tiles = -(-launches.seqlen // launches.query_rows)
    has_each = heads * tiles * config.get("num_splits", 1) == launches.ctas[0]
    return np.where(has_each, heads, 0)


# The CTA of a launch that executes most.


def heaviest_cta(emulator: Emulator, has_middle: bool = False) -> CtaTrace:
    """The trace of the CTA that executes most, among the corners of the grid.

    Args:
        has_middle: also look halfway between the corners: with a window to both sides, CTAs there
            see most keys.
    """
    trace, totals = emulator.trace()
    # Along an axis that no branch depends on, every CTA executes the same.
    steered = zip(emulator.launch.grid, totals.control_axes, strict=True)
    places = [
        sorted({0, n - 1, n // 2 if has_middle else 0}) if steers else [0] for n, steers in steered
    ]

    def executed(cta: tuple[int, int, int]) -> int:
        here = emulator.totals(cta) if any(cta) else totals
        return int(here.values[:, EXECUTED].sum())

    ctas = [(x, y, z) for x, y, z in product(*places)]
    heaviest = max(ctas, key=executed)
    return emulator.trace(heaviest)[0] if any(heaviest) else trace


# The short problems whose CTAs are simulated in place of a launch's own, and their traces.


# K/V rows of the simulated CTAs. How far CTAs of an SM overlap varies from tile to tile and settles
# after some of them, which long CTAs show, as far as they are quick to simulate. Short ones show
# what it costs to fill the pipeline.
ROWS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048)
_MOST_INSTRUCTIONS = 120_000  # of the longest CTA, unless it is one of the first three
# K/V rows of the CTAs that show what a partial last tile adds, which varies with their length where
# CTAs share an SM. The longer ones are taken only where they are quick to simulate.
_CUT_ROWS = (256, 512)
_MOST_CUT_INSTRUCTIONS = 25_000
# Of all CTAs together that are simulated for one sample of a partial query tile.
_MOST_SAMPLED = 700_000
_NEAR_ROWS = 1024  # of the longest CTAs beside which slightly shorter ones are simulated
_MOST_TURNS = 4  # of a CTA's warps; CTAs that end at a turn's first and last tile are simulated


def plans_of(
    variant: Variant, problem: Problem, config: Config, rows: Sequence[int] = ROWS
) -> tuple[LaunchPlan, ...]:
    """A plan for each of these numbers of K/V rows that a CTA is to visit, ascending.

    The problem's own plan alone where a CTA's number of rows is fixed.
    """
    plans = {}
    with suppress(InvalidProblem):  # longer ones than the kernel takes
        for least in rows:
            plan = _plan(variant, problem, config, least)
            plans[variant.work.kv_rows(plan.problem, config)] = plan
    return tuple(plans.values()) if len(plans) > 1 else (make_plan(variant, problem, config),)


def _plan(variant: Variant, problem: Problem, config: Config, rows: int) -> LaunchPlan:
    """A plan whose CTAs visit so many K/V rows, rounded up to whole tiles."""

    def short(rows: int) -> Problem:
        return problem.with_keys(rows * config.get("num_splits", 1))

    return make_plan(variant, short(variant.work.kv_rows(short(rows), config)), config)


def has_several_lengths(problem: Problem) -> bool:
    """Whether a launch's CTAs visit different numbers of keys, splits aside."""
    masked = problem.causal or problem.window is not None
    return masked or problem.seqlens is not None


def rows_in_turn(config: Config) -> tuple[int, ...]:
    """K/V rows of CTAs whose warps take tiles in turn: a turn's first tile takes about as long as
    all of it."""
    step = config.get("block_n", 1)
    turn = step * config.get("num_warps", 1)
    ends = [n * turn for n in range(1, _MOST_TURNS + 1)]
    rows = {step, 2 * step, *ends, *(end + step for end in ends)}
    return tuple(sorted(rows | {x for x in ROWS if x > max(rows)}))


def longest_ctas(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan, has_even_splits: bool
) -> dict[float, CtaTrace]:
    """{K/V rows that it visits, ascending: a CTA's trace}, of that corner of the grid that executes
    most (a causal kernel's last tile)."""
    problem, config = plan.problem, plan.config
    traces: dict[float, CtaTrace] = {}
    plans = plans_of(variant, problem, config, rows_in_turn(config) if has_even_splits else ROWS)
    if has_even_splits:  # of fewer tiles than there are splits the first ones take none
        one_tile = make_plan(variant, problem.with_keys(config.get("block_n", 1)), config)
        traces[0.0] = Emulator(program, entry, launch_of_pass(one_tile, 0)).trace()[0]
    for short in plans:
        rows = float(variant.work.kv_rows(short.problem, config))
        if len(traces) > 2:
            before, trace = list(traces.items())[-1]
            if len(trace.instruction) * rows > _MOST_INSTRUCTIONS * before:
                break
        emulator = Emulator(program, entry, launch_of_pass(short, 0))
        traces[rows] = heaviest_cta(emulator, problem.window is not None and not problem.causal)
    return traces


def cut_ctas(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan, lengths: Sequence[float]
) -> dict[int, dict[float, CtaTrace]]:
    """{keys that its last tile lacks, ascending: {K/V rows: trace}} of CTAs of some of the lengths.

    Their query tiles are whole. One key is lacking, or all but one: absent rows are not loaded.
    Empty where tiles are never cut or CTAs are of several lengths: causal ones, splits of keys.
    """
    problem, config = plan.problem, plan.config
    if has_several_lengths(problem) or config.get("num_splits", 1) > 1 or len(lengths) == 1:
        return {}
    step = config.get("block_n", 1)
    of_some = [int(x) for x in lengths if x in _CUT_ROWS] or [int(lengths[1])]
    found: dict[int, dict[float, CtaTrace]] = {}
    for absent, rows in product(sorted({1, step - 1} - {0}), of_some):
        keys = rows - absent
        cut = problem.with_keys(keys)
        if keys <= 0 or variant.work.kv_rows(cut, config) != rows:
            continue
        with suppress(InvalidProblem):  # it takes whole tiles only
            launch = launch_of_pass(make_plan(variant, cut, config), 0)
            trace = Emulator(program, entry, launch).trace()[0]
            of_rows = found.setdefault(absent, {})
            if not of_rows or len(trace.instruction) <= _MOST_CUT_INSTRUCTIONS:
                of_rows[float(rows)] = trace
    return found


def cut_query_tiles(
    program: Program,
    entry: Entry,
    variant: Variant,
    plan: LaunchPlan,
    lengths: Sequence[float],
    resident: int,
) -> dict[int, tuple[CtaTrace, CtaTrace]]:
    """{rows of the cut one: CTAs of a whole query tile and of a cut one of the same launch}.

    Those have one row, half of them and seven eighths. Empty where an SM holds one CTA only, or
    where CTAs are of several lengths: causal ones, splits of keys.
    """
    problem, config = plan.problem, plan.config
    tile = variant.work.query_rows(problem, config)
    few = has_several_lengths(problem) or config.get("num_splits", 1) > 1 or len(lengths) == 1
    if few or resident == 1 or tile == 1:
        return {}
    found: dict[int, tuple[CtaTrace, CtaTrace]] = {}
    wanted = sorted({1, tile // 2, tile - tile // 8} - {tile})
    for rows in sorted((int(x) for x in lengths if x <= _CUT_ROWS[-1]), reverse=True):
        left = wanted[len(found)]
        if problem.seqlen_kv is None:
            short = replace(problem, batch=1, seqlen=max(rows, 2 * tile) - tile + left)
        else:
            short = replace(problem, batch=1, seqlen=tile + left, seqlen_kv=rows)
        with suppress(InvalidProblem):  # it takes whole tiles only
            launch = launch_of_pass(make_plan(variant, short, config), 0)
            emulator = Emulator(program, entry, launch)
            whole = emulator.trace()[0]
            queues = 2 * resident * (1 + min(4, resident))
            if len(whole.instruction) * queues > _MOST_SAMPLED:
                continue
            found[left] = whole, emulator.trace((launch.grid[0] - 1, 0, 0))[0]
        if len(found) == len(wanted):
            break
    return found


def shorter_ctas(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan, lengths: Sequence[float]
) -> dict[float, Shorter]:
    """The CTA of even splits that is one K/V tile shorter than the others of its launch.

    Returns:
        {K/V rows of the others: (its K/V rows, its trace)}, for some of `lengths`.
    """
    problem, config = plan.problem, plan.config
    step = config.get("block_n", 1)
    traces: dict[float, Shorter] = {}
    for rows in lengths:
        if not 0 < rows <= _NEAR_ROWS:
            continue
        short = problem.with_keys(int(rows) * config["num_splits"] - step)
        with suppress(InvalidProblem):  # it takes whole tiles only
            launch = launch_of_pass(make_plan(variant, short, config), 0)
            _, y, z = launch.grid  # the last query tile: with a causal mask it sees all keys
            last = z - 1 if problem.seqlens is None else 0  # the longest sequence is the first
            trace = Emulator(program, entry, launch).trace((0, y - 1, last))[0]
            traces[rows] = (rows - step, trace)
    return traces


def has_even_splits(program: Program, entry: Entry, variant: Variant, plan: LaunchPlan) -> bool:
    """Whether splits of K/V differ by a tile at most; else all but the last ones are equally long.

    Tried on one K/V tile more than there are splits: where the first splits take two tiles each,
    nothing is left for the last.
    """
    splits = plan.config.get("num_splits", 1)
    if splits == 1:
        return False
    keys = (splits + 1) * plan.config.get("block_n", 1)
    short = replace(plan.problem.with_keys(keys), causal=False)
    emulator = Emulator(program, entry, launch_of_pass(make_plan(variant, short, plan.config), 0))
    x, y, z = emulator.launch.grid
    executed = [
        int(emulator.totals(cta).values[:, EXECUTED].sum())
        for cta in ((0, 0, 0), (x - 1, y - 1, z - 1))
    ]
    return 2 * executed[1] > executed[0]
