"""Rows, columns and key tiles that are in each other's places.

Rows and columns of the output are looked for among those of the reference. Blocks of V are found by
least squares: a row is Σ_t P_t · V_σ(t) over the blocks t of the keys, and where every product
P_t · V_s of two blocks is an unknown's factor, σ is read off the unknowns that are 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.correctness.diagnosis.regions import span
from engine.correctness.finding_codes import FindingCode
from engine.correctness.reference import Float64Array, IntArray
from engine.correctness.roundoff import NOISE
from engine.correctness.suspected_bugs import MIN_EXPLAINED, Case, Match, SuspectedBug

# Share of the wrong rows or columns that must be found elsewhere.
_MIN_MOVED = 0.8
# Squared distance to the place it is found at, against that to the right place.
_MAX_REST = 0.01
_MAX_NAMED = 3
_BLOCK = 16  # keys
_MAX_BLOCKS = 13  # of V that are told apart: their pairs are the unknowns


def moved_columns(cases: Sequence[Case]) -> Match | None:
    """Wrong columns that hold the values of other columns, in all cases alike."""
    if not cases:
        return None
    out, ref = (
        np.concatenate([np.where(np.isfinite(c.out), x, 0.0) for c, x in pairs])
        for pairs in (
            [(c, c.out) for c in cases],
            [(c, c.reference) for c in cases],
        )
    )
    wrong = np.flatnonzero(np.concatenate([c.bad for c in cases]).any(axis=0))
    source, rest = _nearest(out.T[wrong], ref.T, own=wrong)
    share = _accept(wrong, source, rest)
    if share is None:
        return None
    what = f"swapped columns of d: {_pairs('column', wrong, source)}"
    return _match(
        FindingCode.COLUMNS_OF_D, what, "look at which thread reads and stores these columns", share
    )


def moved_rows(cases: Sequence[Case]) -> Match | None:
    """Wrong rows that hold the results of other rows of their slice."""
    if not cases:
        return None
    case = cases[0]
    wrong = np.flatnonzero((case.bad & np.isfinite(case.out)).any(axis=1))
    if len(wrong) < 2:
        return None
    home = np.searchsorted(case.every_row, case.rows[wrong])
    source, rest = _nearest(np.nan_to_num(case.out[wrong]), case.every_reference, own=home)
    share = _accept(wrong, source, rest)
    if share is None:
        return None
    rows, sources = case.rows[wrong], case.every_row[source]
    what = f"rows that hold each other's results: {_pairs('row', rows, sources)}"
    look_at = "look at the query row that a result is computed for, and the one it is stored to"
    return _match(FindingCode.QUERY_INDEX, what, look_at, share)


def moved_blocks_of_v(cases: Sequence[Case]) -> Match | None:
    """Rows of V that are multiplied by the weights of other keys, block by block."""
    if not cases:
        return None
    block_n = cases[0].tiles.block_n
    for size in dict.fromkeys((block_n, _BLOCK)):
        blocks = -(-cases[0].problem.num_keys // size)
        if 2 <= blocks <= _MAX_BLOCKS and (match := _moved_blocks(cases, size, blocks)):
            return match
    return None


def _moved_blocks(cases: Sequence[Case], size: int, blocks: int) -> Match | None:
    before = after = 0.0
    sources: list[tuple[int, ...]] = []
    for case in cases:
        rows = np.flatnonzero(np.isfinite(case.out).all(axis=1))
        if not len(rows):  # every row holds NaN
            return None
        products = _products(case, rows, size, blocks)
        out = case.out[rows].ravel()
        square = products @ products.T
        square += 1e-9 * np.trace(square) / len(square) * np.eye(len(square))
        factors = np.linalg.solve(square, products @ out).reshape(blocks, blocks)
        rounded = np.where(factors > 0.5, 1.0, 0.0)
        rest = out - rounded.ravel() @ products
        noise = NOISE[case.problem.dtype] * out
        before += float(((out - case.reference[rows].ravel()) ** 2).sum())
        after += max(0.0, float(rest @ rest) - float(noise @ noise))
        taken = (rounded.argmax(axis=1), rounded.sum(axis=1))
        if (taken[1] > 1).any():
            return None
        found = (int(s) if n else -1 for s, n in zip(*taken, strict=True))
        sources.append(tuple(found))
    explained = 1.0 - after / before if before else 0.0
    if explained < MIN_EXPLAINED or len(set(sources)) > 1:
        return None
    unit = "key tile" if size == cases[0].tiles.block_n else f"{size} keys"
    listed = [
        f"{unit} {t} takes V of {unit} {s}" if s >= 0 else f"{unit} {t} takes no V"
        for t, s in enumerate(sources[0])
        if s != t
    ]
    what = f"V of other keys: {', '.join(listed[:_MAX_NAMED])}"
    look_at = "look at the stage, address or descriptor that V of a key tile is read from"
    return _match(FindingCode.KEY_TILE, what, look_at, explained)


def _products(case: Case, rows: IntArray, size: int, blocks: int) -> Float64Array:
    """P_t · V_s of all pairs of blocks, `[blocks · blocks, rows · head_dim]`; no row behind V."""
    scores = np.where(case.visible[rows], case.scores[rows], -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    padding = ((0, blocks * size - case.problem.num_keys), (0, 0))
    p = np.pad(weights, padding[::-1]).reshape(len(rows), blocks, size)
    v = np.pad(case.v, padding).reshape(blocks, size, -1)
    products = np.einsum("rtk,skd->tsrd", p, v, optimize=True)
    return np.asarray(products.reshape(blocks * blocks, -1))


def _nearest(
    lines: Float64Array, candidates: Float64Array, own: IntArray
) -> tuple[IntArray, Float64Array]:
    """For each line the nearest candidate, and that distance² over the one to its own place."""
    squared = (
        (lines**2).sum(axis=1)[:, None]
        - 2 * lines @ candidates.T
        + (candidates**2).sum(axis=1)[None, :]
    )
    at_home = squared[np.arange(len(own)), own].copy()
    squared[np.arange(len(own)), own] = np.inf
    source = squared.argmin(axis=1)
    rest = squared[np.arange(len(own)), source] / np.maximum(at_home, 1e-300)
    return source, rest


def _accept(wrong: IntArray, source: IntArray, rest: Float64Array) -> float | None:
    """Share of the wrong lines found elsewhere, or None if too few or all at one place."""
    moved = rest <= _MAX_REST
    share = float(moved.mean())
    # Many lines at one place are equal lines (zeros, a mean), not moved ones.
    if share < _MIN_MOVED or (len(wrong) > 2 and len(np.unique(source[moved])) <= len(wrong) // 2):
        return None
    return share


def _pairs(name: str, to: IntArray, source: IntArray) -> str:
    """`row 0 holds row 1, row 1 holds row 2, … (1 further on)`."""
    listed = [f"{name} {a} holds {name} {b}" for a, b in zip(to, source, strict=True)]
    more = ", …" if len(listed) > _MAX_NAMED else ""
    offsets = np.unique(source - to)
    rule = f" (always {abs(offsets[0])} {'further on' if offsets[0] > 0 else 'before'})"
    text = f"{', '.join(listed[:_MAX_NAMED])}{more}"
    if len(offsets) == 1 and len(listed) > 1:
        return text + rule
    return text if len(listed) <= _MAX_NAMED else f"{text} among {span(name, to, -1)}"


def _match(pattern: FindingCode, what: str, look_at: str, share: float) -> Match:
    return Match(SuspectedBug(pattern, what, look_at, lambda _: None), share, share)
