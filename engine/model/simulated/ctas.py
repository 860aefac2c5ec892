"""The CTAs of one kernel on one GPU: their time over the K/V rows that they visit."""

from __future__ import annotations

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
from engine.sass.timing.grid import grid_cycles
from kernels.variant import Config

FloatArray: TypeAlias = npt.NDArray[np.float64]
_MOST_MIXED = 8  # points of a curve at which CTAs of several lengths are followed one by one


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
        mixed = np.flatnonzero(several & (slices > 0))
        if len(mixed):
            # Straight between some batches of a curve, as shares of what equal CTAs would take.
            last = len(mixed) - 1
            some = mixed[np.unique(np.geomspace(1, last + 1, _MOST_MIXED).astype(np.int64) - 1)]
            exact = [
                grid_cycles(self.times, self._slice(config, launches, i), num_sms, slices[i])
                for i in some.tolist()
            ]
            shares = np.array(exact) / cycles[some]
            cycles[mixed] *= np.interp(launches.batch[mixed], launches.batch[some], shares)
        return CtaCurve(
            cta_us=us * lines[:, 1],
            added_us=us * (lines[:, -1] - lines[:, 1]),
            sm_us=us * cycles,
            spread=self.spread,
            floor_us=LAUNCH_FLOOR_US,
            dram_bytes=dram_bytes,
        )

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
            visited = step * np.diff(ends[:, np.newaxis] * np.arange(splits + 1) // splits)
        else:
            begins = chunk * np.arange(splits)[:, np.newaxis]
            visited = np.clip(step * ends - begins, 0, chunk)
        return visited[visited > 0].astype(np.float64)


def _slices(config: Config, launches: Launches) -> IntArray:
    """Heads of all batches, where each has a CTA for each split of each query tile; 0 elsewhere."""
    heads = launches.batch * launches.num_heads
    tiles = -(-launches.seqlen // launches.query_rows)
    has_each = heads * tiles * config.get("num_splits", 1) == launches.ctas[0]
    return np.where(has_each, heads, 0)
