"""Warnings: bugs whose error is below the tolerance give one, correct rounding never does."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from slow_cases import one_in
from words import says

from engine.attention.config import find_variant
from engine.attention.evaluation import Correctness
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import INPUT_KINDS, FloatArray, Inputs, decode, encode, make_inputs
from engine.base.errors import Status
from engine.correctness import check_output
from engine.correctness.reference import emulated_attention, everything, slice_qkv
from engine.cuda_on_host.client import RunResult
from kernels.variant import Dtype


def judged(inputs: Inputs, out: FloatArray) -> Correctness:
    raw = encode(out.reshape(inputs.problem.shape).astype(np.float32), inputs.problem.dtype)
    return check_output(inputs, RunResult(status=Status.PASSED, out=raw))


def truncated(values: FloatArray) -> FloatArray:
    """Truncate to BF16."""
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


def attention(inputs: Inputs, *, truncate: bool = False, padded_keys: int = 0) -> FloatArray:
    """Return low-precision attention with one bug."""
    problem = inputs.problem
    slices = np.arange(problem.batch * problem.num_heads)
    q, k, v = (x.astype(np.float32) for x in slice_qkv(inputs, slices))
    scores = q @ k.transpose(0, 2, 1) * np.float32(problem.softmax_scale)
    if problem.causal:
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    row_sum = weights.sum(axis=-1, keepdims=True) + padded_keys * np.exp(-top)
    rounded = decode(encode(weights, problem.dtype), problem.dtype)
    return np.asarray((truncated(weights) if truncate else rounded) @ v / row_sum)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seqlen", [65, 512])
def test_truncated_weights_are_warned_of(seqlen: int, causal: bool) -> None:
    inputs = make_inputs(Problem(1, 2, seqlen, 64, causal, "bfloat16"), seed=seqlen)
    found = judged(inputs, attention(inputs, truncate=True))
    assert found.passed
    assert found.findings == ()
    assert len(found.warnings) == 1
    assert says(found.warnings[0], "systematically_too_by", "small", "0")
    assert says(found.warnings[0], "systematically_too_by")
    assert judged(inputs, attention(inputs)).warnings == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_that_share_a_rounding_error_are_warned_of(dtype: Dtype) -> None:
    """For instance by a row sum that four threads keep in 16 bits."""
    inputs = make_inputs(Problem(1, 2, 200, 64, dtype=dtype))
    q, k, v = (x.astype(np.float32) for x in slice_qkv(inputs, np.arange(2)))
    scores = q @ k.transpose(0, 2, 1) * np.float32(inputs.problem.softmax_scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    row_sum = np.zeros((*weights.shape[:2], 4), np.float32)
    for key in range(0, 200, 4):
        row_sum = decode(encode(row_sum + weights[..., key : key + 4], dtype), dtype)
    found = judged(inputs, weights @ v / row_sum.sum(axis=-1, keepdims=True))
    assert found.passed
    assert says(found.warnings[0], "lost_precision_row")
    assert judged(inputs, weights @ v / weights.sum(axis=-1, keepdims=True)).warnings == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_one_padded_key_is_warned_of(dtype: Dtype) -> None:
    inputs = make_inputs(Problem(1, 2, 1022, 64, dtype=dtype))
    assert judged(inputs, attention(inputs)).warnings == ()
    found = judged(inputs, attention(inputs, padded_keys=1))
    assert found.passed
    assert says(found.warnings[0], "one_padded_key")


def test_one_padded_key_of_one_is_warned_of() -> None:
    """S = 1,023: the only padded key of the last tile."""
    inputs = make_inputs(Problem(1, 2, 1023, 64))
    found = judged(inputs, attention(inputs, padded_keys=1))
    assert found.passed
    assert says(found.warnings[0], "tail_mask_warned")


def test_a_bug_whose_effect_overflows_is_refuted() -> None:
    """A row sum without the only key with weight gives an output of about 1e200."""
    problem = Problem(1, 2, 113, 64, dtype="bfloat16")
    inputs = make_inputs(problem, kind="scaled:16")
    variant = find_variant("v08")
    plan = make_plan(variant, problem, variant.default_config())  # gives the key tiles
    raw = encode((attention(inputs) * 0.9984).reshape(problem.shape), problem.dtype)
    found = check_output(inputs, RunResult(status=Status.PASSED, out=raw), plan=plan)
    assert found.passed
    assert says(found.warnings[0], "lost_precision_sum")


@pytest.mark.parametrize(
    ("seqlen", "kind", "dtype"),
    one_in(
        5,
        list(itertools.product((1, 33, 113, 203), INPUT_KINDS, ("float16", "bfloat16"))),
        slow=3,
    ),
)
def test_correct_rounding_gives_no_warning(seqlen: int, kind: str, dtype: Any) -> None:
    for causal in (False, True):
        problem = Problem(2, 2, seqlen, 64, causal, dtype)
        inputs = make_inputs(problem, seed=seqlen, kind=kind)
        found = judged(inputs, emulated_attention(inputs, everything(problem)))
        assert found.passed, found.reason
        assert found.warnings == ()


def test_an_error_much_larger_than_that_of_sdpa_is_warned_of() -> None:
    inputs = make_inputs(Problem(1, 2, 200, 64))
    right = attention(inputs)
    baseline = judged(inputs, right).baseline_err
    noise = np.random.default_rng(1).uniform(-0.8, 0.8, right.shape) * baseline
    found = judged(inputs, right + noise)
    assert found.passed, found.reason
    (warning,) = found.warnings
    assert says(warning, "lost_precision_sum", "RMS")
    single = np.zeros_like(right)
    single[0, 7, 5] = 1.8 * baseline
    found = judged(inputs, np.asarray(exact(inputs)) + single)
    assert found.passed, found.reason
    assert says(found.warnings[0], "lost_precision_sum", "largest")


def exact(inputs: Inputs) -> FloatArray:
    problem = inputs.problem
    slices = np.arange(problem.batch * problem.num_heads)
    q, k, v = slice_qkv(inputs, slices)
    scores = q @ k.transpose(0, 2, 1) * problem.softmax_scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights @ v / weights.sum(axis=-1, keepdims=True))
