"""How long a sweep will take: by a default at first, then by its own finished evaluations."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from engine.base.files import cache_root, read_entry, write_entry
from engine.pipeline.request import Effort, EvaluationRequest
from engine.search.space import SweepPoint

if TYPE_CHECKING:
    pass


# Seconds, from runs on 2 cores of a desktop CPU. The first finished points correct them.
_COMPILE_S = 0.2  # NVRTC takes 0.05 to 0.3 s a kernel
_HOST_COMPILE_S = 0.6  # the same kernel for the CPU
_CHECK_S = 0.1  # reference, SDPA and the comparison of a small problem
_CPU_FLOPS_PER_S = 1.1e9  # the CPU backend's fast build: v01 at S=512, D=64 in 60 ms
_CHECK_BUILD_SLOWDOWN = 20.0
_REFERENCE_FLOPS_PER_S = 2e10
_RUNS = 2  # every kernel is executed twice and compared with itself
# Warm-up and rounds: of the kernel alone, or of warm, cold and end to end beside the baselines.
_MEASURE_S: Mapping[Effort, float] = {"quick": 1.0, "full": 12.0}

_LEARNED_FROM = 3  # evaluations of a sweep, at least
_RECENT = 100  # evaluations that say how fast this machine is


def prior_s(request: EvaluationRequest, on_gpu: bool) -> float:
    """Seconds one evaluation may take, when nothing was measured yet."""
    seconds = _COMPILE_S
    if not request.execute:
        return seconds
    flops = request.problem.flops
    seconds += _CHECK_S + flops / _REFERENCE_FLOPS_PER_S
    if on_gpu:
        return seconds + _MEASURE_S[request.effort]
    slowdown = _CHECK_BUILD_SLOWDOWN if request.check else 1.0
    return seconds + _HOST_COMPILE_S + _RUNS * slowdown * flops / _CPU_FLOPS_PER_S


class Estimator:
    """The remaining time of a sweep; each finished point improves the estimate.

    The prior knows which points are dear beside which; how fast this machine is comes from the
    median of actual over prior, before the first point that of earlier sweeps of the kind.
    """

    def __init__(self, points: Iterable[SweepPoint], on_gpu: bool) -> None:
        points = [p for p in points if p.why_not is None]
        self._priors = {p.id: prior_s(p.request, on_gpu) for p in points}
        self._left_s = sum(self._priors.values())
        self._ratios: deque[float] = deque(maxlen=_RECENT)
        self._kind = _kind(points[0].request, on_gpu) if points else ""
        self._before = learned().get(self._kind, 1.0)  # of earlier sweeps

    @property
    def is_measured(self) -> bool:
        """Whether any evaluation has been timed."""
        return bool(self._ratios)

    @property
    def points_left(self) -> int:
        return len(self._priors)

    def finish(self, point: SweepPoint, elapsed_s: float) -> None:
        """One point is done, and this is how long it took."""
        prior = self._priors.pop(point.id, 0.0)
        self._left_s -= prior
        if prior > 0 and elapsed_s > 0:
            self._ratios.append(elapsed_s / prior)

    def left_s(self) -> float:
        """Seconds for all points that are not finished, one after another."""
        return self._left_s * (median(self._ratios) if self._ratios else self._before)

    def learn(self) -> None:
        """Keep how fast this machine was, for the estimate before the next sweep."""
        if len(self._ratios) >= _LEARNED_FROM:
            kept = {**learned(), self._kind: median(self._ratios)}
            write_entry(_learned_path(), json.dumps(kept).encode())


def learned() -> dict[str, float]:
    """What earlier sweeps took over what the prior says, by kind of evaluation."""
    payload = read_entry(_learned_path())
    return {} if payload is None else json.loads(payload)


def _learned_path() -> Path:
    return cache_root() / "sweeps" / "speed.json"


def _kind(request: EvaluationRequest, on_gpu: bool) -> str:
    where = "gpu" if on_gpu else request.backend
    return f"{where} {request.effort}" if request.execute else "not executed"
