"""What sets the wrong elements apart: one head, the tail tile, the rows of a warp, columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.correctness.compared_output import BoolArray, ComparedOutput
from engine.correctness.diagnosis.regions import Region, span
from engine.correctness.finding_codes import FindingCode
from engine.correctness.reference import Coverage, IntArray
from engine.correctness.tiles import Tiles

# A wrong value is right by chance now and then; a pattern holds all the same.
_NEARLY_ALL = 0.9
# Errors of this many tolerances at most, scattered thinly, come from rounding, not from a wrong
# element.
_ROUNDING = 8.0
_DENSE = 0.5


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern in where the wrong elements lie."""

    name: FindingCode
    sentence: str
    tells_more: bool = True  # worth saying even where the cause is known


def find_patterns(compared: ComparedOutput, tiles: Tiles) -> list[Pattern]:
    """The patterns of the finite elements over the tolerance (there is one at least)."""
    wrong = compared.over
    region = Region.of(wrong, compared.coverage)
    density = np.count_nonzero(wrong) / max(1, region.size)
    if compared.error[wrong].max() <= _ROUNDING * compared.tolerance and (
        density < _DENSE or _nearly_wrong_elsewhere(compared)
    ):
        return [_precision(compared, wrong)]
    patterns = [
        *_heads(region),
        *_rows(wrong, region, compared.coverage, tiles),
        *_columns(region),
    ]
    return patterns or [_everywhere(region)]


def _nearly_wrong_elsewhere(compared: ComparedOutput) -> bool:
    """Whether a slice without a wrong element has errors near the tolerance: of the same cause."""
    largest = compared.error.max(axis=(1, 2))
    return bool((largest[largest <= compared.tolerance] > 0.5 * compared.tolerance).any())


def _heads(region: Region) -> Sequence[Pattern]:
    if region.all_slices:
        return ()
    where = region.slice_words()
    if len(region.slices) == 1:
        return (
            Pattern(
                FindingCode.ONE_HEAD,
                f"Only {where} is wrong: look at the offset of this head (its base address or "
                "stride), not at the maths.",
            ),
        )
    total = region.problem.batch * region.problem.num_heads
    if len(region.slices) == total - 1 and 0 not in region.slices:
        return (
            Pattern(
                FindingCode.HEAD_STRIDE,
                "Every head is wrong but the first of the first batch, whose offset is 0 whatever "
                "the stride: look at the stride between heads.",
            ),
        )
    groups = region.kv_head_words()
    if groups:
        return (
            Pattern(
                FindingCode.KV_HEAD,
                f"Only {where} are wrong, which are all the query heads of {groups}: look at the "
                "offset of K and V.",
            ),
        )
    return (
        Pattern(
            FindingCode.SOME_HEADS,
            f"Only {where} are wrong: look at how the offset is computed from batch and head.",
        ),
    )


def _rows(mask: BoolArray, region: Region, coverage: Coverage, tiles: Tiles) -> Sequence[Pattern]:
    rows, block = region.rows, tiles.block_m
    if len(rows) >= _NEARLY_ALL * len(coverage.rows):
        return ()
    which = region.row_words()
    if len(rows) == 1:
        return (Pattern(FindingCode.ONE_ROW, f"Only {which} is wrong."),)
    wrong_tiles = np.unique(rows // block)
    last = tiles.num_query_tiles - 1
    if len(wrong_tiles) == 1 and last > 0:
        tile = int(wrong_tiles[0])
        if tile == last and tiles.seqlen % block:
            return (
                Pattern(
                    FindingCode.TAIL_TILE,
                    f"Only the last, partial query tile is wrong ({which}; {tiles.seqlen % block} "
                    f"of {block} rows exist): look at how its rows are loaded, masked and stored.",
                ),
            )
        return (Pattern(FindingCode.ONE_QUERY_TILE, f"Only query tile {tile} is wrong ({which})."),)
    in_tile = _positions_in_tile(mask, coverage, block)
    if in_tile is not None:
        return (_same_rows(in_tile, tiles),)
    if wrong_tiles[0] > 0 and np.array_equal(wrong_tiles, np.arange(wrong_tiles[0], last + 1)):
        return (
            Pattern(
                FindingCode.LATER_TILES,
                f"Query tiles up to {wrong_tiles[0] - 1} are right and the later ones wrong "
                f"({which}): look at what depends on "
                + (
                    "the number of key tiles, which grows with a causal row."
                    if region.problem.causal
                    else "the query tile's index."
                ),
                tells_more=False,
            ),
        )
    return (Pattern(FindingCode.SOME_ROWS, f"Only {which} are wrong.", tells_more=False),)


def _positions_in_tile(mask: BoolArray, coverage: Coverage, block: int) -> IntArray | None:
    """Rows within the query tile that are wrong in every tile, if the others are right in all."""
    position = coverage.rows % block
    wrong = np.bincount(position, weights=mask.any(axis=(0, 2)), minlength=block)
    seen = np.bincount(position, minlength=block)
    marked = np.flatnonzero(wrong > 0)
    if len(marked) < np.count_nonzero(seen) and (wrong[marked] >= _NEARLY_ALL * seen[marked]).all():
        return marked
    return None


def _same_rows(positions: IntArray, tiles: Tiles) -> Pattern:
    which = span("row", positions, tiles.block_m)
    per_warp = tiles.rows_per_warp
    warps = np.unique(positions // per_warp)
    if len(warps) == 1 and len(positions) == per_warp:
        return Pattern(
            FindingCode.ROWS_OF_ONE_WARP,
            f"In every query tile the same rows are wrong, {which} of {tiles.block_m}: the rows of "
            f"warp {warps[0]}, if the CTA's {tiles.threads} threads share its rows in order.",
        )
    return Pattern(
        FindingCode.ROWS_IN_TILE,
        f"In every query tile the same rows are wrong, {which} of {tiles.block_m}: look at what "
        "differs between its threads, such as lane, warp or a register tile.",
    )


def _columns(region: Region) -> Sequence[Pattern]:
    if len(region.columns) >= _NEARLY_ALL * region.problem.value_dim:
        return ()
    which = span("column", region.columns, region.problem.value_dim)
    verb = "is" if len(region.columns) == 1 else "are"
    return (
        Pattern(
            FindingCode.COLUMNS_OF_D,
            f"Only {which} of d {verb} wrong: look at which thread owns these columns when V is "
            "read and O is stored.",
        ),
    )


def _precision(compared: ComparedOutput, wrong: BoolArray) -> Pattern:
    times = compared.error[wrong].max() / compared.tolerance
    return Pattern(
        FindingCode.PRECISION,
        f"{np.count_nonzero(wrong):,} scattered elements are over the tolerance, by a factor of "
        f"{times:.2g} at most, which looks like lost precision: a sum in 16 bits, a coarse exp, a "
        "score that is rounded.",
        tells_more=False,
    )


def _everywhere(region: Region) -> Pattern:
    heads = "Every head," if region.problem.batch * region.problem.num_heads > 1 else "Every"
    return Pattern(
        FindingCode.EVERYWHERE,
        f"{heads} row and column has wrong elements: the main loop is wrong, not an edge of it.",
        tells_more=False,
    )
