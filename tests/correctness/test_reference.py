"""The float64 reference: correct, bounded in memory, and reporting what it left out."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from slow_cases import one_in
from words import says

from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, decode, make_inputs
from engine.correctness.reference import (
    MAX_ELEMENTS,
    choose_coverage,
    coverage_size,
    covered_reference,
    emulated_attention,
    everything,
)
from engine.correctness.reference import reference as whole_reference


def naive(inputs: Inputs) -> np.ndarray:
    """Return textbook attention, one head at a time, in long double if the platform has it."""
    p = inputs.problem
    q, k, v = (decode(x, p.dtype).astype(np.longdouble) for x in (inputs.q, inputs.k, inputs.v))
    out = np.empty(p.shape, np.longdouble)
    for b in range(p.batch):
        for h in range(p.num_heads):
            s = q[b, h] @ k[b, h].T / np.sqrt(np.longdouble(p.head_dim))
            if p.causal:
                s[np.triu_indices(p.seqlen, 1)] = -np.inf
            e = np.exp(s - s.max(axis=1, keepdims=True))
            out[b, h] = e @ v[b, h] / e.sum(axis=1, keepdims=True)
    return out


@pytest.mark.parametrize(
    ("seqlen", "causal", "dtype", "kind"),
    one_in(
        5,
        list(
            itertools.product(
                (1, 2, 65, 203),
                (False, True),
                ("float16", "bfloat16"),
                ("normal", "large_logits", "structured_v"),
            )
        ),
    ),
)
def test_agrees_with_the_textbook(seqlen: int, causal: bool, dtype: str, kind: str) -> None:
    inputs = make_inputs(Problem(2, 3, seqlen, 32, causal, dtype), seed=3, kind=kind)
    np.testing.assert_allclose(whole_reference(inputs), naive(inputs), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("seqlen", "keys"), [(1, 1), (1, 203), (3, 64), (130, 5), (65, 1)])
def test_agrees_with_the_textbook_on_two_lengths(seqlen: int, keys: int, dtype: str) -> None:
    problem = Problem(2, 3, seqlen, 32, dtype=dtype, seqlen_kv=keys)
    inputs = make_inputs(problem, seed=3)
    np.testing.assert_allclose(whole_reference(inputs), naive(inputs), rtol=0, atol=1e-13)
    emulated = emulated_attention(inputs, everything(problem)).reshape(problem.shape)
    step = 2.0**-10 if dtype == "float16" else 2.0**-7
    np.testing.assert_allclose(emulated, naive(inputs).astype(float), rtol=step, atol=4 * step)


@pytest.mark.slow
def test_memory_of_the_reference_is_bounded_with_few_queries() -> None:
    problem = Problem(1, 64, 1, 64, seqlen_kv=4096)
    inputs = make_inputs(problem)
    tracemalloc.start()
    whole_reference(inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20  # K and V in float64 alone would be 256 MiB


@pytest.mark.parametrize("shape", [(1, 1, 1600, 8), (8, 8, 150, 8)])  # three blocks, two groups
def test_blocks_of_rows_and_groups_of_slices_are_complete(shape: tuple[int, ...]) -> None:
    for causal in (False, True):
        problem = Problem(*shape, causal)
        inputs = make_inputs(problem)
        q, k, v = (decode(x, "float16").astype(np.float64) for x in (inputs.q, inputs.k, inputs.v))
        scores = q @ k.swapaxes(2, 3) * problem.softmax_scale
        if causal:
            scores[:, :, np.triu(np.ones(scores.shape[2:], bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        expected = weights @ v / weights.sum(axis=3, keepdims=True)
        np.testing.assert_allclose(whole_reference(inputs), expected, rtol=0, atol=1e-14)


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    problem = Problem(1, 1, 4096, 32)
    inputs = make_inputs(problem)
    tracemalloc.start()
    whole_reference(inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20  # the scores alone would be 128 MiB


class TestCoverage:
    def test_real_shapes_are_compared_in_full(self) -> None:
        for problem in (
            Problem(32, 8, 128, 64),
            Problem(1, 20, 1500, 64),
            Problem(2, 10, 4096, 64),
            Problem(1, 32, 2048, 128, causal=True),
            Problem(256, 8, 512, 64),
            Problem(1, 32, 1, 128, seqlen_kv=16_384),
            Problem(32, 32, 1, 128, seqlen_kv=4096),
            Problem(2, 10, 4096, 64, seqlen_kv=77),
        ):
            coverage = choose_coverage(problem)
            assert coverage.complete
            assert coverage.sentence() == ""

    @pytest.mark.parametrize(
        "problem",
        [
            Problem(1, 32, 8192, 128, causal=True),
            Problem(64, 64, 4096, 64),
            Problem(4, 5, 1 << 17, 64),
            Problem(1, 1, 1 << 22, 128),
            Problem(1 << 20, 1 << 12, 1, 32),
            Problem(1 << 20, 1 << 12, 1 << 22, 1 << 10),
            Problem(64, 64, 1, 128, seqlen_kv=1 << 17),
        ],
        ids=Problem.label,
    )
    def test_large_ones_are_sampled(self, problem: Problem) -> None:
        coverage = choose_coverage(problem)
        assert not coverage.complete
        assert (len(coverage.slices), len(coverage.rows)) == coverage_size(problem)
        last = problem.batch * problem.num_heads - 1
        corners = {0, problem.num_heads - 1, last - problem.num_heads + 1, last}
        assert corners <= set(coverage.slices.tolist())
        assert {0, problem.seqlen - 1} <= set(coverage.rows.tolist())
        assert (np.diff(coverage.slices) > 0).all()
        assert (np.diff(coverage.rows) > 0).all()
        assert len(coverage.slices) * len(coverage.rows) * problem.head_dim <= MAX_ELEMENTS
        again = choose_coverage(problem)
        np.testing.assert_array_equal(again.slices, coverage.slices)
        np.testing.assert_array_equal(again.rows, coverage.rows)
        facts = (f"{len(coverage.slices):,}", f"{last + 1:,}")
        assert says(coverage.sentence(), "compared_on_rows", *facts)

    def test_the_first_and_last_tiles_are_in_a_sample(self) -> None:
        rows = set(choose_coverage(Problem(1, 1, 1 << 17, 64)).rows.tolist())
        assert set(range(256)) <= rows
        assert set(range((1 << 17) - 256, 1 << 17)) <= rows

    def test_a_sample_is_a_part_of_the_whole(self) -> None:
        problem = Problem(3, 4, 700, 16, causal=True)
        inputs = make_inputs(problem)
        expected = whole_reference(inputs)
        coverage = choose_coverage(problem, 2e8)
        assert 4 <= len(coverage.slices) < 12
        # The budget is used for whole slices first, then for rows.
        fewer = choose_coverage(problem, 1e8)
        assert not fewer.all_rows
        for sample in (coverage, fewer):
            found = covered_reference(inputs, sample)
            np.testing.assert_allclose(found, sample.take(expected), rtol=0, atol=1e-15)
            batch, head, row = sample.index(2, 5)
            np.testing.assert_allclose(found[2, 5], expected[batch, head, row], rtol=0, atol=1e-15)

    def test_selected_slices_form_a_problem(self) -> None:
        problem = Problem(3, 4, 100, 16)
        inputs = make_inputs(problem)
        coverage = choose_coverage(problem, 9e6)
        assert 4 <= len(coverage.slices) < 12
        assert coverage.all_rows
        part = coverage.select(inputs)
        np.testing.assert_allclose(
            whole_reference(part)[0],
            coverage.take(whole_reference(inputs)),
            rtol=0,
            atol=1e-15,
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_emulation_errs_about_as_much_as_its_dtype(dtype: str) -> None:
    inputs = make_inputs(Problem(1, 2, 200, 64, dtype=dtype))
    ref = whole_reference(inputs)
    out = emulated_attention(inputs, everything(inputs.problem)).reshape(ref.shape)
    step = 2.0**-10 if dtype == "float16" else 2.0**-7
    error = np.abs(out - ref).max() / np.abs(ref).max()
    assert 0.1 * step < error < 2 * step
