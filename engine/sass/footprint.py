"""How much memory a launch touches: lines that neighbouring CTAs share are counted once.

A line that the CTA and its neighbour along an axis both touch is taken to be common to the whole
axis, as the tiles of a matrix product are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.sass.emulation import Emulator
from engine.sass.trace import AccessKind, CtaTrace

_SECTOR_BYTES = 32
_LOCAL = (AccessKind.LOCAL_LOAD, AccessKind.LOCAL_STORE)


def touched_bytes(emulator: Emulator, trace: CtaTrace) -> int:
    """Distinct bytes of global memory, in whole sectors, that all CTAs together touch.

    Args:
        trace: of a CTA of the launch.
    """
    grid, own = emulator.launch.grid, _sectors(trace)
    times = np.ones(len(own), np.int64)
    for axis in range(3):
        if grid[axis] == 1:
            continue
        beside = list(trace.cta)
        beside[axis] += 1 if beside[axis] + 1 < grid[axis] else -1
        x, y, z = beside
        neighbour = _sectors(emulator.trace((x, y, z))[0])
        times[~np.isin(own, neighbour, assume_unique=True)] *= grid[axis]
    return int(times.sum()) * _SECTOR_BYTES


def _sectors(trace: CtaTrace) -> NDArray[np.uint64]:
    """Numbers of the sectors of global memory, each once."""
    rows = np.repeat(np.arange(len(trace.kind)), np.diff(trace.line_start))
    outside = ~np.isin(trace.kind[rows], _LOCAL)
    lines, masks = trace.line[outside] // _SECTOR_BYTES, trace.line_sectors[outside]
    each = [lines[masks >> s & 1 == 1] + np.uint64(s) for s in range(4)]
    return np.unique(np.concatenate(each))
