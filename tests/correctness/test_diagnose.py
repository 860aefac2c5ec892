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
from engine.base.errors import Status
from engine.correctness import check_output
from engine.correctness.reference import reference
from engine.cuda_on_host.client import RunResult
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


Phrase = tuple[str, ...]  # a name of tests/words.json, and the values in it


def assert_named(found: Correctness, pattern: str, *phrases: Phrase) -> None:
    """Assert that the first finding that is not about NaN has this code and these phrases."""
    assert not found.passed
    assert found.findings
    first = next((f for f in found.findings if f.pattern != "nan_row"), found.findings[0])
    assert first.pattern == pattern, found.findings
    for phrase in phrases:
        assert says(first.sentence, *phrase), first.sentence
    assert 0 < first.share <= 1


@pytest.mark.parametrize("kind", ["normal", "structured_v", "large_logits"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_a_correct_kernel_gives_no_findings(num_splits: int, causal: bool, kind: Any) -> None:
    found = diagnosed(Kernel(num_splits=num_splits), Problem(2, 2, 200, 64, causal), kind)
    assert found.passed, found.reason
    assert found.findings == ()


@pytest.mark.parametrize(("causal", "kind"), MASKS_AND_INPUTS)
class TestKvSplit:
    @pytest.mark.parametrize(
        ("query_index", "phrase"),
        [
            (lambda rows, split: rows % 64 + 64 * split, ("query_tile_of_split",)),
            (lambda rows, _: rows % 64, ("first_query_tile",)),
            (lambda rows, _: rows + 1, ("next_row",)),
            (lambda rows, split: rows + split, ("rows_later",)),
            (lambda rows, split: rows + 64 * split, ("query_tiles_later",)),
        ],
    )
    def test_a_wrong_query_index(
        self, query_index: Any, phrase: Phrase, causal: bool, kind: InputKind
    ) -> None:
        kernel = Kernel(num_splits=4, query_index=query_index)
        found = diagnosed(kernel, Problem(1, 2, 512, 64, causal), kind)
        assert_named(found, "query_index", ("in_partial_pass",), phrase)

    @pytest.mark.parametrize(
        ("bug", "phrase"),
        [
            (
                {"rescales_fused_acc": False, "rescales_fused_l": False},
                ("bug_fusion_no_rescale",),
            ),
            ({"rescales_fused_acc": False}, ("bug_fusion_l_alone",)),
            ({"rescales_fused_l": False}, ("bug_fusion_o_alone",)),
        ],
    )
    def test_a_fusion_without_the_rescale(
        self, bug: dict[str, bool], phrase: Phrase, causal: bool, kind: InputKind
    ) -> None:
        found = diagnosed(Kernel(num_splits=4, **bug), Problem(1, 2, 512, 64, causal), kind)
        assert_named(found, "fusion_rescale", phrase, ("weights_of_fusion",))

    @pytest.mark.parametrize("split", [0, 2, 3])
    def test_a_missing_split(self, split: int, causal: bool, kind: InputKind) -> None:
        kernel = Kernel(num_splits=4, skipped_split=split)
        found = diagnosed(kernel, Problem(1, 2, 512, 64, causal), kind)
        first = split * 128
        assert_named(found, "split_missing", ("bug_leaving_out", f"split {split}", str(first)))

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
        assert_named(found, "tail_mask", ("bug_missing_tail_mask", str(padded), f"S = {seqlen}"))

    @pytest.mark.parametrize(
        ("shift", "phrase"), [(1, ("bug_key_too_many",)), (-1, ("bug_misses_own_key",))]
    )
    @pytest.mark.parametrize("num_splits", [1, 4])
    def test_a_causal_mask_off_by_one(
        self, num_splits: int, shift: int, phrase: Phrase, kind: InputKind
    ) -> None:
        kernel = Kernel(num_splits=num_splits, causal_shift=shift)
        found = diagnosed(kernel, Problem(1, 2, 200, 64, True), kind)
        assert_named(found, "causal_diagonal", phrase)

    def test_no_causal_mask(self, kind: InputKind) -> None:
        kernel = Kernel(causal_shift=1 << 20, block_m=256)
        found = diagnosed(kernel, Problem(1, 2, 200, 64, True), kind)
        assert_named(found, "causal_mask", ("bug_no_causal_mask",))


@pytest.mark.parametrize(("causal", "kind"), MASKS_AND_INPUTS)
class TestAddresses:
    def test_k_of_another_head(self, causal: bool, kind: InputKind) -> None:
        kernel = Kernel(k_slice=lambda i, _: 1 if i == 2 else i)
        found = diagnosed(kernel, Problem(1, 4, 200, 64, causal), kind)
        assert_named(found, "head_stride", ("bug_head_read", "K", "one head before"))
        where = next(f for f in found.findings if f.pattern == "one_head")
        assert "batch 0, head 2" in where.sentence

    def test_an_offset_without_the_batch(self, causal: bool, kind: InputKind) -> None:
        kernel = Kernel(k_slice=lambda i, p: i % p.num_heads)
        found = diagnosed(kernel, Problem(3, 2, 200, 64, causal), kind)
        assert_named(found, "head_stride", ("bug_head_read", "K"), ("offset_without_batch",))

    def test_a_head_stride_of_one_row_too_many(self, causal: bool, kind: InputKind) -> None:
        found = diagnosed(Kernel(v_extra_rows=1), Problem(2, 2, 200, 64, causal), kind)
        assert_named(found, "head_stride", ("bug_head_read", "V"), ("head_stride_of", "one row"))
        assert says(found.findings[1].sentence, "every_head_wrong")


@pytest.mark.parametrize(
    ("num_splits", "causal"), one_in(3, list(itertools.product((1, 2), (False, True))))
)
def test_an_online_softmax_without_the_rescale(causal: bool, num_splits: int) -> None:
    kernel = Kernel(num_splits=num_splits, rescales_online=False)
    found = diagnosed(kernel, Problem(1, 2, 512, 64, causal))
    assert_named(found, "online_rescale", ("bug_no_online_rescale",))


@pytest.mark.parametrize(
    ("factor", "phrase"),
    [
        (8.0, ("bug_no_scale",)),
        (1 / 8, ("bug_scaled_twice",)),
        (float(np.log(2)), ("bug_exp2_unscaled",)),
    ],
)
def test_a_wrong_scale(factor: float, phrase: Phrase) -> None:
    found = diagnosed(Kernel(scale_factor=factor), Problem(1, 2, 200, 64))
    assert_named(found, "softmax_scale", phrase)


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
    ("spoil", "pattern", "phrases"),
    [
        (_nan_row, "nan_row", (("nan_in", "row 17 of batch 0, head 1", "every column"),)),
        (_swap_columns, "columns_of_d", (("holds_other", "column 3", "column 5"),)),
        (
            _warp,
            "rows_of_one_warp",
            (("rows_of_warp_wrong", "rows 24–31"), ("rows_of_warp_wrong", "warp 3")),
        ),
        (_one_in_four_columns, "columns_of_d", (("every_nth", "columns 0, 4, 8, …, 60", "4th"),)),
        (
            _one_tile,
            "one_query_tile",
            (("query_tile_wrong", "1"), ("query_tile_wrong", "rows 64–127")),
        ),
        (_tail_tile, "tail_tile", (("last_tile_wrong",), ("last_tile_wrong", "8 of 64"))),
        (_coarse, "precision", (("looks_like_lost_precision",),)),
    ],
)
def test_a_spoiled_output(spoil: Any, pattern: str, phrases: tuple[Phrase, ...]) -> None:
    found = diagnosed(Kernel(spoil=spoil), Problem(2, 2, 200, 64))
    sentences = [f.sentence for f in found.findings if f.pattern == pattern]
    assert sentences, found.findings
    assert all(says(sentences[0], *phrase) for phrase in phrases), sentences


def test_results_stored_to_the_wrong_rows() -> None:
    def scattered(out: np.ndarray) -> None:
        out[...] = out[:, :, np.random.default_rng(0).permutation(out.shape[2])]

    found = diagnosed(Kernel(spoil=scattered), Problem(1, 2, 200, 64))
    assert_named(found, "query_index", ("lse_rows_exchanged",))


def test_zeros_and_the_mean_of_v_are_recognised() -> None:
    problem = Problem(2, 2, 200, 64)
    inputs = make_inputs(problem)
    v = reference(make_inputs(problem)) * 0

    def judged(out: np.ndarray) -> Correctness:
        raw = encode(out.astype(np.float32), "float16")
        return check_output(inputs, RunResult(status=Status.PASSED, out=raw))

    assert_named(judged(v), "all_zero", ("zeros_written",))
    mean = inputs.v.astype(np.float64).mean(axis=2, keepdims=True)
    assert_named(judged(np.broadcast_to(mean, problem.shape)), "mean_v", ("mean_of_v",))
    noise = np.random.default_rng(0).standard_normal(problem.shape)
    assert_named(judged(noise), "everywhere", ("main_loop_wrong",))


@pytest.mark.parametrize(
    ("rows", "phrases"),
    [
        (slice(None), (("unwritten_all",),)),
        (
            slice(192, None),
            (("unwritten_part", "rows 192–199 of every head, every column"), ("last_query_tile",)),
        ),
        (
            slice(64, 65),
            (("unwritten_part", "row 64 of every head, every column"), ("launch_grid",)),
        ),
    ],
)
def test_unwritten_rows(rows: slice, phrases: tuple[Phrase, ...]) -> None:
    problem = Problem(1, 2, 200, 64)
    inputs = make_inputs(problem)
    out = encode(reference(inputs).astype(np.float32), "float16")
    out.view(np.uint16)[:, :, rows] = POISON_BITS
    found = check_output(inputs, RunResult(status=Status.PASSED, out=out))
    assert [f.pattern for f in found.findings] == ["unwritten"]
    assert all(says(found.findings[0].sentence, *phrase) for phrase in phrases)
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
def test_tiny_problems_give_no_false_findings(problem: Problem, seed: int) -> None:
    """Small problems have few numbers: no bug may be reported for noise."""
    inputs = make_inputs(problem, seed=seed)
    noise = np.random.default_rng(seed).standard_normal(problem.shape)
    raw = encode(noise.astype(np.float32), "float16")
    found = check_output(inputs, RunResult(status=Status.PASSED, out=raw))
    assert not found.passed
    assert {f.pattern for f in found.findings} <= {"everywhere", "some_rows", "one_row"}
