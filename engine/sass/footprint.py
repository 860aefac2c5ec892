"""How much memory a launch touches, and which CTAs touch the same: by running few of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.sass.emulation import Emulator
from engine.sass.trace import AccessKind, CtaTrace

_SECTOR_BYTES = 32
_LOCAL = (AccessKind.LOCAL_LOAD, AccessKind.LOCAL_STORE)


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """Bytes of global memory that CTAs beside each other have in common.

    Along axis a, `shares[a]` neighbours touch the same ones: 1 where each has its own, the grid's
    size where all have.
    """

    unit_bytes: int  # of one such group of CTAs, in whole sectors
    shares: tuple[int, int, int]

    def units(self, grid: Sequence[int]) -> int:
        """How many different ones there are."""
        return math.prod(-(-n // share) for n, share in zip(grid, self.shares, strict=True))


def shared_bytes(emulator: Emulator, trace: CtaTrace) -> tuple[SharedBytes, ...]:
    """What a CTA touches, by which others touch it too.

    Args:
        trace: of a CTA of the launch.
    """
    grid, own = emulator.launch.grid, _sectors(trace)
    shares = np.ones((len(own), 3), np.int64)
    for axis in range(3):
        if grid[axis] == 1:
            continue
        at = trace.cta[axis]
        beside = _also_touched(
            emulator, trace, own, axis, at + 1 if at + 1 < grid[axis] else at - 1
        )
        if not beside.any():
            continue
        far = 0 if 2 * at >= grid[axis] else grid[axis] - 1
        by_all = beside & _also_touched(emulator, trace, own, axis, far)
        shares[by_all, axis] = grid[axis]
        some, share = beside & ~by_all, 2
        while some.any():  # groups of neighbours: where does this one end?
            shares[some, axis] = share
            other = at + 2 * share - 1 if far > at else at - 2 * share + 1
            if not 0 <= other < grid[axis]:
                break
            some, share = some & _also_touched(emulator, trace, own, axis, other), 2 * share
    kinds, counts = np.unique(shares, axis=0, return_counts=True)
    return tuple(
        SharedBytes(int(count) * _SECTOR_BYTES, (int(x), int(y), int(z)))
        for (x, y, z), count in zip(kinds.tolist(), counts.tolist(), strict=True)
    )


def touched_bytes(groups: Sequence[SharedBytes], grid: Sequence[int]) -> int:
    """Distinct bytes of global memory, in whole sectors, that all CTAs together touch."""
    return sum(g.unit_bytes * g.units(grid) for g in groups)


def _also_touched(
    emulator: Emulator, trace: CtaTrace, own: NDArray[np.uint64], axis: int, at: int
) -> NDArray[np.bool_]:
    """Which of the CTA's own sectors the CTA at another place along the axis touches."""
    cta = list(trace.cta)
    cta[axis] = at
    x, y, z = cta
    other = _sectors(emulator.trace((x, y, z))[0])
    return np.isin(own, other, assume_unique=True)


def _sectors(trace: CtaTrace) -> NDArray[np.uint64]:
    """Numbers of the sectors of global memory, each once."""
    rows = np.repeat(np.arange(len(trace.kind)), np.diff(trace.line_start))
    outside = ~np.isin(trace.kind[rows], _LOCAL)
    lines, masks = trace.line[outside] // _SECTOR_BYTES, trace.line_sectors[outside]
    each = [lines[masks >> s & 1 == 1] + np.uint64(s) for s in range(4)]
    return np.unique(np.concatenate(each))
