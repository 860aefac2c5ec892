"""What got worse between two evaluations, each a finding with its sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.measure.verdict import Verdict
from engine.sessions.compare.kernel_figures import KernelFigures
from engine.units import format_bytes

Kind: TypeAlias = Literal["correctness", "time", "spills", "registers", "occupancy"]

# Of the tolerance: a kernel that is right may move within it from compiler to compiler.
_LEAST_ERROR_GROWTH = 0.1
_LEAST_OCCUPANCY_LOSS = 0.005


@dataclass(frozen=True, slots=True)
class Regression:
    """One thing that got worse. `is_failure`: of correctness or time, not of resources alone."""

    kind: Kind
    sentence: str

    @property
    def is_failure(self) -> bool:
        return self.kind in ("correctness", "time")


def regressions_of(
    before: KernelFigures,
    after: KernelFigures,
    *,
    verdict: Verdict | None,
    same_kernel: bool,
    why: str,
) -> tuple[Regression, ...]:
    """What got worse, failures first.

    Args:
        same_kernel: the same variant and config. Only then are more registers a step back and not
            another design.
        why: the sentence of the verdict, or of the status.
    """
    findings = list(_correctness(before, after, why))
    if verdict is Verdict.SLOWER:
        findings.append(Regression("time", why))
    if same_kernel and before.arch == after.arch:
        findings += _resources(before, after)
    return tuple(findings)


def is_broken(before: KernelFigures, after: KernelFigures) -> bool:
    """It passed and does not any more."""
    return before.status == "PASSED" and after.status not in ("PASSED", "SKIPPED")


def _correctness(before: KernelFigures, after: KernelFigures, why: str) -> Iterable[Regression]:
    first, second = before.error_share, after.error_share
    if is_broken(before, after):
        yield Regression("correctness", f"It passed before. {why}")
    elif first is not None and second is not None and second > first + _LEAST_ERROR_GROWTH:
        yield Regression(
            "correctness",
            f"The largest error takes {second:.0%} of the tolerance, {first:.0%} before.",
        )


def _resources(before: KernelFigures, after: KernelFigures) -> Iterable[Regression]:
    if _grew(before.spill_bytes, after.spill_bytes):
        yield Regression(
            "spills",
            f"It spills {format_bytes(after.spill_bytes or 0)}, "
            f"{format_bytes(before.spill_bytes or 0)} before.",
        )
    if _grew(before.registers, after.registers):
        yield Regression(
            "registers",
            f"It takes {after.registers} registers per thread, {before.registers} before.",
        )
    first, second = before.occupancy, after.occupancy
    if first is not None and second is not None and second < first - _LEAST_OCCUPANCY_LOSS:
        yield Regression(
            "occupancy",
            f"Occupancy is {second:.0%}, {first:.0%} before; it is limited by {after.limiter}.",
        )


def _grew(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before
