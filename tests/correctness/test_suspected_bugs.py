"""Each other suspected bug is recognised in a textbook computation with that bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words import says

from engine.attention.evaluation import Correctness
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import decode, encode, make_inputs
from engine.base.errors import Status
from engine.correctness import check_output, findings
from engine.correctness.findings import FindingCode
from engine.cuda_on_host.client import RunResult
from kernels.ladder import by_id

Phrases = tuple[tuple[str, ...], ...]  # names of tests/words.json, each with the values in it

SEQLEN, BLOCK, SPLITS = 200, 64, 4
KEYS = np.arange(SEQLEN)
ROWS = KEYS[:, None]

# One head: (q, k, v, the rows of K and V that follow in memory) → its output.
HeadBug = Callable[[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]], Any]


def weighted(q: np.ndarray, k: np.ndarray, v: np.ndarray, weights: Any = 1.0) -> np.ndarray:
    """Return softmax attention with every exp(score) multiplied by `weights`, `[rows, keys]`."""
    e = np.exp(q @ k.T / np.sqrt(q.shape[1])) * weights
    return np.asarray(e @ v / e.sum(axis=1, keepdims=True))


def judged(bug: HeadBug, causal: bool = False, **changed: Any) -> Correctness:
    """Return the verdict on the bug's output, with the plan of v05, or a changed one."""
    problem = Problem(1, 3, SEQLEN, 32, causal)
    inputs = make_inputs(problem)
    q, k, v = (decode(x, "float16").astype(np.float64)[0] for x in (inputs.q, inputs.k, inputs.v))
    out = [
        bug(q[h], k[h], v[h], (k[(h + 1) % 3], v[(h + 1) % 3])) for h in range(problem.num_heads)
    ]
    raw = encode(np.stack(out)[None].astype(np.float32), "float16")
    variant = by_id("v05")
    plan = make_plan(variant, problem, {**variant.default_config(), "num_splits": SPLITS})
    plan = replace(plan, **changed)
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
    ("bug", "pattern", "phrases"),
    [
        (_exp2, "softmax_scale", (("bug_exp2_unscaled",),)),
        (_scaled(np.sqrt(2)), "softmax_scale", (("bug_scores_by_factor", "1.41", "√2"),)),
        (_scaled(1 / np.log(2)), "softmax_scale", (("bug_exp_of_log2e",),)),
        (_scaled(1.1), "softmax_scale", (("bug_scores_by_factor", "1.1"),)),
        (lambda q, k, v, _: weighted(q, _unswizzled(k), v), "swizzle", (("bug_swizzle", "K"),)),
        (lambda q, k, v, _: weighted(q, k, _unswizzled(v)), "swizzle", (("bug_swizzle", "V"),)),
        (lambda q, k, v, _: _unswizzled(weighted(q, k, v)), "swizzle", (("bug_swizzle_of_o",),)),
        (
            lambda q, k, v, _: weighted(q, _transposed_pieces(k), v),
            "mma_fragment",
            (("bug_k_transposed",),),
        ),
        (
            lambda q, k, v, _: weighted(q, _shifted(k), _shifted(v)),
            "head_stride",
            (("bug_head_with_zeros", "K and V", "one row too far on"),),
        ),
        (
            lambda q, k, v, _: weighted(q[:, :-16] * np.sqrt(0.5), k[:, :-16], v),
            "score_columns",
            (("bug_scores_without_columns", "last 16"),),
        ),
        (
            lambda q, k, v, _: weighted(q, _with_piece(k), v),
            "mma_fragment",
            (("bug_fragment_in_place", "K", "upper right", "upper left"),),
        ),
        (
            lambda q, k, v, _: weighted(q, k, v[KEYS ^ 1]),
            "mma_fragment",
            (("bug_keys_of_p_exchanged", "1"),),
        ),
        (
            lambda q, k, v, _: weighted(q, _tiles(k, 0, 1, 0, 1), v),
            "key_tile",
            (("bug_another_key_tile", "K"), ("first_two_key_tiles",)),
        ),
        (
            lambda q, k, v, _: weighted(q, k, _tiles(v, 2, 1, 0, 3)),
            "key_tile",
            (("bug_takes_v_of", "key tile 0", "key tile 2"),),
        ),
        (_fused_with_the_first_l, "fusion_rescale", (("bug_first_l_for_all", "l_i"),)),
        (_without_the_last_of_a_tile, "key_tile", (("bug_out_of_pv", "the last 16 keys", "P·V"),)),
        (_not_divided, "not_normalised", (("bug_not_divided",),)),
        (_past_the_end, "tail_mask", (("bug_reads_past_head", "56"),)),
        (_mean_of_splits, "fusion_rescale", (("bug_mean_of_splits",),)),
        (_times(KEYS < 192), "tail_tile", (("bug_no_partial_key_tile", "192", "199"),)),
        (_times(KEYS < 199), "tail_tile", (("bug_no_last_key",),)),
        (_times(KEYS > 0), "first_key", (("bug_no_first_key",),)),
        (_times(KEYS // 64 == 1), "split_missing", (("bug_using_alone", "split 1", "64", "127"),)),
        (_times(1 + (KEYS // 64 == 1)), "split_missing", (("bug_counting_twice", "split 1"),)),
        (_times(KEYS % 64 > 0), "kv_split_seam", (("bug_without_first_of_every", "key", "split"),)),
        (
            _times((KEYS % 64 > 0) | (KEYS == 0)),
            "kv_split_seam",
            (("bug_without_first_of_others", "key", "split"),),
        ),
        (
            _times(1 + ((KEYS % 64 == 0) & (KEYS > 0))),
            "kv_split_seam",
            (("bug_first_of_others_twice", "key", "split"),),
        ),
        (
            _times(sum((KEYS - 63 * i) // 64 == 0 for i in range(SPLITS))),
            "kv_split_seam",
            (("bug_splits_too_close", "64", "1 key", "earlier"),),
        ),
        (_times(KEYS <= ROWS), "causal_mask", (("bug_causal_not_asked",),)),
        (
            _times(KEYS // 64 != ROWS // 64),
            "key_tile",
            (("bug_key_tiles_left_out", "keys 0–63", "rows 0–63", "batch 0, head 0"),),
        ),
        (_times((KEYS < 64) | (KEYS >= 192)), "key_tile", (("bug_leaving_out", "keys 64–191"),)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_bug_is_named(bug: HeadBug, pattern: str, phrases: Phrases) -> None:
    found = judged(bug)
    assert not found.passed
    assert found.findings[0].pattern == pattern, found.findings
    said = found.findings[0].sentence
    assert all(says(said, *phrase) for phrase in phrases), said


@pytest.mark.parametrize(
    ("mask", "pattern", "phrases"),
    [
        (KEYS >= ROWS, "causal_mask", (("bug_causal_wrong_way",),)),
        (KEYS >= 0 * ROWS, "causal_mask", (("bug_no_causal_mask",),)),
        (KEYS < (ROWS // BLOCK + 1) * BLOCK, "causal_mask", (("bug_causal_by_tiles",),)),
        (ROWS - 8 * (ROWS % 16 >= 8) >= KEYS, "causal_mask", (("mask_upper_row",),)),
        (KEYS <= (ROWS | 1), "causal_mask", (("mask_first_key",),)),
        (KEYS <= (ROWS | 3), "causal_mask", (("bug_row_up_to_key", "row 0", "key 3", "(3"),)),
        (ROWS // 64 * 64 + ROWS % 16 >= KEYS, "causal_mask", (("mask_rows_of_one", "warp"),)),
        ((ROWS >= KEYS) & (ROWS // 64 * 64 + 32 > KEYS), "causal_mask", (("middle_row",),)),
    ],
)
def test_a_causal_bug_is_named(mask: np.ndarray, pattern: str, phrases: Phrases) -> None:
    found = judged(_times(mask), causal=True)
    assert found.findings[0].pattern == pattern, found.findings
    said = found.findings[0].sentence
    assert all(says(said, *phrase) for phrase in phrases), said


@pytest.mark.parametrize("name", ["num_splits", "kv_splits"])
def test_the_splits_of_a_kernel_that_declares_no_rows_are_diagnosed(name: str) -> None:
    undeclared = {"config": {name: SPLITS}, "kv_rows": SEQLEN}
    found = judged(_times(KEYS // 50 != 2), **undeclared).findings[0]
    assert says(found.sentence, "bug_leaving_out", "split 2", "keys 100 to 149")
    found = judged(lambda q, k, v, _: weighted(q, k, v[KEYS % 50]), **undeclared).findings[0]
    assert says(found.sentence, "bug_first_split_in_all", "V")


def test_every_finding_code_is_used() -> None:
    folder = Path(findings.__file__).parent
    text = "".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    for code in FindingCode:
        assert code == code.name.lower()
        assert f"FindingCode.{code.name}" in text, code
