"""Where wrong elements lie, in words: heads, query tiles, rows of a warp, columns of d."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.correctness.comparison import BoolArray
from engine.correctness.reference import Coverage, IntArray
from engine.correctness.tiles import Tiles
from engine.problem import Problem

_MAX_LISTED = 6


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The slices, rows and columns that hold at least one marked element."""

    problem: Problem
    slices: IntArray  # flat (batch, head) indices
    rows: IntArray
    columns: IntArray
    all_slices: bool
    all_rows: bool

    @classmethod
    def of(cls, mask: BoolArray, coverage: Coverage) -> Region:
        """The region of a `[slices, rows, head_dim]` mask."""
        by_slice, by_row = mask.any(axis=(1, 2)), mask.any(axis=(0, 2))
        return cls(
            coverage.problem,
            coverage.slices[by_slice],
            coverage.rows[by_row],
            np.flatnonzero(mask.any(axis=(0, 1))),
            bool(by_slice.all()),
            bool(by_row.all()),
        )

    def words(self) -> str:
        """`rows 64–127 of batch 0, head 1, all columns`."""
        columns = span("column", self.columns, self.problem.head_dim)
        return f"{self.row_words()} of {self.slice_words()}, {columns}"

    def row_words(self) -> str:
        return "every row" if self.all_rows else span("row", self.rows, self.problem.seqlen)

    def slice_words(self) -> str:
        """`batch 0, head 1`, `heads 1–3 of every batch`, `every head`."""
        p = self.problem
        if self.all_slices:
            return "every head" if p.batch * p.num_heads > 1 else "the only head"
        batches, heads = np.unique(self.slices // p.num_heads), np.unique(self.slices % p.num_heads)
        if len(batches) * len(heads) != len(self.slices):
            return f"{len(self.slices):,} of {p.batch * p.num_heads:,} (batch, head) slices"
        of_batches = span("batch", batches, p.batch)
        if len(heads) == p.num_heads:
            return f"every head of {of_batches}"
        return f"{of_batches}, {span('head', heads, p.num_heads)}"


def span(name: str, indices: IntArray, total: int) -> str:
    """Indices in words: `row 5`, `rows 0–63`, `every column`, `rows 1, 5, 9, …, 61 (every 4th)`."""
    plural = f"{name}es" if name.endswith("ch") else f"{name}s"
    count = len(indices)
    if count == total:
        return f"every {name}" if total > 1 else f"{name} 0"
    if count == 1:
        return f"{name} {indices[0]}"
    steps = np.unique(np.diff(indices))
    if len(steps) == 1 and count > 2:
        if steps[0] == 1:
            return f"{plural} {indices[0]}–{indices[-1]}"
        if count > 3:
            return (
                f"{plural} {indices[0]}, {indices[1]}, {indices[2]}, …, {indices[-1]} "
                f"(every {ordinal(int(steps[0]))})"
            )
    if count <= _MAX_LISTED:
        return f"{plural} {', '.join(map(str, indices[:-1]))} and {indices[-1]}"
    return f"{count:,} {plural} between {indices[0]} and {indices[-1]}"


def ordinal(n: int) -> str:
    """`2nd`, `3rd`, `4th`, `11th`."""
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


@dataclass(frozen=True, slots=True)
class Place:
    """A pattern of where: its name and a sentence."""

    pattern: str
    sentence: str


def places(mask: BoolArray, coverage: Coverage, tiles: Tiles) -> list[Place]:
    """What sets the wrong elements apart from the right ones, as far as it is a pattern."""
    region = Region.of(mask, coverage)
    found = [
        *_heads(region),
        *_rows(mask, region, coverage, tiles),
        *_columns(region),
    ]
    if not found:
        found.append(_everywhere(region, tiles))
    return found


def _heads(region: Region) -> Sequence[Place]:
    p = region.problem
    if region.all_slices:
        return ()
    where = region.slice_words()
    if len(region.slices) == 1:
        return (
            Place(
                "one_head",
                f"Only {where} is wrong: look at the offset of this head (its base address or "
                "stride), not at the maths.",
            ),
        )
    total = p.batch * p.num_heads
    if len(region.slices) == total - 1 and 0 not in region.slices:
        return (
            Place(
                "head_stride",
                "Every head is wrong but the first of the first batch, whose offset is 0 whatever "
                "the stride: look at the stride between heads.",
            ),
        )
    return (
        Place(
            "some_heads",
            f"Only {where} are wrong: look at how the offset is made from batch and head.",
        ),
    )


def _rows(mask: BoolArray, region: Region, coverage: Coverage, tiles: Tiles) -> Sequence[Place]:
    if region.all_rows:
        return ()
    rows, block = region.rows, tiles.block_m
    which = region.row_words()
    if len(rows) == 1:
        return (Place("one_row", f"Only {which} is wrong."),)
    wrong_tiles = np.unique(rows // block)
    last = tiles.num_query_tiles - 1
    if len(wrong_tiles) == 1 and tiles.num_query_tiles > 1:
        tile = int(wrong_tiles[0])
        if tile == last and tiles.seqlen % block:
            return (
                Place(
                    "tail_tile",
                    f"Only the last, partial query tile is wrong ({which}; {tiles.seqlen % block} "
                    f"of {block} rows exist): look at how its rows are loaded, masked and stored.",
                ),
            )
        return (Place("one_query_tile", f"Only query tile {tile} is wrong ({which})."),)
    in_tile = _positions_in_tile(mask, coverage, block)
    if in_tile is not None:
        return (_warp_rows(in_tile, tiles),)
    if rows[0] >= block and (wrong_tiles == np.arange(wrong_tiles[0], last + 1)).all():
        return (
            Place(
                "first_tiles_right",
                f"Query tiles up to {wrong_tiles[0] - 1} are right and the later ones wrong "
                f"({which}): look at what depends on the query tile's index.",
            ),
        )
    return (Place("some_rows", f"Only {which} are wrong."),)


def _positions_in_tile(mask: BoolArray, coverage: Coverage, block: int) -> IntArray | None:
    """Rows within the query tile that are wrong in every tile, if the others are right in all."""
    by_row = mask.any(axis=(0, 2))
    position = coverage.rows % block
    wrong = np.bincount(position, weights=by_row, minlength=block)
    seen = np.bincount(position, minlength=block)
    marked = np.flatnonzero(wrong > 0)
    # Nearly always wrong, or never: a right value by chance does not break the pattern.
    if 0 < len(marked) < np.count_nonzero(seen) and (wrong[marked] >= 0.9 * seen[marked]).all():
        return marked
    return None


def _warp_rows(positions: IntArray, tiles: Tiles) -> Place:
    which = span("row", positions, tiles.block_m)
    per_warp = tiles.rows_per_warp
    warps = np.unique(positions // per_warp)
    whole = len(positions) == per_warp * len(warps)
    if whole and len(warps) == 1:
        return Place(
            "rows_of_one_warp",
            f"In every query tile the same rows are wrong, {which} of {tiles.block_m}: the rows of "
            f"warp {warps[0]}, if the CTA's {tiles.threads} threads share its rows in order.",
        )
    return Place(
        "rows_in_tile",
        f"In every query tile the same rows are wrong, {which} of {tiles.block_m}: look at what "
        "differs between its threads, such as lane, warp or a register tile.",
    )


def _columns(region: Region) -> Sequence[Place]:
    if len(region.columns) == region.problem.head_dim:
        return ()
    which = span("column", region.columns, region.problem.head_dim)
    verb = "is" if len(region.columns) == 1 else "are"
    return (
        Place(
            "columns_of_d",
            f"Only {which} of d {verb} wrong: look at which thread owns these columns when V is "
            "read and O is stored.",
        ),
    )


def _everywhere(region: Region, tiles: Tiles) -> Place:
    tail = f", {tiles.num_query_tiles:,} query tiles" if tiles.num_query_tiles > 1 else ""
    heads = "every head" if region.problem.batch * region.problem.num_heads > 1 else "the head"
    return Place(
        "everywhere",
        f"{heads[0].upper()}{heads[1:]}, row and column has wrong elements{tail}: the main loop is "
        "wrong, not an edge of it.",
    )
