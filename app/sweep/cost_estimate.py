"""Estimate a sweep before it starts: its points, those excluded by constraints, and its time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from app.shared import known_times
from app.shared.machine import local_gpu
from engine.attention.config import all_variants
from engine.base.schema import decode, encode
from engine.machine_code.native_library import are_libraries_built
from engine.search.space import SweepPoint
from engine.search.sweep.estimate import Estimator, TimeLeft, learned, load, work_ahead
from engine.search.sweep.journal import SweepSpec
from kernels.variant import Variant

_MAX_ENUMERATED = 20_000  # with more points, constraints are checked when the sweep starts


@dataclass(frozen=True, slots=True)
class SweepEstimate:
    """`excluded` is None if there are too many points to check each of them."""

    points: int
    excluded: int | None
    reasons: tuple[tuple[str, int], ...]  # reasons for exclusion, the most frequent first
    evaluations: int  # upper bound from constraints and budget
    time: TimeLeft


def estimate(spec: SweepSpec) -> SweepEstimate:
    """Return the points and the time of a sweep, cached because the page asks at every rerun.

    Raises:
        InvalidProblem, UnknownName: The space is invalid.
    """
    speeds = tuple(sorted(learned().items()))
    now = (speeds, round(10 * load()), are_libraries_built())
    return _estimate(json.dumps(encode(spec)), _on_gpu(spec), all_variants(), now)


def _on_gpu(spec: SweepSpec) -> bool:
    local = local_gpu()
    is_local = spec.options.gpu in (None, local.name)
    return spec.options.execute and local.spec is not None and is_local


@lru_cache(maxsize=32)
def _estimate(
    text: str,
    on_gpu: bool,
    _variants: tuple[Variant, ...],
    _now: tuple[object, ...],
) -> SweepEstimate:
    """Return the estimate of a spec. As cache keys, `_variants` changes with a kernel's
    description, and `_now` with the times of finished sweeps, the load, and what was built."""
    spec = decode(SweepSpec, json.loads(text))
    count = spec.space.count(spec.options.gpu)
    if count > _MAX_ENUMERATED:
        # Configs of one problem take about the same time: the default config represents all.
        sample = replace(spec.space, tunables={}, own_values=False)
        if sample.count() > _MAX_ENUMERATED:
            sample = replace(sample, problems=sample.problems[:: -(-count // _MAX_ENUMERATED)])
        points = sample.points(spec.options)
        share = count / max(len(points), 1)
        return _estimate_of(spec, count, None, points, share, on_gpu)
    points = spec.space.points(spec.options)
    return _estimate_of(
        spec, len(points), sum(p.why_not is not None for p in points), points, 1.0, on_gpu
    )


def _estimate_of(
    spec: SweepSpec,
    count: int,
    excluded: int | None,
    points: list[SweepPoint],
    share: float,
    on_gpu: bool,
) -> SweepEstimate:
    """Return the estimate from all points or from a sample, in which each point represents
    `share` points. Compiles cached for a sample do not imply that the others are cached."""
    ahead = work_ahead(points, known_times.history()) if excluded is not None else None
    reasons = Counter(p.why_not for p in points if p.why_not is not None)
    runnable = count - (excluded or 0)
    limit, seconds = spec.budget.evaluations, spec.budget.seconds
    evaluations = runnable if limit is None else min(runnable, limit)
    part = share * evaluations / max(runnable, 1)
    return SweepEstimate(
        points=count,
        excluded=excluded,
        reasons=tuple(reasons.most_common(5)) if excluded is not None else (),
        evaluations=evaluations,
        time=Estimator(points, on_gpu, ahead).left().scaled(part, seconds),
    )
