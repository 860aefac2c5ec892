"""Bugs of K and V in pages: another page than the block table gives, or other rows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.correctness.finding_codes import FindingCode
from engine.correctness.reference import Float64Array, IntArray
from engine.correctness.suspected_bugs.case import Case, SuspectedBug
from engine.paged_kv import Pages
from engine.tensors import decode


@dataclass(frozen=True, slots=True, eq=False)
class _Reads:
    """A head's reads of its keys, as they should be."""

    pages: Pages
    batch: int
    keys: IntArray  # [num_keys]
    tile_rows: int

    @property
    def of_table(self) -> IntArray:
        """The entry of the sequence's block table that each key is found by."""
        return self.keys // self.pages.rows

    @property
    def row(self) -> IntArray:
        """Within its page."""
        return self.keys % self.pages.rows

    def looked_up(self, batch: int | IntArray, entry: IntArray) -> IntArray:
        """Pages; −1 where the table has no such entry. Entries may pass into the next sequence."""
        table = self.pages.table().reshape(-1)
        at = batch * self.pages.per_sequence + entry
        inside = (at >= 0) & (at < table.size)
        return np.where(inside, table[np.clip(at, 0, table.size - 1)], -1)


# The page and the row in it that each key is really read from.
PageMap = Callable[[_Reads], tuple[IntArray, IntArray]]

_MAPS: tuple[tuple[str, PageMap], ...] = (
    ("from the next page", lambda r: (r.looked_up(r.batch, r.of_table + 1), r.row)),
    ("from the previous page", lambda r: (r.looked_up(r.batch, r.of_table - 1), r.row)),
    (
        "through the block table of the first sequence",
        lambda r: (r.looked_up(0, r.of_table), r.row),
    ),
    (
        "through a block table whose sequences begin an entry too early, each after the last",
        lambda r: (r.looked_up(r.batch, r.of_table - r.batch), r.row),
    ),
    (
        "from the first rows of their page, whatever the tile",
        lambda r: (r.looked_up(r.batch, r.of_table), r.row % r.tile_rows),
    ),
    (
        "from pages in order, without the block table",
        lambda r: (r.batch * r.pages.per_sequence + r.of_table, r.row),
    ),
    (
        "from the pages that their own indices name, without the block table",
        lambda r: (r.of_table, r.row),
    ),
    (
        "with the key tile in the place of the page in the block table",
        lambda r: (r.looked_up(r.batch, r.keys // r.tile_rows), r.row),
    ),
    (
        "by the entry of the block table that the tile has within its page",
        lambda r: (r.looked_up(r.batch, r.row // r.tile_rows), r.row),
    ),
    ("from the page of the first key", lambda r: (r.looked_up(r.batch, 0 * r.keys), r.row)),
    ("from page 0 of all", lambda r: (0 * r.keys, r.row)),
)


def page_bugs(case: Case) -> Iterator[SuspectedBug]:
    """K and V, then each alone, read from elsewhere in the pool of pages."""
    if not case.tiles.page_rows:
        return
    for operands in ("kv", "k", "v"):
        names = " and ".join(operands.upper())
        for where, read in _MAPS:
            yield SuspectedBug(
                FindingCode.PAGES,
                f"the wrong pages, {names} being read {where}",
                "look at the index into block_table, and at the row within the page",
                partial(_read_from, read, operands),
            )


def _read_from(read: PageMap, operands: str, case: Case) -> Float64Array | None:
    """None where a page that no key fills would be read: that shows as NaN."""
    problem = case.problem
    pages = Pages(problem, case.tiles.page_rows)
    batch, head = divmod(case.kv_slice_index, problem.kv_heads)
    page, row = read(_Reads(pages, batch, case.keys, case.tiles.block_n))
    owner = np.full(pages.count, -1)
    owner[pages.table().reshape(-1)] = np.arange(pages.table().size)
    entry = np.where(
        (page >= 0) & (page < pages.count), owner[np.clip(page, 0, len(owner) - 1)], -1
    )
    key = entry % pages.per_sequence * pages.rows + row
    if (entry < 0).any() or (key >= problem.num_keys).any():
        return None
    tensors = {"k": case.k, "v": case.v}
    for name in operands:
        raw = getattr(case.inputs, name)[entry // pages.per_sequence, head, key]
        tensors[name] = decode(raw, problem.dtype).astype(np.float64)
    scores = case.scored(case.q[case.rows], tensors["k"])
    return case.attend(scores, case.visible, tensors["v"])
