"""Bugs in what a tensor-core instruction is given: fragments swapped, doubled or transposed.

`mma` takes operands in pieces of 8 × 8, two of which make the 16 columns of Q and K, or the 16 keys
of P and V, that one instruction multiplies. A wrong `ldmatrix` or a wrong order of registers moves
whole pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from engine.correctness.reference import Float64Array
from engine.correctness.suspected_bugs.bug import SuspectedBug
from engine.correctness.suspected_bugs.case import Case, attend

_STEP = 16  # columns of Q and K, or keys of P and V, of one mma
_PIECE = 8

# `[keys, head_dim]` in whole steps → the same as the instructions see it.
Move = Callable[[Float64Array], Float64Array]


def fragment_bugs(case: Case) -> Iterator[SuspectedBug]:
    """Where D is made of whole steps; each prediction moves pieces of K, of V or of both."""
    if case.problem.head_dim % _STEP:
        return
    registers = "look at the order of the registers of the mma's operands"
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
    ):
        yield SuspectedBug(
            "mma_fragment",
            f"mma fragments (8 × 8 pieces) {what}",
            look_at,
            partial(_moved, of_k, of_v),
        )
    for bit in range(2, (case.problem.head_dim - 1).bit_length()):
        for is_set in (True, False):
            which = f"those of d whose bit {bit} is {'set' if is_set else 'clear'}"
            yield SuspectedBug(
                "score_columns",
                f"scores that leave out half of the columns of Q and K, {which}",
                "look at the loop or the instructions that sum Q·Kᵀ over d",
                partial(_columns_left_out, bit, is_set),
            )


def _moved(of_k: Move | None, of_v: Move | None, case: Case) -> Float64Array:
    padding = ((0, -case.problem.num_keys % _STEP), (0, 0))
    keys = slice(0, case.problem.num_keys)
    k, v = (
        x if move is None else move(np.pad(x, padding))[keys]
        for x, move in ((case.k, of_k), (case.v, of_v))
    )
    return attend(case.problem.softmax_scale * case.q[case.rows] @ k.T, case.visible, v)


def _columns_left_out(bit: int, is_set: bool, case: Case) -> Float64Array:
    kept = (np.arange(case.problem.head_dim) >> bit & 1) != is_set
    scores = case.problem.softmax_scale * case.q[case.rows][:, kept] @ case.k[:, kept].T
    return attend(scores, case.visible, case.v)


def _transposed(x: Float64Array) -> Float64Array:
    pieces = x.reshape(x.shape[0] // _PIECE, _PIECE, x.shape[1] // _PIECE, _PIECE)
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
    """Of each 2 × 2 pieces, the upper right and the lower left one."""
    pieces = x.reshape(x.shape[0] // _STEP, 2, _PIECE, x.shape[1] // _STEP, 2, _PIECE)
    return np.asarray(pieces.transpose(0, 4, 2, 3, 1, 5).reshape(x.shape))


def _swapped_in_first(x: Float64Array) -> Float64Array:
    first = (np.arange(x.shape[0]) & _PIECE == 0)[:, None]
    return np.where(first, _swapped_columns(x), x)
