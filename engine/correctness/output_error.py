"""The error of an output: element by element, by key tile, and as maps.

`Tiles` is a launch plan's partition of the problem, and `ComparedOutput` an output compared with
its float64 reference; `error_by_key_tile` attributes errors to key tiles; `ErrorMap`s have the
largest error along pairs of axes, small enough to draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, RawArray, alibi_slopes, bits_of, decode, poison_of
from engine.base.launch_arguments import TensorMapArg
from engine.correctness.reference import (
    BoolArray,
    Coverage,
    Float64Array,
    IntArray,
    blas_on_one_thread,
    final_scores,
    slice_qkv,
    visible_keys,
)
from kernels.variant import GRADIENTS, Dtype, ceil_div

if TYPE_CHECKING:
    import pandas as pd

# Outputs of the backward pass, as they are shown.
GRADIENT_NAMES = {"dq": "dQ", "dk": "dK", "dv": "dV"}

_USUAL_TILE = 64
_EXPONENT_BITS = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}


@dataclass(frozen=True, slots=True)
class Box:
    """The box of one TMA copy; a row is as wide as the swizzle."""

    columns: int
    rows: int
    swizzle_bytes: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Query tiles, key tiles and K/V chunks of one plan."""

    seqlen: int
    num_keys: int
    block_m: int  # query rows per CTA
    block_n: int  # K/V rows per tile
    num_splits: int  # K/V chunks per query tile, empty ones included
    chunk_rows: int  # K/V rows of one chunk, the last may be shorter
    threads: int  # per CTA of the main pass
    num_passes: int
    has_scratch: bool
    chunk_name: str = "split"  # what processes a chunk: a split (a CTA), or a warp of one CTA
    page_rows: int = 0  # keys of a page of K and V; 0: not paged
    boxes: Mapping[str, Box] = field(default_factory=dict)  # TMA boxes of Q, K and V

    @property
    def num_query_tiles(self) -> int:
        return ceil_div(self.seqlen, self.block_m)

    @property
    def num_key_tiles(self) -> int:
        return ceil_div(self.num_keys, self.block_n)

    @property
    def padding(self) -> int:
        """Return the number of key rows of the last tile past the last key."""
        return self.num_key_tiles * self.block_n - self.num_keys

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks with at least one key."""
        return ceil_div(self.num_keys, self.chunk_rows)

    @property
    def rows_per_warp(self) -> int:
        """Return the query rows of one warp, if a CTA's rows are distributed to its warps in
        order."""
        return max(1, self.block_m * 32 // self.threads)


def tiles_of(problem: Problem, plan: LaunchPlan | None) -> Tiles:
    """Return the plan's tiles; without a plan, 64 × 64 with one chunk."""
    keys = problem.num_keys
    if plan is None:
        return Tiles(problem.seqlen, keys, _USUAL_TILE, _USUAL_TILE, 1, keys, 128, 1, False)
    num_splits = next((count for name, count in plan.config.items() if "split" in name), 1)
    chunk_rows = plan.kv_rows if num_splits > 1 and plan.kv_rows else keys
    if num_splits > 1 and chunk_rows >= keys > plan.config.get("block_n", 1):
        chunk_rows = ceil_div(keys, num_splits)  # an own kernel that does not declare kv_rows
    chunk_name = "split"
    block_n = plan.config.get("block_n", _USUAL_TILE)
    if "keys_per_warp" in plan.config:  # the warps of a CTA process the splits
        block_n = chunk_rows = plan.config["keys_per_warp"]
        num_splits, chunk_name = plan.passes[0].threads // 32, "warp"
    return Tiles(
        seqlen=problem.seqlen,
        num_keys=keys,
        block_m=plan.query_rows,
        block_n=block_n,
        num_splits=num_splits,
        chunk_rows=chunk_rows,
        threads=plan.passes[0].threads,
        num_passes=len(plan.passes),
        has_scratch=bool(plan.scratch),
        chunk_name=chunk_name,
        page_rows=plan.pages.rows if plan.pages is not None else 0,
        boxes={
            argument.buffer: Box(argument.box[0], argument.box[1], argument.swizzle_bytes)
            for argument in plan.passes[0].args
            if isinstance(argument, TensorMapArg)
            and len(argument.box) >= 2
            and argument.swizzle_bytes == argument.box[0] * argument.element_bytes
        },
    )


@dataclass(frozen=True, slots=True, eq=False)
class ComparedOutput:
    """An output and its reference on the covered rows; arrays are `[slices, rows, head_dim]`.

    `error` is |out − reference|, and 0 where the output is not finite (see `finite`).
    """

    coverage: Coverage
    out: Float64Array
    reference: Float64Array
    error: Float64Array
    finite: BoolArray
    tolerance: float

    @property
    def over(self) -> BoolArray:
        """Return the mask of finite elements over the tolerance."""
        return self.error > self.tolerance

    @property
    def bad(self) -> BoolArray:
        """Return the mask of elements over the tolerance, NaN, infinite or never written."""
        return ~self.finite | self.over

    def worst_slice(self) -> int:
        """Return the position of the slice with the largest error; the first broken one if all are
        exact."""
        by_slice = self.error.max(axis=(1, 2))
        if by_slice.max() == 0:
            by_slice = (~self.finite).any(axis=(1, 2)).astype(np.float64)
        return int(by_slice.argmax())


def compare_output(
    raw: RawArray, reference: Float64Array, coverage: Coverage, tolerance: float
) -> ComparedOutput:
    """Compare a raw output with the covered reference.

    Args:
        raw: `[batch, num_heads, seqlen, head_dim]`.
        reference: `[slices, rows, head_dim]` of `coverage`.
    """
    dtype = coverage.problem.dtype
    covered = coverage.take(raw)
    # The poison is a signalling NaN; widening it sets the invalid flag, which is irrelevant.
    with np.errstate(invalid="ignore"):
        out = decode(covered, dtype).astype(np.float64)
    finite = ~nonfinite(covered, dtype)
    error = np.zeros_like(reference)
    np.subtract(out, reference, out=error, where=finite)
    np.abs(error, out=error)
    return ComparedOutput(coverage, out, reference, error, finite, tolerance)


@dataclass(frozen=True, slots=True, eq=False)
class BrokenElements:
    """Unwritten and non-finite elements of a whole output, `[batch, num_heads, seqlen,
    head_dim]`."""

    unwritten: BoolArray  # still has the poison
    nonfinite: BoolArray  # NaN or infinite, though it was written

    @classmethod
    def of(cls, raw: RawArray, dtype: Dtype) -> BrokenElements:
        """Find the broken elements of `raw`.

        The output is examined in parts, without temporary arrays of its size. Masks start as zeros,
        which take no memory until written, and most outputs have no broken element.
        """
        bits, poison = bits_of(raw), poison_of(dtype)
        broken = cls(np.zeros(bits.shape, np.bool_), np.zeros(bits.shape, np.bool_))
        for part, empty, written in zip(bits, broken.unwritten, broken.nonfinite, strict=True):
            found = nonfinite(part, dtype)
            if found.any():
                np.equal(part, poison, out=empty)
                np.greater(found, empty, out=written)
        return broken

    def first_index(self) -> tuple[int, int, int, int] | None:
        """Return (batch, head, row, column) of the first such element in memory order."""
        if not (self.unwritten.any() or self.nonfinite.any()):
            return None
        broken = self.unwritten | self.nonfinite
        batch, head, row, column = np.unravel_index(int(broken.argmax()), broken.shape)
        return int(batch), int(head), int(row), int(column)


def nonfinite(raw: RawArray, dtype: Dtype) -> BoolArray:
    """Return the mask of NaN or infinity (all exponent bits set). The poison is a NaN too."""
    bits = bits_of(raw)
    exponent = bits.dtype.type(_EXPONENT_BITS[dtype])
    return np.asarray((bits & exponent) == exponent)


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """Error statistics over finite elements.

    If no element is finite, the statistics are those of an output of zeros, so every figure is
    finite.
    """

    max_abs_err: float
    mean_abs_err: float
    rms_err: float
    cosine: float

    @classmethod
    @blas_on_one_thread()
    def of(cls, compared: ComparedOutput) -> ErrorFigures:
        finite, ref = compared.finite, compared.reference
        if not finite.any():
            size = np.abs(ref)
            return cls(float(size.max()), float(size.mean()), _rms(size), 0.0)
        error, out = compared.error, compared.out
        if not finite.all():
            error, out, ref = error[finite], out[finite], ref[finite]
        norms = float(np.linalg.norm(out)) * float(np.linalg.norm(ref))
        cosine = float(np.vdot(out, ref)) / norms if norms > 0 else float(not np.any(error))
        return cls(
            float(error.max()), float(error.mean()), _rms(error), float(np.clip(cosine, -1, 1))
        )


def _rms(error: Float64Array) -> float:
    return float(np.linalg.norm(error) / np.sqrt(error.size))


# Beyond this number, tiles are merged: the cost of the fit is cubic in it.
_MAX_TILES = 128
# Rows examined per query tile, evenly spaced.
_MAX_ROWS = 32
# Equations per unknown. Each row gives head_dim equations. With few tiles, one row is enough, and
# each row is fitted alone, because a missing renormalisation has other weights in each. With few
# queries and many keys, tiles are merged until there are enough equations.
_OVERDETERMINED = 3
# exp(score − row's log-sum) of a masked key may be huge; only its direction matters.
_MAX_LOG_WEIGHT = 30.0


def error_by_key_tile(
    inputs: Inputs, compared: ComparedOutput, tiles: Tiles, position: int
) -> tuple[Float64Array, tuple[int, int]]:
    """Attribute the largest |error| of each query tile of one slice to key tiles.

    An output row is a sum over key tiles, out = Σ_t c_t with c_t = Σ_{j in t} p_j·v_j. A kernel
    that drops, doubles or wrongly weights a tile adds a_t·c_t. One that includes masked keys adds
    b_t·u_t, where u_t is the contribution of the tile's masked keys, or, if off by one at the
    diagonal, of the adjacent key. The error of a few rows at a time is fitted by least squares with
    these directions, and the part along those of tile t is attributed to t. An error that no key
    tile explains (a wrong Q row, swapped columns) is attributed to all of them.

    Args:
        position: the covered slice.

    Returns:
        `[query tiles, key tiles]`: NaN in a query tile with NaN or infinity, −1 if no row was
        compared; and how many tiles each entry represents ((1, 1) for up to 128 tiles a side).
    """
    problem, rows = inputs.problem, compared.coverage.rows
    equations = min(problem.seqlen, tiles.block_m, _MAX_ROWS) * problem.value_dim
    is_masked = problem.causal or problem.window is not None
    solvable = equations // (_OVERDETERMINED * (2 if is_masked else 1))
    merged = (
        ceil_div(tiles.num_query_tiles, _MAX_TILES),
        ceil_div(tiles.num_key_tiles, min(_MAX_TILES, max(1, solvable))),
    )
    block_m, block_n = tiles.block_m * merged[0], tiles.block_n * merged[1]
    starts = np.arange(0, problem.num_keys, block_n)
    q, k, v = (x[0] for x in slice_qkv(inputs, compared.coverage.slices[[position]]))
    batch, head = divmod(int(compared.coverage.slices[position]), problem.num_heads)
    own, keys = problem.of_sequence(batch), np.arange(problem.num_keys)
    slope = alibi_slopes(problem.num_heads)[head] if problem.alibi else None
    result = np.full((ceil_div(problem.seqlen, block_m), len(starts)), -1.0)
    for tile in range(len(result)):
        inside = np.flatnonzero((rows // block_m == tile) & (rows < own.seqlen))
        if not inside.size:
            continue
        if not compared.finite[position, inside].all():
            result[tile] = np.nan
            continue
        chosen = inside[np.unique(np.linspace(0, inside.size - 1, _MAX_ROWS).astype(int))]
        scores = problem.softmax_scale * q[rows[chosen]] @ k.T
        scores = final_scores(own, scores, rows[chosen], keys, slope)
        directions = _directions(scores, visible_keys(own, rows[chosen], keys), v, starts)
        error = compared.out[position, chosen] - compared.reference[position, chosen]
        result[tile] = _by_tile(error, directions)
    return result, merged


def _directions(
    scores: Float64Array, visible: npt.NDArray[np.bool_], v: Float64Array, starts: IntArray
) -> Float64Array:
    """Return the contributions of each key tile, `[kinds, key tiles, rows, head_dim]`.

    Kinds: the visible keys; if some keys are masked, also the masked ones, and for either end of
    the visible range the first masked key and the last visible key.
    """
    keys = np.arange(scores.shape[1])
    top = np.where(visible, scores, -np.inf).max(axis=1, keepdims=True)
    log_sum = top + np.log(
        np.exp(scores - top, where=visible, out=np.zeros_like(scores)).sum(axis=1, keepdims=True)
    )
    weights = np.exp(np.minimum(scores - log_sum, _MAX_LOG_WEIGHT))
    kinds = [visible]
    if not visible.all():
        first = visible.argmax(axis=1)[:, None]
        last = len(keys) - 1 - visible[:, ::-1].argmax(axis=1)[:, None]
        kinds += [~visible, keys == last + 1, keys == last]
        if first.any():  # a window
            kinds += [keys == first - 1, keys == first]
    return np.stack([_per_tile(weights * kind, v, starts) for kind in kinds])


def _per_tile(weights: Float64Array, v: Float64Array, starts: IntArray) -> Float64Array:
    """Return Σ_j weights_j·v_j of each tile, `[key tiles, rows, head_dim]`."""
    ends = [*starts[1:], len(v)]
    return np.stack([weights[:, a:b] @ v[a:b] for a, b in zip(starts, ends, strict=True)])


def _by_tile(error: Float64Array, directions: Float64Array) -> Float64Array:
    """Return the largest error along each key tile's directions, or the unexplained rest if
    larger."""
    kinds, num_tiles, num_rows, head_dim = directions.shape
    unknowns = (kinds if kinds == 1 else 2) * num_tiles
    group = min(num_rows, ceil_div(_OVERDETERMINED * unknowns, head_dim))
    largest = np.zeros(num_tiles)
    for start in range(0, num_rows, group):
        rows = slice(start, start + group)
        parts = _fit(
            error[rows].ravel(), directions[:, :, rows].reshape(kinds * num_tiles, -1)
        ).reshape(kinds, num_tiles, -1)
        along = np.abs(parts.sum(axis=0)).max(axis=1)
        rest = np.abs(error[rows].ravel() - parts.sum(axis=(0, 1))).max()
        largest = np.maximum(largest, np.maximum(along, rest))
    return largest


def _fit(error: Float64Array, basis: Float64Array) -> Float64Array:
    """Return the least-squares part of `error` along each row of `basis`, `[directions, n]`."""
    norms = np.linalg.norm(basis, axis=1)
    usable = norms > 1e-12 * max(1.0, float(norms.max()))
    unit = basis[usable] / norms[usable, None]
    # Nearly equal directions share the error instead of cancelling each other.
    weights = np.linalg.lstsq(unit.T, error, rcond=1e-3)[0]
    parts = np.zeros_like(basis)
    parts[usable] = weights[:, None] * unit
    return parts


# Error maps: the largest |out − reference| along several pairs of axes, small enough to draw.


MAX_MAP_SIDE = 256
# A cell without compared elements, because a large problem was sampled. NaN already marks a NaN or
# infinity of the kernel.
NOT_COMPARED = -1.0

_AXES = {
    "batch_by_head": ("batch", "head"),
    "query_tile_by_key_tile": ("query tile", "key tile"),
    "row_by_column": ("query row", "column d"),
}
# For the backward pass, two per output: rows of dQ are queries, those of dK and dV keys.
_AXES_OF_GRADIENTS = {
    f"{name}_{kind}": axes
    for name in GRADIENTS
    for kind, axes in (
        ("batch_by_head", ("batch", "head" if name == "dq" else "K/V head")),
        ("row_by_column", ("query row" if name == "dq" else "key row", "column d")),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMap:
    """One map, pooled by block maximum; NaN where the output was NaN or infinite."""

    name: str
    row_axis: str
    column_axis: str
    values: Float64Array  # [rows, columns], at most 256 × 256
    rows_per_cell: int = 1
    columns_per_cell: int = 1

    @property
    def output(self) -> str:
        """Return the shown output: dQ, dK or dV; empty if O is the only one."""
        return GRADIENT_NAMES.get(self.name.partition("_")[0], "")

    @property
    def largest(self) -> float:
        """Return the largest finite error of the map."""
        return float(self.values[np.isfinite(self.values)].max(initial=0.0))

    @property
    def compared(self) -> BoolArray:
        """Return `[rows, columns]`, False where a large problem was only sampled."""
        compared: BoolArray = self.values != NOT_COMPARED
        return compared

    def frame(self) -> pd.DataFrame:
        """Return the values; labels are the first index of each cell."""
        import pandas as pd

        rows, columns = self.values.shape
        return pd.DataFrame(
            self.values,
            index=np.arange(rows) * self.rows_per_cell,
            columns=np.arange(columns) * self.columns_per_cell,
        )


def error_maps(
    inputs: Inputs, compared: ComparedOutput, tiles: Tiles
) -> tuple[ErrorMap, ErrorMap, ErrorMap]:
    """Return the maps of one output: batch × head, query tile × key tile, row × column.

    The second shows only the worst (batch, head); `error_by_key_tile` attributes its errors to key
    tiles.
    """
    problem, coverage = inputs.problem, compared.coverage
    error = compared.error
    if not compared.finite.all():
        error = np.where(compared.finite, error, np.nan)
    by_slice = np.full(problem.batch * problem.num_heads, NOT_COMPARED)
    by_slice[coverage.slices] = error.max(axis=(1, 2))
    batch_by_head, *per_head = pool(by_slice.reshape(problem.batch, problem.num_heads))
    by_tile, merged = error_by_key_tile(inputs, compared, tiles, compared.worst_slice())
    by_tile, *per_tile = pool(by_tile)
    row_by_column, *per_row = _pool_rows(error.max(axis=0), coverage.rows, problem.seqlen)
    per_tile = [cell * tile for cell, tile in zip(per_tile, merged, strict=True)]
    head_map, tile_map, row_map = (
        ErrorMap(name, *axes, values, *per_cell)
        for (name, axes), values, per_cell in zip(
            _AXES.items(),
            (batch_by_head, by_tile, row_by_column),
            (per_head, per_tile, per_row),
            strict=True,
        )
    )
    return head_map, tile_map, row_map


def gradient_maps(compared: Mapping[str, ComparedOutput]) -> tuple[ErrorMap, ...]:
    """Return the maps of dQ, dK and dV: batch × head and row × column of each."""
    made = []
    for name, one in compared.items():
        problem, coverage = one.coverage.problem, one.coverage
        error = np.where(one.finite, one.error, np.nan)
        by_slice = np.full(problem.batch * problem.num_heads, NOT_COMPARED)
        by_slice[coverage.slices] = error.max(axis=(1, 2))
        heads = pool(by_slice.reshape(problem.batch, problem.num_heads))
        rows = _pool_rows(error.max(axis=0), coverage.rows, problem.seqlen)
        for kind, (values, *per_cell) in (("batch_by_head", heads), ("row_by_column", rows)):
            key = f"{name}_{kind}"
            made.append(ErrorMap(key, *_AXES_OF_GRADIENTS[key], values, *per_cell))
    return tuple(made)


def maps_to_arrays(maps: Iterable[ErrorMap]) -> dict[str, npt.NDArray[np.generic]]:
    """Return the maps by name, and `per_cell`, `[maps, 2]`: indices per cell, down and across."""
    maps = tuple(maps)
    per_cell = np.array([(m.rows_per_cell, m.columns_per_cell) for m in maps], dtype=np.intp)
    return {**{m.name: m.values for m in maps}, "per_cell": per_cell}


def maps_from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> tuple[ErrorMap, ...]:
    """Return the maps of `maps_to_arrays`. Raises KeyError if an array is missing."""
    is_backward = not _AXES_OF_GRADIENTS.keys().isdisjoint(arrays)
    axes_of = (_AXES_OF_GRADIENTS if is_backward else _AXES).items()
    return tuple(
        ErrorMap(name, *axes, arrays[name].astype(np.float64), int(down), int(across))
        for (name, axes), (down, across) in zip(axes_of, arrays["per_cell"], strict=True)
    )


def pool(values: Float64Array, side: int = MAX_MAP_SIDE) -> tuple[Float64Array, int, int]:
    """Return block maxima of a matrix, at most `side` × `side`, and the block's two sides.

    The maximum of NaN and numbers is NaN.
    """
    down, across = (ceil_div(n, side) for n in values.shape)
    for axis, step in ((0, down), (1, across)):
        values = np.maximum.reduceat(values, np.arange(0, values.shape[axis], step), axis=axis)
    return values, down, across


def _pool_rows(values: Float64Array, rows: IntArray, seqlen: int) -> tuple[Float64Array, int, int]:
    """Pool `values` `[len(rows), columns]` of some query rows on the grid of all query rows."""
    whole, down, across = ceil_div(seqlen, MAX_MAP_SIDE), 0, 0
    cells = rows // whole
    starts = np.flatnonzero(np.r_[True, cells[1:] != cells[:-1]])
    pooled = np.full((ceil_div(seqlen, whole), values.shape[1]), NOT_COMPARED)
    pooled[cells[starts]] = np.maximum.reduceat(values, starts, axis=0)
    pooled, down, across = pool(pooled)
    return pooled, whole * down, across
