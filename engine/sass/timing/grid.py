"""A grid of CTAs on all SMs: who runs where, and when the last one is done."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.sass.timing.cta_times import CtaTimes

_MOST_CTAS = 512  # followed one by one


def grid_cycles(times: CtaTimes, lengths: Sequence[float], repeats: int, num_sms: int) -> float:
    """Cycles until the last CTA of a launch is done.

    Args:
        lengths: of the CTAs in the order of starting, each standing for `repeats` neighbours of
            the same length (all heads of one query tile).
        repeats: CTAs per entry of `lengths`.
    """
    ctas = len(lengths) * repeats
    per_sm = -(-ctas // num_sms)
    if min(lengths) == max(lengths) or per_sm == 1:
        return float(times.launch(np.array([ctas]), np.array([max(lengths)]), num_sms)[0])
    return _mixed(times, np.repeat(np.asarray(lengths, np.float64), repeats), num_sms)


def _mixed(times: CtaTimes, lengths: NDArray[np.float64], num_sms: int) -> float:
    """CTAs of several lengths: those beside each other share their SM evenly.

    A CTA of length x advances by 1 / (cycles of n such CTAs together) each cycle while n are there.
    Long launches are thinned to fewer SMs with as many CTAs each: SMs do not differ.
    """
    sms = max(1, min(num_sms, round(num_sms * _MOST_CTAS / len(lengths))))
    count = round(len(lengths) * sms / num_sms)
    lengths = lengths[np.arange(count) * len(lengths) // count]
    different = np.unique(lengths)
    lines = times.table(different)
    # On a full SM, where CTAs have drifted apart, all of them take a round.
    drifted = np.minimum(1.0, times.rounds(different) / lines[:, -1])
    costs = dict(zip(different.tolist(), lines * drifted[:, np.newaxis], strict=True))
    in_step = dict(zip(different.tolist(), (1 / drifted).tolist(), strict=True))
    order = iter(lengths.tolist())
    running: list[list[list[float]]] = [[] for _ in range(sms)]  # [length, share left]
    for _ in range(times.resident):
        for sm in running:
            if (length := next(order, None)) is not None:
                sm.append([length, in_step[length]])
    events = [(_next(sm, costs), i) for i, sm in enumerate(running) if sm]
    heapq.heapify(events)
    since = [0.0] * sms
    end = 0.0
    while events:
        now, i = heapq.heappop(events)
        sm = running[i]
        for cta in sm:
            cta[1] -= (now - since[i]) / costs[cta[0]][len(sm)]
        since[i] = end = now
        still = [cta for cta in sm if cta[1] > 1e-9]
        for _ in range(len(sm) - len(still)):
            if (length := next(order, None)) is not None:
                still.append([length, 1.0])
        running[i] = still
        if still:
            heapq.heappush(events, (now + _next(still, costs), i))
    return end + times.fetch_cycles


def _next(sm: list[list[float]], costs: dict[float, NDArray[np.float64]]) -> float:
    """Cycles until one of the SM's CTAs is done."""
    return min(share * float(costs[length][len(sm)]) for length, share in sm)
