"""The CTAs of one kernel on one GPU: their time over the K/V rows that they visit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.devices.spec import DeviceSpec
from engine.model.equations import CtaCurve, visited_share
from engine.model.launches import Launches
from engine.model.occupancy import IntArray
from engine.sass.timing.constants import LAUNCH_FLOOR_US
from engine.sass.timing.cta_times import CtaTimes
from engine.sass.timing.dispatch import SlotTimes
from engine.sass.timing.grid import grid_cycles
from kernels.variant import Config

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
        longest = np.where(slices > 0, launches.kv_rows, rows)
        lines = self.times.table(longest)
        cycles = self.times.launch(launches.useful_ctas, longest, num_sms)
        several = launches.causal | (config.get("num_splits", 1) > 1)
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

    def _slice(self, config: Config, launches: Launches, i: int) -> FloatArray:
        """K/V rows of the CTAs of one head, in the order in which they start."""
        keys, chunk = int(launches.num_keys[i]), int(launches.kv_rows[i])
        query_rows, step = int(launches.query_rows[i]), config.get("block_n", 1)
        tiles = -(-int(launches.seqlen[i]) // query_rows)
        ends = np.full(tiles, keys)
        if launches.causal[i]:  # query tiles see the keys up to their own rows
            ends = np.minimum(keys, np.arange(1, tiles + 1) * query_rows)
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


def _slices(config: Config, launches: Launches) -> IntArray:
    """Heads of all batches, where each has a CTA for each split of each query tile; 0 elsewhere."""
    heads = launches.batch * launches.num_heads
    tiles = -(-launches.seqlen // launches.query_rows)
    has_each = heads * tiles * config.get("num_splits", 1) == launches.ctas[0]
    return np.where(has_each, heads, 0)
