"""Launches of a variant for a series of problems, as arrays for the latency model.

Every figure comes from the variant's own formulas, as in its launch plan, so splits, tiles and
persistent grids are right without code for particular variants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from math import gcd, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine.attention.paged_kv import Pages
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.machine_code.timing.constants import kept_l2_bytes
from engine.machine_code.timing.traffic import KvOrder, Traffic, traffic
from engine.model.occupancy import WARP_SIZE, IntArray
from kernels.variant import BYTES_PER_ELEMENT, Dtype, Feature, ProblemLike, Variant

if TYPE_CHECKING:
    from engine.model.kernel import Kernel

_NUM_BANKS = 32
_BANK_BYTES = 4


@dataclass(frozen=True, slots=True)
class Launches:
    """n problems of one variant and config. Arrays are `[n]`, or `[passes, n]` if marked."""

    batch: IntArray
    num_heads: IntArray
    kv_heads: IntArray
    seqlen: IntArray
    num_keys: IntArray
    head_dim: IntArray  # of K and V on average
    causal: npt.NDArray[np.bool_]
    window: IntArray  # keys of a sliding window; 0: no window
    twice_scores: IntArray  # of one head of all sequences, see `Problem.twice_scores`
    element_bytes: IntArray  # of Q and O
    kv_element_bytes: IntArray  # of K and V
    ctas: IntArray  # [passes, n]
    useful_ctas: IntArray  # of the main pass, without CTAs of empty splits
    threads: IntArray  # [passes, n]
    dynamic_smem_bytes: IntArray  # [passes, n]
    scratch_bytes: IntArray
    page_bytes: IntArray  # of paged K and V: block table and unfilled parts of pages
    query_rows: IntArray  # Work of the main pass, per CTA
    kv_rows: IntArray
    math_threads: IntArray
    conflict_ways: IntArray  # of the bank conflict in the inner loop; 1: no conflict
    # Sequences of different lengths, in order, each as a launch; None for equal lengths.
    of_each: npt.NDArray[np.object_]

    @property
    def has_own_lengths(self) -> npt.NDArray[np.bool_]:
        """Return True for problems whose sequences have different lengths, `[n]`."""
        return self.of_each.astype(np.bool_)

    @property
    def size(self) -> int:
        """Return n, the number of problems."""
        return len(self.batch)

    def take(self, keep: npt.NDArray[Any]) -> Launches:
        """Return the problems selected by the mask or indices `keep`."""
        return Launches(**{f.name: getattr(self, f.name)[..., keep] for f in fields(self)})

    def without_absent_keys(self) -> Launches:
        """Return the launches of a kernel that stops at the last key, not at the end of its
        tile."""
        return replace(self, kv_rows=np.minimum(self.kv_rows, self.num_keys))

    @property
    def elements(self) -> IntArray:
        """Return the elements of Q, or of O, without padding."""
        padded = self.batch * self.num_heads * self.seqlen * self.head_dim
        return self._summed(padded, lambda each: each.elements)

    @property
    def device_bytes(self) -> IntArray:
        """Return the global memory that the call touches: Q, K, V, O, block table and scratch,
        in bytes."""
        row_bytes = self.element_bytes * self.num_heads * self.seqlen
        row_bytes = row_bytes + self.kv_element_bytes * self.kv_heads * self.num_keys
        tensors = 2 * self.batch * row_bytes * self.head_dim
        of_each = self._summed(tensors + self.page_bytes, lambda each: each.device_bytes)
        return of_each + self.scratch_bytes

    @property
    def written_bytes(self) -> npt.NDArray[np.float64]:
        """Return the bytes that the main pass writes: O, or partial results for a later pass."""
        output = self.element_bytes * self.elements
        return np.where(self.scratch_bytes > 0, self.scratch_bytes, output).astype(np.float64)

    def _summed(self, padded: IntArray, of: Callable[[Launches], IntArray]) -> IntArray:
        """Return the sum over sequences of different lengths, else `padded`."""
        if not (own := self.has_own_lengths).any():
            return padded
        summed = padded.copy()
        summed[own] = [of(each).sum() for each in self.of_each[own]]
        return summed

    @property
    def flops(self) -> IntArray:
        """Return `Problem.flops` of the forward pass."""
        return 2 * self.num_heads * self.head_dim * self.twice_scores


class BatchedShape:
    """A problem whose batch may change, or be an array: one object serves a curve of thousands."""

    __slots__ = (
        *("batch", "causal", "dtype", "head_dim", "kv_heads", "num_heads", "num_keys", "seqlen"),
        *("features", "value_dim", "seqlens", "softcap", "twice_scores_each", "window"),
    )

    def __init__(self, problem: ProblemLike) -> None:
        self.batch: Any = problem.batch
        self.num_heads: int = problem.num_heads
        self.kv_heads: int = problem.kv_heads
        self.seqlen: int = problem.seqlen
        self.num_keys: int = problem.num_keys
        self.head_dim: int = problem.head_dim
        self.value_dim: int = problem.value_dim
        self.causal: bool = problem.causal
        self.dtype: Dtype = problem.dtype
        self.window: int | None = problem.window
        self.softcap: float | None = problem.softcap
        self.seqlens: tuple[int, ...] | None = problem.seqlens
        self.features: tuple[Feature, ...] = problem.features
        self.twice_scores_each: int = problem.twice_scores // problem.batch

    @property
    def twice_scores(self) -> Any:
        """Return `Problem.twice_scores` at each batch."""
        return self.batch * self.twice_scores_each


def collect(kernel: Kernel, problems: Iterable[ProblemLike]) -> Launches:
    """Evaluate the kernel's formulas for each problem, which it must support."""
    listed = list(problems)
    rows = [_figures(kernel, p) for p in listed]
    launches = _launches(np.array(rows, dtype=np.int64).T, len(kernel.variant.passes))
    for i, problem in enumerate(listed):
        if isinstance(problem, Problem) and problem.seqlens is not None:
            launches.of_each[i] = _sequences(kernel, problem)
    useful = launches._summed(launches.useful_ctas, lambda each: each.useful_ctas)
    return replace(launches, useful_ctas=useful)


def _sequences(kernel: Kernel, problem: Problem) -> Launches:
    """Return the sequences of a problem as launches without scratch, in order."""
    lengths, which = np.unique(problem.seqlens or (), return_inverse=True)
    first = [int(np.flatnonzero(which == n)[0]) for n in range(len(lengths))]
    launches = collect(kernel, [problem.of_sequence(i) for i in first])
    launches = replace(launches, scratch_bytes=np.zeros_like(launches.scratch_bytes))
    return launches.take(which)


def collect_batches(kernel: Kernel, problem: Problem, batches: IntArray) -> Launches:
    """`collect` for `problem` at each batch.

    Most formulas are plain arithmetic and are evaluated once, on the array of batches. A formula
    that branches on the batch refuses an array; then each batch is evaluated separately.

    Raises:
        InvalidProblem: a batch that the variant cannot launch.
    """
    variant, config = kernel.variant, kernel.config
    shape = BatchedShape(problem)
    shape.batch = batches
    with suppress(TypeError, ValueError):  # raised by `if`, `min` and `int` of an array
        if _launchable_everywhere(kernel, shape):
            figures = _figures(kernel, shape)
            columns = np.stack([np.broadcast_to(x, batches.shape) for x in figures])
            return _launches(columns.astype(np.int64), len(variant.passes))
    plans = [make_plan(variant, replace(problem, batch=int(b)), config) for b in batches]
    return collect(kernel, [plan.problem for plan in plans])


def _launchable_everywhere(kernel: Kernel, shape: BatchedShape) -> bool:
    """True if every batch of the shape's array can be launched."""
    variant, config = kernel.variant, kernel.config
    fixed = BatchedShape(shape)
    fixed.batch = int(shape.batch[0])
    if variant.unsupported(fixed, config) is not None:
        return False
    return all(np.all(c.holds(shape, config)) for c in variant.constraints)


def _figures(kernel: Kernel, p: ProblemLike) -> tuple[Any, ...]:
    """Return a problem's eighteen figures, then CTAs, threads and dynamic shared memory of each
    pass."""
    variant, config = kernel.variant, kernel.config
    work = variant.work
    math_threads = work.math_threads(p, config)
    query_rows = work.query_rows(p, config)
    element_bytes = BYTES_PER_ELEMENT[p.dtype]
    if work.conflict_ways is None:
        ways = unpadded_conflict_ways(element_bytes * p.head_dim, math_threads, query_rows)
    else:
        ways = work.conflict_ways(p, config)
    return (
        *(p.batch, p.num_heads, p.kv_heads, p.seqlen, p.num_keys),
        *((p.head_dim + p.value_dim) // 2, p.causal),
        *(p.window or 0, p.twice_scores),
        element_bytes,
        1 if "kv_fp8" in p.features else element_bytes,
        sum(s.element_bytes * prod(s.shape(p, config)) for s in variant.scratch),
        0 if variant.page_rows is None else Pages(p, variant.page_rows(p, config)).extra_bytes,
        *(query_rows, work.kv_rows(p, config), math_threads, ways, config.get("num_splits", 1)),
        *(prod(x.grid(p, config)) for x in variant.passes),
        *(x.threads(p, config) for x in variant.passes),
        *(x.dynamic_smem_bytes(p, config) for x in variant.passes),
    )


def _launches(columns: IntArray, num_passes: int) -> Launches:
    """Return the launches. `columns` is `[18 + 3 · passes, n]`, in the order of `_figures`."""
    batch, num_heads, kv_heads, seqlen, num_keys, head_dim, causal = columns[:7]
    window, twice_scores = columns[7:9]
    element_bytes, kv_element_bytes, scratch, pages = columns[9:13]
    rows, kv, math, ways, splits = columns[13:18]
    ctas, threads, smem = columns[18:].reshape(3, num_passes, -1)
    return Launches(
        batch=batch,
        num_heads=num_heads,
        kv_heads=kv_heads,
        seqlen=seqlen,
        num_keys=num_keys,
        head_dim=head_dim,
        causal=causal.astype(bool),
        window=window,
        twice_scores=twice_scores,
        element_bytes=element_bytes,
        kv_element_bytes=kv_element_bytes,
        ctas=ctas,
        useful_ctas=_useful_ctas(
            ctas[0],
            splits,
            batch * num_heads,
            -(-seqlen // rows),
            num_keys,
            rows,
            kv,
            causal,
            seqlen,
        ),
        threads=threads,
        dynamic_smem_bytes=smem,
        scratch_bytes=scratch,
        page_bytes=pages,
        query_rows=rows,
        kv_rows=kv,
        math_threads=math,
        conflict_ways=ways,
        of_each=np.full(len(batch), None, dtype=np.object_),
    )


def _useful_ctas(
    ctas: IntArray,
    splits: IntArray,
    slices: IntArray,
    tiles: IntArray,
    num_keys: IntArray,
    query_rows: IntArray,
    kv_rows: IntArray,
    causal: IntArray,
    seqlen: IntArray,
) -> IntArray:
    """Return the CTAs that have keys to visit. A K/V chunk that begins past the last key has none.

    A causal query tile ends at its own rows, so later chunks are empty for early tiles. In a launch
    that does not have a CTA for each split of each query tile, all count as useful.

    Args:
        slices: batch · num_heads; tiles: query tiles of each.
    """
    useful = np.zeros_like(ctas)
    for split in range(int(splits.max(initial=1))):
        first_key = split * kv_rows
        # Causal tiles that end before the chunk begins do not see it.
        own = np.maximum(0, first_key - (num_keys - seqlen))  # counted from the first query
        before = np.where(causal > 0, np.minimum(own // query_rows, tiles), 0)
        has_keys = (split < splits) & (first_key < num_keys)
        useful += np.where(has_keys, slices * (tiles - before), 0)
    per_split = slices * tiles * splits
    return np.where(per_split == ctas, useful, ctas)


def unpadded_conflict_ways(row_bytes: int, math_threads: int, query_rows: int) -> int:
    """Return the ways of the bank conflict when lanes of a warp read neighbouring query rows.

    Assumes a row-major tile without padding, and that threads of one row read one address. Rows at
    distances of a multiple of 128 bytes are in one bank.
    """
    rows_per_warp = max(1, WARP_SIZE * min(query_rows, math_threads) // math_threads)
    stride_banks = max(1, row_bytes // _BANK_BYTES)
    banks_hit = _NUM_BANKS // gcd(stride_banks, _NUM_BANKS)
    return -(-rows_per_warp // banks_hit)


# DRAM traffic of a launch, from the order in which its CTAs start.


@dataclass(frozen=True, slots=True)
class CurveTraffic:
    """DRAM traffic of n launches, from the order of their CTAs."""

    dram_bytes: npt.NDArray[np.float64] | None  # [n]; None: the order is not known
    miss_share: npt.NDArray[np.float64]  # [n] as `Traffic.miss_share`


def traffic_by_order(kernel: Kernel, plan: LaunchPlan, resident: int) -> Traffic | None:
    """Return the bytes that one warm launch reads from DRAM.

    Args:
        resident: CTAs of the main pass on an SM.

    Returns:
        None if the grid's axes do not tell which CTAs share keys, or the GPU's L2 or number of SMs
        is not known.
    """
    device = kernel.device
    if device.l2_bytes is None or device.num_sms is None:
        return None
    kept_bytes = kept_l2_bytes(device.arch, device.l2_bytes)
    if plan.problem.seqlens is not None:
        moved = _traffic_of_sequences(kernel, plan, resident, kept_bytes)
    else:
        moved = _traffic_of_equal(kernel, plan, resident, kept_bytes)
    if moved is None or not moved.dram_bytes:
        return moved
    return replace(moved, written_bytes=float(collect(kernel, [plan.problem]).written_bytes[0]))


def _traffic_of_equal(
    kernel: Kernel, plan: LaunchPlan, resident: int, kept_bytes: int
) -> Traffic | None:
    if plan.device_bytes <= kept_bytes:
        return Traffic(0.0, 0.0, 0.0)
    if (shares := _kv_shares(kernel.variant, plan)) is None:
        return None
    order = KvOrder(plan.passes[0].grid, shares)
    kv_bytes = plan.problem.kv_bytes
    return traffic(
        order,
        kv_bytes / order.num_heads,
        plan.device_bytes - kv_bytes,
        resident * (kernel.device.num_sms or 1),
        kept_bytes,
    )


def _traffic_of_sequences(
    kernel: Kernel, plan: LaunchPlan, resident: int, kept_bytes: int
) -> Traffic | None:
    """Return the traffic of sequences of different lengths, in the order of the grid's slowest
    axis.

    If not all sequences fit in L2, one that fits by itself reads each of its bytes once.
    """
    variant, problem, num_sms = kernel.variant, plan.problem, kernel.device.num_sms or 1
    launches = collect(kernel, [problem])
    if launches.device_bytes[0] <= kept_bytes:
        return Traffic(0.0, 0.0, 0.0)
    moved, read, kv_bytes = float(launches.scratch_bytes[0]), 0.0, 0.0
    touched = dict(zip(problem.seqlens or (), launches.of_each[0].device_bytes, strict=True))
    for keys, sequences in Counter(problem.seqlens or ()).items():
        own = problem.of_sequence((problem.seqlens or ()).index(keys))
        if (shares := _kv_shares(variant, replace(plan, problem=own))) is None:
            return None
        order = KvOrder(variant.passes[0].grid(own, plan.config), shares)
        of_kv = own.kv_bytes
        other = float(touched[keys]) - of_kv
        running = resident * num_sms
        found = traffic(order, of_kv / order.num_heads, other, running, kept_bytes)
        reads = max(1.0, found.kv_reads)
        moved += sequences * (reads * of_kv + other)
        read, kv_bytes = read + sequences * reads * of_kv, kv_bytes + sequences * of_kv
    return Traffic(moved, read / kv_bytes, 1.0)


def _kv_shares(variant: Variant, plan: LaunchPlan) -> tuple[int, int, int] | None:
    """Return for each axis of the grid how many neighbours read the same keys; None if unclear.

    An axis whose size grows with the number of queries has query tiles; one that grows with heads
    or batch has heads.
    """
    problem, grid = plan.problem, plan.passes[0].grid
    group = problem.head_group
    small = replace(
        problem,
        batch=1,
        num_heads=group,
        num_heads_kv=1,
        seqlen=64,
        seqlen_kv=problem.num_keys,
        causal=False,
        window=None,
        seqlens=None,
    )

    def grows(larger: Problem) -> tuple[bool, ...]:
        at = (variant.passes[0].grid(p, plan.config) for p in (small, larger))
        return tuple(x != y for x, y in zip(*at, strict=True))

    over_queries = grows(replace(small, seqlen=4096))
    over_heads = grows(replace(small, num_heads=2 * group, num_heads_kv=2))
    over_batch = grows(replace(small, batch=2))
    shares = []
    for axis in range(3):
        by_head = over_heads[axis] or over_batch[axis]
        if grid[axis] > 1 and by_head == over_queries[axis]:
            return None  # a persistent grid, or tiles and heads on one axis
        shares.append(grid[axis] if not by_head else group if over_heads[axis] else 1)
    return shares[0], shares[1], shares[2]
