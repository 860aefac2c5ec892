"""Error maps: the largest |out − reference| along several pairs of axes, small enough to draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

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


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMap:
    """One map, pooled by block maximum; NaN where the kernel's output was NaN or infinite."""

    name: str
    row_axis: str
    column_axis: str
    values: Float64Array  # [rows, columns]
    rows_per_cell: int
    columns_per_cell: int


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMaps:
    """Largest |out − reference|; at most 256 cells along any axis.

    `query_tile_by_key_tile` is of one (batch, head), the worst one; see `error_by_key_tile` for how
    an error of the output is traced to key tiles.
    """

    batch_by_head: Float64Array
    query_tile_by_key_tile: Float64Array
    row_by_column: Float64Array
    by_row: Float64Array  # over batches, heads and columns; as `row_by_column` down
    by_column: Float64Array  # over batches, heads and rows; as `row_by_column` across
    per_cell: IntArray  # [3, 2]: indices per cell (down, across) of the first three
    worst_slice: IntArray  # [2]: the (batch, head) of query_tile_by_key_tile

    def maps(self) -> tuple[ErrorMap, ...]:
        """The maps with two axes, named and labelled."""
        axes = (
            ("batch_by_head", "batch", "head"),
            ("query_tile_by_key_tile", "query tile", "key tile"),
            ("row_by_column", "query row", "column d"),
        )
        return tuple(
            ErrorMap(name, down, across, getattr(self, name), int(per[0]), int(per[1]))
            for (name, down, across), per in zip(axes, self.per_cell, strict=True)
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """The maps from their arrays by field name, as the job's result file holds them."""
        return cls(**{f.name: arrays[f.name] for f in fields(cls)})


def error_maps(inputs: Inputs, compared: ComparedOutput, tiles: Tiles) -> ErrorMaps:
    """All maps of one comparison."""
    problem, coverage = inputs.problem, compared.coverage
    shown = np.where(compared.finite, compared.error, np.nan)
    by_slice = np.full(problem.batch * problem.num_heads, NOT_COMPARED)
    by_slice[coverage.slices] = shown.max(axis=(1, 2))
    batch_by_head, batch_per_cell, head_per_cell = _pool(
        by_slice.reshape(problem.batch, problem.num_heads)
    )
    rows_by_columns, row_per_cell, column_per_cell = _pool_rows(
        shown.max(axis=0), coverage.rows, problem.seqlen
    )
    worst = compared.worst_slice()
    by_tile, merged = error_by_key_tile(inputs, compared, tiles, worst)
    by_tile, query_per_cell, key_per_cell = _pool(by_tile)
    return ErrorMaps(
        batch_by_head=batch_by_head,
        query_tile_by_key_tile=by_tile,
        row_by_column=rows_by_columns,
        by_row=rows_by_columns.max(axis=1),
        by_column=rows_by_columns.max(axis=0),
        per_cell=np.array(
            [
                [batch_per_cell, head_per_cell],
                [query_per_cell * merged[0], key_per_cell * merged[1]],
                [row_per_cell, column_per_cell],
            ],
            dtype=np.intp,
        ),
        worst_slice=np.array(divmod(int(coverage.slices[worst]), problem.num_heads), dtype=np.intp),
    )


def _pool(values: Float64Array) -> tuple[Float64Array, int, int]:
    """Block maxima of a matrix, at most 256 × 256, and the block's two sides."""
    down, across = (ceil_div(n, MAX_MAP_SIDE) for n in values.shape)
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
    pooled, down, across = _pool(pooled)
    return pooled, whole * down, across
