"""The verdict: only correct outputs pass."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from slow_cases import one_in
from words import raises, says

from engine.attention.evaluation import Correctness
from engine.attention.problem import Problem
from engine.attention.tensors import (
    INPUT_KINDS,
    POISON_BITS,
    InputKind,
    Inputs,
    decode,
    encode,
    make_inputs,
)
from engine.base.errors import Status
from engine.correctness import (
    Expected,
    check_against,
    check_output,
    expect,
    with_order_of_threads,
)
from engine.correctness.check import FIXED_BOUNDS, absolute_tolerance
from engine.correctness.output_error import NOT_COMPARED
from engine.correctness.reference import choose_coverage, emulated_attention, everything, reference
from engine.cuda_on_host.client import RunResult

ODD_LENGTHS = (1, 2, 63, 64, 65, 113, 127, 128, 129, 203, 1023)
DTYPES = ("float16", "bfloat16")
KINDS: tuple[InputKind, ...] = ("normal", "large_logits", "structured_v", "extreme")


def judge(inputs: Inputs, out: Any, expected: Expected | None = None, **flags: Any) -> Correctness:
    """Return the verdict on a float output or a raw one."""
    raw = (
        out
        if out.dtype in (np.float16, np.uint16)
        else encode(out.astype(np.float32), inputs.problem.dtype)
    )
    result = RunResult(status=Status.PASSED, out=raw, **flags)
    return check_against(expected or expect(inputs), result)[0]


def right(inputs: Inputs) -> Any:
    return encode(reference(inputs).astype(np.float32), inputs.problem.dtype)


@pytest.mark.parametrize(
    ("seqlen", "causal", "dtype", "kind"),
    one_in(7, list(itertools.product(ODD_LENGTHS, (False, True), DTYPES, KINDS)), slow=12),
)
def test_a_correctly_rounded_output_passes(
    seqlen: int, causal: bool, dtype: Any, kind: InputKind
) -> None:
    inputs = make_inputs(Problem(1, 2, seqlen, 64, causal, dtype), seed=seqlen, kind=kind)
    low_precision = emulated_attention(inputs, everything(inputs.problem))
    for out in (right(inputs), low_precision.reshape(inputs.problem.shape)):
        found = judge(inputs, out)
        assert found.passed, found.reason
        assert found.findings == ()
        assert found.bad_count == 0
        assert found.first_bad_index is None


@pytest.mark.parametrize("kind", [kind for kind in INPUT_KINDS if kind not in KINDS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_correct_output_passes_on_other_inputs(dtype: Any, kind: InputKind) -> None:
    test_a_correctly_rounded_output_passes(65, True, dtype, kind)


@pytest.mark.parametrize(
    ("seqlen", "causal", "dtype"),
    one_in(11, list(itertools.product(ODD_LENGTHS, (False, True), DTYPES)), slow=24),
)
def test_zeros_noise_and_the_mean_of_v_fail(seqlen: int, causal: bool, dtype: Any) -> None:
    kind = KINDS[ODD_LENGTHS.index(seqlen) % len(KINDS)]
    inputs = make_inputs(Problem(1, 2, seqlen, 64, causal, dtype), seed=seqlen, kind=kind)
    ref = reference(inputs)
    noise = np.random.default_rng(0).standard_normal(ref.shape) * ref.std()
    assert not judge(inputs, np.zeros_like(ref)).passed
    assert not judge(inputs, noise).passed
    if seqlen > 1:  # with one key the mean of V is correct
        mean = decode(inputs.v, dtype).mean(axis=2, keepdims=True)
        assert not judge(inputs, np.broadcast_to(mean, ref.shape)).passed


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tolerance_is_twice_the_error_of_sdpa(dtype: Any) -> None:
    inputs = make_inputs(Problem(1, 1, 128, 64, dtype=dtype))
    ref = reference(inputs)
    sdpa = ref.astype(np.float32)
    sdpa[0, 0, 5, 7] += 0.25
    out = decode(right(inputs), dtype).astype(np.float64)
    result = RunResult(status=Status.PASSED, out=right(inputs))
    found = check_output(inputs, result, sdpa=(sdpa, "a stand-in"))
    atol = absolute_tolerance(np.abs(ref).max(), dtype)
    assert found.baseline_name == "a stand-in"
    assert found.baseline_err == pytest.approx(0.25, rel=1e-5)
    assert found.tolerance == pytest.approx(2 * found.baseline_err + atol)
    for error, passed in ((0.49, True), (0.52, False)):
        out[0, 0, 9, 3] = ref[0, 0, 9, 3] + error
        raw = encode(out.astype(np.float32), dtype)
        verdict = check_output(
            inputs, RunResult(status=Status.PASSED, out=raw), sdpa=(sdpa, "a stand-in")
        )
        assert verdict.passed is passed


class TestAbsoluteTolerance:
    @pytest.mark.parametrize(
        ("size", "dtype", "expected"),
        [
            (1.0, "float16", 2.0**-11),
            (1.999, "float16", 2.0**-11),
            (2.0, "float16", 2.0**-10),
            (0.4, "float16", 2.0**-13),
            (1.0, "bfloat16", 2.0**-8),
            (0.0, "float16", 2.0**-25),
            (1e-30, "float16", 2.0**-25),
        ],
    )
    def test_is_half_a_rounding_step(self, size: float, dtype: Any, expected: float) -> None:
        assert absolute_tolerance(size, dtype) == expected

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_covers_rounding_and_little_more(self, dtype: Any) -> None:
        rng = np.random.default_rng(0)
        values = rng.uniform(-4, 4, 10_000)
        rounded = decode(encode(values.astype(np.float32), dtype), dtype)
        worst = np.abs(rounded - values).max()
        assert 0.9 < worst / absolute_tolerance(np.abs(values).max(), dtype) <= 1.001

    def test_in_fp32_it_grows_with_the_terms_of_a_sum(self) -> None:
        assert absolute_tolerance(1.0, "float32") == 2.0**-24
        assert absolute_tolerance(1.0, "float32", 1024) == 32 * 2.0**-24
        assert absolute_tolerance(1.0, "float16", 1024) == 2.0**-11

    def test_is_needed_where_sdpa_happens_to_be_exact(self) -> None:
        """S = 2 with a result halfway between two FP16 numbers: both neighbours are correct."""
        problem = Problem(1, 1, 2, 32)
        zeros = np.zeros(problem.shape, np.float16)
        v = np.ones(problem.shape, np.float16)
        v[0, 0, 1] = 1 + 2.0**-10
        inputs = Inputs(problem, zeros, zeros, v)
        exact = reference(inputs).astype(np.float32)
        for neighbour in (v[:, :, :1], v[:, :, 1:]):
            out = np.broadcast_to(neighbour, problem.shape).copy()
            found = check_output(
                inputs, RunResult(status=Status.PASSED, out=out), sdpa=(exact, "exact")
            )
            assert found.baseline_err == 0.0
            assert found.passed, found.reason


def test_the_fixed_bound_is_reported_beside_the_rule() -> None:
    assert FIXED_BOUNDS == {"float16": 0.002, "bfloat16": 0.016, "float32": 1e-5}
    inputs = make_inputs(Problem(1, 1, 256, 64))
    out = reference(inputs)
    out[0, 0, 0, 0] += 0.0015
    found = judge(inputs, out)
    assert found.fixed_bound == 0.002
    assert found.within_fixed_bound
    assert not found.passed  # the fixed bound is too wide for this problem


def test_reported_error_figures() -> None:
    inputs = make_inputs(Problem(1, 2, 64, 32), seed=5)
    ref = reference(inputs)
    out = decode(right(inputs), "float16").astype(np.float64)
    out[0, 1, 3, 4] += 0.5
    out[0, 1, 3, 9] -= 0.25
    raw = encode(out.astype(np.float32), "float16")
    error = np.abs(decode(raw, "float16") - ref)
    found = judge(inputs, raw)
    assert found.max_abs_err == error.max()
    assert found.mean_abs_err == pytest.approx(error.mean())
    assert found.rms_err == pytest.approx(np.sqrt((error**2).mean()))
    flat = decode(raw, "float16").ravel().astype(np.float64)
    cosine = flat @ ref.ravel() / np.linalg.norm(flat) / np.linalg.norm(ref)
    assert found.cosine == pytest.approx(cosine)
    assert found.bad_count == 2
    assert found.first_bad_index == (0, 1, 3, 4)
    assert says(found.reason, "largest_error_exceeds", "batch 0, head 1, row 3, column 4")


class TestBrokenElements:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_nan_and_infinity_fail(self, dtype: Any, value: float) -> None:
        inputs = make_inputs(Problem(1, 2, 100, 32, dtype=dtype))
        out = decode(right(inputs), dtype).copy()
        out[0, 1, 2, 3] = value
        found = judge(inputs, out)
        assert not found.passed
        assert (found.nonfinite_count, found.unwritten_count, found.bad_count) == (1, 0, 1)
        assert found.first_bad_index == (0, 1, 2, 3)
        assert says(found.reason, "nan_or_infinite", "1 of 6,400")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_unwritten_elements_fail(self, dtype: Any) -> None:
        inputs = make_inputs(Problem(1, 1, 65, 32, dtype=dtype))
        out = right(inputs)
        out.view(np.uint16)[0, 0, 64] = POISON_BITS
        found = judge(inputs, out)
        assert not found.passed
        assert (found.nonfinite_count, found.unwritten_count, found.bad_count) == (0, 32, 32)
        assert found.first_bad_index == (0, 0, 64, 0)
        assert says(found.reason, "were_never_written", "32 of 2,080")
        assert not found.within_fixed_bound

    def test_figures_are_finite_for_outputs_that_are_not(self) -> None:
        inputs = make_inputs(Problem(1, 1, 65, 32))
        found = judge(inputs, np.full(inputs.problem.shape, np.nan, np.float16))
        figures = (found.max_abs_err, found.mean_abs_err, found.rms_err, found.cosine)
        assert np.isfinite(figures).all()
        assert found.max_abs_err == np.abs(reference(inputs)).max()
        assert found.nonfinite_count == 65 * 32


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("inputs_unchanged", "inputs_were_changed"),
        ("guards_intact", "wrote_outside_buffers"),
        ("repeatable", "second_run_differs"),
    ],
)
def test_a_correct_output_with_a_failed_status_fails(flag: str, name: str) -> None:
    inputs = make_inputs(Problem(1, 1, 64, 32))
    bad = {"changed_inputs": ("q",)} if flag == "inputs_unchanged" else {flag: False}
    found = judge(inputs, right(inputs), **bad)
    assert not found.passed
    assert getattr(found, flag) is False
    assert says(found.reason, name)
    assert [f.pattern for f in found.findings] == (
        ["not_repeatable"] if flag == "repeatable" else []
    )


def test_several_faults_are_all_named() -> None:
    inputs = make_inputs(Problem(1, 1, 64, 32))
    out = right(inputs)
    out[0, 0, 1] = 9
    out[0, 0, 2] = np.nan
    found = judge(inputs, out, repeatable=False)
    assert found.reason.count(";") == 2
    assert says(found.reason, "nan_or_infinite", "32 of 2,048")


def test_without_pytorch_the_baseline_is_emulated_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails
    inputs = make_inputs(Problem(1, 1, 65, 32))
    found = judge(inputs, right(inputs))
    assert found.passed
    assert "emulation" in found.baseline_name
    assert says(found.baseline_name, "without_torch")
    assert not judge(inputs, np.zeros(inputs.problem.shape)).passed


def test_a_baseline_with_nan_gives_no_tolerance() -> None:
    inputs = make_inputs(Problem(1, 1, 65, 32))
    bad = np.full(inputs.problem.shape, np.nan, np.float32)
    result = RunResult(status=Status.PASSED, out=right(inputs))
    found = check_output(inputs, result, sdpa=(bad, "a broken SDPA"))
    assert found.passed
    assert says(found.baseline_name, "baseline_not_finite", "a broken SDPA")
    assert np.isfinite(found.tolerance)


class TestMostSlicesInFloat32:
    inputs = make_inputs(Problem(4, 4, 128, 32))
    expected = expect(inputs, float64_work=2e7)

    def test_a_correct_output_passes_and_the_comparison_is_described(self) -> None:
        found = judge(self.inputs, right(self.inputs), self.expected)
        assert found.passed
        assert says(found.reason, "float6_on_of", "4", "16")
        assert says(found.reason, "float6_on_of")

    def test_one_wrong_element_is_found_wherever_it_is(self) -> None:
        for index in range(16):
            out = right(self.inputs)
            place = (*divmod(index, 4), 50, 5)
            out[place] += 0.01
            found = judge(self.inputs, out, self.expected)
            assert not found.passed
            assert (found.first_bad_index, found.bad_count) == (place, 1)

    def test_a_slice_of_nan_does_not_hide_another_that_is_wrong(self) -> None:
        out = right(self.inputs)
        out[1, 1, 3] = np.nan
        out[2, 2, 50, 5] += 0.01
        found = judge(self.inputs, out, self.expected)
        assert (found.nonfinite_count, found.bad_count) == (32, 33)

    def test_scores_beyond_float32_are_checked_in_float64(self) -> None:
        inputs = make_inputs(Problem(1, 80, 16, 32))
        expected = expect(inputs, float64_work=2e4)
        expected = replace(expected, in_float32=expected.in_float32 + 1)
        found = judge(inputs, right(inputs), expected)
        assert found.passed
        assert not says(found.reason, "float6_on_of")


def sampled(inputs: Inputs) -> Expected:
    return expect(inputs, coverage=choose_coverage(inputs.problem, 2e7))


class TestSampled:
    @pytest.mark.parametrize("shape", [(4, 4, 128, 32), (2, 2, 600, 32)])
    def test_the_verdict_describes_the_sample(self, shape: tuple[int, ...]) -> None:
        inputs = make_inputs(Problem(*shape))
        result = RunResult(status=Status.PASSED, out=right(inputs))
        found, maps = check_against(sampled(inputs), result)
        assert found.passed
        assert says(found.reason, "compared_on_rows")
        assert any((m.values == NOT_COMPARED).any() for m in maps)

    def test_wrong_corners_and_any_nan_are_found(self) -> None:
        inputs = make_inputs(Problem(4, 4, 128, 32))
        expected = sampled(inputs)
        wrong = right(inputs)
        wrong[3, 3, 127, 31] += 1
        assert judge(inputs, wrong, expected).first_bad_index == (3, 3, 127, 31)
        for index in range(16):
            out = right(inputs)
            place = (*divmod(index, 4), 50, 5)
            out[place] = np.nan
            found = judge(inputs, out, expected)
            assert not found.passed
            assert found.first_bad_index == place


def test_an_output_is_needed() -> None:
    inputs = make_inputs(Problem(1, 1, 4, 32))
    with raises(ValueError, "without_an_output"):
        check_output(inputs, RunResult(status=Status.CRASHED))


class TestOrderOfThreads:
    """Another order of threads shows whether a wrong output depends on the order."""

    inputs = make_inputs(Problem(1, 2, 64, 32))
    out = right(inputs)
    out[0, 1, 3] = np.nan

    def found(self, other: RunResult) -> Correctness:
        first = RunResult(status=Status.PASSED, out=self.out)
        return with_order_of_threads(check_output(self.inputs, first), first, other, "float16")

    def test_the_same_output_keeps_its_findings(self) -> None:
        again = self.found(RunResult(status=Status.PASSED, out=self.out.copy()))
        assert [f.pattern for f in again.findings] == ["nan_row"]

    def test_a_changed_output_is_reported_as_order_dependent(self) -> None:
        other = RunResult(status=Status.PASSED, out=right(self.inputs))
        (finding,) = self.found(other).findings
        assert finding.pattern == "order_of_threads"
        assert says(finding.sentence, "elements_differ", "32", "4,096")

    def test_unwritten_elements_are_reported_too(self) -> None:
        gap = right(self.inputs)
        gap[0, 0, 9].view(np.uint16)[:] = POISON_BITS
        first, other = (RunResult(status=Status.PASSED, out=x) for x in (gap, self.out))
        found = with_order_of_threads(check_output(self.inputs, first), first, other, "float16")
        assert [f.pattern for f in found.findings] == ["order_of_threads", "unwritten"]

    def test_a_rounding_difference_is_not_another_output(self) -> None:
        nudged = self.out.copy()
        nudged[0, 0, 0, 0] = np.nextafter(nudged[0, 0, 0, 0], np.float16(np.inf))
        again = self.found(RunResult(status=Status.PASSED, out=nudged))
        assert [f.pattern for f in again.findings] == ["nan_row"]

    def test_a_different_status_is_reported(self) -> None:
        (finding,) = self.found(RunResult(status=Status.TIMEOUT)).findings
        assert says(finding.sentence, "launch_ends_as", "TIMEOUT")
