"""Budgets: what a kernel may cost on one problem and GPU, whatever it cost before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.gate.figures import Figures
from engine.gate.verdicts import LABELS, Finding, GateVerdict, figure_text, finding
from engine.problem import Problem

LIMITS = tuple(name for name in LABELS if name != "ctas_per_sm")  # where less is better


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `limits` of each figure."""

    kernel: str
    gpu: str
    problem: Problem
    limits: Mapping[str, float]

    @property
    def label(self) -> str:
        return f"{self.kernel} on {self.gpu} at {self.problem.label()}"


def exceeded(budget: Budget, figures: Figures) -> tuple[Finding, ...]:
    """What the figures take more of than they may."""
    findings = []
    for name, limit in budget.limits.items():
        value = getattr(figures, name)
        if value is None:
            sentence = f"{LABELS[name]} is not known, so that its budget is not judged"
            findings.append(finding(GateVerdict.NOT_JUDGED, sentence))
        elif value > limit:
            what = f"{LABELS[name]} {figure_text(name, value)}, its budget is "
            findings.append(finding(GateVerdict.OVER_BUDGET, what + figure_text(name, limit)))
    return tuple(findings)
