"""A grid of CTAs on all SMs: when the last one is done."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.machine_code.native_library import load_library
from engine.machine_code.timing.cta_times import CtaTimes
from engine.machine_code.timing.native import Kernel, in_parallel, simulate_freed
from engine.machine_code.trace import CtaTrace

_MOST_FOLLOWED_IN_GRID = 10_000  # CTAs one by one; beyond, what as many take on full SMs


def grid_cycles(times: CtaTimes, lengths: ArrayLike, num_sms: int, repeats: int = 1) -> float:
    """Cycles until the last CTA of a launch is done.

    Args:
        lengths: of the CTAs in the order of starting, `[n]`.
        repeats: of all of them, one behind the other.

    Raises as `CtaTimes.shared`.
    """
    of_ctas = np.asarray(lengths, np.float64)
    kinds, order = np.unique(of_ctas, return_inverse=True)
    if len(kinds) == 1:
        return float(times.launch([len(of_ctas) * repeats], kinds, num_sms)[0])
    beside = times.beside(kinds)
    followed = min(repeats, max(1, _MOST_FOLLOWED_IN_GRID // len(of_ctas)))
    cycles = times.shared(np.tile(order, followed), kinds, num_sms)
    one_more = beside[order, -1].sum() / (times.resident * num_sms)
    return cycles + (repeats - followed) * float(one_more) + times.fetch_cycles


# Which SM takes the next CTA where a launch's last query tiles are cut.
#
# CTAs of such a tile do nearly what the others do, yet put their SM out of step, so that it may
# take several of the last CTAs while others take none. How far out of step hangs on the very rows,
# keys and neighbours: samples of it are simulated, and the launch is followed with some of them.


_SOURCE = Path(__file__).resolve().parent / "native" / "dispatch.cpp"
_Row: TypeAlias = tuple[float, ...]
_MOST_RUNS, _FEWEST_RUNS = 15, 3
_MOST_FOLLOWED = 30_000  # CTAs of all runs together
_MOST_PLACES = 4  # of a cut CTA among its neighbours that are simulated


@dataclass(frozen=True)
class SlotTimes:
    """When the slots of an SM fall free whose CTAs started at once, sample by sample, cycles."""

    tile: int  # query rows of a CTA
    rows: tuple[int, ...]  # those that the cut query tile of each sample has, ascending
    # [samples, resident] of equal CTAs, ascending, to the last of them: 0 at most
    offsets: tuple[_Row, ...]
    # [samples, resident, resident] how much later where one in each slot is cut
    shifts: tuple[tuple[_Row, ...], ...]

    def launch(self, rows: int, is_cut: ArrayLike, ends: ArrayLike, num_sms: int) -> float:
        """Cycles until the last CTA of a launch is done, in the median of some runs.

        Args:
            rows: of the cut query tiles.
            is_cut: whether a CTA has one, of each in order of starting, `[ctas]`.
            ends: cycles of 0, 1, … equal CTAs on one SM; none takes more.

        Raises as `load_library`.
        """
        distances = [abs(rows - x) for x in self.rows]
        nearest = min(range(len(distances)), key=distances.__getitem__)
        flags = np.array(is_cut, dtype=np.uint8)
        if abs(rows - self.tile) <= distances[nearest]:
            flags[:] = 0  # it does what a whole one does
        known = np.ascontiguousarray(ends, dtype=np.float64)
        offsets, shifts = np.array(self.offsets), np.array(self.shifts[nearest])
        samples, resident = offsets.shape
        cycles = np.zeros(max(_FEWEST_RUNS, min(_MOST_RUNS, _MOST_FOLLOWED // len(flags))))
        _library().attune_dispatch(
            *(flags.ctypes.data, len(flags), known.ctypes.data, len(known) - 1),
            *(offsets.ctypes.data, samples, shifts.ctypes.data, resident, num_sms),
            *(cycles.ctypes.data, len(cycles)),
        )
        return float(np.median(cycles))


def slot_times(
    kernel: Kernel, tile: int, samples: dict[int, tuple[CtaTrace, CtaTrace]], resident: int
) -> SlotTimes:
    """Simulate what `SlotTimes` holds.

    Args:
        tile: query rows of a CTA.
        samples: {rows of the cut query tile: a CTA of a whole one and of the cut one}, ascending.

    Raises as `simulate_sm`.
    """
    spread = np.linspace(0, resident - 1, min(resident, _MOST_PLACES)).round()
    places = sorted({int(place) for place in spread})

    def freed(pair: tuple[CtaTrace, CtaTrace], cut: int | None) -> NDArray[np.float64]:
        queue = [int(i == cut) for i in range(resident)] + [0] * resident
        return simulate_freed(kernel, pair, queue, resident)

    def offsets_and_shifts(pair: tuple[CtaTrace, CtaTrace]) -> tuple[_Row, tuple[_Row, ...]]:
        equal = freed(pair, None)
        by_place = {i: freed(pair, i) - equal for i in places}
        nearest = (min(by_place, key=lambda x: abs(x - slot)) for slot in range(resident))
        shifts = tuple(tuple(by_place[place].tolist()) for place in nearest)
        return tuple((equal - equal[-1]).tolist()), shifts

    offsets, shifts = zip(*in_parallel(offsets_and_shifts, list(samples.values())), strict=True)
    return SlotTimes(tile, tuple(samples), offsets, shifts)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = load_library(_SOURCE)
    library.attune_dispatch.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32),
        *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32),
        *(ctypes.c_void_p, ctypes.c_int32),
    ]
    library.attune_dispatch.restype = None
    return library
