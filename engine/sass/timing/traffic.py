"""Bytes that reach DRAM, by the order in which CTAs start.

CTAs start in the order of their number (blockIdx.x fastest) and those that run together walk their
keys in step. What neighbours in that order share is read once; what comes back later is read again
unless L2 kept it. L2 is taken as least recently used, in units of one K/V head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_USABLE = 0.9  # of L2: the rest holds what else passes through
_MOST_WAVES = 256  # enough to see what a longer launch repeats


@dataclass(frozen=True, slots=True)
class Traffic:
    """One launch's bytes beyond L2, warm: what fits was there before."""

    dram_bytes: float
    kv_reads: float  # how often each byte of K and V is read from DRAM

    @property
    def streams(self) -> bool:
        """Whether the keys come from DRAM while CTAs wait for them."""
        return self.kv_reads > 0


def stays_in_l2(all_bytes: float, l2_bytes: int) -> bool:
    """Whether a warm launch finds everything in L2."""
    return all_bytes <= _USABLE * l2_bytes


def kv_heads_in_order(
    grid: tuple[int, int, int], shares: tuple[int, int, int]
) -> NDArray[np.int64]:
    """Which K/V head each CTA reads, in order of starting, `[CTAs]`.

    Args:
        shares: along each axis, how many neighbours read the same head; the axis' own size where
            all do (query tiles), 1 where none do (heads), the group's size where heads share.
    """
    x, y, z = (np.arange(n) // share for n, share in zip(grid, shares, strict=True))
    heads = [int(a[-1]) + 1 for a in (x, y, z)]
    number = (z[:, None, None] * heads[1] + y[None, :, None]) * heads[0] + x[None, None, :]
    return number.reshape(-1).astype(np.int64)


def traffic(
    heads: Sequence[int] | NDArray[np.int64],
    head_bytes: float,
    other_bytes: float,
    running: int,
    l2_bytes: int,
) -> Traffic:
    """Bytes from and to DRAM of one warm launch.

    Args:
        heads: K/V head of each CTA, in order of starting.
        head_bytes: of one head's K and V.
        other_bytes: Q, O and scratch: read or written once.
        running: CTAs that all SMs hold together.
    """
    order = np.asarray(heads, np.int64)
    distinct = len(np.unique(order))
    if stays_in_l2(distinct * head_bytes + other_bytes, l2_bytes):
        return Traffic(0.0, 0.0)
    capacity = _USABLE * l2_bytes
    waves = -(-len(order) // running)
    looked_at = min(waves, _MOST_WAVES)
    kept: OrderedDict[int, None] = OrderedDict()
    room = int(capacity // head_bytes)
    misses = 0
    for wave in range(looked_at):
        used = np.unique(order[wave * running : (wave + 1) * running])
        # More than L2 holds at a time: what a wave leaves behind is gone before the next needs it.
        thrashes = len(used) > room
        for head in used.tolist():
            if not thrashes and head in kept:
                kept.move_to_end(head)
                continue
            misses += 1
            kept[head] = None
        while len(kept) > room:
            kept.popitem(last=False)
    reads = max(misses * waves / looked_at, distinct)
    return Traffic(reads * head_bytes + other_bytes, reads / distinct)
