"""Formats on the host, and inputs that are equal on every machine."""

from __future__ import annotations

import hashlib
from typing import Any, get_args

import numpy as np
import pytest
from words import raises

from engine.attention.problem import Problem
from engine.attention.tensors import (
    INPUT_KINDS,
    InputKind,
    bits_of,
    check_input_kind,
    decode,
    encode,
    inputs_clause,
    inputs_suffix,
    make_inputs,
    meaning,
    poison_of,
)
from engine.base.errors import InvalidProblem
from kernels.variant import Dtype

ALL_BITS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


STORED_AS = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}


def raw(bits: Any, dtype: Dtype) -> Any:
    return bits.view(STORED_AS[dtype])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pattern_survives_the_round_trip(dtype: Dtype) -> None:
    values = decode(raw(ALL_BITS, dtype), dtype)
    back = encode(values, dtype).view(np.uint16)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(back[numbers], ALL_BITS[numbers])
    assert np.isnan(decode(raw(back, dtype), dtype))[~numbers].all()


def test_fp32_values_are_unchanged() -> None:
    values = np.array([0.1, -np.inf, 1e-45, 3.4e38], np.float32)
    assert encode(values, "float32").tobytes() == values.tobytes()
    assert decode(values, "float32").tobytes() == values.tobytes()


def test_bf16_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    # Halfway cases test rounding to nearest even.
    values = np.concatenate([bits, bits & 0xFFFF0000 | 0x8000]).view(np.float32)
    values = values[~np.isnan(values)]
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(encode(values, "bfloat16"), theirs)


@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_poison_is_a_nan_that_encode_never_makes(dtype: Dtype) -> None:
    poison = raw(np.array([poison_of(dtype)]), dtype)
    assert np.isnan(decode(poison, dtype)).all()
    nans = np.array([np.nan, -np.nan, np.inf - np.inf], dtype=np.float32)
    assert poison_of(dtype) not in bits_of(encode(nans, dtype))
    # Buffers are filled 16 bits at a time.
    assert set(np.array([poison_of(dtype)]).view(np.uint16)) == {0x7FA5}


@pytest.mark.parametrize("kind", [*INPUT_KINDS, "scaled:0.5"])
@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_inputs_are_repeatable_and_depend_on_the_seed(dtype: Dtype, kind: InputKind) -> None:
    problem = Problem(2, 3, 17, 32, dtype=dtype)
    a, b, other = (make_inputs(problem, seed, kind) for seed in (7, 7, 8))
    for name in ("q", "k", "v"):
        x = getattr(a, name)
        assert x.shape == problem.shape
        assert x.dtype == STORED_AS[dtype]
        np.testing.assert_array_equal(x, getattr(b, name))
        assert np.isfinite(decode(x, dtype)).all()
    assert not np.array_equal(a.q, other.q)


@pytest.mark.parametrize("kind", [*INPUT_KINDS, "scaled:0.5"])
def test_keys_and_values_have_their_own_length(kind: InputKind) -> None:
    problem = Problem(2, 3, 1, 32, seqlen_kv=77)
    inputs = make_inputs(problem, kind=kind)
    assert inputs.q.shape == (2, 3, 1, 32)
    assert inputs.k.shape == inputs.v.shape == (2, 3, 77, 32)


def test_inputs_are_the_same_on_every_machine() -> None:
    """Snapshots contain a seed, not the tensors: generated inputs must never change."""
    inputs = make_inputs(Problem(1, 2, 33, 64), seed=1)
    digest = hashlib.sha256(b"".join(x.tobytes() for x in (inputs.q, inputs.k, inputs.v)))
    assert digest.hexdigest()[:16] == "0613ea8f8258a445"
    same = make_inputs(Problem(1, 2, 33, 64, seqlen_kv=33), seed=1)
    np.testing.assert_array_equal(same.v, inputs.v)


def test_heads_of_a_large_tensor_differ() -> None:
    """Rows are drawn from a table by number, so no two heads may have the same row at one place."""
    inputs = make_inputs(Problem(16, 24, 256, 128))
    for tensor in (inputs.q, inputs.k, inputs.v):
        heads = tensor.reshape(16 * 24, 256, 128)
        assert len({rows.tobytes() for rows in heads}) == 16 * 24
        assert len({rows[100].tobytes() for rows in heads}) == 16 * 24
        values = tensor.astype(np.float32)
        assert abs(values.mean()) < 0.005
        assert abs(values.std() - 1) < 0.005
    assert not np.array_equal(inputs.k, inputs.v)


def test_large_logits_saturate_and_stay_finite() -> None:
    inputs = make_inputs(Problem(1, 1, 256, 64), kind="large_logits")
    q, k = (decode(x, "float16").astype(float)[0, 0] for x in (inputs.q, inputs.k))
    scores = q @ k.T / 8
    assert np.abs(scores).max() > 40
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    assert np.median((weights / weights.sum(axis=1, keepdims=True)).max(axis=1)) > 0.9


def test_structured_v_differs_by_row_and_column() -> None:
    v = decode(make_inputs(Problem(1, 1, 128, 64), kind="structured_v").v, "float16")[0, 0]
    for axis in (0, 1):
        lines = np.unique(v.round(2), axis=axis)
        assert lines.shape[axis] == v.shape[axis]


def test_an_unknown_kind_is_refused() -> None:
    with raises(InvalidProblem, "inputs_kind_unknown", "gaussian"):
        make_inputs(Problem(1, 1, 1, 32), kind="gaussian")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "inputs_kind_unknown") for kind in ("scaled:", "scaled:x", "normal:2", "")),
        *((kind, "scaled_factor_range") for kind in ("scaled:0", "scaled:1e9")),
    ],
)
def test_a_factor_out_of_range_is_refused(kind: str, name: str) -> None:
    with raises(InvalidProblem, name):
        check_input_kind(kind)


def scores_of(kind: InputKind, seqlen: int = 256) -> np.ndarray:
    inputs = make_inputs(Problem(1, 1, seqlen, 64), kind=kind)
    q, k = (decode(x, "float16").astype(float)[0, 0] for x in (inputs.q, inputs.k))
    return np.asarray(q @ k.T / 8)


def test_scaled_inputs_are_the_normal_ones_times_the_factor() -> None:
    problem = Problem(1, 1, 16, 32)
    normal, scaled = make_inputs(problem, 3), make_inputs(problem, 3, "scaled:4")
    np.testing.assert_array_equal(scaled.q, normal.q * np.float16(4))
    np.testing.assert_array_equal(scaled.v, normal.v)
    np.testing.assert_array_equal(scaled.k, make_inputs(problem, 3, "large_logits").k)


def test_extreme_rows_need_their_own_maximum() -> None:
    """exp(score) overflows FP32 in some rows and is 0 in others, also in neighbours."""
    top = scores_of("extreme").max(axis=1)
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(top.astype(np.float32))).mean() > 0.15
        assert (np.exp(top.astype(np.float32)) == 0).mean() > 0.15
    for step in (1, 2, 4, 8):
        assert (np.abs(top[step:] - top[:-step]) > 100).mean() > 0.4


def test_the_old_name_of_an_input_kind_gives_the_same_inputs() -> None:
    """Earlier versions call the extreme inputs harsh in snapshots, links and commands."""
    former, present = (make_inputs(Problem(1, 1, 16, 32), 3, kind) for kind in ("harsh", "extreme"))
    np.testing.assert_array_equal(former.q, present.q)
    np.testing.assert_array_equal(former.k, present.k)
    assert meaning("harsh") == meaning("extreme")
    assert inputs_clause("harsh", "") == inputs_clause("extreme", "")
    assert inputs_suffix("harsh") == ", extreme inputs"


def test_some_extreme_rows_have_one_key_far_above_all_others() -> None:
    """A maximum that misses that key gives an exponential that overflows FP32."""
    scores = scores_of("extreme")
    second, first = np.sort(scores, axis=1)[:, -2:].T
    peaks = np.argmax(scores, axis=1)[first - second > 88]
    assert 0.08 < len(peaks) / len(scores) < 0.25
    assert len(set(peaks)) == 4
    assert {15} < set(peaks % 16)


def test_negative_scores_vanish_and_constant_rows_are_uniform() -> None:
    assert (np.exp(scores_of("negative_scores").astype(np.float32)) == 0).all()
    scores = scores_of("constant_rows")
    assert (scores == scores[:, :1]).all()
