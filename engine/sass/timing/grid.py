"""A grid of CTAs on all SMs: when the last one is done."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from engine.sass.timing.cta_times import CtaTimes

_MOST_FOLLOWED = 10_000  # CTAs one by one; beyond, what as many take on full SMs


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
    followed = min(repeats, max(1, _MOST_FOLLOWED // len(of_ctas)))
    cycles = times.shared(np.tile(order, followed), kinds, num_sms)
    one_more = beside[order, -1].sum() / (times.resident * num_sms)
    return cycles + (repeats - followed) * float(one_more) + times.fetch_cycles
