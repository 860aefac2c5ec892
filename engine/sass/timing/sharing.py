"""CTAs of several lengths on all SMs: those beside each other share their SM evenly."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.sass.native_library import load_library

_SOURCE = Path(__file__).resolve().parent / "native" / "sharing.cpp"
_MOST_RUNS = 16
_MOST_FOLLOWED = 8_000  # CTAs of all runs together: long launches hang less on who comes last


def share_sms(
    order: ArrayLike,
    beside: NDArray[np.float64],
    equal: NDArray[np.float64],
    start: NDArray[np.float64],
    num_sms: int = 1,
    spread: float = 0.0,
    first_work: ArrayLike | None = None,
) -> float:
    """Cycles until the last CTA is done, each SM taking the next one where one is.

    A CTA advances by 1 / (cycles of n such CTAs beside each other) each cycle while n are there.

    Args:
        order: kind of each CTA, in order of starting, `[ctas]`.
        beside: cycles of one of 0, 1, … as many CTAs as an SM holds, `[kinds, resident + 1]`.
        equal: the same of equal ones that start at once.
        start: what different ones that start at once take more, `[resident + 1]`.
        spread: standard deviation of a CTA's time, as a share of it.
        first_work: of as many CTAs as an SM holds that start at once, what part of its work each
            has, so that they are done one behind the other, `[resident]`; None: all have 1.

    Raises as `load_library`.
    """
    kinds = np.ascontiguousarray(order, dtype=np.int32)
    costs = np.ascontiguousarray(beside, dtype=np.float64)
    first = np.ascontiguousarray(equal, dtype=np.float64)
    more = np.ascontiguousarray(start, dtype=np.float64)
    if len(kinds) <= num_sms:  # they vary with what is beside them: nothing is
        spread = 0.0
    resident = costs.shape[1] - 1
    works = np.ones(resident) if first_work is None else np.array(first_work, dtype=np.float64)
    arrays = (x.ctypes.data for x in (costs, first, more, works))
    runs = max(1, min(_MOST_RUNS, _MOST_FOLLOWED // len(kinds))) if spread > 0 else 1
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
