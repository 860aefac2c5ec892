"""Error maps: the largest |out − reference| along several pairs of axes, small enough to draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.correctness.attribution import error_by_key_tile
from engine.correctness.compared_output import ComparedOutput
from engine.correctness.reference import Float64Array, IntArray
from engine.correctness.tiles import Tiles
from engine.tensors import Inputs
from kernels.variant import ceil_div

MAX_MAP_SIDE = 256
# A cell of which nothing was compared, because a large problem was sampled. NaN is taken: it marks
# a NaN or infinity of the kernel.
NOT_COMPARED = -1.0

_AXES = {
    "batch_by_head": ("batch", "head"),
    "query_tile_by_key_tile": ("query tile", "key tile"),
    "row_by_column": ("query row", "column d"),
}


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMap:
    """One map, pooled by block maximum; NaN where the kernel's output was NaN or infinite."""

    name: str
    row_axis: str
    column_axis: str
    values: Float64Array  # [rows, columns], at most 256 × 256
    rows_per_cell: int = 1
    columns_per_cell: int = 1


def error_maps(
    inputs: Inputs, compared: ComparedOutput, tiles: Tiles
) -> tuple[ErrorMap, ErrorMap, ErrorMap]:
    """The maps of one output: batch × head, query tile × key tile, row × column.

    The second is of one (batch, head), the worst one; see `error_by_key_tile` for how an error of
    the output is traced to key tiles.
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


def maps_to_arrays(maps: Iterable[ErrorMap]) -> dict[str, npt.NDArray[np.generic]]:
    """The three maps by name, and `per_cell`, `[3, 2]`: indices per cell, down and across."""
    maps = tuple(maps)
    per_cell = np.array([(m.rows_per_cell, m.columns_per_cell) for m in maps], dtype=np.intp)
    return {**{m.name: m.values for m in maps}, "per_cell": per_cell}


def maps_from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> tuple[ErrorMap, ...]:
    """The inverse of `maps_to_arrays`. KeyError when an array is missing."""
    return tuple(
        ErrorMap(name, *axes, arrays[name].astype(np.float64), int(down), int(across))
        for (name, axes), (down, across) in zip(_AXES.items(), arrays["per_cell"], strict=True)
    )


def pool(values: Float64Array, side: int = MAX_MAP_SIDE) -> tuple[Float64Array, int, int]:
    """Block maxima of a matrix, at most `side` × `side`, and the block's two sides.

    NaN wins over every number.
    """
    down, across = (ceil_div(n, side) for n in values.shape)
    for axis, step in ((0, down), (1, across)):
        values = np.maximum.reduceat(values, np.arange(0, values.shape[axis], step), axis=axis)
    return values, down, across


def _pool_rows(values: Float64Array, rows: IntArray, seqlen: int) -> tuple[Float64Array, int, int]:
    """`values` `[len(rows), columns]` of some query rows, pooled on the grid of all of them."""
    whole, down, across = ceil_div(seqlen, MAX_MAP_SIDE), 0, 0
    cells = rows // whole
    starts = np.flatnonzero(np.r_[True, cells[1:] != cells[:-1]])
    pooled = np.full((ceil_div(seqlen, whole), values.shape[1]), NOT_COMPARED)
    pooled[cells[starts]] = np.maximum.reduceat(values, starts, axis=0)
    pooled, down, across = pool(pooled)
    return pooled, whole * down, across
