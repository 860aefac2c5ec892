"""How long a sweep will take: by a default at first, then by its own finished evaluations.

An evaluation compiles, checks and simulates. How much longer each of the three takes here than the
default says is learned apart: what was compiled or simulated before takes no time, and a check
grows with the problem where they do not.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

from engine.base.files import cache_root, read_entry, write_entry
from engine.pipeline.request import Effort, EvaluationRequest
from engine.search.space import SweepPoint

STAGES: Final = ("compile", "check", "simulate")

# Seconds, from runs on 2 cores of a desktop CPU. The first finished points correct them.
_COMPILE_S = 0.2  # NVRTC takes 0.05 to 0.3 s a kernel
_SIMULATE_S = 2.0  # of one SM: 0.3 to 8 s by kernel, none where it was simulated before
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
_LEFT_OUT = 0.2  # of the shortest and of the longest, so that odd ones do not decide
_UNSURE = 3.0  # a default may be so much too long or too short
_LEAST_UNSURE = 1.1
_SPREAD = 1.65  # standard errors: nine sweeps of ten end within the range


def prior_s(request: EvaluationRequest, on_gpu: bool) -> dict[str, float]:
    """Seconds that each of `STAGES` of one evaluation may take, when nothing was measured yet."""
    check_s = 0.0
    if request.execute:
        flops = request.problem.flops
        check_s = _CHECK_S + flops / _REFERENCE_FLOPS_PER_S
        if on_gpu:
            check_s += _MEASURE_S[request.effort]
        else:
            slowdown = _CHECK_BUILD_SLOWDOWN if request.check else 1.0
            check_s += _HOST_COMPILE_S + _RUNS * slowdown * flops / _CPU_FLOPS_PER_S
    return {"compile": _COMPILE_S, "check": check_s, "simulate": _SIMULATE_S}


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds that the remaining points take one after another, with their likely range."""

    expected_s: float
    low_s: float
    high_s: float

    def scaled(self, factor: float, at_most_s: float | None = None) -> TimeLeft:
        """`factor` times as long, each figure at most `at_most_s`."""
        most = float("inf") if at_most_s is None else at_most_s
        figures = (self.expected_s, self.low_s, self.high_s)
        return TimeLeft(*(min(figure * factor, most) for figure in figures))


class Estimator:
    """The remaining time of a sweep; each finished point improves the estimate.

    The default knows which points are dear beside which; how fast this machine is comes from the
    mean of actual over default, by stage; before the first point from that of earlier sweeps of the
    kind.
    """

    def __init__(self, points: Iterable[SweepPoint], on_gpu: bool) -> None:
        points = [p for p in points if p.why_not is None]
        self._priors = {p.id: prior_s(p.request, on_gpu) for p in points}
        self._left_s = {s: sum(prior[s] for prior in self._priors.values()) for s in STAGES}
        self._ratios: dict[str, deque[float]] = {s: deque(maxlen=_RECENT) for s in STAGES}
        self._kind = _kind(points[0].request, on_gpu) if points else ""
        self._before = learned()  # of earlier sweeps
        self._is_measured = False

    @property
    def is_measured(self) -> bool:
        """Whether any evaluation has been timed."""
        return self._is_measured

    @property
    def points_left(self) -> int:
        return len(self._priors)

    def finish(
        self, point: SweepPoint, elapsed_s: float, spent_s: Mapping[str, float] | None = None
    ) -> None:
        """One point is done.

        Args:
            elapsed_s: how long it took in all.
            spent_s: of that the seconds that its stages took, as far as they are known; what they
                leave was the check's. None: nothing is known of stages, as of a point of an
                earlier run, and each counts as longer in the same proportion.
        """
        prior = self._priors.pop(point.id, None)
        if prior is None:
            return
        for stage in STAGES:
            self._left_s[stage] -= prior[stage]
        if elapsed_s <= 0:
            return
        self._is_measured = True
        if spent_s is None:
            in_all = elapsed_s / sum(prior.values())
            took_s = {stage: in_all * prior[stage] for stage in STAGES}
        else:
            took_s = {"check": max(0.0, elapsed_s - sum(spent_s.values())), **spent_s}
        for stage, seconds in took_s.items():
            if prior[stage] > 0:
                self._ratios[stage].append(seconds / prior[stage])

    def left(self) -> TimeLeft:
        """Time left for all points that are not finished."""
        expected_s, variance, is_guess = 0.0, 0.0, True
        for stage in STAGES:
            left_s, ratios = max(0.0, self._left_s[stage]), _usual(self._ratios[stage])
            expected_s += left_s * self._ratio(stage)
            if len(ratios) > 1:
                is_guess = False
                share = 1 / len(ratios) + 1 / max(1, self.points_left)
                variance += (left_s * stdev(ratios)) ** 2 * share
        if is_guess:
            factor = sqrt(_UNSURE) if self._is_measured or self._knows_kind() else _UNSURE
            return TimeLeft(expected_s, expected_s / factor, expected_s * factor)
        either_way_s = _SPREAD * sqrt(variance)
        return TimeLeft(
            expected_s,
            max(0.0, min(expected_s - either_way_s, expected_s / _LEAST_UNSURE)),
            max(expected_s + either_way_s, expected_s * _LEAST_UNSURE),
        )

    def learn(self) -> None:
        """Keep how fast this machine was, for the estimate before the next sweep."""
        seen = {s: ratios for s, ratios in self._ratios.items() if len(ratios) >= _LEARNED_FROM}
        if seen:
            kept = {f"{self._kind}, {s}": fmean(_usual(ratios)) for s, ratios in seen.items()}
            write_entry(_learned_path(), json.dumps({**learned(), **kept}).encode())

    def _ratio(self, stage: str) -> float:
        """Actual over default."""
        usual = _usual(self._ratios[stage])
        return fmean(usual) if usual else self._before.get(f"{self._kind}, {stage}", 1.0)

    def _knows_kind(self) -> bool:
        return any(f"{self._kind}, {stage}" in self._before for stage in STAGES)


def _usual(ratios: Iterable[float]) -> list[float]:
    """The ratios, sorted, without the largest and the smallest."""
    ordered = sorted(ratios)
    cut = max(int(_LEFT_OUT * len(ordered)), int(len(ordered) >= _LEARNED_FROM))
    return ordered[cut : len(ordered) - cut]


def learned() -> dict[str, float]:
    """What earlier sweeps took over what the default says, by kind of evaluation and stage."""
    payload = read_entry(_learned_path())
    return {} if payload is None else json.loads(payload)


def _learned_path() -> Path:
    return cache_root() / "sweeps" / "speed.json"


def _kind(request: EvaluationRequest, on_gpu: bool) -> str:
    where = "gpu" if on_gpu else request.backend
    return f"{where} {request.effort}" if request.execute else "not executed"
