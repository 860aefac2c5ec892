"""Grouped-query attention: the reference, SDPA, and bugs in the map from query to K/V head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from words import says

from engine.attention.evaluation import Correctness
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, decode, encode, make_inputs
from engine.backends.sdpa import sdpa_same_dtype
from engine.base.errors import Status
from engine.correctness import check_output
from engine.correctness.reference import Coverage, covered_reference, everything, reference
from engine.cuda_on_host.client import RunResult
from kernels.ladder import by_id

GQA = Problem(3, 8, 70, 32, num_heads_kv=4)  # 4 groups of 2
# (batch, query head) → the K/V slice to read.
KvMap = Callable[[int, int], int]


def right(batch: int, head: int) -> int:
    return batch * 4 + head // 2


def attention(inputs: Inputs, kv_slice: KvMap) -> np.ndarray:
    """Return attention, head by head, `[batch, num_heads, seqlen, head_dim]`."""
    p = inputs.problem
    q, k, v = (
        decode(x, p.dtype).astype(np.float64).reshape(-1, *x.shape[2:])
        for x in (inputs.q, inputs.k, inputs.v)
    )
    # Past the end of the tensors a kernel reads arbitrary values.
    k, v = (np.concatenate([x, np.random.default_rng(1).normal(size=q.shape)]) for x in (k, v))
    out = []
    for i in range(len(q)):
        own = kv_slice(*divmod(i, p.num_heads))
        scores = q[i] @ k[own].T * p.softmax_scale
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out.append(weights @ v[own] / weights.sum(axis=1, keepdims=True))
    return np.stack(out).reshape(p.shape)


def judged(inputs: Inputs, out: np.ndarray) -> Correctness:
    variant = by_id("v08")
    plan = make_plan(variant, GQA, variant.default_config())
    raw = encode(out.astype(np.float32), GQA.dtype)
    return check_output(inputs, RunResult(status=Status.PASSED, out=raw), plan=plan)


def test_inputs_have_the_kv_heads() -> None:
    inputs = make_inputs(GQA, kind="structured_v")
    assert inputs.q.shape == (3, 8, 70, 32)
    assert inputs.k.shape == inputs.v.shape == (3, 4, 70, 32)


def test_the_reference_and_sdpa_agree_with_the_textbook() -> None:
    inputs = make_inputs(GQA)
    textbook = attention(inputs, right)
    np.testing.assert_allclose(reference(inputs), textbook, atol=1e-12)
    np.testing.assert_allclose(sdpa_same_dtype(inputs)[0], textbook, atol=2e-3)


def test_a_sample_of_the_heads_has_their_own_kv() -> None:
    inputs = make_inputs(GQA)
    some = Coverage(GQA, np.array([0, 3, 9, 15]), np.arange(GQA.seqlen))
    chosen = some.select(inputs)
    assert chosen.problem.num_heads_kv is None
    assert chosen.k.shape == (1, 4, 70, 32)
    whole = covered_reference(inputs, everything(GQA))
    np.testing.assert_allclose(covered_reference(inputs, some), whole[some.slices], atol=1e-12)
    np.testing.assert_allclose(reference(chosen)[0], whole[some.slices], atol=1e-12)


def test_a_correct_gqa_output_passes() -> None:
    inputs = make_inputs(GQA)
    made = judged(inputs, attention(inputs, right))
    assert made.passed, made.reason
    assert made.findings == ()


@pytest.mark.parametrize(
    ("kv_slice", "name"),
    [
        (lambda b, h: b * 4 + h % 4, "kv_by_modulo"),
        (lambda b, h: b * 8 + h, "kv_by_query_head"),
        (lambda b, h: b * 4 + h, "kv_by_query_head"),
        (lambda b, h: b * 8 + h // 2, "batch_stride_of_heads"),
        (lambda _, h: h // 2, "offset_without_batch"),
    ],
)
def test_a_wrong_map_of_heads_is_named(kv_slice: KvMap, name: str) -> None:
    inputs = make_inputs(GQA)
    made = judged(inputs, attention(inputs, kv_slice))
    assert not made.passed
    assert made.findings[0].pattern == "head_stride"
    assert says(made.findings[0].sentence, name)


def test_all_heads_of_one_kv_head() -> None:
    """The output of one K/V head has an error that no suspected bug explains."""
    inputs = make_inputs(GQA)
    spoilt = attention(inputs, right)
    spoilt[:, 4:6] += np.random.default_rng(0).normal(0, 0.5, spoilt[:, 4:6].shape)
    sentences = [f.sentence for f in judged(inputs, spoilt).findings]
    assert says(sentences, "heads_of_kv_head", "K/V head 2 of every batch")
