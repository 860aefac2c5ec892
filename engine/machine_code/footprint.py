"""Memory footprint of a launch and the sharing of data between CTAs, by emulating only a few CTAs.

Sharing is estimated in two ways, and the one that finds more sharing is used:

- Along the grid's axes: which sectors of a CTA are also touched by its neighbours and by the
  furthest CTA.
- In the order of starting, for any mapping from block index to tile: for every CTA, the first
  address that each global-memory instruction accesses. CTAs with the same first address at the same
  instruction are taken to read the same data there. Instructions that are executed too late to be
  probed in every CTA are assigned by the sectors that CTAs with other equal addresses share.

Persistent CTAs, if there are few, are all emulated, which gives what they touch and when.
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
# Per warp. An instruction that is first executed later than this is probed only if it touches
# sectors that no earlier one does.
_SOON_STEPS = 600
_MAX_PROBE_STEPS = 12_000_000  # of all CTAs together, about a second
_MAX_PROBED_CTAS = 1 << 15
_MAX_PERSISTENT_STEPS = 50_000_000
_SLICES = 64  # time slices into which the accesses of persistent CTAs are sorted
_MAX_FOLLOWED = 4_000_000  # sector accesses; above that, only every 2nd, 4th … sector is used
_SCATTER = np.uint64(0x9E3779B97F4A7C15)  # hash factor, as tiles start at round sector numbers

Sectors: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class SharedBytes:
    """Bytes of global memory that groups of CTAs share.

    Along axis a, `shares[a]` neighbours touch the same bytes: 1 if each has its own, the size of
    the grid if all share them. If groups do not follow the axes, `owners` lists them.
    """

    unit_bytes: int  # of one group of CTAs, in whole sectors
    shares: tuple[int, int, int]
    owners: NDArray[np.int64] | None = None  # [ctas] group of each CTA, in the order of starting
    written_bytes: int = 0  # part of unit_bytes that is written

    def units(self, grid: Sequence[int]) -> int:
        """Number of groups."""
        if self.owners is not None:
            return int(self.owners.max()) + 1
        return math.prod(-(-n // share) for n, share in zip(grid, self.shares, strict=True))


@dataclass(frozen=True, slots=True)
class PersistentTouch:
    """Memory that the CTAs of a launch touch if all of them run at the same time."""

    touched_bytes: int  # distinct sectors
    written_bytes: int  # part of touched_bytes that is written
    reused: tuple[tuple[int, int], ...]  # (bytes reused later, bytes touched in between)

    def moved_bytes(self, kept_bytes: int) -> int:
        """DRAM traffic if L2 is empty at the start."""
        return self.touched_bytes + sum(size for size, since in self.reused if since > kept_bytes)


def shared_bytes(
    emulator: Emulator, trace: CtaTrace, probe_steps: int = _MAX_PROBE_STEPS
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
    """The part of `touched_bytes` that is written."""
    return sum(g.written_bytes * g.units(grid) for g in groups)


def takes_several_tiles(trace: CtaTrace) -> bool:
    """Whether the CTA may process several tiles: a warp repeats one of its global stores."""
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
    """Emulate all CTAs of a launch to find what they touch; None if that takes too long.

    Args:
        executed: warp instructions of the launch.
    """
    if executed > _MAX_PERSISTENT_STEPS:
        return None
    x, y, _ = emulator.launch.grid
    ctas = emulator.launch.ctas
    every = 1
    keys: list[Sectors] = []  # distinct pairs of sector and time slice
    stored: list[Sectors] = []
    for number in range(ctas):
        trace = emulator.trace((number % x, number // x % y, number // (x * y)))[0]
        each, row = _sectors_by_row(trace)
        if number == 0:
            touches = max(1, len(each) * ctas // _MAX_FOLLOWED)
            every = 1 << touches.bit_length() - 1
        # Sample by a hash of the sector number, so that all CTAs keep the same sectors.
        kept = each * _SCATTER >> np.uint64(40) & np.uint64(every - 1) == 0
        when = _slice_of_rows(trace)[row[kept]]
        keys.append(_unique(each[kept] * np.uint64(_SLICES) + when.astype(np.uint64)))
        stored.append(_unique(each[kept & np.isin(trace.kind[row], _STORES)]))
    together = _unique(np.concatenate(keys))
    sector = together // np.uint64(_SLICES)
    when = (together % np.uint64(_SLICES)).astype(np.int64)
    size = SECTOR_BYTES * every
    until = np.concatenate([[0], np.cumsum(np.bincount(when, minlength=_SLICES) * size)])
    is_again = np.concatenate([[False], sector[1:] == sector[:-1]])
    before = when[np.flatnonzero(is_again) - 1]
    between, counts = np.unique(until[when[is_again]] - until[before], return_counts=True)
    distinct = int((~is_again).sum()) * size
    reused = zip((counts * size).tolist(), between.tolist(), strict=True)
    written = len(_unique(np.concatenate(stored))) * size
    return PersistentTouch(distinct, written, tuple(reused))


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
        # With a causal mask, the far CTA reads only the first keys, a subset of what this one
        # reads. The sectors that it leaves out then count as shared by all, even the last keys, if
        # they are at most as many as neighbours share. With a partial tile they are this CTA's own.
        alone, far_alone = np.flatnonzero(~beside), len(of_far) - int(by_all.sum())
        left_out = len(alone) - far_alone
        if len(of_far) < len(own) and 0 <= left_out <= int(beside.sum()):
            by_all = beside.copy()
            by_all[alone[:left_out]] = True
        shares[by_all, axis] = grid[axis]
        some, share = beside & ~by_all, 2
        while some.any():  # find the end of each group of neighbours
            shares[some, axis] = share
            other = at + 2 * share - 1 if far > at else at - 2 * share + 1
            if not 0 <= other < grid[axis]:
                break
            some &= _among(own, _touched_at(emulator, trace, axis, other))
            share *= 2
    return shares


def _touched_at(emulator: Emulator, trace: CtaTrace, axis: int, at: int) -> Sectors:
    """Sectors that the CTA at another index along the axis touches."""
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
    """(group of each CTA, mask of `own` that it applies to), one for each way in which instructions
    are shared; none if there are too many CTAs to probe."""
    x, y, _ = emulator.launch.grid
    ctas = emulator.launch.ctas
    if ctas > _MAX_PROBED_CTAS:
        return []
    each, row = _sectors_by_row(trace)
    instruction = _instruction_of_rows(trace)[row]
    touched_by = {int(i): np.isin(own, each[instruction == i]) for i in np.unique(instruction)}
    steps = probe_steps // ctas  # a probe ends early once it has reached all instructions
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
            continue  # some CTAs do not execute it
        _, owners = np.unique(first[:, n], return_inverse=True)
        # Groups are numbered by first occurrence, so that equal partitions are equal arrays.
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
    return _with_unprobed(emulator, trace, own, listed, unseen) if unseen.any() else listed


def _with_unprobed(
    emulator: Emulator,
    trace: CtaTrace,
    own: Sectors,
    listed: Sequence[tuple[NDArray[np.int64], NDArray[np.bool_]]],
    unseen: NDArray[np.bool_],
) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """`listed`, each extended by those of `unseen` that two other CTAs of its group also touch.

    Args:
        listed: partitions, those with fewest groups first.
        unseen: mask of `own` that no probed instruction touches.
    """
    x, y, _ = emulator.launch.grid
    at = trace.cta[0] + x * (trace.cta[1] + y * trace.cta[2])
    beside = np.sum([owners == owners[at] for owners, _ in listed], axis=0)
    left, result = unseen.copy(), []
    for owners, touched in listed:
        fellows = np.flatnonzero(owners == owners[at])
        fellows = fellows[fellows != at]
        if len(fellows) and left.any():
            # Compare CTAs that share least otherwise: what they both touch, the whole group shares.
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
    """Global-memory instructions that a CTA reaches within `most_steps`.

    Args:
        touched_by: mask of the sectors that each instruction touches, `[sectors]`.
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
        if first[site] * trace.num_warps >= most_steps:  # assumes that warps advance in step
            break
        chosen.append(site)
        known |= touched_by[site]
    return np.array(sorted(chosen), np.int32)


# ---- sectors of a trace ----


def _instruction_of_rows(trace: CtaTrace) -> NDArray[np.int32]:
    """[rows] instruction of each row with cache lines; such rows belong to one instruction each."""
    result = np.zeros(len(trace.kind), np.int32)
    where = np.flatnonzero(trace.access >= 0)
    result[trace.access[where]] = trace.instruction[where]
    return result


def _slice_of_rows(trace: CtaTrace) -> NDArray[np.int64]:
    """[rows] time slice, of `_SLICES`, in which the row's warp executes it."""
    result = np.zeros(len(trace.kind), np.int64)
    where = np.flatnonzero(trace.access >= 0)
    warp = np.searchsorted(trace.warp_start, where, side="right") - 1
    length = np.diff(trace.warp_start)[warp]
    result[trace.access[where]] = (where - trace.warp_start[warp]) * _SLICES // length
    return result


def _sectors_by_row(trace: CtaTrace) -> tuple[Sectors, NDArray[np.int64]]:
    """(sector number in global memory, row that touches it) for every access."""
    rows = np.repeat(np.arange(len(trace.kind)), np.diff(trace.line_start))
    outside = ~np.isin(trace.kind[rows], _LOCAL)
    lines, masks = trace.line[outside] // SECTOR_BYTES, trace.line_sectors[outside]
    chosen = [masks >> s & 1 == 1 for s in range(4)]
    each = [lines[c] + np.uint64(s) for s, c in enumerate(chosen)]
    return np.concatenate(each), np.concatenate([rows[outside][c] for c in chosen])


def _sectors(trace: CtaTrace, kinds: Sequence[AccessKind] | None = None) -> Sectors:
    """Distinct sector numbers in global memory.

    Args:
        kinds: of accesses; None: all.
    """
    wanted = ~np.isin(trace.kind, _LOCAL) if kinds is None else np.isin(trace.kind, kinds)
    outside = np.repeat(wanted, np.diff(trace.line_start))
    # First make lines unique, as a long CTA repeats them often. Their low bits hold the sectors.
    touched = _unique(trace.line[outside] | trace.line_sectors[outside])
    lines, masks = touched // SECTOR_BYTES & ~np.uint64(3), touched & np.uint64(15)
    each = [lines[masks >> np.uint64(s) & 1 == 1] + np.uint64(s) for s in range(4)]
    return _unique(np.concatenate(each))


def _unique(numbers: Sectors) -> Sectors:
    """Unique numbers, ascending. Sorting is many times faster here than `np.unique` by hashing."""
    ordered = np.sort(numbers)
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]
