"""Paged K and V, as in servers: a pool of pages and a block table that assigns them to sequences.

The problem itself stays dense: its K and V are scattered into pages before the launch, in a fixed
random order, and rows without a key are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from kernels.variant import BYTES_PER_ELEMENT, ProblemLike

_Array = TypeVar("_Array", bound=npt.NDArray[Any])

_SPARE_PAGES = 1  # pages of no sequence, filled with NaN to detect reads
_SEED = 21
# NaN patterns by bytes of an element: FP8 (E4M3), FP16 and BF16, FP32.
_NAN_BITS: Mapping[int, np.uint8 | np.uint16 | np.uint32] = {
    1: np.uint8(0x7F),
    2: np.uint16(0x7FC1),
    4: np.uint32(0x7FC10001),
}


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of one problem's K, and likewise of its V.

    A page is `[num_heads_kv, rows, head_dim]`, and the block table `[batch, per_sequence]`, int32.
    """

    problem: ProblemLike
    rows: int  # keys per page

    @property
    def per_sequence(self) -> int:
        return -(-self.problem.num_keys // self.rows)

    @property
    def count(self) -> int:
        return self.problem.batch * self.per_sequence + _SPARE_PAGES

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return the shape of K, and of V."""
        return self.count, self.problem.kv_heads, self.rows, self.problem.head_dim

    @property
    def kv_bytes(self) -> int:
        count, heads, rows, head_dim = self.shape
        return _kv_element_bytes(self.problem) * count * heads * rows * head_dim

    @property
    def table_bytes(self) -> int:
        return 4 * self.problem.batch * self.per_sequence

    @property
    def extra_bytes(self) -> int:
        """Return the bytes of the block table and of unfilled parts of pages of K and V."""
        p = self.problem
        keys_bytes = _kv_element_bytes(p) * p.batch * p.kv_heads * p.num_keys * p.head_dim
        return self.table_bytes + 2 * (self.kv_bytes - keys_bytes)

    def table(self) -> npt.NDArray[np.int32]:
        """Return the block table, `[batch, per_sequence]`: the page with the keys of a sequence
        from `i · rows` on."""
        order = np.random.default_rng(_SEED).permutation(self.count)
        used = order[: self.problem.batch * self.per_sequence]
        return used.astype(np.int32).reshape(self.problem.batch, self.per_sequence)

    def scatter(self, tensor: _Array) -> _Array:
        """Return K or V, `[batch, num_heads_kv, seqlen_kv, head_dim]`, as pages."""
        batch, heads, keys, head_dim = tensor.shape
        nan = _NAN_BITS[tensor.itemsize]
        padded = np.full((batch, heads, self.per_sequence * self.rows, head_dim), nan)
        padded[:, :, :keys] = tensor.view(nan.dtype)
        for sequence, own in zip(padded, self.problem.seqlens or (), strict=False):
            sequence[:, own:] = nan  # after its last key
        split = padded.reshape(batch, heads, self.per_sequence, self.rows, head_dim)
        pages = np.full(self.shape, nan)
        pages[self.table()] = split.transpose(0, 2, 1, 3, 4)
        return cast(_Array, pages.view(tensor.dtype))


def _kv_element_bytes(problem: ProblemLike) -> int:
    return 1 if "kv_fp8" in problem.features else BYTES_PER_ELEMENT[problem.dtype]
