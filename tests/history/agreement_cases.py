"""Requests for which all commands and pages must give the same time, and the compared figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.attention.config import find_variant
from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.cuda_source.sources import read_sources


@dataclass(frozen=True)
class Case:
    """One request, and times of its kernel in sessions: (problem, µs)."""

    name: str
    variant: str
    problem: Problem
    gpu: str
    times: tuple[tuple[Problem, float], ...] = ()
    of_this_source: bool = True
    forked: str = ""  # the rung that this own kernel is a copy of
    is_long: bool = False  # a minute: run by `pytest -m exhaustive`

    def args(self) -> list[str]:
        p = self.problem
        sizes = {"--batch": p.batch, "--heads": p.num_heads, "--seqlen": p.seqlen}
        given = [f"{name}={value}" for name, value in sizes.items()]
        return [*given, *self.rest()]

    def rest(self) -> list[str]:
        """Return the options of all fields but batch, heads and length."""
        p = self.problem
        kv = {"--seqlen-kv": p.seqlen_kv, "--heads-kv": p.num_heads_kv}
        given = [f"{name}={value}" for name, value in kv.items() if value is not None]
        return ["--head-dim", str(p.head_dim), *given, *(["--causal"] if p.causal else [])]


def evaluation_of(case: Case, problem: Problem, us: float) -> Evaluation:
    """Return a recorded time with an interval of −2 and +4 %."""
    variant = find_variant(case.variant)
    sha = read_sources(variant.source).source_sha256
    return Evaluation(
        status=Status.SKIPPED,
        reason="Recorded elsewhere.",
        variant=variant.id,
        problem=problem,
        config=variant.default_config(),
        device=case.gpu,
        when="2026-01-01T00:00:00+00:00",
        latency=Latency("recorded", us, 0.98 * us, 1.04 * us, "test data"),
        source_sha256=sha if case.of_this_source else "ab" * 32,
    )


Figures = tuple[float, float, float]


def figures(latency: Any) -> Figures:
    get = latency.get if isinstance(latency, dict) else lambda name: getattr(latency, name)
    return tuple(round(float(get(n)), 3) for n in ("median_us", "low_us", "high_us"))  # type: ignore[return-value]
