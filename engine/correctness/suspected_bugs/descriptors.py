"""Bugs of tiles that TMA puts into shared memory and wgmma reads there by descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.correctness.finding_codes import FindingCode
from engine.correctness.reference import Float64Array, IntArray
from engine.correctness.suspected_bugs.case import Case, SuspectedBug
from engine.correctness.tiles import Box

_GROUP_ROWS = 64  # of A that a warpgroup multiplies
_STEP = 16  # columns of Q and K, or rows of V, that a wgmma takes
_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class _Reader:
    """How wgmma finds a tile, in parts of what would be right."""

    stride: float = 1.0  # between groups of eight rows
    step: float = 1.0  # from 16 columns of Q and K, or rows of V, to the next
    leading: float = 1.0  # between boxes of V
    swizzle: float = 1.0  # bytes of a swizzled row


_WRONG: tuple[tuple[str, _Reader, tuple[str, ...]], ...] = (
    (
        "groups of eight rows taken to be half as far apart",
        _Reader(stride=0.5),
        ("qkv", "qk", "k", "q", "v"),
    ),
    ("a swizzle of half as many bytes", _Reader(swizzle=0.5), ("qkv", "qk", "k", "q", "v")),
    ("a swizzle of twice as many bytes", _Reader(swizzle=2.0), ("qkv", "qk", "k", "q", "v")),
    ("the next 16 columns half as far on", _Reader(step=0.5), ("qk", "k", "q")),
    ("the next 16 rows half as far on", _Reader(step=0.5), ("v",)),
    ("boxes taken to be half as far apart", _Reader(leading=0.5), ("v",)),
)


def descriptor_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Wrong descriptors, then boxes that are copied from the wrong column."""
    boxes = case.tiles.boxes
    if not {"q", "k", "v"} <= boxes.keys():
        return
    for what, reader, choices in _WRONG:
        for operands in choices:
            names = " and ".join(operands.upper()) if len(operands) < 3 else "Q, K and V"
            yield SuspectedBug(
                FindingCode.DESCRIPTOR,
                f"{names} read through a descriptor with {what}",
                "look at the wgmma descriptor: its start, leading and stride, and the swizzle, "
                "which must be the tensor map's",
                partial(_read, reader, operands),
            )
    for operands in ("q", "k", "v", "kv"):
        if all(boxes[name].columns < case.problem.head_dim for name in operands):
            yield SuspectedBug(
                FindingCode.DESCRIPTOR,
                f"every box of {' and '.join(operands.upper())} copied from column 0",
                "look at the column that TMA is given for a box",
                partial(_first_columns, operands),
            )


def _first_columns(operands: str, case: Case) -> Float64Array:
    tensors = {"q": case.q, "k": case.k, "v": case.v}
    for name in operands:
        columns = np.arange(case.problem.head_dim) % case.tiles.boxes[name].columns
        tensors[name] = tensors[name][:, columns]
    return _attend(tensors, case)


def _read(reader: _Reader, operands: str, case: Case) -> Float64Array | None:
    """None where something outside of the tile would be read."""
    tensors = {"q": case.q, "k": case.k, "v": case.v}
    for name in operands:
        box = case.tiles.boxes[name]
        moved = _moved(tensors[name], box, reader, transposed=name == "v", grouped=name == "q")
        if moved is None:
            return None
        tensors[name] = moved
    return _attend(tensors, case)


def _attend(tensors: dict[str, Float64Array], case: Case) -> Float64Array:
    scores = case.scored(tensors["q"][case.rows], tensors["k"])
    return case.attend(scores, case.visible, tensors["v"])


def _moved(
    x: Float64Array, box: Box, reader: _Reader, *, transposed: bool, grouped: bool
) -> Float64Array | None:
    """A tensor as wgmma sees it, tile by tile; rows behind its end are zeros, as TMA fills."""
    rows, head_dim = x.shape
    row_bytes = int(box.swizzle_bytes * reader.swizzle)
    if row_bytes not in (32, 64, 128) or box.rows % 8:
        return None
    row, column = np.meshgrid(np.arange(box.rows), np.arange(head_dim), indexing="ij")
    image_bytes = box.rows * box.swizzle_bytes  # of one box
    stride = int(8 * box.swizzle_bytes * reader.stride)
    if transposed:
        columns = row_bytes // _ELEMENT_BYTES
        address = (
            row // _STEP * int(_STEP * box.swizzle_bytes * reader.step)
            + column // columns * int(image_bytes * reader.leading)
            + row % _STEP // 8 * stride
            + row % 8 * row_bytes
            + column % columns * _ELEMENT_BYTES
        )
    else:
        group = row // _GROUP_ROWS * _GROUP_ROWS if grouped else 0 * row
        within = column % box.columns
        address = (
            group * box.swizzle_bytes
            + column // box.columns * image_bytes
            + within // _STEP * int(_STEP * _ELEMENT_BYTES * reader.step)
            + (row - group) // 8 * stride
            + row % 8 * row_bytes
            + within % _STEP * _ELEMENT_BYTES
        )
    address = _swizzled(_swizzled(address, row_bytes), box.swizzle_bytes)
    if (address >= image_bytes * (head_dim // box.columns)).any():
        return None
    from_row = address % image_bytes // box.swizzle_bytes
    from_column = (
        address // image_bytes * box.columns + address % box.swizzle_bytes // _ELEMENT_BYTES
    )
    padded = np.pad(x, ((0, -rows % box.rows), (0, 0))).reshape(-1, box.rows, head_dim)
    return np.asarray(padded[:, from_row, from_column].reshape(-1, head_dim)[:rows])


def _swizzled(address: IntArray, row_bytes: int) -> IntArray:
    """Chunks of 16 bytes exchanged by the bits of an address from 128 on; its own inverse."""
    return address ^ (address >> 7 & (row_bytes // 16 - 1)) << 4
