"""Check of outputs other than O: dQ, dK and dV, and the LSE.

Each gradient may err twice as much as that of PyTorch's SDPA in the same dtype, plus half a
rounding step (the rule of `engine.correctness.check`). The reason names the wrong output, the worst
if there are several. The LSE, `ln Σ exp(scale · q·k)` of every query row, has its own bound: see
`check_lse`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from engine.attention.evaluation import Correctness, Finding, OutputError
from engine.attention.plan import LaunchPlan
from engine.attention.tensors import (
    FIXED_BOUNDS,
    NOISE,
    FloatArray,
    Inputs,
    RawArray,
    absolute_tolerance,
)
from engine.correctness.diagnosis.patterns import find_patterns
from engine.correctness.findings import FindingCode, place_of
from engine.correctness.gradients import (
    ExpectedGradient,
    ExpectedGradients,
    GradientBug,
    can_predict_bugs,
    gradient_bugs,
    head_of,
)
from engine.correctness.output_error import (
    GRADIENT_NAMES,
    BrokenElements,
    ComparedOutput,
    ErrorFigures,
    ErrorMap,
    Tiles,
    compare_output,
    gradient_maps,
    tiles_of,
)
from engine.correctness.reference import (
    Coverage,
    Float64Array,
    choose_coverage,
    covered_blocks,
    softmax_parts,
)
from engine.cuda_on_host.client import RunResult

# What to look at, by the correct outputs, which exclude the computations that they share with the
# wrong ones.
_LEFT: Final = {
    frozenset(
        {"dV"}
    ): ", and P with it: look at dP = dO·Vᵀ, D = rowsum(dO ∘ O) and dS = P ∘ (dP − D)",
    frozenset({"dK", "dV"}): ": look at the product dS·K, at what dQ alone reads, and at its sums",
    frozenset({"dQ", "dV"}): ": look at the product dSᵀ·Q, at what dK alone reads, and at its sums",
    frozenset({"dQ", "dK"}): ", and dS with them: look at the product Pᵀ·dO",
}
_EXPLAINED = 0.98  # share of the squared error from which on a suspected bug is reported


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """One output compared with its reference."""

    expected: ExpectedGradient
    compared: ComparedOutput
    broken: BrokenElements
    errors: ErrorFigures

    @property
    def name(self) -> str:
        return GRADIENT_NAMES[self.expected.name]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of unwritten, non-finite and too inaccurate elements."""
        masks = (self.broken.unwritten, self.broken.nonfinite, self.compared.over)
        unwritten, nonfinite, over = (int(np.count_nonzero(mask)) for mask in masks)
        return unwritten, nonfinite, over

    @property
    def badness(self) -> float:
        """Return the largest error in tolerances, above 1 if wrong; infinite if non-finite."""
        unwritten, nonfinite, _ = self.counts
        if unwritten or nonfinite:
            return math.inf
        return self.errors.max_abs_err / self.compared.tolerance

    def summary(self) -> OutputError:
        unwritten, nonfinite, over = self.counts
        return OutputError(
            self.name,
            unwritten + nonfinite + over == 0,
            self.errors.max_abs_err,
            self.errors.rms_err,
            self.expected.baseline_err,
            self.compared.tolerance,
            unwritten + nonfinite + over,
        )

    def problems(self) -> list[str]:
        unwritten, nonfinite, over = self.counts
        total = self.broken.unwritten.size
        said = []
        if unwritten:
            said.append(f"{unwritten:,} of its {total:,} elements were never written")
        if nonfinite:
            said.append(f"{nonfinite:,} of its {total:,} elements are NaN or infinite")
        if over:
            at = np.unravel_index(int(self.compared.error.argmax()), self.compared.error.shape)
            batch, head, row = self.expected.coverage.index(int(at[0]), int(at[1]))
            said.append(
                f"its largest error, {self.compared.error.max():.3g} at batch {batch}, head {head},"
                f" row {row}, column {int(at[2])}, exceeds {self.compared.tolerance:.3g} (twice "
                f"that of SDPA's gradient and half a rounding step), as do {over:,} elements in all"
            )
        return said


def check_gradients(
    expected: ExpectedGradients, result: RunResult, plan: LaunchPlan | None = None
) -> tuple[Correctness, tuple[ErrorMap, ...]]:
    """Check the gradients of one run. Raises ValueError if it has none."""
    if result.gradients is None:
        raise ValueError("a run without gradients cannot be checked")
    judged = [_judge(each, result.gradients[each.name]) for each in expected.outputs]
    worst = max(judged, key=lambda each: each.badness)
    wrong = [each for each in judged if each.badness > 1]
    is_repeatable_by_rule = result.repeatable or (plan is not None and not plan.repeatable)
    problems = [
        f"{each.name} is wrong: {'; '.join(each.problems())}"
        for each in sorted(wrong, key=lambda each: -each.badness)
    ]
    if wrong and (right := [each.name for each in judged if each not in wrong]):
        verb = "is" if len(right) == 1 else "are"
        problems.append(f"{' and '.join(right)} {verb} right{_LEFT.get(frozenset(right), '')}")
    if not result.inputs_unchanged:
        problems.append("the kernel changed its inputs")
    if not result.guards_intact:
        problems.append("the kernel wrote outside its buffers")
    if not is_repeatable_by_rule:
        problems.append("a second run on the same inputs gave different bits")
    passed = not wrong and result.inputs_unchanged and result.guards_intact
    passed = passed and is_repeatable_by_rule
    unwritten, nonfinite, _ = worst.counts
    tiles = tiles_of(expected.inputs.problem, plan)
    correctness = Correctness(
        passed=passed,
        reason=f"{'; '.join(problems)}." if problems else _reason(expected, judged, result),
        max_abs_err=worst.errors.max_abs_err,
        mean_abs_err=worst.errors.mean_abs_err,
        rms_err=worst.errors.rms_err,
        cosine=min(each.errors.cosine for each in judged),
        baseline_err=worst.expected.baseline_err,
        baseline_name=expected.baseline_name,
        tolerance=worst.compared.tolerance,
        fixed_bound=FIXED_BOUNDS[expected.inputs.problem.dtype],
        bad_count=sum(sum(each.counts) for each in judged),
        nonfinite_count=nonfinite,
        unwritten_count=unwritten,
        first_bad_index=_first_bad(worst),
        inputs_unchanged=result.inputs_unchanged,
        repeatable=result.repeatable,
        guards_intact=result.guards_intact,
        findings=_findings(expected, wrong, tiles, plan),
        warnings=result.warnings,
        outputs=tuple(each.summary() for each in judged),
    )
    maps = gradient_maps({each.expected.name: each.compared for each in judged})
    return correctness, maps


def _judge(expected: ExpectedGradient, raw: RawArray) -> _Judged:
    problem = expected.coverage.problem
    tolerance = 2 * expected.baseline_err + expected.cancelled
    tolerance += absolute_tolerance(expected.max_abs_ref, problem.dtype, problem.num_keys)
    compared = compare_output(raw, expected.reference, expected.coverage, tolerance)
    broken = BrokenElements.of(raw, problem.dtype)
    return _Judged(expected, compared, broken, ErrorFigures.of(compared))


def _reason(expected: ExpectedGradients, judged: list[_Judged], result: RunResult) -> str:
    said = ", ".join(
        f"{e.name} {e.errors.max_abs_err:.3g} of {e.compared.tolerance:.3g}" for e in judged
    )
    bits = (
        "A second run gave the same bits."
        if result.repeatable
        else "A second run gave different bits, as its description allows: atomics have no order."
    )
    of_kv = judged[-1].expected.coverage
    total, compared = of_kv.problem.batch * of_kv.problem.num_heads, len(of_kv.slices)
    part = "" if compared == total else f" Compared on {compared:,} of the {total:,} K/V heads."
    return (
        f"The largest errors, {said}, are within twice those of {expected.baseline_name}, and half "
        f"a rounding step. {bits}{part}"
    )


def _first_bad(worst: _Judged) -> tuple[int, int, int, int] | None:
    first = worst.broken.first_index()
    over = worst.compared.over
    if not over.any():
        return first
    at = np.unravel_index(int(over.argmax()), over.shape)
    index = (*worst.expected.coverage.index(int(at[0]), int(at[1])), int(at[2]))
    return index if first is None else min(index, first)


def with_other_cta_order(
    passed: Correctness, result: RunResult, other: RunResult, *, is_ordered: bool
) -> Correctness:
    """Revise the verdict by a run that executed the CTAs in another order.

    Args:
        is_ordered: True if the kernel's description promises sums in a fixed order.
    """
    if result.gradients is None or other.gradients is None:
        return passed
    pairs = ((GRADIENT_NAMES[n], x, other.gradients[n]) for n, x in result.gradients.items())
    said = " and ".join(name for name, x, y in pairs if not np.array_equal(x, y))
    if not said:
        return replace(passed, reason=f"{passed.reason} The same bits in another order of CTAs.")
    sentence = f"The bits of {said} differ in another order of CTAs"
    if not is_ordered:
        return replace(passed, reason=f"{passed.reason} {sentence}, within rounding.")
    warning = f"{sentence}: the order of a sum is not fixed, or there is a race."
    return replace(passed, warnings=(*passed.warnings, warning))


# Why


def _findings(
    expected: ExpectedGradients, wrong: list[_Judged], tiles: Tiles, plan: LaunchPlan | None
) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for each in wrong:
        unwritten, nonfinite, over = each.counts
        total = unwritten + nonfinite + over
        if unwritten:
            what = "was never written" if unwritten == each.broken.unwritten.size else "has gaps"
            sentence = f"{each.name} {what}: look at its store, and at the launch's grid."
            found.append(Finding(FindingCode.UNWRITTEN, sentence, unwritten / total))
        if nonfinite:
            sentence = (
                f"{each.name} has NaN or infinity: something is read before it is written (scratch "
                "and shared memory start as NaN), rows past the end are not zeros, or the exponent "
                "lacks LSE."
            )
            found.append(Finding(FindingCode.NAN_ROW, sentence, nonfinite / total))
        if over:
            found += _wrong_values(expected, each, tiles, over / total)
    source = plan.source if plan is not None else None
    return tuple(replace(f, place=place_of(f.pattern, source, f.sentence)) for f in found[:16])


def _wrong_values(
    expected: ExpectedGradients, each: _Judged, tiles: Tiles, share: float
) -> list[Finding]:
    of_gradient = each.expected.name
    mine = replace(
        tiles,
        seqlen=each.expected.coverage.problem.seqlen,
        block_m=tiles.block_m if of_gradient == "dq" else tiles.block_n,
    )
    found = _known_bug(expected, each, tiles)
    known = []
    if found is not None:
        bug, explained = found
        sentence = (
            f"{each.name} matches {bug.what} ({math.floor(1e4 * explained) / 100:g}% of the error "
            f"explained): {bug.look_at}."
        )
        known.append(Finding(bug.code, sentence, round(min(1.0, explained) * share, 4)))
    return known + [
        Finding(pattern.name, f"{each.name}: {pattern.sentence}", share)
        for pattern in find_patterns(each.compared, mine)
        if not known
    ]


def _known_bug(
    expected: ExpectedGradients, each: _Judged, tiles: Tiles
) -> tuple[GradientBug, float] | None:
    """Return the suspected bug that best explains the error of the worst K/V head, or None."""
    problem, name = expected.inputs.problem, each.expected.name
    if not can_predict_bugs(problem):
        return None
    group = problem.head_group if name == "dq" else 1
    position = each.compared.worst_slice() // group
    here = slice(position * group, (position + 1) * group)
    out, reference = each.compared.out[here], each.compared.reference[here]
    finite = each.compared.finite[here]
    error = np.where(finite, out - reference, 0.0)
    whole = float(np.square(error).sum())
    if whole == 0.0:
        return None
    kv_slice = int(each.expected.coverage.slices[here][0]) // group
    head = head_of(expected.inputs, kv_slice)
    best: tuple[GradientBug, float] | None = None
    for bug in gradient_bugs(problem, tiles.block_m, tiles.block_n):
        if name not in bug.outputs:
            continue
        rest = np.where(finite, out - bug.make(head)[name], 0.0)
        explained = 1.0 - float(np.square(rest).sum()) / whole
        if explained > _EXPLAINED and (best is None or explained > best[1] + 1e-4):
            best = bug, explained
    return best


_RELATIVE: Final = 1e-3
_BLOCK: Final = 16  # keys


@dataclass(frozen=True, slots=True)
class LseVerdict:
    """The result of an LSE check, with a sentence."""

    passed: bool
    sentence: str


def covered_lse(inputs: Inputs, coverage: Coverage) -> tuple[Float64Array, Float64Array]:
    """Return the reference for the covered rows and their largest scores, `[slices, rows]` each."""
    lse = np.zeros((len(coverage.slices), len(coverage.rows)))
    maxima = np.zeros_like(lse)
    for part in covered_blocks(inputs, coverage):
        highest = part.scores.max(axis=-1, keepdims=True)
        if part.sinks is not None:
            highest = np.maximum(highest, part.sinks)
        _, sums = softmax_parts(part.scores, part.sinks)
        lse[part.slices, part.rows] = (highest + np.log(sums))[..., 0]
        maxima[part.slices, part.rows] = highest[..., 0]
    return lse, maxima


def check_lse(inputs: Inputs, lse: FloatArray) -> LseVerdict:
    """Check the natural LSE of one run, `[batch, num_heads, seqlen]`, against float64.

        max|lse − ref| ≤ half a rounding step of the dtype at 1, plus 1e-3 · max(1, max|ref|)

    The first term allows a sum over P rounded to the dtype, the second approximate exp2 and log2.
    Bugs (scale, base, mask, a maximum that is not added) give errors of at least 0.1.
    """
    problem = inputs.problem
    bad = int(np.count_nonzero(~np.isfinite(lse)))
    if bad:
        where = np.unravel_index(int(np.argmax(~np.isfinite(lse))), lse.shape)
        place = "batch {}, head {}, row {}".format(*map(int, where))
        return LseVerdict(
            False,
            f"LSE is wrong: {bad:,} of its {lse.size:,} elements are NaN, infinite or were never "
            f"written, the first at {place}.",
        )
    coverage = choose_coverage(problem)
    ref, maxima = covered_lse(inputs, coverage)
    covered = lse.reshape(-1, problem.seqlen)[coverage.slices[:, None], coverage.rows[None, :]]
    error = np.abs(covered - ref)
    worst = float(error.max())
    allowed = NOISE[problem.dtype] + _RELATIVE * max(1.0, float(np.abs(ref).max()))
    if worst <= allowed:
        return LseVerdict(
            True, f"The largest error of LSE is {worst:.3g}; {allowed:.3g} is allowed."
        )
    at = np.unravel_index(int(error.argmax()), error.shape)
    batch, head, row = coverage.index(int(at[0]), int(at[1]))
    guess = _suspicion(covered, ref, maxima, inputs, coverage, allowed)
    return LseVerdict(
        False,
        f"LSE is wrong: at batch {batch}, head {head}, row {row} it is {covered[at]:.6g} and not "
        f"{ref[at]:.6g}, where {allowed:.3g} is allowed.{guess}",
    )


def _suspicion(
    lse: FloatArray,
    ref: Float64Array,
    maxima: Float64Array,
    inputs: Inputs,
    coverage: Coverage,
    allowed: float,
) -> str:
    """Return a common mistake that would give these values; empty if there is none."""
    scale = inputs.problem.softmax_scale
    candidates = {
        'It is the base-2 logarithm: say so by `lse = {base = "2"}`.': ref / np.log(2),
        "It is natural where the description says base 2.": ref * np.log(2),
        "It is divided by the softmax scale.": ref / scale,
        "It is the sum, without its logarithm.": np.exp(np.minimum(ref, 80.0)),
        "The row maximum is not added back to the logarithm of the sum.": ref - maxima,
        "The row maximum is added back unscaled.": ref - maxima + maxima / scale,
        "It is the row maximum alone, without the logarithm of the sum.": maxima,
        "The row maximum is added back twice.": ref + maxima,
        "Its sign is wrong.": -ref,
        "The sum under the logarithm is twice what it is.": ref + np.log(2),
        "The sum under the logarithm is half of what it is.": ref - np.log(2),
    }
    for sentence, values in candidates.items():
        if float(np.abs(lse - values).max()) <= allowed * max(1.0, 1 / scale):
            return f" {sentence}"
    if said := _of_a_part(lse, inputs, coverage, ref, allowed):
        return f" {said}"
    if float(np.abs(np.sort(lse, axis=None) - np.sort(ref, axis=None)).max()) <= allowed:
        return " The values are right but stored at wrong rows: look at the index of LSE."
    return ""


def _of_a_part(
    lse: FloatArray, inputs: Inputs, coverage: Coverage, ref: Float64Array, allowed: float
) -> str:
    """Return a mistake in combining equal parts of the keys (splits, tiles); empty if none fits.

    All part sizes of whole blocks of 16 keys are tried.
    """
    blocks = _lse_of_blocks(inputs, coverage)
    for size in range(1, blocks.shape[-1]):
        starts = np.arange(0, blocks.shape[-1], size)
        parts = np.logaddexp.reduceat(blocks, starts, axis=-1)
        largest = parts.max(axis=-1)
        keys = size * _BLOCK
        for sentence, values in (
            (f"It is that of keys 0 to {keys - 1} alone, one split or tile.", parts[..., 0]),
            (f"It is that of the last part of {keys} keys alone.", parts[..., -1]),
            (
                f"It is the largest of the LSEs of parts of {keys} keys (splits or tiles): their "
                "sum is left out, where the maximum among them is taken.",
                largest,
            ),
            (
                f"The maximum of the LSEs of the parts of {keys} keys (splits or tiles) is not "
                "added back to the logarithm of their sum.",
                ref - largest,
            ),
        ):
            if float(np.abs(lse - values).max()) <= allowed:
                return sentence
    return ""


def _lse_of_blocks(inputs: Inputs, coverage: Coverage) -> Float64Array:
    """Return the LSE of each block of 16 keys, `[slices, rows, blocks]`; −inf if none is
    visible."""
    starts = np.arange(0, inputs.problem.num_keys, _BLOCK)
    found = np.full((len(coverage.slices), len(coverage.rows), len(starts)), -np.inf)
    for part in covered_blocks(inputs, coverage):
        own = starts[starts < part.scores.shape[-1]]
        of_blocks = np.logaddexp.reduceat(part.scores, own, axis=-1)
        found[part.slices, part.rows, : len(own)] = of_blocks
    return found
