"""How much memory a launch touches, and which CTAs touch the same: by running few of them.

Two looks at the same sectors, of which the one that finds more in common counts:

- along the grid's axes: which of a CTA's sectors its neighbours and the furthest CTA touch too;
- in the order of starting, whatever the mapping from block index to tile: of every CTA the first
  address at each instruction that accesses global memory. CTAs that begin at the same address of
  the same instruction read the same from there. Of instructions that come too late to be looked at
  in every CTA, it is the sectors that CTAs begun alike do have in common.

Few persistent CTAs are all run: what they touch, and when, is seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.machine_code.emulation import AccessKind, CtaTrace, Emulator

SECTOR_BYTES = 32
_LOCAL = (AccessKind.LOCAL_LOAD, AccessKind.LOCAL_STORE)
_STORES = (AccessKind.GLOBAL_STORE, AccessKind.GLOBAL_ATOMIC, AccessKind.BULK_STORE)
# Of a warp: an instruction that it comes to later is waited for only where what that one touches is
# touched by none of those before.
_SOON_STEPS = 600
_MOST_PROBE_STEPS = 12_000_000  # of all CTAs together, about a second
_MOST_PROBED_CTAS = 1 << 15
_MOST_STAYING_STEPS = 50_000_000
_SLICES = 64  # of time, in which persistent CTAs are looked at
_MOST_FOLLOWED = 4_000_000  # touches of sectors: of more, every second, fourth … sector is followed
_SCATTER = np.uint64(0x9E3779B97F4A7C15)  # spreads neighbours: tiles begin at round addresses

Sectors: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class SharedBytes:
    """Bytes of global memory that CTAs have in common.

    Along axis a, `shares[a]` neighbours touch the same ones: 1 where each has its own, the grid's
    size where all have. Where the axes do not say it, `owners` does.
    """

    unit_bytes: int  # of one such group of CTAs, in whole sectors
    shares: tuple[int, int, int]
    owners: NDArray[np.int64] | None = None  # [ctas] the group of each, in the order of starting
    written_bytes: int = 0  # of them, that are stored to

    def units(self, grid: Sequence[int]) -> int:
        """How many different ones there are."""
        if self.owners is not None:
            return int(self.owners.max()) + 1
        return math.prod(-(-n // share) for n, share in zip(grid, self.shares, strict=True))


@dataclass(frozen=True, slots=True)
class PersistentTouch:
    """What CTAs that all run at once touch together."""

    touched_bytes: int  # each sector once
    written_bytes: int  # of them, those that are stored to
    again: tuple[tuple[int, int], ...]  # (bytes used again later, bytes touched in between)

    def moved_bytes(self, kept_bytes: int) -> int:
        """From and to DRAM, L2 being empty at the start."""
        return self.touched_bytes + sum(size for size, since in self.again if since > kept_bytes)


def shared_bytes(
    emulator: Emulator, trace: CtaTrace, probe_steps: int = _MOST_PROBE_STEPS
) -> tuple[SharedBytes, ...]:
    """Bytes that a CTA touches, grouped by the CTAs that share them.

    Args:
        trace: of a CTA of the launch.
        probe_steps: instructions of all CTAs together that are executed to see who shares what.
    """
    grid, own = emulator.launch.grid, _sectors(trace)
    shares = _axis_shares(emulator, trace, own)
    by_axes = np.prod([-(-grid[a] // shares[:, a]) for a in range(3)], axis=0)
    groups: list[SharedBytes] = []
    left, stored = np.ones(len(own), np.bool_), _among(own, _sectors(trace, _STORES))
    if len(own) and by_axes.max() > 1 and sum(n > 1 for n in grid):
        for owners, wanted in _listed(emulator, trace, own, probe_steps):
            better = wanted & left & (by_axes > owners.max() + 1)
            if better.any():
                size, written = (int(n.sum()) * SECTOR_BYTES for n in (better, better & stored))
                groups.append(SharedBytes(size, (1, 1, 1), owners, written))
                left &= ~better
    kinds, kind, counts = np.unique(shares[left], axis=0, return_inverse=True, return_counts=True)
    written_of = np.bincount(kind.reshape(-1)[stored[left]], minlength=len(kinds))
    return tuple(
        SharedBytes(count * SECTOR_BYTES, (x, y, z), None, written * SECTOR_BYTES)
        for (x, y, z), count, written in zip(
            kinds.tolist(), counts.tolist(), written_of.tolist(), strict=True
        )
    ) + tuple(groups)


def touched_bytes(groups: Sequence[SharedBytes], grid: Sequence[int]) -> int:
    """Distinct bytes of global memory, in whole sectors, that all CTAs together touch."""
    return sum(g.unit_bytes * g.units(grid) for g in groups)


def written_bytes(groups: Sequence[SharedBytes], grid: Sequence[int]) -> int:
    """Of `touched_bytes`, those that are stored to."""
    return sum(g.written_bytes * g.units(grid) for g in groups)


def takes_several_tiles(trace: CtaTrace) -> bool:
    """Whether the CTA may: a warp comes to one of its global stores again."""
    where = np.flatnonzero(trace.access >= 0)
    where = where[np.isin(trace.kind[trace.access[where]], _STORES)]
    warp = np.searchsorted(trace.warp_start, where, side="right") - 1
    _, counts = np.unique(np.stack([warp, trace.instruction[where]]), axis=1, return_counts=True)
    return len(counts) > 0 and int(counts.max()) > 1


def num_stores(trace: CtaTrace) -> int:
    """Global stores that the CTA executes, atomics aside."""
    kinds = trace.kind[trace.access[trace.access >= 0]]
    return int(np.count_nonzero(kinds == AccessKind.GLOBAL_STORE))


def persistent_touch(emulator: Emulator, executed: int) -> PersistentTouch | None:
    """What all CTAs of a launch touch, run one by one; None where that takes too long.

    Args:
        executed: warp instructions of the launch.
    """
    if executed > _MOST_STAYING_STEPS:
        return None
    x, y, _ = emulator.launch.grid
    ctas = emulator.launch.ctas
    every = 1
    keys: list[Sectors] = []  # sector and slice of time, each pair once
    stored: list[Sectors] = []
    for number in range(ctas):
        trace = emulator.trace((number % x, number // x % y, number // (x * y)))[0]
        each, row = _sectors_by_row(trace)
        if number == 0:
            touches = max(1, len(each) * ctas // _MOST_FOLLOWED)
            every = 1 << touches.bit_length() - 1
        # Some of many: by number of the sector, so that all CTAs keep the same ones.
        kept = each * _SCATTER >> np.uint64(40) & np.uint64(every - 1) == 0
        when = _slice_of_rows(trace)[row[kept]]
        keys.append(_each_once(each[kept] * np.uint64(_SLICES) + when.astype(np.uint64)))
        stored.append(_each_once(each[kept & np.isin(trace.kind[row], _STORES)]))
    together = _each_once(np.concatenate(keys))
    sector = together // np.uint64(_SLICES)
    when = (together % np.uint64(_SLICES)).astype(np.int64)
    size = SECTOR_BYTES * every
    until = np.concatenate([[0], np.cumsum(np.bincount(when, minlength=_SLICES) * size)])
    is_again = np.concatenate([[False], sector[1:] == sector[:-1]])
    before = when[np.flatnonzero(is_again) - 1]
    between, counts = np.unique(until[when[is_again]] - until[before], return_counts=True)
    distinct = int((~is_again).sum()) * size
    again = zip((counts * size).tolist(), between.tolist(), strict=True)
    written = len(_each_once(np.concatenate(stored))) * size
    return PersistentTouch(distinct, written, tuple(again))


# ---- along the grid's axes ----


def _axis_shares(emulator: Emulator, trace: CtaTrace, own: Sectors) -> NDArray[np.int64]:
    grid = emulator.launch.grid
    shares = np.ones((len(own), 3), np.int64)
    for axis in range(3):
        if grid[axis] == 1:
            continue
        at = trace.cta[axis]
        near = _touched_at(emulator, trace, axis, at + 1 if at + 1 < grid[axis] else at - 1)
        beside = _among(own, near)
        if not beside.any():
            continue
        far = 0 if 2 * at >= grid[axis] else grid[axis] - 1
        of_far = _touched_at(emulator, trace, axis, far)
        by_all = beside & _among(own, of_far)
        # A CTA that touches less of the same, and no more of its own: causal ones read the first
        # keys alone. What it leaves out is nobody else's in its place, the last keys among it: a
        # neighbour's step, no more than neighbours share. Of a cut last CTA it is its own bytes.
        alone, far_alone = np.flatnonzero(~beside), len(of_far) - int(by_all.sum())
        left_out = len(alone) - far_alone
        if len(of_far) < len(own) and 0 <= left_out <= int(beside.sum()):
            by_all = beside.copy()
            by_all[alone[:left_out]] = True
        shares[by_all, axis] = grid[axis]
        some, share = beside & ~by_all, 2
        while some.any():  # groups of neighbours: where does this one end?
            shares[some, axis] = share
            other = at + 2 * share - 1 if far > at else at - 2 * share + 1
            if not 0 <= other < grid[axis]:
                break
            some &= _among(own, _touched_at(emulator, trace, axis, other))
            share *= 2
    return shares


def _touched_at(emulator: Emulator, trace: CtaTrace, axis: int, at: int) -> Sectors:
    """What the CTA at another place along the axis touches."""
    cta = list(trace.cta)
    cta[axis] = at
    x, y, z = cta
    return _sectors(emulator.trace((x, y, z))[0])


def _among(own: Sectors, others: Sectors) -> NDArray[np.bool_]:
    return np.isin(own, others, assume_unique=True)


# ---- in the order of starting ----


def _listed(
    emulator: Emulator, trace: CtaTrace, own: Sectors, probe_steps: int
) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """(which group each CTA is of, which of `own` that is about), one for each way in which
    instructions are shared; none where there are too many CTAs to look at."""
    x, y, _ = emulator.launch.grid
    ctas = emulator.launch.ctas
    if ctas > _MOST_PROBED_CTAS:
        return []
    each, row = _sectors_by_row(trace)
    instruction = _instruction_of_rows(trace)[row]
    touched_by = {int(i): np.isin(own, each[instruction == i]) for i in np.unique(instruction)}
    steps = probe_steps // ctas  # the CTA is left once it has come to all of them
    sites = _probed_sites(trace, touched_by, len(own), steps)
    if len(sites) == 0:
        return []
    first = np.stack(
        [
            emulator.first_sectors(sites, (n % x, n // x % y, n // (x * y)), steps)
            for n in range(ctas)
        ]
    )
    result: dict[bytes, tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}
    for n, site in enumerate(sites.tolist()):
        if (first[:, n] == 0).any():
            continue  # some CTAs do not come there: they do something else
        _, owners = np.unique(first[:, n], return_inverse=True)
        # Numbered by who comes first, so that equal partitions are equal arrays.
        _, begins = np.unique(owners, return_index=True)
        rank = np.empty(len(begins), np.int64)
        rank[np.argsort(begins)] = np.arange(len(begins))
        owners = rank[owners]
        touched, key = touched_by[site], owners.tobytes()
        if key in result:
            touched = touched | result[key][1]
        result[key] = owners, touched
    listed = sorted(result.values(), key=lambda item: int(item[0].max()))
    seen = [touched_by[site] for site in sites[first.any(axis=0)].tolist()]
    unseen = ~np.any(seen, axis=0) if seen else np.zeros(len(own), np.bool_)
    return _with_unseen(emulator, trace, own, listed, unseen) if unseen.any() else listed


def _with_unseen(
    emulator: Emulator,
    trace: CtaTrace,
    own: Sectors,
    listed: Sequence[tuple[NDArray[np.int64], NDArray[np.bool_]]],
    unseen: NDArray[np.bool_],
) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """`listed`, each with those of `unseen` that two other CTAs of its group touch as well.

    Args:
        listed: those with fewest groups first.
        unseen: which of `own` no instruction touches that was looked at in every CTA.
    """
    x, y, _ = emulator.launch.grid
    at = trace.cta[0] + x * (trace.cta[1] + y * trace.cta[2])
    beside = np.sum([owners == owners[at] for owners, _ in listed], axis=0)
    left, result = unseen.copy(), []
    for owners, touched in listed:
        fellows = np.flatnonzero(owners == owners[at])
        fellows = fellows[fellows != at]
        if len(fellows) and left.any():
            # CTAs that have as little else in common as any: what these share, the group shares.
            fellows = fellows[beside[fellows] == beside[fellows].min()]
            shared = left.copy()
            for n in {int(fellows[0]), int(fellows[-1])}:
                other = emulator.trace((n % x, n // x % y, n // (x * y)))[0]
                shared &= _among(own, _sectors(other))
            touched, left = touched | shared, left & ~shared
        result.append((owners, touched))
    return result


def _probed_sites(
    trace: CtaTrace, touched_by: Mapping[int, NDArray[np.bool_]], sectors: int, most_steps: int
) -> NDArray[np.int32]:
    """Instructions on global memory that a CTA comes to within `most_steps`.

    Args:
        touched_by: which sectors each instruction touches, `[sectors]` each.
    """
    where = np.flatnonzero(trace.access >= 0)
    rows = trace.access[where]
    outside = ~np.isin(trace.kind[rows], _LOCAL) & (np.diff(trace.line_start)[rows] > 0)
    where = where[outside]
    warp = np.searchsorted(trace.warp_start, where, side="right") - 1
    place, instruction = where - trace.warp_start[warp], trace.instruction[where]
    first = {int(site): int(place[instruction == site].min()) for site in np.unique(instruction)}
    chosen: list[int] = []
    known = np.zeros(sectors, np.bool_)
    for site in sorted(first, key=first.__getitem__):
        is_soon = first[site] < _SOON_STEPS
        if not is_soon and known[touched_by[site]].all():
            continue
        if first[site] * trace.num_warps >= most_steps:  # warps keep step, more or less
            break
        chosen.append(site)
        known |= touched_by[site]
    return np.array(sorted(chosen), np.int32)


# ---- sectors of a trace ----


def _instruction_of_rows(trace: CtaTrace) -> NDArray[np.int32]:
    """[rows] of those with lines, which no two instructions share."""
    result = np.zeros(len(trace.kind), np.int32)
    where = np.flatnonzero(trace.access >= 0)
    result[trace.access[where]] = trace.instruction[where]
    return result


def _slice_of_rows(trace: CtaTrace) -> NDArray[np.int64]:
    """[rows] when a row's warp comes to it, of `_SLICES`."""
    result = np.zeros(len(trace.kind), np.int64)
    where = np.flatnonzero(trace.access >= 0)
    warp = np.searchsorted(trace.warp_start, where, side="right") - 1
    length = np.diff(trace.warp_start)[warp]
    result[trace.access[where]] = (where - trace.warp_start[warp]) * _SLICES // length
    return result


def _sectors_by_row(trace: CtaTrace) -> tuple[Sectors, NDArray[np.int64]]:
    """(number of a sector of global memory, row that touches it), one for every touch."""
    rows = np.repeat(np.arange(len(trace.kind)), np.diff(trace.line_start))
    outside = ~np.isin(trace.kind[rows], _LOCAL)
    lines, masks = trace.line[outside] // SECTOR_BYTES, trace.line_sectors[outside]
    chosen = [masks >> s & 1 == 1 for s in range(4)]
    each = [lines[c] + np.uint64(s) for s, c in enumerate(chosen)]
    return np.concatenate(each), np.concatenate([rows[outside][c] for c in chosen])


def _sectors(trace: CtaTrace, kinds: Sequence[AccessKind] | None = None) -> Sectors:
    """Numbers of the sectors of global memory, each once.

    Args:
        kinds: of accesses; None: all.
    """
    wanted = ~np.isin(trace.kind, _LOCAL) if kinds is None else np.isin(trace.kind, kinds)
    outside = np.repeat(wanted, np.diff(trace.line_start))
    # Lines first: a long CTA comes to the same ones many times. Their low bits are free.
    touched = _each_once(trace.line[outside] | trace.line_sectors[outside])
    lines, masks = touched // SECTOR_BYTES & ~np.uint64(3), touched & np.uint64(15)
    each = [lines[masks >> np.uint64(s) & 1 == 1] + np.uint64(s) for s in range(4)]
    return _each_once(np.concatenate(each))


def _each_once(numbers: Sectors) -> Sectors:
    """Ascending. By sorting, which is many times faster here than the hashing of `np.unique`."""
    ordered = np.sort(numbers)
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]
