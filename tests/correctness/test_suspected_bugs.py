"""Each other suspected bug is recognised in a textbook computation with that bug."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.attention.evaluation import Correctness
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import decode, encode, make_inputs
from engine.backends.base import RunResult
from engine.base.errors import Status
from engine.correctness import check_output, findings
from engine.correctness.findings import FindingCode
from kernels.ladder import by_id

SEQLEN, BLOCK, SPLITS = 200, 64, 4
KEYS = np.arange(SEQLEN)
ROWS = KEYS[:, None]

# One head: (q, k, v, the rows of K and V that follow in memory) → its output.
HeadBug = Callable[[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]], Any]


def weighted(q: np.ndarray, k: np.ndarray, v: np.ndarray, weights: Any = 1.0) -> np.ndarray:
    """Return softmax attention with every exp(score) multiplied by `weights`, `[rows, keys]`."""
    e = np.exp(q @ k.T / np.sqrt(q.shape[1])) * weights
    return np.asarray(e @ v / e.sum(axis=1, keepdims=True))


def judged(bug: HeadBug, causal: bool = False) -> Correctness:
    """Return the verdict on the bug's output, with the plan of v05."""
    problem = Problem(1, 3, SEQLEN, 32, causal)
    inputs = make_inputs(problem)
    q, k, v = (decode(x, "float16").astype(np.float64)[0] for x in (inputs.q, inputs.k, inputs.v))
    out = [
        bug(q[h], k[h], v[h], (k[(h + 1) % 3], v[(h + 1) % 3])) for h in range(problem.num_heads)
    ]
    raw = encode(np.stack(out)[None].astype(np.float32), "float16")
    variant = by_id("v05")
    plan = make_plan(variant, problem, {**variant.default_config(), "num_splits": SPLITS})
    return check_output(inputs, RunResult(status=Status.PASSED, out=raw), plan=plan)


def _exp2(q: Any, k: Any, v: Any, _: Any) -> Any:
    e = np.exp2(q @ k.T / np.sqrt(q.shape[1]))
    return e @ v / e.sum(axis=1, keepdims=True)


def _not_divided(q: Any, k: Any, v: Any, _: Any) -> Any:
    s = q @ k.T / np.sqrt(q.shape[1])
    return np.exp(s - s.max(axis=1, keepdims=True)) @ v


def _past_the_end(q: Any, k: Any, v: Any, following: Any) -> Any:
    padding = -SEQLEN % BLOCK
    return weighted(
        q, np.vstack([k, following[0][:padding]]), np.vstack([v, following[1][:padding]])
    )


def _mean_of_splits(q: Any, k: Any, v: Any, _: Any) -> Any:
    parts = [weighted(q, k[a : a + BLOCK], v[a : a + BLOCK]) for a in range(0, SEQLEN, BLOCK)]
    return sum(parts) / len(parts)


def _scaled(factor: float) -> HeadBug:
    def bug(q: Any, k: Any, v: Any, _: Any) -> Any:
        return weighted(factor * q, k, v)

    return bug


def _unswizzled(x: np.ndarray) -> np.ndarray:
    columns = np.arange(x.shape[1])[None] ^ (np.arange(len(x)) // 2 % 4 * 8)[:, None]
    return np.take_along_axis(x, columns, axis=1)


def _transposed_pieces(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, -len(x) % 16), (0, 0)))
    pieces = padded.reshape(len(padded) // 16, 16, x.shape[1] // 16, 16)
    return np.asarray(pieces.transpose(0, 3, 2, 1).reshape(padded.shape)[: len(x)])


def _shifted(x: np.ndarray) -> np.ndarray:
    return np.vstack([x[1:], np.zeros_like(x[:1])])


def _without_the_last_of_a_tile(q: Any, k: Any, v: Any, _: Any) -> Any:
    e = np.exp(q @ k.T / np.sqrt(q.shape[1]))
    return (e * (KEYS % 64 < 48)) @ v / e.sum(axis=1, keepdims=True)


def _with_piece(x: np.ndarray) -> np.ndarray:
    """Replace the upper left 8 × 8 of every 16 × 16 by the upper right one."""
    padded = np.pad(x, ((0, -len(x) % 16), (0, 0)))
    pieces = padded.reshape(-1, 2, 8, x.shape[1] // 16, 2, 8).copy()
    pieces[:, 0, :, :, 0] = pieces[:, 0, :, :, 1].copy()
    return np.asarray(pieces.reshape(padded.shape)[: len(x)])


def _tiles(x: np.ndarray, *order: int) -> np.ndarray:
    """Return tiles of 64 rows in another order; rows past the end are zeros."""
    tiles = np.pad(x, ((0, -len(x) % BLOCK), (0, 0))).reshape(-1, BLOCK, x.shape[1])
    return np.asarray(tiles[list(order)].reshape(-1, x.shape[1])[: len(x)])


def _fused_with_the_first_l(q: Any, k: Any, v: Any, _: Any) -> Any:
    """Fuse all splits with l_i of the first one."""
    s = q @ k.T / np.sqrt(q.shape[1])
    parts = [slice(i, i + 64) for i in range(0, SEQLEN, 64)]
    m = np.stack([s[:, p].max(axis=1) for p in parts])
    w = np.exp(m - m.max(axis=0))
    e = [np.exp(s[:, p] - m[i][:, None]) for i, p in enumerate(parts)]
    total = (w * e[0].sum(axis=1)).sum(axis=0)
    return sum(w[i][:, None] * (e[i] @ v[p]) for i, p in enumerate(parts)) / total[:, None]


def _times(weights: Any) -> HeadBug:
    return lambda q, k, v, _: weighted(q, k, v, weights)


@pytest.mark.parametrize(
    ("bug", "pattern", "words"),
    [
        (_exp2, "softmax_scale", "exp2 of scores"),
        (_scaled(np.sqrt(2)), "softmax_scale", "a factor of 1.41 (√2"),
        (_scaled(1 / np.log(2)), "softmax_scale", "multiplied by log2(e) and then given to exp"),
        (_scaled(1.1), "softmax_scale", "wrong by a factor of 1.1 "),
        (lambda q, k, v, _: weighted(q, _unswizzled(k), v), "swizzle", "of K on one side"),
        (lambda q, k, v, _: weighted(q, k, _unswizzled(v)), "swizzle", "of V on one side"),
        (lambda q, k, v, _: _unswizzled(weighted(q, k, v)), "swizzle", "of O on one side"),
        (
            lambda q, k, v, _: weighted(q, _transposed_pieces(k), v),
            "mma_fragment",
            "of K (16 × 16) transposed",
        ),
        (
            lambda q, k, v, _: weighted(q, _shifted(k), _shifted(v)),
            "head_stride",
            "K and V of a head read one row too far on, with zeros outside the head",
        ),
        (
            lambda q, k, v, _: weighted(q[:, :-16] * np.sqrt(0.5), k[:, :-16], v),
            "score_columns",
            "leave out the last 16 columns",
        ),
        (
            lambda q, k, v, _: weighted(q, _with_piece(k), v),
            "mma_fragment",
            "of K: the upper right one of 16 × 16 used in place of the upper left one",
        ),
        (
            lambda q, k, v, _: weighted(q, k, v[KEYS ^ 1]),
            "mma_fragment",
            "keys of P 1 apart exchanged",
        ),
        (
            lambda q, k, v, _: weighted(q, _tiles(k, 0, 1, 0, 1), v),
            "key_tile",
            "K read from another key tile: only the first two key tiles, alternating",
        ),
        (
            lambda q, k, v, _: weighted(q, k, _tiles(v, 2, 1, 0, 3)),
            "key_tile",
            "key tile 0 takes V of key tile 2, key tile 2 takes V of key tile 0",
        ),
        (_fused_with_the_first_l, "fusion_rescale", "takes l_i of the first one for all"),
        (_without_the_last_of_a_tile, "key_tile", "the last 16 keys of every key tile out of P·V"),
        (_not_divided, "not_normalised", "never divided by l"),
        (_past_the_end, "tail_mask", "56 rows past the end of its head"),
        (_mean_of_splits, "fusion_rescale", "plain mean of their normalised outputs"),
        (_times(KEYS < 192), "tail_tile", "last, partial key tile (keys 192 to 199)"),
        (_times(KEYS < 199), "tail_tile", "leaves out the last key"),
        (_times(KEYS > 0), "first_key", "leaves out the first key"),
        (_times(KEYS // 64 == 1), "split_missing", "using split 1 (keys 64 to 127) alone"),
        (_times(1 + (KEYS // 64 == 1)), "split_missing", "counting split 1"),
        (_times(KEYS % 64 > 0), "kv_split_seam", "the first key of every split "),
        (
            _times((KEYS % 64 > 0) | (KEYS == 0)),
            "kv_split_seam",
            "the first key of every split but the first",
        ),
        (
            _times(1 + ((KEYS % 64 == 0) & (KEYS > 0))),
            "kv_split_seam",
            "counting the first key of every split but the first twice",
        ),
        (_times(KEYS <= ROWS), "causal_mask", "a causal mask that this problem does not have"),
        (_times(KEYS // 64 != ROWS // 64), "key_tile", "keys 0–63 in rows 0–63 of batch 0, head"),
        (_times((KEYS < 64) | (KEYS >= 192)), "key_tile", "leaving out keys 64–191 ("),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_bug_is_named(bug: HeadBug, pattern: str, words: str) -> None:
    found = judged(bug)
    assert not found.passed
    assert found.findings[0].pattern == pattern, found.findings
    assert words in found.findings[0].sentence, found.findings


@pytest.mark.parametrize(
    ("mask", "pattern", "words"),
    [
        (KEYS >= ROWS, "causal_mask", "the wrong way round"),
        (KEYS >= 0 * ROWS, "causal_mask", "without the causal mask"),
        (KEYS < (ROWS // BLOCK + 1) * BLOCK, "causal_mask", "by whole tiles"),
        (ROWS - 8 * (ROWS % 16 >= 8) >= KEYS, "causal_mask", "the upper of two rows 8 apart"),
        (KEYS <= (ROWS | 1), "causal_mask", "the first of two neighbouring keys for both"),
        (KEYS <= (ROWS | 3), "causal_mask", "row 0 up to key 3 (3 too many)"),
        (ROWS // 64 * 64 + ROWS % 16 >= KEYS, "causal_mask", "those of one warp, for all"),
        ((ROWS >= KEYS) & (ROWS // 64 * 64 + 32 > KEYS), "causal_mask", "the middle row of the"),
    ],
)
def test_a_causal_bug_is_named(mask: np.ndarray, pattern: str, words: str) -> None:
    found = judged(_times(mask), causal=True)
    assert found.findings[0].pattern == pattern, found.findings
    assert words in found.findings[0].sentence, found.findings


def test_every_code_has_a_place_or_none_and_is_used() -> None:
    folder = Path(findings.__file__).parent
    text = "".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    for code in FindingCode:
        assert code == code.name.lower()
        assert f"FindingCode.{code.name}" in text, code
