"""CTAs of several lengths on all SMs (an SM's resident CTAs share it evenly), and DRAM traffic."""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.machine_code.footprint import (
    PersistentTouch,
    SharedBytes,
    touched_bytes,
    written_bytes,
)
from engine.machine_code.native_library import load_library

_SOURCE = Path(__file__).resolve().parent / "native" / "sharing.cpp"
_MAX_RUNS = 16
_MAX_FOLLOWED = 8_000  # CTAs of all runs: in long launches the last CTAs matter less


def share_sms(
    order: ArrayLike,
    beside: NDArray[np.float64],
    equal: NDArray[np.float64],
    start: NDArray[np.float64],
    num_sms: int = 1,
    spread: float = 0.0,
    first_work: ArrayLike | None = None,
) -> float:
    """Cycles until the last CTA ends, if each SM takes the next CTA when a slot falls free.

    While n CTAs are resident on an SM, each advances by 1 / (cycles of n such CTAs together) per
    cycle.

    Args:
        order: kind of each CTA, in order of starting, `[ctas]`.
        beside: cycles of one CTA among 0, 1, … resident ones, `[kinds, resident + 1]`.
        equal: the same for equal CTAs that start together.
        start: extra cycles of different CTAs that start together, `[resident + 1]`.
        spread: standard deviation of a CTA's time, as a share of it.
        first_work: share of its work that each of the CTAs that start together still has to do, so
            that they end one after another, `[resident]`; None: all of it.

    Raises as `load_library`.
    """
    kinds = np.ascontiguousarray(order, dtype=np.int32)
    costs = np.ascontiguousarray(beside, dtype=np.float64)
    first = np.ascontiguousarray(equal, dtype=np.float64)
    more = np.ascontiguousarray(start, dtype=np.float64)
    if len(kinds) <= num_sms:  # one CTA per SM: times vary only with neighbours on the same SM
        spread = 0.0
    resident = costs.shape[1] - 1
    works = np.ones(resident) if first_work is None else np.array(first_work, dtype=np.float64)
    arrays = (x.ctypes.data for x in (costs, first, more, works))
    runs = max(1, min(_MAX_RUNS, _MAX_FOLLOWED // len(kinds))) if spread > 0 else 1
    return float(
        _library().attune_share_sms(
            kinds.ctypes.data, len(kinds), *arrays, resident, num_sms, spread, runs
        )
    )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = load_library(_SOURCE)
    library.attune_share_sms.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_int32, ctypes.c_int32, ctypes.c_double, ctypes.c_int32),
    ]
    library.attune_share_sms.restype = ctypes.c_double
    return library


# DRAM traffic, from the order in which CTAs start.
#
# CTAs start in the order of their linear index (blockIdx.x fastest), and those that run together
# advance over their keys in step. Data that they share is read once; data that is reused later is
# read again unless L2 kept it. L2 is modelled as an LRU cache with one K/V head per entry.


# The grid's axes, the one that changes fastest between CTAs first: 0 is blockIdx.x.
AxisOrder: TypeAlias = tuple[int, int, int]
AS_LAUNCHED: AxisOrder = (0, 1, 2)

_MAX_WAVES = 256  # waves simulated; longer launches repeat the pattern


@dataclass(frozen=True, slots=True)
class Traffic:
    """DRAM traffic of one launch; in a warm launch, data that fits in L2 is already there."""

    dram_bytes: float
    kv_reads: float  # how many times a byte that CTAs share (K and V) is read from DRAM
    miss_share: float  # share of the bytes that CTAs read that misses L2, 0 to 1
    written_bytes: float = 0.0  # part of the traffic that is writes

    @property
    def streams(self) -> bool:
        """Whether CTAs wait for data from DRAM."""
        return self.miss_share > 0


@dataclass(frozen=True, slots=True)
class KvOrder:
    """The K/V head that each CTA of a grid reads, in order of starting.

    Args:
        shares: along each axis, how many neighbours read the same head: the size of the axis if
            all do (query tiles), 1 if none do (heads), the group size for grouped-query attention.
    """

    grid: tuple[int, int, int]
    shares: tuple[int, int, int]

    @property
    def num_ctas(self) -> int:
        return math.prod(self.grid)

    @property
    def num_heads(self) -> int:
        """Number of distinct heads that are read."""
        return math.prod(self._heads())

    def _heads(self) -> tuple[int, ...]:
        return tuple(-(-n // share) for n, share in zip(self.grid, self.shares, strict=True))

    def first(self, count: int) -> NDArray[np.int64]:
        """Heads of the first `count` CTAs only, because a launch may have billions."""
        width, height, depth = self.grid
        along_x, along_y, _ = self._heads()
        # Along each axis as far as those CTAs reach.
        reach = count, -(-count // width), -(-count // (width * height))
        sizes = (min(n, most) for n, most in zip((width, height, depth), reach, strict=True))
        x, y, z = (np.arange(n) // share for n, share in zip(sizes, self.shares, strict=True))
        heads = (z[:, np.newaxis, np.newaxis] * along_y + y[:, np.newaxis]) * along_x + x
        return np.asarray(heads, np.int64).reshape(-1)[:count]


@dataclass(frozen=True, slots=True, eq=False)
class _ListedOrder:
    """Like `KvOrder`, from a list of the unit that each CTA reads."""

    units: NDArray[np.int64]  # [ctas], in the order of starting

    @property
    def num_ctas(self) -> int:
        return len(self.units)

    @property
    def num_heads(self) -> int:
        return int(self.units.max()) + 1

    def first(self, count: int) -> NDArray[np.int64]:
        return self.units[:count]


_Order: TypeAlias = KvOrder | _ListedOrder


@lru_cache(maxsize=256)  # sliders of a page repeat the same arguments
def traffic(
    order: KvOrder,
    head_bytes: float,
    other_bytes: float,
    running: int,
    kept_bytes: int,
) -> Traffic:
    """DRAM traffic of one warm launch of attention.

    Args:
        head_bytes: K and V of one head.
        other_bytes: Q, O and scratch, each read or written once.
        running: CTAs that run at the same time, on all SMs.
        kept_bytes: bytes that L2 can keep (`kept_l2_bytes`).
    """
    distinct = order.num_heads
    if distinct * head_bytes + other_bytes <= kept_bytes:
        return Traffic(0.0, 0.0, 0.0)
    (read,) = _reads([(order, head_bytes)], running, kept_bytes)
    return Traffic(read.units * head_bytes + other_bytes, read.units / distinct, read.miss_share)


@dataclass(frozen=True, slots=True)
class _Reads:
    """DRAM reads of one group of bytes: units read from DRAM, and share of accesses that miss."""

    units: float
    miss_share: float


def _reads(
    groups: Sequence[tuple[_Order, float]], running: int, kept_bytes: int
) -> tuple[_Reads, ...]:
    """DRAM reads of each of several groups, given as (order, bytes of a unit)."""
    waves = -(-groups[0][0].num_ctas // running)
    looked_at = min(waves, _MAX_WAVES)
    of_groups = [_of_waves(order.first(looked_at * running), running) for order, _ in groups]
    kept: OrderedDict[int, float] = OrderedDict()  # least recently used first
    misses, uses, held = [0] * len(groups), [0] * len(groups), 0.0
    for used in zip(*of_groups, strict=True):
        # One wave touches more than L2 holds, so its data is evicted before the next wave needs it.
        needed = sum(len(u) * size for u, (_, size) in zip(used, groups, strict=True))
        if needed > kept_bytes:
            kept.clear()
            held = 0.0
        for n, (numbers, (_, size)) in enumerate(zip(used, groups, strict=True)):
            uses[n] += len(numbers)
            for number in numbers:
                unit = number * len(groups) + n
                if unit in kept:
                    kept.move_to_end(unit)
                    continue
                misses[n] += 1
                kept[unit] = size
                held += size
        while held > kept_bytes:
            held -= kept.popitem(last=False)[1]
    return tuple(
        _Reads(max(missed * waves / looked_at, order.num_heads), missed / looked_for)
        for missed, looked_for, (order, _) in zip(misses, uses, groups, strict=True)
    )


def _of_waves(units: NDArray[np.int64], running: int) -> list[list[int]]:
    """The units that each wave of `running` CTAs reads, each once, ascending."""
    waves, span = -(-len(units) // running), int(units.max()) + 1
    begins = np.arange(waves + 1) * span
    pairs = np.repeat(begins[:-1], running)[: len(units)] + units  # wave · span + unit
    more = np.diff(pairs)
    if more.min(initial=0) < 0:
        pairs = np.unique(pairs)
    else:  # already ascending, because neighbours share units
        pairs = np.concatenate([pairs[:1], pairs[1:][more > 0]])
    numbers, starts = (pairs % span).tolist(), np.searchsorted(pairs, begins).tolist()
    return [numbers[a:b] for a, b in pairwise(starts)]


def launch_traffic(
    groups: Sequence[SharedBytes],
    grid: tuple[int, int, int],
    running: int,
    kept_bytes: int,
    axes: AxisOrder = AS_LAUNCHED,
    is_cold: bool = False,
) -> Traffic:
    """DRAM traffic of one launch of any kernel.

    Args:
        groups: bytes that its CTAs share (`shared_bytes`).
        running: CTAs that run at the same time, on all SMs.
        axes: another order of the grid's axes, to compare with.
        is_cold: L2 holds none of the launch's data at its start; else all of it, if it fits.
    """
    touched = touched_bytes(groups, grid)
    if touched <= kept_bytes and not is_cold:
        return Traffic(0.0, 0.0, 0.0)
    orders = [(_order(group, grid, axes), float(group.unit_bytes)) for group in groups]
    reads = _reads(orders, running, kept_bytes)
    sizes = [g.unit_bytes for g in groups]
    missing = sum(read.miss_share * size for read, size in zip(reads, sizes, strict=True))
    moved = sum(read.units * size for read, size in zip(reads, sizes, strict=True))
    written = float(written_bytes(groups, grid))
    if touched <= kept_bytes:  # written data stays in L2 until after the launch
        moved, written = moved - written, 0.0
    return Traffic(moved, moved / touched, missing / sum(sizes), written)


def _order(group: SharedBytes, grid: tuple[int, int, int], axes: AxisOrder) -> _Order:
    x, y, z = axes
    if group.owners is None:
        shares = group.shares[x], group.shares[y], group.shares[z]
        return KvOrder((grid[x], grid[y], grid[z]), shares)
    placed = group.owners.reshape(grid[::-1])  # [z, y, x]
    return _ListedOrder(placed.transpose(2 - z, 2 - y, 2 - x).reshape(-1))


def persistent_traffic(touch: PersistentTouch, kept_bytes: int, is_cold: bool = False) -> Traffic:
    """DRAM traffic of a launch whose CTAs all run at the same time."""
    if touch.touched_bytes <= kept_bytes and not is_cold:
        return Traffic(0.0, 0.0, 0.0)
    moved, written = touch.moved_bytes(kept_bytes), float(touch.written_bytes)
    used = touch.touched_bytes + sum(size for size, _ in touch.reused)
    if touch.touched_bytes <= kept_bytes:
        moved, written = moved - touch.written_bytes, 0.0
    return Traffic(float(moved), moved / touch.touched_bytes, moved / used, written)


def best_order(
    groups: Sequence[SharedBytes], grid: tuple[int, int, int], running: int, kept_bytes: int
) -> AxisOrder:
    """The order of the grid's axes with least DRAM traffic; the launch's own if none is better."""
    # The position of axes of size 1 does not matter.
    of_long_axes: dict[tuple[int, ...], AxisOrder] = {}
    for a, b, c in permutations(range(3)):
        of_long_axes.setdefault(tuple(x for x in (a, b, c) if grid[x] > 1), (a, b, c))
    orders = of_long_axes.values()
    return min(
        orders, key=lambda o: launch_traffic(groups, grid, running, kept_bytes, o).dram_bytes
    )
