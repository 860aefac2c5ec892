"""Bugs planted in an emulated kernel are named, and correct outputs give no findings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from emulated_kernel import Kernel
from slow_cases import one_in
from words import says

from engine.attention.evaluation import Correctness
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import POISON_BITS, InputKind, decode, encode, make_inputs
from engine.backends.base import RunResult
from engine.base.errors import Status
from engine.correctness import check_output
from engine.correctness.reference import reference
from kernels.ladder import by_id

KINDS: tuple[InputKind, ...] = ("normal", "structured_v")
MASKS_AND_INPUTS = one_in(4, list(itertools.product((False, True), KINDS)), offset=3, slow=4)


def diagnosed(
    kernel: Kernel, problem: Problem, kind: InputKind = "normal", seed: int = 0
) -> Correctness:
    """Return the verdict on the emulated kernel, with the plan of v05 (splits) or v02."""
    inputs = make_inputs(problem, seed=seed, kind=kind)
    variant = by_id("v05" if kernel.num_splits > 1 else "v02")
    config = {**variant.default_config(), "block_n": kernel.block_n}
    if kernel.num_splits > 1:
        config["num_splits"] = kernel.num_splits
    plan = make_plan(variant, problem, config)
    return check_output(inputs, kernel.run(inputs), plan=plan)


def assert_named(found: Correctness, pattern: str, *words: str) -> None:
    """Assert that the first finding that is not about NaN has this pattern and these words."""
    assert not found.passed
    assert found.findings
    first = next((f for f in found.findings if f.pattern != "nan_row"), found.findings[0])
    assert first.pattern == pattern, found.findings
    for word in words:
        assert word in first.sentence, first.sentence
    assert 0 < first.share <= 1


@pytest.mark.parametrize("kind", ["normal", "structured_v", "large_logits"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_a_right_kernel_gives_no_findings(num_splits: int, causal: bool, kind: Any) -> None:
    found = diagnosed(Kernel(num_splits=num_splits), Problem(2, 2, 200, 64, causal), kind)
    assert found.passed, found.reason
    assert found.findings == ()


@pytest.mark.parametrize(("causal", "kind"), MASKS_AND_INPUTS)
class TestKvSplit:
    @pytest.mark.parametrize(
        ("query_index", "words"),
        [
            (lambda rows, split: rows % 64 + 64 * split, "query tile s"),
            (lambda rows, _: rows % 64, "the first query tile for every tile"),
            (lambda rows, _: rows + 1, "the next row"),
            (lambda rows, split: rows + split, "the row s rows later"),
            (lambda rows, split: rows + 64 * split, "the query tile s tiles later"),
        ],
    )
    def test_a_wrong_query_index(
        self, query_index: Any, words: str, causal: bool, kind: InputKind
    ) -> None:
        kernel = Kernel(num_splits=4, query_index=query_index)
        found = diagnosed(kernel, Problem(1, 2, 512, 64, causal), kind)
        assert_named(found, "query_index", "KV-split partial pass", words)

    @pytest.mark.parametrize(
        ("bug", "words"),
        [
            (
                {"rescales_fused_acc": False, "rescales_fused_l": False},
                "without the rescale by exp(m_i − m)",
            ),
            ({"rescales_fused_acc": False}, "rescales l_i but not O_i"),
            ({"rescales_fused_l": False}, "rescales O_i but not l_i"),
        ],
    )
    def test_a_fusion_without_the_rescale(
        self, bug: dict[str, bool], words: str, causal: bool, kind: InputKind
    ) -> None:
        found = diagnosed(Kernel(num_splits=4, **bug), Problem(1, 2, 512, 64, causal), kind)
        assert_named(found, "fusion_rescale", words, "fusion pass")

    @pytest.mark.parametrize("split", [0, 2, 3])
    def test_a_split_left_out(self, split: int, causal: bool, kind: InputKind) -> None:
        kernel = Kernel(num_splits=4, skipped_split=split)
        found = diagnosed(kernel, Problem(1, 2, 512, 64, causal), kind)
        first = split * 128
        assert_named(found, "split_missing", f"leaving out split {split} (keys {first} to")

    def test_more_splits_than_key_tiles(self, causal: bool, kind: InputKind) -> None:
        problem = Problem(1, 2, 200, 64, causal)
        assert diagnosed(Kernel(num_splits=16), problem, kind).passed
        kernel = Kernel(num_splits=16, rescales_fused_acc=False, rescales_fused_l=False)
        assert_named(diagnosed(kernel, problem, kind), "fusion_rescale")


@pytest.mark.parametrize("kind", one_in(2, KINDS, offset=1))
class TestMasks:
    @pytest.mark.parametrize(("num_splits", "seqlen", "padded"), [(1, 65, 63), (4, 200, 56)])
    def test_a_missing_tail_mask(
        self, num_splits: int, seqlen: int, padded: int, kind: InputKind
    ) -> None:
        kernel = Kernel(num_splits=num_splits, masks_tail=False)
        found = diagnosed(kernel, Problem(1, 2, seqlen, 64), kind)
        words = ("missing tail mask", f"the {padded} padded keys", f"S = {seqlen}")
        assert_named(found, "tail_mask", *words)

    @pytest.mark.parametrize(
        ("shift", "words"), [(1, "sees one key too many"), (-1, "misses its own key")]
    )
    @pytest.mark.parametrize("num_splits", [1, 4])
    def test_a_causal_mask_off_by_one(
        self, num_splits: int, shift: int, words: str, kind: InputKind
    ) -> None:
        kernel = Kernel(num_splits=num_splits, causal_shift=shift)
        found = diagnosed(kernel, Problem(1, 2, 200, 64, True), kind)
        assert_named(found, "causal_diagonal", "off by one", words)

    def test_no_causal_mask(self, kind: InputKind) -> None:
        kernel = Kernel(causal_shift=1 << 20, block_m=256)
        found = diagnosed(kernel, Problem(1, 2, 200, 64, True), kind)
        assert_named(found, "causal_mask", "without the causal mask")


@pytest.mark.parametrize(("causal", "kind"), MASKS_AND_INPUTS)
class TestAddresses:
    def test_one_heads_k_from_another(self, causal: bool, kind: InputKind) -> None:
        kernel = Kernel(k_slice=lambda i, _: 1 if i == 2 else i)
        found = diagnosed(kernel, Problem(1, 4, 200, 64, causal), kind)
        assert_named(found, "head_stride", "K of a head read from one head before")
        where = next(f for f in found.findings if f.pattern == "one_head")
        assert "batch 0, head 2" in where.sentence

    def test_a_batch_left_out_of_the_offset(self, causal: bool, kind: InputKind) -> None:
        kernel = Kernel(k_slice=lambda i, p: i % p.num_heads)
        found = diagnosed(kernel, Problem(3, 2, 200, 64, causal), kind)
        assert_named(found, "head_stride", "K of a head", "leaves out the batch")

    def test_a_head_stride_of_one_row_too_many(self, causal: bool, kind: InputKind) -> None:
        found = diagnosed(Kernel(v_extra_rows=1), Problem(2, 2, 200, 64, causal), kind)
        assert_named(found, "head_stride", "V of a head", "a head stride one row too large")
        assert says(found.findings[1].sentence, "every_head_wrong")


@pytest.mark.parametrize(
    ("num_splits", "causal"), one_in(3, list(itertools.product((1, 2), (False, True))))
)
def test_an_online_softmax_without_the_rescale(causal: bool, num_splits: int) -> None:
    kernel = Kernel(num_splits=num_splits, rescales_online=False)
    found = diagnosed(kernel, Problem(1, 2, 512, 64, causal))
    assert_named(found, "online_rescale", "exp(m_old − m_new)")


@pytest.mark.parametrize(
    ("factor", "words"),
    [(8.0, "without the scale"), (1 / 8, "scaled twice"), (float(np.log(2)), "log2(e)")],
)
def test_a_wrong_scale(factor: float, words: str) -> None:
    found = diagnosed(Kernel(scale_factor=factor), Problem(1, 2, 200, 64))
    assert_named(found, "softmax_scale", words)


def _nan_row(out: np.ndarray) -> None:
    out[0, 1, 17] = np.nan


def _swap_columns(out: np.ndarray) -> None:
    out[..., [3, 5]] = out[..., [5, 3]]


def _warp(out: np.ndarray) -> None:
    out[:, :, np.arange(out.shape[2]) % 64 // 8 == 3] *= 1.1


def _one_in_four_columns(out: np.ndarray) -> None:
    out[..., ::4] = 0


def _one_tile(out: np.ndarray) -> None:
    out[:, :, 64:128] = np.cos(out[:, :, 64:128])


def _tail_tile(out: np.ndarray) -> None:
    out[:, :, 192:] += 0.25 * np.cos(7 * out[:, :, 192:])


def _shift_rows(out: np.ndarray) -> None:
    out[:, :, :-4] = out[:, :, 4:].copy()


def _coarse(out: np.ndarray) -> None:
    out[...] = decode(encode(out, "bfloat16"), "bfloat16")


@pytest.mark.parametrize(
    ("spoil", "pattern", "words"),
    [
        (_nan_row, "nan_row", ["row 17 of batch 0, head 1", "every column"]),
        (_swap_columns, "columns_of_d", ["column 3 holds column 5, column 5 holds column 3"]),
        (_warp, "rows_of_one_warp", ["rows 24–31", "warp 3"]),
        (_one_in_four_columns, "columns_of_d", ["columns 0, 4, 8, …, 60 (every 4th)"]),
        (_one_tile, "one_query_tile", ["query tile 1", "rows 64–127"]),
        (_tail_tile, "tail_tile", ["last, partial query tile", "8 of 64"]),
        (_coarse, "precision", ["lost precision"]),
    ],
)
def test_a_spoiled_output(spoil: Any, pattern: str, words: list[str]) -> None:
    found = diagnosed(Kernel(spoil=spoil), Problem(2, 2, 200, 64))
    sentences = [f.sentence for f in found.findings if f.pattern == pattern]
    assert sentences, found.findings
    assert all(word in sentences[0] for word in words), sentences


def test_results_stored_to_the_wrong_rows() -> None:
    def scattered(out: np.ndarray) -> None:
        out[...] = out[:, :, np.random.default_rng(0).permutation(out.shape[2])]

    found = diagnosed(Kernel(spoil=scattered), Problem(1, 2, 200, 64))
    assert_named(found, "query_index", "rows that hold each other's results")


def test_zeros_and_the_mean_of_v_are_recognised() -> None:
    problem = Problem(2, 2, 200, 64)
    inputs = make_inputs(problem)
    v = reference(make_inputs(problem)) * 0

    def judged(out: np.ndarray) -> Correctness:
        raw = encode(out.astype(np.float32), "float16")
        return check_output(inputs, RunResult(status=Status.PASSED, out=raw))

    assert_named(judged(v), "all_zero", "writes zeros")
    mean = inputs.v.astype(np.float64).mean(axis=2, keepdims=True)
    assert_named(judged(np.broadcast_to(mean, problem.shape)), "mean_v", "mean of the visible V")
    noise = np.random.default_rng(0).standard_normal(problem.shape)
    assert_named(judged(noise), "everywhere", "the main loop")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (slice(None), "never written: look at the store"),
        (slice(192, None), "rows 192–199 of every head, every column, the last, partial"),
        (slice(64, 65), "row 64 of every head, every column. Look at the launch's grid"),
    ],
)
def test_unwritten_rows(rows: slice, words: str) -> None:
    problem = Problem(1, 2, 200, 64)
    inputs = make_inputs(problem)
    out = encode(reference(inputs).astype(np.float32), "float16")
    out.view(np.uint16)[:, :, rows] = POISON_BITS
    found = check_output(inputs, RunResult(status=Status.PASSED, out=out))
    assert [f.pattern for f in found.findings] == ["unwritten"]
    assert words in found.findings[0].sentence
    assert found.findings[0].share == 1.0


def test_two_faults_are_both_named() -> None:
    def both(out: np.ndarray) -> None:
        out[0, 1, 17] = np.nan
        out[..., [3, 5]] = out[..., [5, 3]]

    found = diagnosed(Kernel(spoil=both), Problem(2, 2, 200, 64))
    patterns = [f.pattern for f in found.findings]
    assert patterns[0] == "columns_of_d"
    assert patterns[-1] == "nan_row"
    assert found.findings[0].share + found.findings[-1].share == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "problem", [Problem(1, 1, 2, 32), Problem(1, 1, 3, 4), Problem(1, 2, 5, 32)], ids=Problem.label
)
def test_tiny_problems_are_diagnosed_without_complaint(problem: Problem, seed: int) -> None:
    """Small problems have few numbers: no bug may be reported for noise."""
    inputs = make_inputs(problem, seed=seed)
    noise = np.random.default_rng(seed).standard_normal(problem.shape)
    raw = encode(noise.astype(np.float32), "float16")
    found = check_output(inputs, RunResult(status=Status.PASSED, out=raw))
    assert not found.passed
    assert {f.pattern for f in found.findings} <= {"everywhere", "some_rows", "one_row"}
