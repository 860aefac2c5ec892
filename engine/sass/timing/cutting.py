"""A CTA's trace without most of its loop: what the rest takes is a straight line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.sass.disassembly import find_loops
from engine.sass.instruction import Loop, Program
from engine.sass.trace import AccessKind, CtaTrace

# Arrivals that warps wait for one by one: without some of them they would wait for ever.
_PHASES = (AccessKind.MBARRIER_WAIT, AccessKind.MBARRIER_ARRIVE, AccessKind.BARRIER_ARRIVE)


def main_loop(program: Program, executed: NDArray[np.int64]) -> Loop | None:
    """The outermost loop that executes most.

    Args:
        executed: how often each instruction of the program is, `[instructions]`.
    """
    outer = [x for x in find_loops(program.instructions) if x.depth == 0]
    loops = [x for x in outer if executed[x.first]]
    return max(loops, key=lambda x: int(executed[x.first : x.last + 1].sum()), default=None)


def has_phases(trace: CtaTrace) -> bool:
    """Whether warps wait for others' arrivals one by one: such a trace cannot be cut."""
    return bool(np.isin(trace.kind, _PHASES).any())


def iterations_of(trace: CtaTrace, loop: Loop) -> int:
    """Of a loop, in the warp that takes most."""
    heads = np.flatnonzero(trace.instruction == loop.first)
    warps = np.searchsorted(trace.warp_start, heads, side="right")
    return int(np.bincount(warps).max()) if len(heads) else 0


def first_iterations(trace: CtaTrace, loop: Loop, iterations: int) -> CtaTrace:
    """The trace without the loop's iterations behind the first ones."""
    inside = (trace.instruction >= loop.first) & (trace.instruction <= loop.last)
    number = np.cumsum(trace.instruction == loop.first)
    before = np.concatenate(([0], number))[trace.warp_start[:-1]]
    warp = np.repeat(np.arange(trace.num_warps), np.diff(trace.warp_start))
    return keep(trace, ~inside | (number - before[warp] <= iterations))


def keep(trace: CtaTrace, entries: NDArray[np.bool_]) -> CtaTrace:
    """The trace with these entries alone."""
    counts = np.concatenate(([0], np.cumsum(entries)))
    return replace(
        trace,
        warp_start=counts[trace.warp_start].astype(np.int64),
        instruction=trace.instruction[entries],
        lanes=trace.lanes[entries],
        access=trace.access[entries],
    )
