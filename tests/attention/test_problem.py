"""Problems: errors for impossible shapes, and derived figures."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from words import raises

from engine.attention.problem import MAX_BATCH, MAX_HEAD_DIM, MAX_HEADS, MAX_SEQLEN, Problem
from engine.base.errors import InvalidProblem
from engine.base.schema import encode

SIZES = {
    "batch": MAX_BATCH,
    "num_heads": MAX_HEADS,
    "seqlen": MAX_SEQLEN,
    "head_dim": MAX_HEAD_DIM,
}
GOOD: dict[str, Any] = {"batch": 2, "num_heads": 3, "seqlen": 5, "head_dim": 64}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_invalid_sizes_are_refused(name: str, value: Any) -> None:
    code = "size_too_small" if value in (0, -1) else "size_no_whole_number"
    with raises(InvalidProblem, code, name):
        Problem(**(GOOD | {name: value}))


@pytest.mark.parametrize(("name", "limit"), SIZES.items())
def test_limits_are_inclusive(name: str, limit: int) -> None:
    assert getattr(Problem(**(GOOD | {name: limit})), name) == limit
    with raises(InvalidProblem, "size_too_large", name, f"{limit:,}"):
        Problem(**(GOOD | {name: limit + 1}))


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("causal", 1, "flag_not_boolean"),
        ("causal", "yes", "flag_not_boolean"),
        ("dtype", "float64", "choice_unknown"),
        ("dtype", None, "choice_unknown"),
    ],
)
def test_other_fields_are_checked(field: str, value: Any, code: str) -> None:
    with raises(InvalidProblem, code, field):
        Problem(**(GOOD | {field: value}))


@given(
    st.builds(
        Problem,
        batch=st.integers(1, MAX_BATCH),
        num_heads=st.integers(1, MAX_HEADS),
        seqlen=st.integers(1, MAX_SEQLEN),
        head_dim=st.integers(1, MAX_HEAD_DIM),
    )
)
def test_figures_follow_the_shape(problem: Problem) -> None:
    elements = math.prod(problem.shape)
    assert problem.elements == elements
    assert problem.tensor_bytes == 2 * elements
    assert problem.io_bytes == 8 * elements
    assert problem.flops == 4 * elements * problem.seqlen
    assert problem.softmax_scale**2 * problem.head_dim == pytest.approx(1.0)


@given(
    seqlen=st.integers(1, MAX_SEQLEN),
    keys=st.integers(1, MAX_SEQLEN),
    heads=st.integers(1, MAX_HEADS),
)
def test_figures_with_more_or_fewer_keys_than_queries(seqlen: int, keys: int, heads: int) -> None:
    problem = Problem(2, heads, seqlen, 64, seqlen_kv=keys)
    assert problem.num_keys == keys
    assert problem.shape == (2, heads, seqlen, 64)
    assert problem.k_shape == (2, heads, keys, 64)
    assert problem.kv_bytes == 2 * 2 * math.prod(problem.k_shape)
    assert problem.io_bytes == 2 * problem.tensor_bytes + problem.kv_bytes
    assert problem.flops == 4 * 2 * heads * seqlen * keys * 64
    assert Problem(**encode(problem)) == problem
    assert ("seqlen_kv" in encode(problem)) == (keys != seqlen)


@given(st.integers(1, MAX_SEQLEN))
def test_as_many_keys_as_queries_is_the_plain_problem(seqlen: int) -> None:
    plain, spelled = Problem(2, 3, seqlen, 64), Problem(2, 3, seqlen, 64, seqlen_kv=seqlen)
    assert spelled == plain
    assert hash(spelled) == hash(plain)
    assert repr(spelled) == repr(plain)
    assert spelled.label() == plain.label()
    assert spelled.seqlen_kv is None
    # The form of such a problem in journals and snapshots has not changed.
    expected = {**GOOD, "seqlen": seqlen, "causal": False, "dtype": "float16"}
    assert encode(spelled) == expected


@pytest.mark.parametrize(
    ("value", "code"),
    [
        *((small, "size_too_small") for small in (0, -1)),
        *((odd, "size_no_whole_number") for odd in (True, 1.0, "1")),
        (MAX_SEQLEN + 1, "size_too_large"),
    ],
)
def test_invalid_numbers_of_keys_are_refused(value: Any, code: str) -> None:
    with raises(InvalidProblem, code, "seqlen_kv"):
        Problem(**GOOD, seqlen_kv=value)


@given(keys=st.integers(1, MAX_SEQLEN), shared=st.integers(1, 64), group=st.integers(1, 64))
def test_query_heads_share_kv_heads(keys: int, shared: int, group: int) -> None:
    heads = shared * group
    problem = Problem(2, heads, 7, 64, seqlen_kv=keys, num_heads_kv=shared)
    plain = Problem(2, heads, 7, 64, seqlen_kv=keys)
    assert (problem.kv_heads, problem.head_group) == (shared, group)
    assert problem.k_shape == (2, shared, keys, 64)
    assert problem.kv_bytes == 2 * 2 * math.prod(problem.k_shape)
    assert problem.io_bytes == 2 * problem.tensor_bytes + problem.kv_bytes
    # Fewer bytes, but the same FLOPs.
    assert problem.flops == plain.flops
    assert problem.shape == plain.shape
    assert (problem == plain) == (group == 1)
    assert ("num_heads_kv" in encode(problem)) == (group > 1)
    assert Problem(**encode(problem)) == problem


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0, "size_too_small"),
        (True, "size_no_whole_number"),
        ("2", "size_no_whole_number"),
        (2, "heads_not_shared"),
        (6, "heads_not_shared"),
    ],
)
def test_invalid_numbers_of_kv_heads_are_refused(value: Any, code: str) -> None:
    with raises(InvalidProblem, code):
        Problem(**GOOD, num_heads_kv=value)


def test_a_causal_mask_ends_at_the_last_key() -> None:
    chunk = Problem(1, 1, 3, 64, causal=True, seqlen_kv=4096)
    assert [chunk.keys_seen(row) for row in range(3)] == [(0, 4094), (0, 4095), (0, 4096)]
    with raises(InvalidProblem, "causal_without_keys", "S = 9", "KV = 8"):
        Problem(1, 1, 9, 64, causal=True, seqlen_kv=8)
    assert Problem(1, 1, 8, 64, causal=True, seqlen_kv=8).causal


def test_causal_halves_the_flops() -> None:
    assert Problem(1, 1, 128, 64).flops == 4 * 128 * 128 * 64
    assert Problem(1, 1, 128, 64, causal=True).flops == 2 * 128 * 128 * 64


def test_labels_name_the_shape() -> None:
    assert Problem(1, 8, 128, 64).label() == "B1 H8 S128 D64 fp16"
    assert Problem(2, 1, 1, 32, True, "bfloat16").label() == "B2 H1 S1 D32 bf16 causal"
    assert Problem(1, 32, 1, 128, seqlen_kv=16384).label() == "B1 H32 S1 KV16384 D128 fp16"
    assert Problem(1, 32, 9, 128, num_heads_kv=8).label() == "B1 H32 HKV8 S9 D128 fp16"
