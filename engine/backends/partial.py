"""Execute part of a launch: the CTAs of a few (batch, head) pairs and query tiles.

The last pair and tile are always among them, because their offsets are the largest.

A problem whose tensors exceed 2^31 elements or memory, or that would take hours, is executed in
part. Its buffers get their full address ranges, in which only the slices of the chosen pairs are
accessible, so that a wrong or overflowing offset is always a fault.

The kernel itself tells which CTA belongs to which pair and rows: a *probe* runs a CTA until its
first access to Q or O and notes where. Grids are probed along their three axes and at some other
CTAs; if these are not the sums of the axes, all CTAs are probed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.backends.base import Part
from engine.base.launch_arguments import PassLaunch

# (buffer, byte) of each CTA's first access to Q or O; None if it ended without one.
Probe: TypeAlias = Callable[[PassLaunch, Sequence[int]], Sequence[tuple[str, int] | None]]
IntArray: TypeAlias = npt.NDArray[np.int64]

MAX_PROBES = 150_000  # CTAs of one pass; about 20 µs each
MAX_CTAS = 200_000_000  # of one pass; all are examined
MAX_GROUP = 8  # query heads that share one K/V head
_CHECKED_CTAS = 48


class PartialRunError(Exception):
    """A launch cannot be executed in part; the message completes a sentence with the reason."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


def not_probed(why: str) -> PartialRunError:
    """Return the error for CTAs whose accesses could not be observed."""
    return PartialRunError(f"its CTAs cannot be probed: {why.rstrip('.')}", code="part_not_probed")


class WrongOffsetError(Exception):
    """A probe found an error of the kernel: CTA `cta` of `launch` works outside Q and O, or no CTA
    works where one should (`cta` is None)."""

    def __init__(self, launch: PassLaunch, cta: int | None, message: str) -> None:
        super().__init__(message)
        self.launch = launch
        self.cta = cta


@dataclass(frozen=True, slots=True)
class PartOfLaunch:
    """The CTAs to execute, and the slices of the tensors that they need."""

    part: Part
    q_slices: tuple[int, ...]  # batch · num_heads + head, ascending
    kv_slices: tuple[int, ...]
    ctas: tuple[tuple[int, ...], ...]  # linear indices, for each pass


def choose_part(plan: LaunchPlan, probe: Probe, max_flops: float) -> PartOfLaunch:
    """Choose pairs, query rows and the CTAs of every pass.

    Args:
        max_flops: limit of the chosen CTAs' operations; at least one query tile of the last pair
            is always taken.

    Raises:
        PartialRunError: it cannot be found which CTAs work on which (batch, head) pair and rows.
        WrongOffsetError: a CTA works outside of Q and O, or none on the last pair.
    """
    problem = plan.problem
    if any(layout != "bhsd" for layout in plan.layouts.values()):
        raise PartialRunError(
            "its tensors are not [batch, num_heads, seqlen, head_dim]", code="part_other_tensors"
        )
    if plan.is_backward:
        raise PartialRunError("each gradient is a sum over many CTAs", code="part_gradients")
    if plan.problem.seqlens is not None or plan.problem.alibi or plan.problem.sinks:
        raise PartialRunError(
            "its heads or sequences differ in length, slope or sink", code="part_heads_differ"
        )
    if plan.problem.kv_dtype is not None:
        raise PartialRunError("its K/V heads differ in the factor of FP8", code="part_fp8_factors")
    if plan.problem.head_dim_v is not None:
        raise PartialRunError("its V has other columns than its K", code="part_v_columns")
    if plan.pages is not None:
        raise PartialRunError("its K and V lie in pages", code="part_pages")
    if plan.refilled or any(s.fill == "-inf" for s in plan.scratch):
        raise PartialRunError(
            "its output or scratch is filled before each launch", code="part_refilled"
        )
    if problem.head_group > MAX_GROUP:
        raise PartialRunError(
            f"more than {MAX_GROUP} query heads share a K/V head", code="part_large_group"
        )
    maps = [_CtaMap.of(p, problem, probe) for p in plan.passes]
    coarsest = max(maps, key=lambda m: m.tile_rows)
    tiles = coarsest.tiles
    kv_slices, chosen_tiles = _affordable(problem, tiles, max_flops)
    q_slices = tuple(
        kv * problem.head_group + i for kv in kv_slices for i in range(problem.head_group)
    )
    rows = tuple(tiles[i] for i in chosen_tiles)
    ctas = tuple(m.select(q_slices, rows) for m in maps)
    last_group = q_slices[-problem.head_group :]
    for of_pass, launch in zip(maps, plan.passes, strict=True):
        # Persistent CTAs process several tiles, and a probe sees only the first.
        stay = launch.ctas == plan.config.get("num_ctas")
        begun = of_pass.rows_begun(last_group)
        if not stay and problem.head_group > 1 and list(begun) == [last_group[0]]:
            continue  # a CTA has a tile of all heads of a group and begins with the first
        # A group that is packed into tiles of which some begin with another head
        uneven = len(set(begun.values())) > 1
        if stay or uneven or not of_pass.select(q_slices[-1:], rows):
            if stay or uneven or launch.ctas < problem.batch * problem.kv_heads:
                raise PartialRunError(
                    f"the {launch.ctas} CTAs of {launch.entry} work on several heads each",
                    code="part_several_heads",
                )
            raise WrongOffsetError(
                launch,
                None,
                f"no CTA of kernel {launch.entry} works on Q or O of (batch, head) "
                f"({problem.batch - 1},{problem.num_heads - 1}): an offset is wrong, or too large "
                f"for its type",
            )
    return PartOfLaunch(
        Part(
            problem=_packed(problem, len(kv_slices)),
            pairs=tuple(divmod(s, problem.num_heads) for s in q_slices),
            rows=rows,
            ctas=sum(map(len, ctas)),
            total_ctas=sum(p.ctas for p in plan.passes),
        ),
        q_slices,
        kv_slices,
        ctas,
    )


def _packed(problem: Problem, kv_heads: int) -> Problem:
    """Return a problem of only the chosen slices."""
    return replace(problem, batch=1, num_heads=kv_heads * problem.head_group, num_heads_kv=kv_heads)


def _affordable(
    problem: Problem, tiles: Sequence[tuple[int, int]], max_flops: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (K/V slices, numbers of query tiles): as many corners as the budget allows."""
    last_kv, last_tile = problem.batch * problem.kv_heads - 1, len(tiles) - 1
    per_row = 4 * problem.head_group * problem.num_keys * problem.head_dim
    choice: tuple[tuple[int, ...], tuple[int, ...]] = ((last_kv,), (last_tile,))
    for kv_slices, chosen in (
        ((0, last_kv), (last_tile,)),
        ((0, last_kv), (0, last_tile)),
        ((0, last_kv // 2, last_kv), (0, last_tile // 2, last_tile)),
    ):
        slices, numbers = tuple(sorted(set(kv_slices))), tuple(sorted(set(chosen)))
        rows = sum(tiles[i][1] - tiles[i][0] for i in numbers)
        if per_row * rows * len(slices) <= max_flops:
            choice = slices, numbers
    return choice


Axes: TypeAlias = tuple[IntArray, IntArray, IntArray]  # of x, y and z


@dataclass(frozen=True, slots=True)
class _CtaMap:
    """The slice of Q and first row of each CTA of one pass, as sums over its three coordinates."""

    slices: Axes
    first_rows: Axes
    seqlen: int

    @classmethod
    def of(cls, launch: PassLaunch, problem: Problem, probe: Probe) -> _CtaMap:
        look = _Prober(launch, problem, probe)
        if sum(launch.grid) <= MAX_PROBES and launch.ctas <= MAX_CTAS:
            of_axes = look.along_axes()
            if of_axes is not None:
                return cls(*of_axes, problem.seqlen)
        if launch.ctas > MAX_PROBES:
            raise PartialRunError(
                f"which of the {launch.ctas:,} CTAs of {launch.entry} belongs to which head cannot "
                f"be told from its grid",
                code="part_unknown_heads",
            )
        return cls(*look.everywhere(), problem.seqlen)

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """Return (first row, last row + 1) of the query tiles."""
        x, y, z = map(np.unique, self.first_rows)
        first = np.unique(x[None, None, :] + y[None, :, None] + z[:, None, None])
        if first[0] != 0:
            raise PartialRunError(
                "its CTAs do not begin with the first row of their query tile",
                code="part_begins_within_tile",
            )
        return list(zip(first.tolist(), [*first[1:].tolist(), self.seqlen], strict=True))

    @property
    def tile_rows(self) -> int:
        return max(end - begin for begin, end in self.tiles)

    def rows_begun(self, slices: Sequence[int]) -> dict[int, frozenset[int]]:
        """Return the first rows of the CTAs on each of the slices on which any CTA begins."""
        (sx, sy, sz), (rx, ry, rz) = self.slices, self.first_rows
        begun: dict[int, set[int]] = {}
        for z in range(len(sz)):
            of_ctas = sx[None, :] + sy[:, None] + sz[z]
            for each in np.intersect1d(of_ctas, slices).tolist():
                first = (rx[None, :] + ry[:, None] + rz[z])[of_ctas == each]
                begun.setdefault(each, set()).update(first.tolist())
        return {each: frozenset(first) for each, first in begun.items()}

    def select(self, slices: Sequence[int], rows: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Return linear indices of the CTAs on any of the slices and rows."""
        (sx, sy, sz), (rx, ry, rz) = self.slices, self.first_rows
        selected: list[int] = []
        for z in range(len(sz)):
            first = rx[None, :] + ry[:, None] + rz[z]
            wanted = np.isin(sx[None, :] + sy[:, None] + sz[z], slices)
            wanted &= np.logical_or.reduce([(first >= b) & (first < e) for b, e in rows])
            selected += (np.flatnonzero(wanted) + z * wanted.size).tolist()
        return tuple(selected)


class _Prober:
    """Probes of the CTAs of one pass."""

    def __init__(self, launch: PassLaunch, problem: Problem, probe: Probe) -> None:
        self._launch = launch
        self._problem = problem
        self._probe = probe

    def at(self, ctas: IntArray) -> tuple[IntArray, IntArray] | None:
        """Return (slice, row) of each CTA's first access to Q or O; None if a CTA accesses
        neither."""
        touched = self._probe(self._launch, ctas.tolist())
        for cta, place in zip(ctas.tolist(), touched, strict=True):
            if place is not None and not 0 <= place[1] < self._problem.tensor_bytes:
                raise WrongOffsetError(
                    self._launch, cta, f"CTA {cta:,} accesses byte {place[1]:,} of '{place[0]}'"
                )
        if None in touched:
            return None
        bytes_at = np.array([place[1] for place in touched if place is not None], np.int64)
        rows = bytes_at // (self._problem.head_dim * self._problem.element_bytes)
        return rows // self._problem.seqlen, rows % self._problem.seqlen

    def along_axes(self) -> tuple[Axes, Axes] | None:
        """Return slices and rows by axis; None if they are not sums over the axes."""
        x, y, z = self._launch.grid
        along = [self.at(np.arange(n) * s) for n, s in ((x, 1), (y, x), (z, x * y))]
        some = np.random.default_rng(0).integers(0, self._launch.ctas, _CHECKED_CTAS)
        seen = self.at(some)
        if seen is None or any(axis is None for axis in along):
            return None
        at = (some % x, some // x % y, some // (x * y))
        of_axes: list[Axes] = []
        for which in (0, 1):  # 0: slices, 1: rows
            ax, ay, az = (axis[which] for axis in along if axis is not None)
            axes = (ax, ay - ay[0], az - az[0])
            if not np.array_equal(sum(a[i] for a, i in zip(axes, at, strict=True)), seen[which]):
                return None
            of_axes.append(axes)
        return of_axes[0], of_axes[1]

    def everywhere(self) -> tuple[Axes, Axes]:
        """Return slices and rows of every CTA, as one long axis."""
        seen = self.at(np.arange(self._launch.ctas))
        if seen is None:
            raise PartialRunError(
                f"some CTAs of {self._launch.entry} access neither Q nor O", code="part_untouched"
            )
        nothing = np.zeros(1, np.int64)
        return (seen[0], nothing, nothing), (seen[1], nothing, nothing)
