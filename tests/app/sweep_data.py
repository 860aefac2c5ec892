"""A small sweep and made-up rows of it."""

from __future__ import annotations

from dataclasses import replace

from search_data import pass_report

from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.search.ranking import SweepRow
from engine.search.space import Space, SweepOptions
from engine.search.sweep.journal import SweepSpec


def spec(variants=("v01", "v05"), seqlens=(64, 128), **options) -> SweepSpec:
    problems = tuple(Problem(1, 1, s, 64) for s in seqlens)
    return SweepSpec(Space(variants, problems), SweepOptions(gpu="L4", execute=False, **options))


def rows_of(wanted: SweepSpec) -> list[SweepRow]:
    """Return rows with made-up predicted times, faster at lower occupancy (outliers)."""
    found = []
    for i, point in enumerate(wanted.space.points(wanted.options)):
        request = point.request
        us = 10.0 + 3 * i
        report, warps = pass_report(), min(48, 2 * (i + 1))
        latency = None if i == 1 else Latency("predicted", us, us * 0.9, us * 1.1, "made up")
        evaluation = Evaluation(
            status=Status.CRASHED if i == 1 else Status.SKIPPED,
            reason="It crashed." if i == 1 else "Not executed.",
            variant=request.variant,
            problem=request.problem,
            config=dict(request.config),
            device="L4",
            when="2026-01-01T00:00:00+00:00",
            passes=(
                replace(report, occupancy=replace(report.occupancy, active_warps_per_sm=warps)),
            ),
            latency=latency,
        )
        found.append(SweepRow.make(point, evaluation, 0.1))
    return found
