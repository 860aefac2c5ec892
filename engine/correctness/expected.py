"""The expected output and its tolerance, cached; and the error factor that all columns of a row
share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from engine.attention.problem import Problem
from engine.attention.tensors import FloatArray, InputKind, Inputs, RawArray, decode
from engine.base.errors import ToolMissing
from engine.base.memory import available_host_memory, keep_freed_memory
from engine.correctness.gradients import ExpectedGradients, expect_gradients, inputs_of
from engine.correctness.reference import (
    MAX_FLOAT64_WORK,
    Coverage,
    Float64Array,
    IntArray,
    blas_on_one_thread,
    choose_coverage,
    coverage_size,
    covered_in_float32,
    covered_reference,
    emulated_attention,
    split_coverage,
)


def row_factor_rms(error: Float64Array, reference: Float64Array) -> float:
    """Return the RMS over rows of the slope of a row's error on its reference, weighted by size.

    Args:
        error: output − reference, `[slices, rows, head_dim]`; finite.
        reference: of the same shape.
    """
    products, power = (np.einsum("srd,srd->sr", x, reference) for x in (error, reference))
    rows = power > 0
    if not rows.any():
        return 0.0
    return float(np.sqrt((products[rows] ** 2 / power[rows]).sum() / power.sum()))


# Cache of inputs, reference and baseline of a problem.
#
# They depend only on problem, seed and kind of inputs, so a second variant or config reuses them.
# For the first, they are computed while its kernel executes.


# Bytes kept besides the newest: B32 H16 S512 D128 with both kinds of inputs of a checked run.
MAX_KEPT_BYTES = 1 << 30

# Slices with errors above this share of the tolerance are checked in float64.
_NEARLY = 0.95
_MAX_WRONG_SLICES = 64  # wrong slices that are computed again in float64


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The reference output, and the error of plain attention in the problem's dtype."""

    inputs: Inputs
    coverage: Coverage
    reference: Float64Array  # [slices, rows, head_dim]
    max_abs_ref: float
    baseline_err: float  # max|sdpa_same_dtype − reference|
    baseline_rms: float
    baseline_row_factor: float  # its `row_factor_rms`
    baseline_name: str
    # Attention of the slices that are only compared in float32, `[others, seqlen, head_dim]`.
    others: IntArray
    in_float32: FloatArray
    # With K and V in FP8: max|reference before rounding to FP8 − reference|, not a kernel's error.
    fp8_err: float | None = None


def expected_of(inputs: Inputs) -> Expected | ExpectedGradients:
    """Return the expected outputs for the inputs' direction."""
    is_backward = inputs.problem.direction == "backward"
    return expect_gradients(inputs) if is_backward else expect(inputs)


def expect(
    inputs: Inputs,
    sdpa: tuple[FloatArray, str] | None = None,
    coverage: Coverage | None = None,
    float64_work: float = MAX_FLOAT64_WORK,
) -> Expected:
    """Compute reference and baseline.

    Args:
        sdpa: same-dtype attention as float32 `[batch, num_heads, seqlen, head_dim]` and its name;
            by default PyTorch's on the CPU, or an emulation in NumPy where there is no PyTorch.
        coverage: what to compare; default: as much as the budgets of time and memory allow.
        float64_work: budget of work in float64, if no coverage is given.
    """
    others = np.arange(0)
    if coverage is None:
        coverage, others = split_coverage(choose_coverage(inputs.problem), float64_work)
    reference = covered_reference(inputs, coverage)
    baseline, name = _baseline(inputs, coverage, sdpa)
    error = np.subtract(baseline, reference)
    with blas_on_one_thread():
        baseline_rms = float(np.linalg.norm(error) / np.sqrt(error.size))
        baseline_row_factor = row_factor_rms(error, reference)
    return Expected(
        inputs,
        coverage,
        reference,
        max_abs_ref=_largest(reference),
        baseline_err=_largest(error),
        baseline_rms=baseline_rms,
        baseline_row_factor=baseline_row_factor,
        baseline_name=name,
        others=others,
        in_float32=covered_in_float32(inputs, replace(coverage, slices=others)),
        fp8_err=_error_of_fp8(inputs, coverage, reference),
    )


def with_wrong_slices(expected: Expected, raw: RawArray, tolerance: float) -> Expected:
    """Return `expected`, extended in float64 by slices that are wrong in float32.

    Args:
        raw: the output, `[batch, num_heads, seqlen, head_dim]`.
        tolerance: largest allowed error.
    """
    problem = expected.inputs.problem
    flat = raw.reshape(-1, *raw.shape[2:])
    worst: dict[int, float] = {}
    for number, right in zip(expected.others.tolist(), expected.in_float32, strict=True):
        with np.errstate(invalid="ignore"):
            error = float(np.abs(decode(flat[number], problem.dtype) - right).max())
        if not error <= _NEARLY * tolerance:  # also true for NaN
            worst[number] = error
    if not worst:
        return expected
    # The first wrong slice, and those with the largest errors.
    taken = [min(worst), *sorted(worst, key=lambda n: -np.nan_to_num(worst[n], nan=np.inf))]
    slices = np.union1d(expected.coverage.slices, taken[:_MAX_WRONG_SLICES])
    found = expect(expected.inputs, coverage=replace(expected.coverage, slices=slices))
    out = decode(found.coverage.take(raw), problem.dtype)
    if len(worst) > _MAX_WRONG_SLICES and _largest(np.abs(out - found.reference)) <= tolerance:
        # Scores too large for float32.
        return expect(expected.inputs, coverage=choose_coverage(problem))
    return found


def _error_of_fp8(inputs: Inputs, coverage: Coverage, reference: Float64Array) -> float | None:
    if inputs.before_fp8 is None:
        return None
    return _largest(covered_reference(inputs.without_fp8(), coverage) - reference)


def _largest(values: Float64Array) -> float:
    """Return max|values| without a second array."""
    return max(float(values.max()), -float(values.min()))


class _NoBaseline(Exception):
    """PyTorch cannot compute this attention; the message completes a sentence with the reason."""


def _baseline(
    inputs: Inputs, coverage: Coverage, sdpa: tuple[FloatArray, str] | None
) -> tuple[FloatArray, str]:
    """Return same-dtype attention on the covered rows, made finite, and what computed it."""
    why = "on the sampled query rows"
    baseline: tuple[FloatArray, str] | None = None
    if sdpa is not None:
        baseline = coverage.take(sdpa[0]), sdpa[1]
    elif coverage.all_rows:
        try:
            from engine.backends.sdpa import sdpa_same_dtype, unsupported_features

            if what := unsupported_features(inputs.problem):
                raise _NoBaseline(f"as PyTorch's SDPA cannot compute {what}")
            out, name = sdpa_same_dtype(coverage.select(inputs), device="cpu")
            baseline = out.reshape(len(coverage.slices), *out.shape[2:]), name
        except ToolMissing:
            why = "because PyTorch is not installed"
        except _NoBaseline as error:
            why = str(error)
    if baseline is not None:
        if np.isfinite(baseline[0]).all():
            return baseline
        # A NaN would give no tolerance.
        why = f"because {baseline[1]} gave NaN or infinity"
    name = f"an emulation of {inputs.problem.dtype} attention in NumPy, {why}"
    return emulated_attention(inputs, coverage), name


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Inputs to execute on, and the expected output once it is computed."""

    inputs: Inputs
    expected: Future[Expected | ExpectedGradients]


class ExpectedOutputs:
    """Cache of prepared inputs by (problem, seed, kind). Threads may share one."""

    def __init__(self) -> None:
        keep_freed_memory()
        self._lock = threading.Lock()
        self._prepared: OrderedDict[tuple[Problem, int, InputKind], Prepared] = OrderedDict()
        # One at a time, because BLAS and PyTorch already use all cores.
        self._pool = ThreadPoolExecutor(1, "expected-output")

    def begin(self, problem: Problem, seed: int, kind: InputKind) -> None:
        """Start `prepare` in another thread; errors are raised only by `prepare` itself."""
        self._pool.submit(self.prepare, problem, seed, kind)

    def prepare(self, problem: Problem, seed: int, kind: InputKind) -> Prepared:
        """Return the inputs, with the expected output at least being computed.

        Raises:
            InvalidProblem: unknown kind of inputs.
        """
        key = (problem, seed, kind)
        with self._lock:
            if key not in self._prepared:
                inputs = inputs_of(problem, seed, kind)
                self._prepared[key] = Prepared(inputs, self._pool.submit(expected_of, inputs))
            self._prepared.move_to_end(key)
            self._forget_old()
            return self._prepared[key]

    def _forget_old(self) -> None:
        if len(self._prepared) < 2:  # the newest is always kept
            return
        sizes = [_kept_bytes(problem) for problem, _, _ in self._prepared]
        available = available_host_memory()
        limit = MAX_KEPT_BYTES if available is None else min(MAX_KEPT_BYTES, available // 4)
        while len(sizes) > 1 and sum(sizes) > limit:
            _, old = self._prepared.popitem(last=False)
            old.expected.cancel()
            del sizes[0]

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._prepared.clear()

    def close(self) -> None:
        """Drop all entries without waiting for running computations."""
        self.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _kept_bytes(problem: Problem) -> int:
    num_slices, num_rows = coverage_size(problem)
    reference = 8 * num_slices * num_rows * problem.head_dim
    return problem.tensor_bytes + problem.kv_bytes + reference
