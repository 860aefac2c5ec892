"""Exact instruction and access counts over all CTAs of a launch, by emulating only a few of them.

CTAs execute different code only if branches, predicates or shared-memory addresses depend on
`blockIdx`; the emulator reports along which axes they do. Along such an axis, counts are piecewise
linear with few breakpoints (a causal mask, a partial last tile). The ends and some inner points of
a piece are emulated, and a piece that is not linear is split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import InvalidProblem
from engine.machine_code.disassembly import Program
from engine.machine_code.emulation import EXECUTED, IDEAL_SECTORS, SECTORS, Emulator, Totals
from engine.machine_code.launch import Launch

_PERIODS = (1, 2, 4, 8)  # query tiles per K/V tile: a causal mask makes counts rise in such steps
_SECTOR_COLUMNS = (SECTORS, IDEAL_SECTORS)
MAX_CTAS = 1 << 24  # per launch: some arrays have an entry for each CTA
MAX_EMULATIONS = 200  # CTAs emulated per launch; beyond that, counts are interpolated
MAX_EMULATED = 200_000_000  # warp instructions emulated per launch: about half a minute
Counts: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LaunchCounts:
    """What all CTAs of one launch execute."""

    program: Program
    launch: Launch
    totals: Counts  # [instructions, 8], columns as `engine.machine_code.emulation`, over all CTAs
    work: Counts  # [grid z, y, x] warp instructions of each CTA; size 1 along axes of no effect
    longest_cta: tuple[int, int, int]  # blockIdx of a CTA that executes most
    shortest_cta: tuple[int, int, int]
    data_branch: NDArray[np.bool_]  # [instructions] depends on loaded data; likely side counted
    data_address: NDArray[np.bool_]  # [instructions] address depends on loaded data
    stand_in: NDArray[np.bool_]  # [instructions] unsupported opcode: its result is made up
    emulated: int  # CTAs that were emulated
    exact: bool  # every piece between emulated CTAs was found to be linear
    exact_sectors: bool  # and rows in global memory have the same sector alignment for every CTA

    @property
    def executed(self) -> int:
        """Warp instructions."""
        return int(self.totals[:, EXECUTED].sum())


def count_launch(emulator: Emulator, most_emulated: int = MAX_EMULATED) -> LaunchCounts:
    """Count everything that the emulator's launch executes. Raises as `Emulator.totals`.

    Args:
        most_emulated: warp instructions, after which CTAs between others are interpolated.
    """
    return _Counting(emulator, most_emulated).count()


@dataclass(frozen=True, slots=True)
class _Sum:
    """Counts summed along some axes of the grid, and the work of each CTA."""

    totals: Counts
    work: Counts  # one dimension for each of the axes


class _Counting:
    def __init__(self, emulator: Emulator, most_emulated: int) -> None:
        self._emulator, self._most_emulated = emulator, most_emulated
        self._known: dict[tuple[int, int, int], Totals] = {}
        self._pieces_of: dict[int, list[range]] = {}  # linear pieces last found along each axis
        self._emulated = 0  # warp instructions
        self._exact = self._same_sectors = True

    def count(self) -> LaunchCounts:
        grid = self._emulator.launch.grid
        if (ctas := self._emulator.launch.ctas) > MAX_CTAS:
            raise InvalidProblem(
                f"This launch has {ctas:,} CTAs, and at most {MAX_CTAS:,} can be counted: give a "
                "smaller grid."
            )
        # Both ends: code that the first CTA does not reach may depend on an axis too.
        ends = [self._run((0, 0, 0)), self._run((grid[0] - 1, grid[1] - 1, grid[2] - 1))]
        axes = [a for a in range(3) if grid[a] > 1 and any(e.control_axes[a] for e in ends)]
        other = [a for a in range(3) if grid[a] > 1 and a not in axes]
        for axis in other:
            far = self._run(_at((0, 0, 0), axis, grid[axis] - 1))
            self._compare_sectors(far.values, ends[0].values)
            if not np.array_equal(_control_columns(far.values), _control_columns(ends[0].values)):
                axes.append(axis)
        summed = self._over(tuple(sorted(axes, reverse=True)), (0, 0, 0))
        repeats = int(np.prod([grid[a] for a in range(3) if a not in axes]))
        shape = [grid[a] if a in axes else 1 for a in (2, 1, 0)]
        work = summed.work.reshape(shape)
        runs = list(self._known.values())
        return LaunchCounts(
            program=self._emulator.program,
            launch=self._emulator.launch,
            totals=summed.totals * repeats,
            work=work,
            longest_cta=_cta_at(work, int(work.argmax())),
            shortest_cta=_cta_at(work, int(work.argmin())),
            data_branch=np.logical_or.reduce([r.data_branch for r in runs]),
            data_address=np.logical_or.reduce([r.data_address for r in runs]),
            stand_in=np.logical_or.reduce([r.stand_in for r in runs]),
            emulated=len(runs),
            exact=self._exact,
            exact_sectors=self._exact and self._same_sectors,
        )

    def _run(self, cta: tuple[int, int, int]) -> Totals:
        if cta not in self._known:
            self._known[cta] = self._emulator.totals(cta)
            self._emulated += int(self._known[cta].values[:, EXECUTED].sum())
        return self._known[cta]

    def _over(self, axes: tuple[int, ...], cta: tuple[int, int, int]) -> _Sum:
        """Sum over all CTAs along `axes`; indices along the other axes are those of `cta`."""
        if not axes:
            values = self._run(cta).values
            return _Sum(values, np.array(values[:, EXECUTED].sum()))
        axis, *rest = axes
        points: dict[int, _Sum] = {}

        def at(index: int) -> _Sum:
            if index not in points:
                points[index] = self._over(tuple(rest), _at(cta, axis, index))
            return points[index]

        size = self._emulator.launch.grid[axis]
        # The last CTA often has a partial tile.
        pieces = self._pieces_of.get(axis, [])
        if not pieces or not all(self._is_line(at, piece, quick=True) for piece in pieces):
            pieces = [*self._pieces(at, range(size - 1)), range(size - 1, size)]
            self._pieces_of[axis] = pieces
        totals = np.zeros_like(at(0).totals)
        work = np.zeros((size, *at(0).work.shape), np.int64)
        for piece in pieces:
            steps = max(1, len(piece) - 1)
            first, last = at(piece[0]), at(piece[-1])
            totals += (first.totals + last.totals) * len(piece) // 2
            share = np.arange(len(piece)).reshape((len(piece),) + (1,) * first.work.ndim)
            line = (first.work * (steps - share) + last.work * share) // steps
            work[piece.start : piece[-1] + 1 : piece.step] = line
        return _Sum(totals, work)

    def _pieces(self, at: Callable[[int], _Sum], indices: range) -> list[range]:
        """Split `indices` into linear pieces, of stride 2, 4 or 8 if counts rise in steps."""
        if not indices:
            return []
        for period in _PERIODS:
            if period > 1 and (len(indices) < 8 * period or self._has_run_enough()):
                break
            pieces = [indices[phase::period] for phase in range(period)]
            if all(self._is_line(at, piece) for piece in pieces):
                return pieces
        if self._has_run_enough():
            self._exact = False
            return [indices]
        middle = len(indices) // 2
        return [*self._pieces(at, indices[:middle]), *self._pieces(at, indices[middle:])]

    def _has_run_enough(self) -> bool:
        return len(self._known) >= MAX_EMULATIONS or self._emulated >= self._most_emulated

    def _is_line(self, at: Callable[[int], _Sum], piece: range, quick: bool = False) -> bool:
        """True if the counts of the CTAs in `piece` lie on a line between its ends.

        Args:
            quick: test only one inner point, because a neighbouring row was tested fully.
        """
        steps = len(piece) - 1
        if steps < 2:
            return True
        first, last = at(piece[0]), at(piece[-1])
        inner = {1, 2, 3, steps // 2, steps * 7 // 11} if not quick else {steps * 7 // 11}
        for n in range(1, steps) if steps <= len(inner) else sorted(inner):
            here = at(piece[n])
            totals = first.totals * (steps - n) + last.totals * n
            work = first.work * (steps - n) + last.work * n
            if not np.array_equal(_control_columns(totals), _control_columns(here.totals * steps)):
                return False
            if not np.array_equal(work, here.work * steps):
                return False
            self._compare_sectors(totals, here.totals * steps)
        return True

    def _compare_sectors(self, one: Counts, other: Counts) -> None:
        """Note whether sector counts differ. They alone do not make CTAs different, because rows
        may start anywhere in a sector."""
        if not np.array_equal(one[:, _SECTOR_COLUMNS], other[:, _SECTOR_COLUMNS]):
            self._same_sectors = False


def _cta_at(work: Counts, position: int) -> tuple[int, int, int]:
    z, y, x = (int(i) for i in np.unravel_index(position, work.shape))
    return x, y, z


def _control_columns(totals: Counts) -> Counts:
    """The columns of the counts that branches and predicates determine."""
    return np.delete(totals, _SECTOR_COLUMNS, axis=1)


def _at(cta: tuple[int, int, int], axis: int, index: int) -> tuple[int, int, int]:
    x, y, z = (index if a == axis else value for a, value in enumerate(cta))
    return x, y, z
