"""Check whether one output is correct.

An output is correct if its error is at most twice that of plain attention in the same dtype:

    max|out − ref| ≤ 2 · max|sdpa_same_dtype − ref| + atol

with `ref` in float64, and if nothing is NaN or infinite, every element was written, the inputs are
unchanged, the guard zones are intact and a second run gave the same bits. (Of large 16-bit
problems, most slices are compared in float32, and only those over the bound again in float64.)

`atol` is half a rounding step of the dtype at the largest |ref|: the largest error of a result
whose only error is its final rounding. Without it such a result could fail if SDPA happens to be
exact (S = 1). In FP32, the arithmetic itself errs by as much as the final rounding, so `atol` is
√KV times as large: the error of KV roundings one after another, as a random walk. SDPA adds in
blocks and errs less.

FP32 kernels that multiply in TF32 (10 mantissa bits) exceed this bound by far. If a kernel's
description says `tf32 = true`, its bound is twice the error of attention with all products in TF32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from engine.attention.evaluation import Correctness, Finding
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import (
    FIXED_BOUNDS,
    LARGEST,
    NOISE,
    FloatArray,
    Inputs,
    RawArray,
    absolute_tolerance,
    decode,
)
from engine.base.errors import Status
from engine.correctness.diagnosis import diagnose
from engine.correctness.expected import Expected, expect, row_factor_rms, with_wrong_slices
from engine.correctness.findings import FindingCode, place_of
from engine.correctness.gradient_check import check_gradients
from engine.correctness.gradients import ExpectedGradients, expect_gradients
from engine.correctness.output_error import (
    GRADIENT_NAMES,
    BrokenElements,
    ComparedOutput,
    ErrorFigures,
    ErrorMap,
    Tiles,
    compare_output,
    error_maps,
    tiles_of,
)
from engine.correctness.reference import (
    Float64Array,
    as_tf32,
    blas_on_one_thread,
    emulated_attention,
)
from engine.correctness.suspected_bugs import Case, SuspectedBug, small_bugs, spread_cases
from engine.cuda_on_host.client import RunResult
from kernels.variant import Dtype

# A second, stricter test: an output may pass and still have an error that is not due to rounding.
#
# Rounding errors average to zero, so a nonzero mean is a bug too small for the tolerance: truncated
# weights, a row sum that includes one padded key. Three tests, none of which changes the status:
#
# * the slope of the error on the reference, Σ e·ref / Σ ref², over its standard error over rows
#   (the elements of a row share their weights) and over columns (if rows are alike);
# * for each suspected bug with a small effect, the slope of the error on that effect: 1 if the
#   kernel has the bug, 0 if not;
# * the slope of each row's own error on its reference, as RMS over the rows. Rounding the
#   elements of a row one by one gives a small value, which same-dtype attention shows; a row sum
#   that is rounded at every step gives several times as much.
#
# A slope of the first two counts if it is at least 8 standard errors, which has a probability of
# 10⁻¹⁴ by chance, and at least a tenth of the format's unit roundoff: rounding itself leaves 0.04
# of it if outputs are nearly values of V, which were rounded before.

_STANDARD_ERRORS = 8.0
_MIN_SLOPE = 0.1  # of the unit roundoff
_MIN_ROWS = 32
# RMS error relative to the baseline's, above which suspected bugs are tried.
_WARNING_RMS = 1.5
# Relative RMS and largest error that give a warning by themselves; correct kernels have at most 1.0
# and 1.1 on outputs of so many elements.
_IMPRECISE_RMS, _IMPRECISE_LARGEST = 1.25, 1.6
_MIN_ELEMENTS = 4096
# Largest distance from 1 of the slope on a bug's effect.
_NEAR_ONE = 0.25
# RMS slope of rows relative to the baseline's, and to the unit roundoff; correct kernels have at
# most 1.0 and 0.16 over FlashAttention's shapes.
_WARNING_ROW_FACTOR = 3.0
_MIN_ROW_FACTOR = 0.4


@blas_on_one_thread()
def systematic_error(expected: Expected, compared: ComparedOutput, tiles: Tiles) -> str | None:
    """Return a warning about an output that passes, or None."""
    inputs = expected.inputs
    slopes = [_pooled(*_sums(compared, to)) for to in ("sr", "sd")]
    if compared.error.shape[0] * compared.error.shape[1] < _MIN_ROWS:
        return None
    bias, significance = slopes[0][0], min(significance for _, significance in slopes)
    roundoff = NOISE[inputs.problem.dtype]
    least = _MIN_SLOPE * roundoff
    biased = significance > _STANDARD_ERRORS and abs(bias) > least
    rms = float(np.sqrt(np.square(compared.error).mean()))
    factor = row_factor_rms(compared.out - compared.reference, compared.reference)
    uneven = factor > max(
        _WARNING_ROW_FACTOR * expected.baseline_row_factor, _MIN_ROW_FACTOR * roundoff
    )
    if not (biased or uneven or rms > _WARNING_RMS * expected.baseline_rms):
        return _imprecise(rms, expected, compared)
    bug = _small_bug(spread_cases(inputs, compared, tiles))
    if bug is not None:
        return (
            f"The output passes, but its error matches the small effect of {bug.what}. "
            f"{bug.look_at[0].upper()}{bug.look_at[1:]}."
        )
    if not (biased or uneven):
        return _imprecise(rms, expected, compared)
    if not biased:
        return (
            f"The output passes, but each row is off by a factor of its own, {factor:.3%} in "
            f"RMS ({expected.baseline_name}: {expected.baseline_row_factor:.3%}): look for lost "
            "precision in a value shared by a row, such as the row sum l, its reciprocal or a "
            "correction held in 16 bits."
        )
    return (
        f"The output passes, but it is systematically too {'small' if bias < 0 else 'large'}, by "
        f"{abs(bias):.2%} on average, and rounding has no bias ({significance:.0f} standard "
        "errors): look for weights that are truncated instead of rounded, and for a row sum that "
        f"is {'larger' if bias < 0 else 'smaller'} than the sum of the weights."
    )


def _imprecise(rms: float, expected: Expected, compared: ComparedOutput) -> str | None:
    """Return a warning if errors have no bias but are larger than rounding of operands explains."""
    if compared.error.size < _MIN_ELEMENTS or not expected.baseline_err > 0:
        return None
    if (times := rms / expected.baseline_rms) > _IMPRECISE_RMS:
        name = "RMS"
    elif (times := float(compared.error.max()) / expected.baseline_err) > _IMPRECISE_LARGEST:
        name = "largest"
    else:
        return None
    return (
        f"The output passes, but its {name} error is {times:.2g} times that of "
        f"{expected.baseline_name}: look for lost precision in a sum, such as O or a partial "
        "result that is rounded to 16 bits in between."
    )


def _sums(compared: ComparedOutput, to: str) -> tuple[Float64Array, Float64Array]:
    """Return (Σ e·ref, Σ ref²) of every row ("sr") or every column of a slice ("sd"), flat."""
    out, ref = compared.out, compared.reference
    power = np.einsum(f"srd,srd->{to}", ref, ref).ravel()
    return np.einsum(f"srd,srd->{to}", out, ref).ravel() - power, power


def _pooled(products: Float64Array, power: Float64Array) -> tuple[float, float]:
    """Return (slope, slope / its standard error) from each row's products and power."""
    if not power.sum() > 0:
        return 0.0, 0.0
    slope = float(products.sum() / power.sum())
    spread = float(np.linalg.norm(products - slope * power) / power.sum())
    return slope, abs(slope) / spread if spread > 0 else 0.0


def _small_bug(cases: list[Case]) -> SuspectedBug | None:
    """Return the suspected bug whose effect is in the error of all cases; None if there is none."""
    best: tuple[float, SuspectedBug] | None = None
    for bug in small_bugs(cases[0]):
        parts = [part for case in cases if (part := _on_effect(bug, case)) is not None]
        if len(parts) < len(cases):
            continue
        products, power = (np.array(list(chain.from_iterable(x))) for x in zip(*parts, strict=True))
        if np.count_nonzero(power) < _MIN_ROWS:
            continue
        slope, significance = _pooled(products, power)
        if abs(slope - 1) > _NEAR_ONE or significance <= _STANDARD_ERRORS:
            continue
        if best is None or significance > best[0]:
            best = significance, bug
    return best[1] if best is not None else None


def _on_effect(bug: SuspectedBug, case: Case) -> tuple[Float64Array, Float64Array] | None:
    """Return (Σ e·δ, Σ δ²) of every row, where δ is the change by the bug.

    None if the bug would give values beyond the dtype's range, because an output that passes has
    none.
    """
    predicted = bug.predicted(case)
    if predicted is None:
        return np.zeros(0), np.zeros(0)
    if (np.abs(predicted) > LARGEST[case.problem.dtype]).any():
        return None
    effect = np.nan_to_num(predicted - case.reference)
    error = case.out - case.reference
    return (error * effect).sum(axis=1), (effect**2).sum(axis=1)


def check_output(
    inputs: Inputs,
    result: RunResult,
    *,
    plan: LaunchPlan | None = None,
    sdpa: tuple[FloatArray, str] | None = None,
) -> Correctness:
    """Check the output of one run, with findings if it is wrong.

    Args:
        result: a run with an output.
        plan: its tiles and splits are used in findings.
        sdpa: same-dtype attention as float32 `[batch, num_heads, seqlen, head_dim]` and its name;
            by default PyTorch's on the CPU, or an emulation in NumPy without PyTorch.
    """
    return check_with_maps(inputs, result, plan, sdpa)[0]


def check_with_maps(
    inputs: Inputs,
    result: RunResult,
    plan: LaunchPlan | None = None,
    sdpa: tuple[FloatArray, str] | None = None,
) -> tuple[Correctness, tuple[ErrorMap, ...]]:
    """Check as `check_output`, and return error maps too."""
    if inputs.problem.direction == "backward":
        return check_against(expect_gradients(inputs), result, plan)
    return check_against(expect(inputs, sdpa), result, plan)


def check_against(
    expected: Expected | ExpectedGradients, result: RunResult, plan: LaunchPlan | None = None
) -> tuple[Correctness, tuple[ErrorMap, ...]]:
    """Check as `check_with_maps` against an expected output that is already computed."""
    if isinstance(expected, ExpectedGradients):
        return check_gradients(expected, result, plan)
    if result.out is None:
        raise ValueError("a run without an output cannot be checked")
    inputs, num_keys = expected.inputs, expected.inputs.problem.num_keys
    atol = absolute_tolerance(expected.max_abs_ref, inputs.problem.dtype, num_keys)
    expected = with_wrong_slices(expected, result.out, 2 * expected.baseline_err + atol)
    coverage, ref = expected.coverage, expected.reference
    baseline_err, baseline_name = expected.baseline_err, expected.baseline_name
    atol = absolute_tolerance(expected.max_abs_ref, inputs.problem.dtype, inputs.problem.num_keys)
    if plan is not None and plan.tf32 and inputs.problem.dtype == "float32":
        baseline_err, baseline_name = _tf32_err(expected), "an emulation of attention in TF32"
    compared = compare_output(result.out, ref, coverage, 2 * baseline_err + atol)
    broken = BrokenElements.of(result.out, inputs.problem.dtype)
    problems = _problems(compared, result, broken)
    tiles = tiles_of(inputs.problem, plan)
    warning = None
    if not problems:
        warning = systematic_error(expected, compared, tiles)
    errors = ErrorFigures.of(compared)
    num_over, num_nonfinite, num_unwritten = (
        int(np.count_nonzero(mask)) for mask in (compared.over, broken.nonfinite, broken.unwritten)
    )
    bad_count = num_nonfinite + num_unwritten + num_over
    findings = _as_tf32(expected, compared, plan) if num_over else ()
    if bad_count and not findings:
        findings = diagnose(inputs, broken, compared, tiles, plan.source if plan else None)
    correctness = Correctness(
        passed=not problems,
        reason=_reason(problems, errors.max_abs_err, compared, baseline_err, baseline_name),
        max_abs_err=errors.max_abs_err,
        mean_abs_err=errors.mean_abs_err,
        rms_err=errors.rms_err,
        cosine=errors.cosine,
        baseline_err=baseline_err,
        baseline_name=baseline_name,
        tolerance=compared.tolerance,
        fixed_bound=FIXED_BOUNDS[inputs.problem.dtype],
        bad_count=bad_count,
        nonfinite_count=num_nonfinite,
        unwritten_count=num_unwritten,
        first_bad_index=_first_bad(compared, broken),
        inputs_unchanged=result.inputs_unchanged,
        repeatable=result.repeatable,
        guards_intact=result.guards_intact,
        findings=(*findings, *_not_repeatable(result, plan)),
        warnings=(*result.warnings, *(() if warning is None else (warning,))),
        fp8_err=expected.fp8_err,
    )
    return correctness, error_maps(inputs, compared, tiles)


def _not_repeatable(result: RunResult, plan: LaunchPlan | None) -> tuple[Finding, ...]:
    """Return the finding about a second run that differs from the first."""
    if result.repeatable:
        return ()
    kept = [s.name for s in plan.scratch if s.fill == "zero" and not s.each_launch] if plan else []
    counters = ""
    if kept:
        counters = (
            f"the second launch finds {' and '.join(kept)} as the first left it: check where the "
            "kernel resets it, and "
        )
    sentence = f"{counters}look for a race: the check build in random order may name it."
    where = place_of(FindingCode.NOT_REPEATABLE, plan.source if plan else None)
    return (
        Finding(FindingCode.NOT_REPEATABLE, f"{sentence[0].upper()}{sentence[1:]}", 1.0, where),
    )


def with_order_of_threads(
    wrong: Correctness, result: RunResult, other: RunResult, dtype: Dtype
) -> Correctness:
    """Revise the verdict on a wrong output by a run with another thread order.

    If the two outputs differ by more than the tolerance, or the runs end differently, the output
    depends on the order of threads. Causes and places found in the first output are then dropped,
    except for unwritten elements.

    Args:
        result: the checked run.
        other: a run of the same build on the same inputs.
    """
    different, total = 0, 0
    if other.status is Status.PASSED:
        tolerances = {each.name: each.tolerance for each in wrong.outputs}
        second = _outputs(other)
        for name, raw in _outputs(result).items():
            a, b = decode(raw, dtype), decode(second[name], dtype)
            with np.errstate(invalid="ignore"):
                is_near = np.abs(a - b) <= tolerances.get(name, wrong.tolerance)
            same = is_near | (a == b) | (np.isnan(a) & np.isnan(b))
            different += int(np.count_nonzero(~same))
            total += same.size
        if not different:
            return wrong
        seen = f"{different:,} of {total:,} elements differ"
    else:
        seen = f"The launch ends as {other.status}"
    sentence = (
        f"{seen} when the threads run in another order: a barrier or a wait is missing, or threads "
        "write to the same place. The check build (--check) names the lines."
    )
    kept = (f for f in wrong.findings if f.pattern == FindingCode.UNWRITTEN)
    finding = Finding(FindingCode.ORDER_OF_THREADS, sentence, 1.0)
    return replace(wrong, findings=(finding, *kept))


def _outputs(result: RunResult) -> Mapping[str, RawArray]:
    """Return O, or the gradients, by name."""
    if result.gradients is not None:
        return {GRADIENT_NAMES[name]: raw for name, raw in result.gradients.items()}
    return {} if result.out is None else {"O": result.out}


def with_passing_inputs(wrong: Correctness, source: Path) -> Correctness:
    """Add a finding to a failure on extreme inputs of a kernel that passed on normal ones.

    The two differ only in the range of the scores, so the row maximum is suspected.
    """
    explained = {FindingCode.ROW_MAXIMUM, FindingCode.SCORE_PRECISION}
    if any(finding.pattern in explained for finding in wrong.findings):
        return wrong
    cause = Finding(
        FindingCode.ROW_MAXIMUM,
        "It passes on the other inputs, whose scores are near 0, so that a wrong row maximum does "
        "no harm. Check the maximum that is subtracted from the scores: it must start at −inf and "
        "cover all keys of its own row and of no other row.",
        1.0,
        place_of(FindingCode.ROW_MAXIMUM, source),
    )
    return replace(wrong, findings=(cause, *wrong.findings))


def _problems(compared: ComparedOutput, result: RunResult, broken: BrokenElements) -> list[str]:
    """Return what is wrong, the most informative first; empty if the output passes."""
    problems = []
    total = math.prod(compared.coverage.problem.out_shape)
    for mask, what in (
        (broken.unwritten, "were never written"),
        (broken.nonfinite, "are NaN or infinite"),
    ):
        if count := np.count_nonzero(mask):
            problems.append(f"{count:,} of {total:,} elements {what}")
    if over := np.count_nonzero(compared.over):
        position = np.unravel_index(int(compared.error.argmax()), compared.error.shape)
        batch, head, row = compared.coverage.index(int(position[0]), int(position[1]))
        problems.append(
            f"the largest error, {compared.error.max():.3g} at batch {batch}, head {head}, row "
            f"{row}, column {int(position[2])}, exceeds {compared.tolerance:.3g} (twice SDPA's own "
            f"error and {_margin(compared.coverage.problem)}), as do {over:,} elements in all"
        )
    if not result.inputs_unchanged:
        problems.append("the kernel changed its inputs")
    if not result.guards_intact:
        problems.append("the kernel wrote outside its buffers")
    if not result.repeatable:
        problems.append("a second run on the same inputs gave different bits")
    return problems


def _reason(
    problems: list[str],
    max_abs_err: float,
    compared: ComparedOutput,
    baseline_err: float,
    baseline_name: str,
) -> str:
    coverage = compared.coverage.sentence()
    tail = f" {coverage}" if coverage else ""
    if problems:
        text = "; ".join(problems)
        return f"{text[0].upper()}{text[1:]}.{tail}"
    return (
        f"The largest error, {max_abs_err:.3g}, is within {compared.tolerance:.3g}: twice the "
        f"{baseline_err:.3g} of {baseline_name}, and {_margin(compared.coverage.problem)}.{tail}"
    )


def _margin(problem: Problem) -> str:
    """Return `atol`, the tolerance besides the baseline's error, in words."""
    if problem.dtype != "float32" or problem.num_keys == 1:
        return "half a rounding step"
    return f"the rounding of a sum of {problem.num_keys:,} terms"


def _tf32_err(expected: Expected) -> float:
    """Return the largest error of attention whose products are all TF32."""
    out = emulated_attention(expected.inputs, expected.coverage, products=as_tf32)
    return float(np.abs(out - expected.reference).max())


def _as_tf32(
    expected: Expected, compared: ComparedOutput, plan: LaunchPlan | None
) -> tuple[Finding, ...]:
    """Return a finding if the errors of an FP32 output are no larger than with TF32 products; else
    none."""
    if expected.inputs.problem.dtype != "float32" or not compared.finite.all():
        return ()
    if compared.error.max() > 2 * _tf32_err(expected):
        return ()
    sentence = (
        "The errors are no larger than those of TF32, which keeps 10 bits of a mantissa, or of "
        "intermediate FP16: the output is right apart from that. If the kernel multiplies in TF32 "
        "on purpose, write tf32 = true into its description."
    )
    return (Finding("tf32", sentence, 1.0, place_of("tf32", plan.source if plan else None)),)


def _first_bad(
    compared: ComparedOutput, broken: BrokenElements
) -> tuple[int, int, int, int] | None:
    """Return (batch, head, row, column) of the first wrong element in memory order."""
    first = broken.first_index()
    over = compared.over
    if not over.any():
        return first
    position = np.unravel_index(int(over.argmax()), over.shape)
    index = (*compared.coverage.index(int(position[0]), int(position[1])), int(position[2]))
    return index if first is None else min(index, first)
