"""Wrong operands of tensor-core instructions: fragments of mma, descriptors of wgmma.

`mma` takes operands as 8 × 8 fragments. One instruction multiplies two of them: 16 columns of Q and
K, or 16 keys of P and V. A wrong `ldmatrix` or a wrong order of registers permutes whole fragments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.correctness.findings import FindingCode
from engine.correctness.output_error import Box
from engine.correctness.reference import Float64Array, IntArray, visible_keys
from engine.correctness.suspected_bugs.case import Case, SuspectedBug

# Bugs of tiles that TMA writes to shared memory and wgmma reads through descriptors.

_STEP = 16  # columns of Q and K, or keys of P and V, of one mma
_PIECE = 8

# `[keys, head_dim]`, padded to a multiple of the step → the tensor as the instructions read it.
Move = Callable[[Float64Array], Float64Array]


def fragment_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield bugs with permuted fragments of K, V or both, if D is a multiple of 16."""
    if case.problem.head_dim % _STEP:
        return
    registers = (
        "look at the order of the registers of the mma's operands, or without mma at the indices "
        "that K, V and P are read with"
    )
    for what, of_k, of_v, look_at in (
        ("of K transposed", _transposed, None, "look at ldmatrix of K: it takes no .trans"),
        ("of V not transposed", None, _transposed, "look at ldmatrix of V: it needs .trans"),
        ("that are neighbours in a row of K swapped", _swapped_columns, None, registers),
        ("that are neighbours in a column of V swapped", None, _swapped_rows, registers),
        (
            "that make up one operand swapped, in Q·Kᵀ and in P·V",
            _swapped_columns,
            _swapped_rows,
            registers,
        ),
        ("of K used twice, its neighbour not at all", _doubled_columns, None, registers),
        ("of V used twice, its neighbour not at all", None, _doubled_rows, registers),
        (
            "of K and of V used twice, their neighbours not",
            _doubled_columns,
            _doubled_rows,
            registers,
        ),
        ("of K swapped with those 8 keys on", _swapped_rows, None, "look at ldmatrix of K"),
        ("of K used for the 8 keys after them too", _doubled_rows, None, "look at ldmatrix of K"),
        ("of V off the diagonal swapped", None, _swapped_off_diagonal, registers),
        ("of the first 8 of 16 keys swapped in K", _swapped_in_first, None, registers),
        ("of the last 8 of 16 keys swapped in K", _swapped_in_last, None, registers),
        (
            "of K (16 × 16) transposed",
            _transposed_16,
            None,
            "look at how K's fragment is loaded: by columns, because rows of K are columns of Kᵀ",
        ),
        (
            "of V (16 × 16) transposed",
            None,
            _transposed_16,
            "look at how V's fragment is loaded: by rows",
        ),
    ):
        yield SuspectedBug(
            FindingCode.MMA_FRAGMENT,
            f"mma fragments (8 × 8 pieces) {what}",
            look_at,
            partial(_moved, of_k, of_v),
        )
    for what, move in (
        ("off the diagonal of 16 × 16 of Q exchanged", _swapped_off_diagonal),
        ("that are neighbours in a column of Q exchanged", _swapped_rows),
    ):
        yield SuspectedBug(
            FindingCode.MMA_FRAGMENT,
            f"mma fragments (8 × 8 pieces) {what}",
            registers,
            partial(_moved_q, move),
        )
    for what, move in (
        ("off the diagonal of 16 × 16 of P exchanged", _swapped_off_diagonal),
        ("that are neighbours in a column of P exchanged: rows 8 apart", _swapped_rows),
        ("that are neighbours in a row of P exchanged: keys 8 apart", _swapped_columns),
    ):
        yield SuspectedBug(
            FindingCode.MMA_FRAGMENT,
            f"mma fragments (8 × 8 pieces) {what}",
            registers,
            partial(_moved_p, move),
        )
    yield from _replaced_fragment(registers)
    for distance in (1, 2, 4):
        yield SuspectedBug(
            FindingCode.MMA_FRAGMENT,
            f"keys of P {distance} apart exchanged between P and V, within fragments of 8",
            registers,
            partial(_moved, None, partial(_exchanged_rows, distance)),
        )
    yield from _swizzles()
    for count in (1, 2, 4, 8, 16, 32):
        for side in ("last", "first"):
            if count < case.problem.head_dim:
                yield SuspectedBug(
                    FindingCode.SCORE_COLUMNS,
                    f"scores that leave out the {side} {count} columns of Q and K",
                    "look at the loop or the instructions that sum Q·Kᵀ over d",
                    partial(_columns_cut, count, side == "last"),
                )
    for bit in range(2, (case.problem.head_dim - 1).bit_length()):
        for is_set in (True, False):
            which = f"those of d whose bit {bit} is {'set' if is_set else 'clear'}"
            yield SuspectedBug(
                FindingCode.SCORE_COLUMNS,
                f"scores that leave out half of the columns of Q and K, {which}",
                "look at the loop or the instructions that sum Q·Kᵀ over d",
                partial(_columns_left_out, bit, is_set),
            )


def _replaced_fragment(look_at: str) -> Iterator[SuspectedBug]:
    """Yield bugs that use one of the four fragments of 16 × 16 twice: one register is wrong."""
    names = ("upper left", "upper right", "lower left", "lower right")
    for operand in "KVQ":
        for target, source in itertools.permutations(range(4), 2):
            move = partial(_with_fragment, target, source)
            yield SuspectedBug(
                FindingCode.MMA_FRAGMENT,
                f"mma fragments (8 × 8 pieces) of {operand}: the {names[source]} one of 16 × 16 "
                f"used in place of the {names[target]} one",
                look_at,
                partial(_moved_q, move)
                if operand == "Q"
                else partial(_moved, *((move, None) if operand == "K" else (None, move))),
            )


def _with_fragment(target: int, source: int, x: Float64Array) -> Float64Array:
    pieces = x.reshape(x.shape[0] // _STEP, 2, _PIECE, x.shape[1] // _STEP, 2, _PIECE).copy()
    taken = pieces[:, source // 2, :, :, source % 2].copy()
    pieces[:, target // 2, :, :, target % 2] = taken
    return np.asarray(pieces.reshape(x.shape))


def _exchanged_rows(distance: int, x: Float64Array) -> Float64Array:
    return np.take(x, np.arange(x.shape[0]) ^ distance, axis=0)


def _moved(of_k: Move | None, of_v: Move | None, case: Case) -> Float64Array:
    padding = ((0, -case.problem.num_keys % _STEP), (0, 0))
    keys = slice(0, case.problem.num_keys)
    k, v = (
        x if move is None else move(np.pad(x, padding))[keys]
        for x, move in ((case.k, of_k), (case.v, of_v))
    )
    return case.attend(case.scored(case.q[case.rows], k), case.visible, v)


def _swizzles() -> Iterator[SuspectedBug]:
    """Yield bugs in which only the writer or only the reader of a shared tile swizzles."""
    look_at = "look at the swizzle (or the layout of the descriptor): writer and reader must agree"
    for name, of_q, of_k, of_v in (
        ("Q", True, False, False),
        ("K", False, True, False),
        ("V", False, False, True),
        ("K and V", False, True, True),
        ("Q, K and V", True, True, True),
    ):
        yield SuspectedBug(
            FindingCode.SWIZZLE,
            f"a swizzle of {name} on one side only, writer or reader: chunks of 8 columns in the "
            "wrong places of each row",
            look_at,
            partial(_swizzled_inputs, of_q, of_k, of_v),
        )
    yield SuspectedBug(
        FindingCode.SWIZZLE,
        "a swizzle of O on one side only, writer or reader: chunks of 8 columns in the wrong "
        "places of each row",
        look_at,
        _swizzled_output,
    )


def _unswizzled(x: Float64Array, rows: IntArray) -> Float64Array:
    """Return the rows with their chunks of 8 columns permuted: chunk index XOR row."""
    wide = x.shape[1] % 64 == 0
    spread = rows % 8 if wide else rows // 2 % 4
    columns = np.arange(x.shape[1])[None, :] ^ (spread * _PIECE)[:, None]
    return np.take_along_axis(x, columns, axis=1)


def _swizzled_inputs(of_q: bool, of_k: bool, of_v: bool, case: Case) -> Float64Array:
    q = case.q[case.rows]
    q = _unswizzled(q, case.rows) if of_q else q
    k = _unswizzled(case.k, case.keys) if of_k else case.k
    v = _unswizzled(case.v, case.keys) if of_v else case.v
    return case.attend(case.scored(q, k), case.visible, v)


def _swizzled_output(case: Case) -> Float64Array:
    return _unswizzled(case.reference, case.rows)


def _moved_q(move: Move, case: Case) -> Float64Array:
    padded = np.pad(case.q, ((0, -case.problem.seqlen % _STEP), (0, 0)))
    q = move(padded)[case.rows]
    return case.attend(case.scored(q, case.k), case.visible, case.v)


def _moved_p(move: Move, case: Case) -> Float64Array:
    """Return P · V with exchanged fragments of P, where P is relative to each tile's maximum."""
    problem, block_n = case.problem, case.tiles.block_n
    if problem.num_keys % _STEP and block_n % _STEP:
        return np.full_like(case.reference, np.nan)
    blocks = np.unique(case.rows // _STEP)
    rows = (blocks[:, None] * _STEP + np.arange(_STEP)).ravel()
    inside = rows < problem.seqlen
    scores = np.zeros((len(rows), problem.num_keys))  # rows past the end are zeros
    scores[inside] = case.scored(case.q[rows[inside]], case.k, rows[inside])
    scores[~visible_keys(case.own, rows, case.keys)] = -np.inf
    starts = np.arange(0, problem.num_keys, block_n)
    running = np.maximum.accumulate(np.maximum.reduceat(scores, starts, axis=1), axis=1)
    running = np.repeat(np.where(np.isfinite(running), running, 0.0), block_n, axis=1)
    running = running[:, : problem.num_keys]
    p = np.exp(scores - running)
    shrinks = np.exp(running - running[:, -1:])
    total = (p * shrinks).sum(axis=1, keepdims=True)
    padded = np.pad(p, ((0, 0), (0, -problem.num_keys % _STEP)))
    moved = move(padded)[:, : problem.num_keys]
    with np.errstate(invalid="ignore", divide="ignore"):
        out = (moved * shrinks) @ case.v / total
    return np.asarray(out[np.searchsorted(rows, case.rows)])


def _columns_cut(count: int, last: bool, case: Case) -> Float64Array:
    kept = slice(0, -count) if last else slice(count, None)
    scores = case.scored(case.q[case.rows][:, kept], case.k[:, kept])
    return case.attend(scores, case.visible, case.v)


def _columns_left_out(bit: int, is_set: bool, case: Case) -> Float64Array:
    kept = (np.arange(case.problem.head_dim) >> bit & 1) != is_set
    scores = case.scored(case.q[case.rows][:, kept], case.k[:, kept])
    return case.attend(scores, case.visible, case.v)


def _transposed(x: Float64Array) -> Float64Array:
    pieces = x.reshape(x.shape[0] // _PIECE, _PIECE, x.shape[1] // _PIECE, _PIECE)
    return np.asarray(pieces.transpose(0, 3, 2, 1).reshape(x.shape))


def _transposed_16(x: Float64Array) -> Float64Array:
    pieces = x.reshape(x.shape[0] // _STEP, _STEP, x.shape[1] // _STEP, _STEP)
    return np.asarray(pieces.transpose(0, 3, 2, 1).reshape(x.shape))


def _swapped_columns(x: Float64Array) -> Float64Array:
    return np.take(x, np.arange(x.shape[1]) ^ _PIECE, axis=1)


def _swapped_rows(x: Float64Array) -> Float64Array:
    return np.take(x, np.arange(x.shape[0]) ^ _PIECE, axis=0)


def _doubled_columns(x: Float64Array) -> Float64Array:
    return np.take(x, np.arange(x.shape[1]) & ~_PIECE, axis=1)


def _doubled_rows(x: Float64Array) -> Float64Array:
    return np.take(x, np.arange(x.shape[0]) & ~_PIECE, axis=0)


def _swapped_off_diagonal(x: Float64Array) -> Float64Array:
    """Swap the upper right and lower left fragment in each group of 2 × 2."""
    pieces = x.reshape(x.shape[0] // _STEP, 2, _PIECE, x.shape[1] // _STEP, 2, _PIECE)
    return np.asarray(pieces.transpose(0, 4, 2, 3, 1, 5).reshape(x.shape))


def _swapped_in_first(x: Float64Array) -> Float64Array:
    first = (np.arange(x.shape[0]) & _PIECE == 0)[:, None]
    return np.where(first, _swapped_columns(x), x)


def _swapped_in_last(x: Float64Array) -> Float64Array:
    last = (np.arange(x.shape[0]) & _PIECE != 0)[:, None]
    return np.where(last, _swapped_columns(x), x)


_GROUP_ROWS = 64  # rows of A of one wgmma
_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class _Reader:
    """Fields of a wrong wgmma descriptor, as multiples of the correct values."""

    stride: float = 1.0  # between groups of eight rows
    step: float = 1.0  # from 16 columns of Q and K, or rows of V, to the next
    leading: float = 1.0  # between boxes of V
    swizzle: float = 1.0  # bytes of a swizzled row


_WRONG: tuple[tuple[str, _Reader, tuple[str, ...]], ...] = (
    (
        "half the stride between groups of eight rows",
        _Reader(stride=0.5),
        ("qkv", "qk", "k", "q", "v"),
    ),
    ("half the bytes of the swizzle", _Reader(swizzle=0.5), ("qkv", "qk", "k", "q", "v")),
    ("twice the bytes of the swizzle", _Reader(swizzle=2.0), ("qkv", "qk", "k", "q", "v")),
    ("half the offset to the next 16 columns", _Reader(step=0.5), ("qk", "k", "q")),
    ("half the offset to the next 16 rows", _Reader(step=0.5), ("v",)),
    ("half the stride between boxes", _Reader(leading=0.5), ("v",)),
)


def descriptor_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Yield wrong wgmma descriptors, then TMA boxes copied from the wrong column."""
    boxes = case.tiles.boxes
    if not {"q", "k", "v"} <= boxes.keys():
        return
    for what, reader, choices in _WRONG:
        for operands in choices:
            names = " and ".join(operands.upper()) if len(operands) < 3 else "Q, K and V"
            yield SuspectedBug(
                FindingCode.DESCRIPTOR,
                f"{names} read through a descriptor with {what}",
                "look at the wgmma descriptor: start address, leading and stride byte offset, and "
                "swizzle, which must match the tensor map",
                partial(_read, reader, operands),
            )
    for operands in ("q", "k", "v", "kv"):
        if all(boxes[name].columns < case.problem.head_dim for name in operands):
            yield SuspectedBug(
                FindingCode.DESCRIPTOR,
                f"every box of {' and '.join(operands.upper())} copied from column 0",
                "look at the column coordinate that TMA gets for a box",
                partial(_first_columns, operands),
            )


def _first_columns(operands: str, case: Case) -> Float64Array:
    tensors = {"q": case.q, "k": case.k, "v": case.v}
    for name in operands:
        columns = np.arange(case.problem.head_dim) % case.tiles.boxes[name].columns
        tensors[name] = tensors[name][:, columns]
    return _attend(tensors, case)


def _read(reader: _Reader, operands: str, case: Case) -> Float64Array | None:
    """Return attention with operands read by a wrong descriptor; None if outside the tile."""
    tensors = {"q": case.q, "k": case.k, "v": case.v}
    for name in operands:
        box = case.tiles.boxes[name]
        moved = _retiled(tensors[name], box, reader, transposed=name == "v", grouped=name == "q")
        if moved is None:
            return None
        tensors[name] = moved
    return _attend(tensors, case)


def _attend(tensors: dict[str, Float64Array], case: Case) -> Float64Array:
    scores = case.scored(tensors["q"][case.rows], tensors["k"])
    return case.attend(scores, case.visible, tensors["v"])


def _retiled(
    x: Float64Array, box: Box, reader: _Reader, *, transposed: bool, grouped: bool
) -> Float64Array | None:
    """Return a tensor as wgmma reads it, tile by tile, with zeros past the end, as from TMA."""
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
    """Return swizzled byte addresses: index of the 16-byte chunk XOR row; its own inverse."""
    return address ^ (address >> 7 & (row_bytes // 16 - 1)) << 4
