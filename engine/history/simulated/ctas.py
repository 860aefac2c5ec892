"""What the CTAs of a persistent kernel take: which parts of query tiles, one behind the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.devices.spec import DeviceSpec
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US
from engine.machine_code.timing.cta_times import CtaTimes
from engine.machine_code.timing.dispatch import SlotTimes, grid_cycles
from engine.model.equations import CtaCurve, visited_share
from engine.model.launches import Launches
from engine.model.occupancy import IntArray
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
    slots: SlotTimes | None = None  # of SMs with and without a CTA whose query tile is cut

    @property
    def fetch_cycles(self) -> float:
        """What the first CTAs' code adds."""
        return self.times.fetch_cycles

    def curve(
        self,
        config: Config,
        launches: Launches,
        device: DeviceSpec,
        dram_bytes: FloatArray | None = None,
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
        return CtaCurve(
            cta_us=us * lines[:, 1],
            added_us=us * (lines[:, -1] - lines[:, 1]),
            sm_us=us * cycles,
            spread=self.spread,
            floor_us=LAUNCH_FLOOR_US,
            dram_bytes=dram_bytes,
        )

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
