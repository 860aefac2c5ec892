"""Figures of a kernel on one problem and GPU, and verdicts on two sets, before and after.

They are found without executing native code. Counted figures are exact, so any difference is real.
Simulated times get a verdict if they differ by more than a threshold derived from recorded pairs of
neighbouring versions, and measured times by the sampler's rule (`engine.measure.statistics`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from engine.attention.config import variant_from
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, CompileError, InvalidKernel, InvalidProblem
from engine.base.schema import Stored
from engine.base.units import format_us
from engine.measure.statistics import Comparison, Verdict
from kernels.description import read_own
from kernels.ladder import is_numbered
from kernels.toml_block import KernelDescriptionError
from kernels.variant import Variant

if TYPE_CHECKING:
    from engine.attention.evaluation import CodeCounts, Evaluation
    from engine.attention.plan import LaunchPlan
    from engine.cuda_source.nvrtc import CompiledKernel
    from engine.model.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Figures(Stored):
    """Figures of a launch, all passes together. All but the time are counted. None: not known."""

    registers: int  # per thread, of the pass with the most
    spill_bytes: int  # per thread, stores and loads
    smem_bytes: int  # per CTA
    ctas_per_sm: int | None  # of the main pass
    code_bytes: int | None = None
    instructions: int | None = None  # warp instructions
    conflicts: int | None = None  # shared-memory wavefronts beyond those needed
    wavefronts: int | None = None  # of shared memory
    sectors: int | None = None  # of global memory, 32 bytes each
    local_sectors: int | None = None  # spills and arrays on the stack
    simulated_us: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer(Stored):
    """The result for one side: figures, or a sentence why there are none."""

    code: str = ""  # digest of machine code and launch: equal digests behave the same
    figures: Figures | None = None
    fault: str = ""  # fault of the kernel: it does not compile, or does not support the problem
    obstacle: str = ""  # not the kernel's fault: a tool is missing, or it cannot be simulated
    refused: bool = False  # the fault is that the description does not support the problem


def variant_of(path: Path) -> Variant:
    """Return the variant of a file in a tree. Raises InvalidKernel."""
    if is_numbered(path.name):
        return variant_from(path, path.stem)
    try:
        return read_own(path)
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake), code=mistake.code) from None


def compiled_answer(kernel: Kernel, problem: Problem) -> tuple[Answer, Callable[[], Answer]]:
    """Compile a kernel; return (code and resources, a function that counts and simulates it).

    No native code is executed, including host code: the kernel is compiled, and its machine code is
    emulated.
    """
    from engine.attention.plan import resources
    from engine.model.kernel import code_digest, count_plan

    try:
        plan, compiled = _compiled(kernel, problem)
        used = resources(plan, compiled)
        code = code_digest(plan, compiled)
    except AttuneError as error:
        answer = as_answer(error)
        return answer, lambda: answer
    figures = Figures(
        registers=max(r.registers_per_thread for r in used),
        spill_bytes=max(r.spill_bytes for r in used),
        smem_bytes=max(r.static_smem_bytes + r.dynamic_smem_bytes for r in used),
        ctas_per_sm=None,
    )

    def counted() -> Answer:
        from engine.history import History

        obstacle, counts, predicted = "", None, None
        try:
            counts = count_plan(plan, compiled).counts
        except AttuneError as error:
            obstacle = f"Its machine code is not counted: {error}"
        try:
            # Times of sessions are ignored, so that the verdict is the same on every machine.
            predicted = History().estimate(kernel, plan.problem)
        except AttuneError as error:
            obstacle = obstacle or f"It is not simulated: {error}"
        us = None
        if predicted is not None:
            if predicted.by_machine_code and predicted.latency is not None:
                us = predicted.latency.median_us
            else:
                obstacle = obstacle or f"It is not simulated: {predicted.reason}"
        held = None
        if predicted is not None:
            held = problem.main_of(predicted.passes).occupancy.ctas_per_sm
        whole = replace(_with_counts(figures, counts), ctas_per_sm=held, simulated_us=us)
        return Answer(code, whole, obstacle=obstacle)

    return Answer(code, figures), counted


def counts_of(kernel: Kernel, problem: Problem) -> CodeCounts:
    """Count what a kernel's machine code executes, without running native code.

    Raises:
        AttuneError: it does not compile, does not support the problem, or cannot be emulated.
    """
    from engine.model.kernel import count_plan

    return count_plan(*_compiled(kernel, problem)).counts


def _compiled(kernel: Kernel, problem: Problem) -> tuple[LaunchPlan, CompiledKernel]:
    from engine.model.kernel import compile_plan

    plan = kernel.plan(problem)
    return plan, compile_plan(plan, kernel.device.arch)


def answer_of(evaluation: Evaluation) -> Answer | None:
    """Return the answer for an evaluation's code; None if it was not compiled.

    Without `counts`, there is no digest of the code, and figures are only the compiler's.
    """
    counts, main = evaluation.counts, evaluation.main_pass
    if main is None:
        return None
    used = [p.resources for p in evaluation.passes]
    figures = Figures(
        registers=max(r.registers_per_thread for r in used),
        spill_bytes=max(r.spill_bytes for r in used),
        smem_bytes=max(r.smem_bytes for r in used),
        ctas_per_sm=main.occupancy.ctas_per_sm,
    )
    latency = evaluation.latency
    us = latency.median_us if latency is not None and latency.is_simulated else None
    code = counts.code_sha256 if counts is not None else ""
    return Answer(code, replace(_with_counts(figures, counts), simulated_us=us))


def _with_counts(figures: Figures, counts: CodeCounts | None) -> Figures:
    if counts is None:
        return figures
    known = asdict(counts)
    del known["code_sha256"]
    return replace(figures, **known)


def compile_fault(plan: LaunchPlan, arch: str) -> Answer:
    """Return an answer with the fault if the kernel does not compile for an arch."""
    from engine.model.kernel import compile_plan

    try:
        compile_plan(plan, arch)
    except AttuneError as error:
        return as_answer(error)
    return Answer()


def as_answer(error: AttuneError) -> Answer:
    """Return the answer for a kernel that cannot be read, launched or compiled."""
    if isinstance(error, (CompileError, InvalidKernel)):
        return Answer(fault=str(error))
    if isinstance(error, InvalidProblem):
        return Answer(fault=str(error), refused=True)
    return Answer(obstacle=str(error))


# The difference of two simulated times from which on the order of two versions is reliable.
#
# Derived from pairs of neighbours: consecutive versions of a kernel, measured and simulated on one
# GPU. `tests/bench/bench_sass_validation.py --pairs FILE` renews them.

_PAIRS = Path(__file__).with_name("neighbour_pairs.json")
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class NeighbourPair:
    """Two consecutive versions on one GPU; ratios are times, after / before."""

    group: str
    before: str
    after: str
    measured: float
    simulated: float
    chosen_on: bool  # one of the two was used to choose the simulator's constants

    @property
    def apart(self) -> float:
        """Return |ln simulated ratio|."""
        return abs(math.log(self.simulated))

    @property
    def is_right(self) -> bool:
        """True if the simulation names the faster version."""
        return (self.simulated < 1) == (self.measured < 1)


@dataclass(frozen=True, slots=True)
class Threshold:
    """The least difference with a verdict, and its evidence."""

    share: float  # 0.13: times that differ by more than 13 % have a verdict
    pairs: int  # pairs that differ by at least this share
    wrong: int  # wrong ones among these; 0 by construction
    error_bound: float  # upper bound of the share of wrong verdicts, with 95 % confidence

    def __str__(self) -> str:
        return (
            f"Simulated times that differ by {self.share:.0%} or more are in the right order in "
            f"{self.pairs - self.wrong} of {self.pairs} recorded pairs of neighbours (wrong in at "
            f"most {self.error_bound:.0%} with {_CONFIDENCE:.0%} confidence)."
        )


def order_of(us: float, other_us: float) -> str:
    """Return whether the order of two simulated times on one GPU is reliable.

    Returns:
        "✓ faster" or "✓ slower" if they differ by at least `default_threshold`, else
        "? within error".
    """
    if abs(math.log(us / other_us)) < math.log1p(default_threshold().share):
        return "? within error"
    return "✓ faster" if us < other_us else "✓ slower"


@cache
def neighbour_pairs() -> tuple[NeighbourPair, ...]:
    """Return the recorded pairs."""
    return tuple(NeighbourPair(**raw) for raw in json.loads(_PAIRS.read_text(encoding="utf-8")))


def threshold_of(pairs: Sequence[NeighbourPair]) -> Threshold:
    """Return the least simulated difference from which on all pairs are ordered correctly.

    Pairs used to choose the simulator's constants are left out. The bound is Clopper and Pearson's
    for no failure in n: 1 - 0.05^(1/n).

    Raises:
        ValueError: no pair differs by more than the wrongly ordered pair with the largest
            difference.
    """
    counted = sorted((p for p in pairs if not p.chosen_on), key=lambda p: p.apart)
    wrong = max((p.apart for p in counted if not p.is_right), default=0.0)
    beyond = [p for p in counted if p.apart > wrong]
    if not beyond:
        raise ValueError("every recorded pair differs by less than a wrongly ordered pair")
    share = math.expm1(beyond[0].apart)
    return Threshold(share, len(beyond), 0, 1 - (1 - _CONFIDENCE) ** (1 / len(beyond)))


@cache
def default_threshold() -> Threshold:
    """Return the threshold from the recorded pairs."""
    return threshold_of(neighbour_pairs())


class GateVerdict(StrEnum):
    """The verdict on one kernel on one problem and GPU."""

    SAME_CODE = "SAME CODE"  # identical machine code and launch
    UNDECIDED = "UNDECIDED"  # different code, but no significant difference
    COUNTED_BETTER = "COUNTED BETTER"
    COUNTED_WORSE = "COUNTED WORSE"
    SIMULATED_FASTER = "SIMULATED FASTER"
    SIMULATED_SLOWER = "SIMULATED SLOWER"
    MEASURED_FASTER = "MEASURED FASTER"
    MEASURED_SLOWER = "MEASURED SLOWER"
    MEASURED_SAME = "MEASURED SAME"
    BROKEN = "BROKEN"  # it does not compile, or no longer supports the problem
    INCORRECT = "INCORRECT"
    FIXED = "FIXED"  # it did not compile before, or did not support the problem
    NEW = "NEW"
    REMOVED = "REMOVED"
    OVER_BUDGET = "OVER BUDGET"
    NOT_JUDGED = "NOT JUDGED"


_ALWAYS_BAD = {
    GateVerdict.SIMULATED_SLOWER,
    GateVerdict.MEASURED_SLOWER,
    GateVerdict.BROKEN,
    GateVerdict.INCORRECT,
    GateVerdict.OVER_BUDGET,
}

_FASTER = {GateVerdict.SIMULATED_FASTER, GateVerdict.MEASURED_FASTER}

# Figure → growth that counts as worse, as a share; 0: any. Registers, shared memory and code size
# only have a verdict if the settings define one, because their cost shows in other figures.
COUNTED: Final[Mapping[str, float]] = MappingProxyType(
    {
        "spill_bytes": 0.0,
        "local_sectors": 0.0,
        "ctas_per_sm": 0.0,
        "conflicts": 0.01,  # as a share of the needed wavefronts
        "sectors": 0.01,
        "instructions": 0.02,
    }
)
LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "simulated_us": "simulated time",
        "registers": "registers per thread",
        "spill_bytes": "spills, bytes per thread",
        "smem_bytes": "shared memory per CTA, bytes",
        "ctas_per_sm": "CTAs per SM",
        "instructions": "warp instructions",
        "conflicts": "wavefronts of bank conflicts",
        "sectors": "global sectors",
        "local_sectors": "local sectors (spills, stack)",
        "code_bytes": "code, bytes",
    }
)
_SPILLS = ("spill_bytes", "local_sectors")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The least significant differences, as shares."""

    counted: Mapping[str, float] = field(default_factory=lambda: COUNTED)
    simulated: float = field(default_factory=lambda: default_threshold().share)


@dataclass(frozen=True, slots=True)
class Finding(Stored):
    """One verdict. `is_regression` decides the exit code."""

    verdict: GateVerdict
    what: str  # a sentence, or `warp instructions 1,024 → 2,048 (+100 %)`
    is_regression: bool


def finding(verdict: GateVerdict, what: str) -> Finding:
    """Return a finding whose verdict determines whether it is a regression."""
    return Finding(verdict, what, verdict in _ALWAYS_BAD)


def measured_finding(comparison: Comparison | str) -> Finding:
    """Return the finding on two kernels timed side by side; a sentence says why they were not
    timed."""
    if isinstance(comparison, str):
        return finding(GateVerdict.NOT_JUDGED, comparison)
    verdict = {
        Verdict.FASTER: GateVerdict.MEASURED_FASTER,
        Verdict.SLOWER: GateVerdict.MEASURED_SLOWER,
        Verdict.SAME: GateVerdict.MEASURED_SAME,
        Verdict.UNDECIDED: GateVerdict.UNDECIDED,
    }[comparison.verdict]
    return finding(verdict, f"measured: {comparison.reason}")


def compare_answers(
    before: Answer, after: Answer, thresholds: Thresholds, measured: Finding | None = None
) -> tuple[Finding, ...]:
    """Return the findings on one problem and GPU, regressions first.

    Args:
        measured: the verdict on measured times, which replaces that on simulated ones.

    Returns:
        The findings; empty only if neither side supports the problem.
    """
    if after.fault:
        if before.refused and after.refused:
            return ()  # neither side supports the problem
        if before.fault and not before.refused:
            return (finding(GateVerdict.BROKEN, f"{after.fault} It did not work before, either."),)
        return (finding(GateVerdict.BROKEN, after.fault),)
    if before.fault:
        return (finding(GateVerdict.FIXED, f"Before: {before.fault}"),)
    if before.code and before.code == after.code:
        return (finding(GateVerdict.SAME_CODE, "The machine code is bit-equal."),)
    obstacle = after.obstacle or before.obstacle
    if obstacle and not (after.figures and before.figures):
        return (finding(GateVerdict.NOT_JUDGED, obstacle),)
    assert before.figures is not None  # neither fault nor obstacle
    assert after.figures is not None
    findings = compare_figures(before.figures, after.figures, thresholds, measured)
    if measured is not None:
        return findings
    if obstacle and not any(f.is_regression for f in findings):
        findings = (*findings, finding(GateVerdict.NOT_JUDGED, obstacle))
    return findings or (
        finding(GateVerdict.UNDECIDED, _undecided(before.figures, after.figures, thresholds)),
    )


def compare_figures(
    before: Figures, after: Figures, thresholds: Thresholds, measured: Finding | None = None
) -> tuple[Finding, ...]:
    """Return findings on worse figures, then on better ones, beyond their thresholds.

    Worse counts are not a regression if the kernel is simulated or measured faster; worse spills
    always are.
    """
    time = measured or simulated_finding(
        before.simulated_us, after.simulated_us, thresholds.simulated
    )
    is_faster = time is not None and time.verdict in _FASTER
    findings = [time] if time is not None else []
    for name, limit in thresholds.counted.items():
        first, second = getattr(before, name), getattr(after, name)
        if first is None or second is None or first == second:
            continue
        scale = (before.wavefronts or 0) - (before.conflicts or 0) if name == "conflicts" else first
        grown = second - first if name != "ctas_per_sm" else first - second
        if abs(grown) <= limit * max(scale, 0):
            continue
        worse = grown > 0
        verdict = GateVerdict.COUNTED_WORSE if worse else GateVerdict.COUNTED_BETTER
        what = describe_change(name, first, second)
        if worse and is_faster and name not in _SPILLS:
            what += ", but the kernel is faster"
        findings.append(Finding(verdict, what, worse and (not is_faster or name in _SPILLS)))
    return tuple(sorted(findings, key=lambda f: not f.is_regression))


def simulated_finding(
    before_us: float | None, after_us: float | None, threshold: float
) -> Finding | None:
    """Return the finding on two simulated times of one GPU; None if they are too close."""
    if before_us is None or after_us is None:
        return None
    apart = math.log(after_us / before_us)
    if abs(apart) < math.log1p(threshold):
        return None
    slower = apart > 0
    verdict = GateVerdict.SIMULATED_SLOWER if slower else GateVerdict.SIMULATED_FASTER
    return Finding(verdict, describe_change("simulated_us", before_us, after_us), slower)


def describe_change(name: str, before: float, after: float) -> str:
    """Return `warp instructions 1,024 → 2,048 (+100 %)`."""
    first, second = figure_text(name, before), figure_text(name, after)
    share = f" ({after / before - 1:+.1%})" if before else ""
    return f"{LABELS[name]} {first} → {second}{share}"


def figure_text(name: str, value: float | None) -> str:
    """Return a figure, formatted for tables."""
    if value is None:
        return "–"
    return format_us(value) if name == "simulated_us" else f"{round(value):,}"


def _undecided(before: Figures, after: Figures, thresholds: Thresholds) -> str:
    first, second = before.simulated_us, after.simulated_us
    if first is None or second is None:
        return "The machine code differs, but no count is worse or better."
    return (
        f"The machine code differs; simulated {format_us(first)} → {format_us(second)} "
        f"({second / first - 1:+.1%}) is less than the {thresholds.simulated:.0%} from which "
        "simulation names the faster version reliably."
    )
