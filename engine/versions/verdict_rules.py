"""The rules for verdicts on two sets of figures of one kernel, before and after.

Counted figures are exact, so any difference is one; simulated times have a verdict where they are
further apart than what recorded pairs of neighbours need (`ranking`), and measured ones by the
rule of the sampler (`engine.measure.statistics`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from engine.base.schema import Stored
from engine.base.units import format_us
from engine.measure.statistics import Comparison, Verdict
from engine.versions.figures import Answer, Figures

# How far apart two simulated times of one kernel must be to say which version is faster.
#
# Read off pairs of neighbours: versions of one kernel that followed each other, measured and
# simulated on one GPU. `tests/bench/bench_sass_validation.py --pairs FILE` renews them.

_PAIRS = Path(__file__).with_name("neighbour_pairs.json")
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class NeighbourPair:
    """Two versions that followed each other on one GPU; ratios are times, after / before."""

    group: str
    before: str
    after: str
    measured: float
    simulated: float
    chosen_on: bool  # the simulation's constants were chosen with a look at one of the two

    @property
    def apart(self) -> float:
        """|ln simulated ratio|."""
        return abs(math.log(self.simulated))

    @property
    def is_right(self) -> bool:
        """The simulation names the faster one."""
        return (self.simulated < 1) == (self.measured < 1)


@dataclass(frozen=True, slots=True)
class Threshold:
    """The least difference with a verdict, and what it rests on."""

    share: float  # 0.13: times that differ by more than 13 % have a verdict
    pairs: int  # that are at least so far apart
    wrong: int  # of these; 0 as it is chosen
    error_bound: float  # of the share of wrong verdicts, at most so much with 95 % confidence

    def __str__(self) -> str:
        return (
            f"Simulated times that differ by {self.share:.0%} or more are in the right order in "
            f"{self.pairs - self.wrong} of {self.pairs} recorded pairs of neighbours (wrong in at "
            f"most {self.error_bound:.0%} with {_CONFIDENCE:.0%} confidence)."
        )


def order_of(us: float, other_us: float) -> str:
    """Whether the order of two simulated times of one GPU holds.

    Returns:
        "✓ faster" or "✓ slower" where they are as far apart as `default_threshold` asks, else
        "? too near".
    """
    if abs(math.log(us / other_us)) < math.log1p(default_threshold().share):
        return "? too near"
    return "✓ faster" if us < other_us else "✓ slower"


@cache
def neighbour_pairs() -> tuple[NeighbourPair, ...]:
    """The recorded pairs."""
    return tuple(NeighbourPair(**raw) for raw in json.loads(_PAIRS.read_text(encoding="utf-8")))


def threshold_of(pairs: Sequence[NeighbourPair]) -> Threshold:
    """The least simulated difference from which on all pairs are named rightly.

    Pairs that the simulation was made to fit are left out. The bound is Clopper and Pearson's for
    no failure in n: 1 - 0.05^(1/n).

    Raises:
        ValueError: there is no pair beyond the furthest one that is named wrongly.
    """
    counted = sorted((p for p in pairs if not p.chosen_on), key=lambda p: p.apart)
    wrong = max((p.apart for p in counted if not p.is_right), default=0.0)
    beyond = [p for p in counted if p.apart > wrong]
    if not beyond:
        raise ValueError("every recorded pair is nearer than one that is named wrongly")
    share = math.expm1(beyond[0].apart)
    return Threshold(share, len(beyond), 0, 1 - (1 - _CONFIDENCE) ** (1 / len(beyond)))


@cache
def default_threshold() -> Threshold:
    """The threshold that the recorded pairs of neighbouring commits give."""
    return threshold_of(neighbour_pairs())


class GateVerdict(StrEnum):
    """The verdict on one kernel on one problem and GPU."""

    SAME_CODE = "SAME CODE"  # bit-equal machine code and launch: nothing to compare
    UNDECIDED = "UNDECIDED"  # other code, and no difference that is known to matter
    COUNTED_BETTER = "COUNTED BETTER"
    COUNTED_WORSE = "COUNTED WORSE"
    SIMULATED_FASTER = "SIMULATED FASTER"
    SIMULATED_SLOWER = "SIMULATED SLOWER"
    MEASURED_FASTER = "MEASURED FASTER"
    MEASURED_SLOWER = "MEASURED SLOWER"
    MEASURED_SAME = "MEASURED SAME"
    BROKEN = "BROKEN"  # it does not compile, or refuses what it took
    INCORRECT = "INCORRECT"
    FIXED = "FIXED"  # it did not compile, or refused the problem
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

# Figure → the growth that is worse, as a share; 0: any. Registers, shared memory and size of the
# code have a verdict only where the settings give them one: what they cost is in the others.
COUNTED: Final[Mapping[str, float]] = MappingProxyType(
    {
        "spill_bytes": 0.0,
        "local_sectors": 0.0,
        "ctas_per_sm": 0.0,
        "conflicts": 0.01,  # of the wavefronts that are needed
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
    """The least differences that count, as shares."""

    counted: Mapping[str, float] = field(default_factory=lambda: COUNTED)
    simulated: float = field(default_factory=lambda: default_threshold().share)


@dataclass(frozen=True, slots=True)
class Finding(Stored):
    """One verdict. `is_regression` decides the exit code."""

    verdict: GateVerdict
    what: str  # a sentence, or `warp instructions 1,024 → 2,048 (+100 %)`
    is_regression: bool


def finding(verdict: GateVerdict, what: str) -> Finding:
    """A verdict that is a regression or not by itself."""
    return Finding(verdict, what, verdict in _ALWAYS_BAD)


def measured_finding(comparison: Comparison | str) -> Finding:
    """The verdict on two kernels timed side by side; a sentence is why they were not."""
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
    """The verdicts on one problem and GPU; regressions first.

    Args:
        measured: the verdict on times that were taken, which stands for that on simulated ones.

    Returns:
        None at all only where neither side takes the problem.
    """
    if after.fault:
        if before.refused and after.refused:
            return ()  # neither side takes the problem
        if before.fault and not before.refused:
            return (finding(GateVerdict.BROKEN, f"{after.fault} It did not work before either."),)
        return (finding(GateVerdict.BROKEN, after.fault),)
    if before.fault:
        return (finding(GateVerdict.FIXED, f"Before: {before.fault}"),)
    if before.code and before.code == after.code:
        return (finding(GateVerdict.SAME_CODE, "The machine code is bit-equal."),)
    obstacle = after.obstacle or before.obstacle
    if obstacle and not (after.figures and before.figures):
        return (finding(GateVerdict.NOT_JUDGED, obstacle),)
    assert before.figures is not None  # there is neither a fault nor an obstacle
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
    """Figures that are worse, then figures that are better, beyond their thresholds.

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
            what += ", as the price of the time"
        findings.append(Finding(verdict, what, worse and (not is_faster or name in _SPILLS)))
    return tuple(sorted(findings, key=lambda f: not f.is_regression))


def simulated_finding(
    before_us: float | None, after_us: float | None, threshold: float
) -> Finding | None:
    """The verdict on two simulated times of one GPU; None where they are too near for one."""
    if before_us is None or after_us is None:
        return None
    apart = math.log(after_us / before_us)
    if abs(apart) < math.log1p(threshold):
        return None
    slower = apart > 0
    verdict = GateVerdict.SIMULATED_SLOWER if slower else GateVerdict.SIMULATED_FASTER
    return Finding(verdict, describe_change("simulated_us", before_us, after_us), slower)


def describe_change(name: str, before: float, after: float) -> str:
    """`warp instructions 1,024 → 2,048 (+100 %)`."""
    first, second = figure_text(name, before), figure_text(name, after)
    share = f" ({after / before - 1:+.1%})" if before else ""
    return f"{LABELS[name]} {first} → {second}{share}"


def figure_text(name: str, value: float | None) -> str:
    """One figure as tables show it."""
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
