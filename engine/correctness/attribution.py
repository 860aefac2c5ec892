"""Which key tiles an output error comes from.

An output row is a sum over key tiles, out = Σ_t c_t with c_t = Σ_{j in t} p_j·v_j. A kernel that
drops, doubles or mis-weighs a tile gives out = Σ_t (1 + a_t)·c_t, and one that lets masked keys in
adds b_t·u_t, where u_t is what the masked keys of the tile would contribute. The error of a query
tile is therefore fitted by least squares with one pair (a_t, b_t) per key tile: what the fit finds
is the error that key tile t brings in. What no key tile explains (a wrong Q row, swapped columns)
belongs to all of them alike.
"""

from __future__ import annotations

import numpy as np

from engine.correctness.comparison import BoolArray, Comparison
from engine.correctness.reference import Float64Array, IntArray, slice_qkv
from engine.correctness.tiles import Tiles
from engine.tensors import Inputs
from kernels.variant import ceil_div

# Tiles beyond this are merged: the fit grows with the square of their number.
_MAX_TILES = 128
# Rows fitted per query tile, spread evenly; each gives head_dim equations.
_MAX_ROWS = 32
# exp(score − row's log-sum) of a masked key may be huge; the fit needs its direction only.
_MAX_LOG_WEIGHT = 30.0


def error_by_key_tile(
    inputs: Inputs, compared: Comparison, tiles: Tiles, position: int
) -> tuple[Float64Array, tuple[int, int]]:
    """Largest |error| that each key tile brings into each query tile of one slice.

    Args:
        position: which covered slice.

    Returns:
        `[query tiles, key tiles]`: NaN in a query tile that holds NaN or infinity, −1 where no row
        was compared; and how many tiles each entry stands for (1, 1 up to 128 tiles a side).
    """
    problem, rows = inputs.problem, compared.coverage.rows
    merged = (
        ceil_div(tiles.num_query_tiles, _MAX_TILES),
        ceil_div(tiles.num_key_tiles, _MAX_TILES),
    )
    block_m, block_n = tiles.block_m * merged[0], tiles.block_n * merged[1]
    num_query, num_key = ceil_div(problem.seqlen, block_m), ceil_div(problem.seqlen, block_n)
    q, k, v = (x[0] for x in slice_qkv(inputs, compared.coverage.slices[[position]]))
    starts = np.arange(0, problem.seqlen, block_n)
    result = np.full((num_query, num_key), -1.0)
    for tile in range(num_query):
        inside = np.flatnonzero(rows // block_m == tile)
        if not inside.size:
            continue
        if not compared.finite[position, inside].all():
            result[tile] = np.nan
            continue
        chosen = inside[np.unique(np.linspace(0, inside.size - 1, _MAX_ROWS).astype(int))]
        seen, masked = _contributions(
            problem.softmax_scale * q[rows[chosen]] @ k.T,
            rows[chosen, None] >= np.arange(problem.seqlen)
            if problem.causal
            else np.ones((len(chosen), problem.seqlen), bool),
            v,
            starts,
        )
        error = compared.out[position, chosen] - compared.reference[position, chosen]
        result[tile] = _fit(error, seen, masked)
    return result, merged


def _contributions(
    scores: Float64Array, visible: BoolArray, v: Float64Array, starts: IntArray
) -> tuple[Float64Array, Float64Array]:
    """Normalised contributions of visible and of masked keys: each `[key tiles, rows, D]`."""
    top = np.where(visible, scores, -np.inf).max(axis=1, keepdims=True)
    log_sum = top + np.log(
        np.exp(scores - top, where=visible, out=np.zeros_like(scores)).sum(axis=1, keepdims=True)
    )
    weights = np.exp(np.minimum(scores - log_sum, _MAX_LOG_WEIGHT))
    ends = [*starts[1:], len(v)]
    parts = [
        np.stack(
            [(weights[:, a:b] * keep[:, a:b]) @ v[a:b] for a, b in zip(starts, ends, strict=True)]
        )
        for keep in (visible, ~visible)
    ]
    return parts[0], parts[1]


def _fit(error: Float64Array, seen: Float64Array, masked: Float64Array) -> Float64Array:
    """Largest |a_t·c_t + b_t·u_t| per key tile, or the unexplained rest where that is larger."""
    basis = np.concatenate([seen, masked]).reshape(2 * len(seen), -1)
    norms = np.linalg.norm(basis, axis=1)
    usable = norms > 1e-12 * max(1.0, norms.max())
    unit = basis[usable] / norms[usable, None]
    # A little damping: neighbouring tiles may contribute along nearly the same direction.
    gram = unit @ unit.T + 1e-8 * np.eye(len(unit))
    found = np.linalg.solve(gram, unit @ error.ravel())
    parts = np.zeros_like(basis)
    parts[usable] = found[:, None] * unit
    rest = np.abs(error.ravel() - parts.sum(axis=0)).max()
    by_tile = np.abs(parts[: len(seen)] + parts[len(seen) :]).max(axis=1)
    return np.asarray(np.maximum(by_tile, rest))
