"""Estimate how long a sweep will take, from defaults at first, then from its finished evaluations.

An evaluation has three stages: compile, check, simulate. For each stage the estimator learns the
ratio of actual to default time on this machine, and the share of points that need the stage at all:
work that an earlier run has cached takes no time. Ratios are stored as on an idle machine; an
estimate applies the present load.
"""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from engine.base.errors import AttuneError
from engine.base.files import cache_root, read_entry, write_entry
from engine.history import History
from engine.machine_code.native_library import are_libraries_built
from engine.pipeline.request import Effort, EvaluationRequest, resolve
from engine.search.space import SweepPoint

STAGES: Final = ("compile", "check", "simulate")

# Seconds of CPU time on 2 cores of a desktop CPU; the first finished points correct them. On two
# threads of one server core, 12 rungs took 1.9 to 5.6 s a point where these defaults give 3.0,
# without the libraries that are built once.
_COMPILE_S = 0.2  # NVRTC takes 0.05 to 0.3 s a kernel
_SIMULATE_S = 2.0  # of one SM: 0.3 to 8 s by kernel, none where it was simulated before
_HOST_COMPILE_S = 0.6  # the same kernel for the CPU
_CHECK_S = 0.1  # reference, SDPA and the comparison of a small problem
_CPU_FLOPS_PER_S = 1.1e9  # the CPU backend's fast build: v01 at S=512, D=64 in 60 ms
_CHECK_BUILD_SLOWDOWN = 20.0
_REFERENCE_FLOPS_PER_S = 2e10
_LIBRARIES_S = 25.0  # the simulator's own libraries, once on a machine
_RUNS = 2  # every kernel is executed twice and compared with itself
# Warm-up and rounds: of the kernel alone, or of warm, cold and end to end beside the baselines.
_MEASURE_S: Mapping[Effort, float] = {"quick": 1.0, "full": 12.0}

_MIN_EVALUATIONS = 3  # of a sweep, to learn a ratio from them
_MAX_EVALUATIONS = 100  # the newest ones, used for the ratios
_NEWEST = 10  # the newest weigh as much as all together, because the rate may change during a sweep
_TRIMMED_SHARE = 0.2  # cut from each end of the sorted ratios, to ignore outliers
_TRIMMED_SPREAD = 2.0  # a normal spread is about this many times that of its trimmed values
_DEFAULT_ERROR = 2.0  # factor by which a default may be too long or too short
_MIN_ERROR = 1.1
_SPREAD = 1.65  # standard errors: a 90 % range
_CACHED_BELOW = 0.05  # a stage that takes less than this share of its default found cached work
_CACHED_RATIO = 0.01  # of the default, for cached work before any was seen
_SAMPLE_POINTS = 12  # looked up before a sweep
_SAMPLE_WEIGHT = 2  # the sample has the weight of this many finished points
_RELATIVE_SPREAD = 0.7  # of the evaluations' times, until two have finished


def prior_s(request: EvaluationRequest, on_gpu: bool) -> dict[str, float]:
    """Return default seconds of each of `STAGES` of one evaluation."""
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
    """Seconds for the remaining points, one after another, with their likely range."""

    expected_s: float
    low_s: float
    high_s: float

    def scaled(self, factor: float, at_most_s: float | None = None) -> TimeLeft:
        """Return the times multiplied by `factor`, each at most `at_most_s`."""
        most = float("inf") if at_most_s is None else at_most_s
        figures = (self.expected_s, self.low_s, self.high_s)
        return TimeLeft(*(min(figure * factor, most) for figure in figures))


def load() -> float:
    """Return the slow-down by the machine's load: 1 if a core is free."""
    try:
        waiting = os.getloadavg()[0]
    except OSError:
        return 1.0
    return max(1.0, waiting / (os.cpu_count() or 1))


def work_ahead(points: Sequence[SweepPoint], history: History) -> dict[str, float]:
    """Return the shares of points that must be compiled and simulated, estimated from a dozen
    points."""
    runnable = [p for p in points if p.why_not is None]
    sample = runnable[:: -(-len(runnable) // _SAMPLE_POINTS)] if runnable else []
    counts = {"compile": 0, "simulate": 0}
    for point in sample:
        looked = history.doing("look up")
        with suppress(AttuneError):  # its evaluation reports the error
            kernel = resolve(point.request, looked).kernel
            if kernel is not None:
                looked.estimate(kernel, point.request.problem)
        needs = {work for _, _, work in looked.missing}
        counts["compile"] += "compile" in needs
        counts["simulate"] += bool(needs)
    # Problems of one kernel share its compile and simulation.
    first = len({_kernel_of(p.request) for p in runnable}) / max(1, len(runnable))
    return {stage: first * count / max(1, len(sample)) for stage, count in counts.items()}


def _kernel_of(request: EvaluationRequest) -> tuple[object, ...]:
    """Return a key of what is compiled and simulated once for all batches, heads and lengths."""
    p = request.problem
    like = (p.head_dim, p.head_dim_v, p.dtype, p.causal, p.direction, tuple(p.features))
    return request.variant, tuple(sorted(request.config.items())), request.gpu, like


class Estimator:
    """Estimates the remaining time of a sweep; each finished point improves the estimate.

    Defaults give the relative cost of points; the mean ratio of actual to default time, by stage,
    gives the speed of this machine. Until a point has finished, the ratios of earlier sweeps of the
    same kind are used, with a range as wide as their errors were.

    Args:
        ahead: result of `work_ahead`; by default every point is compiled and simulated.
        load: slow-down of an evaluation by the machine's load.
        is_built: whether the simulator's libraries are built.
    """

    def __init__(
        self,
        points: Iterable[SweepPoint],
        on_gpu: bool,
        ahead: Mapping[str, float] | None = None,
        *,
        load: Callable[[], float] = load,
        is_built: Callable[[], bool] = are_libraries_built,
    ) -> None:
        self._load, self._is_built = load, is_built
        points = [p for p in points if p.why_not is None]
        self._priors = {p.id: prior_s(p.request, on_gpu) for p in points}
        self._left_s = {s: sum(prior[s] for prior in self._priors.values()) for s in STAGES}
        # Ratio of actual to default time, and whether the stage had work to do.
        self._seen: dict[str, deque[tuple[float, bool]]] = {
            s: deque(maxlen=_MAX_EVALUATIONS) for s in STAGES
        }
        self._ahead = dict.fromkeys(STAGES, 1.0) | dict(ahead or {})
        # The first point of a kernel compiles and simulates it for all its other points.
        self._kernels = {p.id: _kernel_of(p.request) for p in points} if ahead is not None else {}
        self._new = set(self._kernels.values())
        self._new_share = len(self._new) / max(1, len(points))
        self._counts = Counter[tuple[str, bool, bool]]()  # points: stage, kernel is new, to do
        self._kind = _kind(points[0].request, on_gpu) if points else ""
        self._before = learned()  # of earlier sweeps
        self._is_measured = False

    @property
    def is_measured(self) -> bool:
        """Return True if any evaluation has been timed."""
        return self._is_measured

    @property
    def points_left(self) -> int:
        """Return the number of unfinished points."""
        return len(self._priors)

    def finish(
        self, point: SweepPoint, elapsed_s: float, spent_s: Mapping[str, float] | None = None
    ) -> None:
        """Record a finished point.

        Args:
            elapsed_s: its total time.
            spent_s: seconds of each known stage; the check took the rest. None: stages are unknown,
                as for a point of an earlier run, and all get the same ratio.
        """
        prior = self._priors.pop(point.id, None)
        if prior is None:
            return
        kernel = self._kernels.get(point.id)
        is_new = kernel in self._new
        self._new.discard(kernel)
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
        slowed = self._load()
        for stage, seconds in took_s.items():
            if prior[stage] > 0:
                ratio = seconds / prior[stage]
                to_do = stage == "check" or spent_s is None or ratio >= _CACHED_BELOW
                self._seen[stage].append((ratio / slowed, to_do))
                self._counts[stage, is_new, to_do] += 1

    def left(self) -> TimeLeft:
        """Return the time for all unfinished points at the present load."""
        slowed = self._load()
        by_load = sqrt(slowed)  # the load may rise or fall
        expected_s = low_s = high_s = variance = drift_s = 0.0
        for stage in STAGES:
            left_s, share = max(0.0, self._left_s[stage]) * slowed, self._share(stage)
            overall, newest = self._ratios(stage)
            ratio = (overall + newest) / 2
            off = _combined(self._error(stage), by_load)
            cached_s = left_s * (1 - share) * self._cached_ratio(stage)
            expected_s += left_s * share * ratio + cached_s
            low_s += left_s * share * ratio / off + cached_s / by_load
            high_s += left_s * share * ratio * off + cached_s * by_load
            drift_s += left_s * share * abs(overall - newest) / 2
            variance += left_s**2 * self._variance(stage, share, ratio)
        if any(len(_trimmed(r for r, _ in seen)) > 1 for seen in self._seen.values()):
            margin_s = _SPREAD * sqrt(variance) + drift_s
            low_s = max(0.0, min(expected_s - margin_s, expected_s / _MIN_ERROR)) / by_load
            high_s = max(expected_s + margin_s, expected_s * _MIN_ERROR) * by_load
        elif self._waits_for_libraries():
            libraries_s, off = _LIBRARIES_S * slowed, _combined(_DEFAULT_ERROR, by_load)
            expected_s += libraries_s
            low_s, high_s = low_s + libraries_s / off, high_s + libraries_s * off
        return TimeLeft(expected_s, low_s, high_s)

    def learn(self) -> None:
        """Store this machine's speed for the initial estimate of the next sweep."""
        kept = {}
        for stage in STAGES:
            if len(worked := self._worked(stage)) < _MIN_EVALUATIONS:
                continue
            ratio, name = fmean(_trimmed(worked)), f"{self._kind}, {stage}"
            if (old := self._before.get(name)) is None:
                kept[name] = (ratio, log(_DEFAULT_ERROR) / 2)
            else:  # the mean of both, as sweeps differ
                off = abs(log(ratio / old[0]))
                kept[name] = (sqrt(ratio * old[0]), (old[1] + off) / 2)
        if kept:
            write_entry(_learned_path(), json.dumps({**learned(), **kept}).encode())

    def _waits_for_libraries(self) -> bool:
        """True if the first simulation must build the simulator's libraries."""
        if self._seen["simulate"] or self._left_s["simulate"] * self._share("simulate") == 0:
            return False
        return not self._is_built()

    def _worked(self, stage: str) -> list[float]:
        """Return the ratios of actual to default time of points at which the stage had work."""
        return [ratio for ratio, to_do in self._seen[stage] if to_do and ratio > 0]

    def _share(self, stage: str) -> float:
        """Return the share of the remaining points at which the stage has work to do."""
        if stage == "check":
            return 1.0
        if self._kernels:
            new = len(self._new) / max(1, self.points_left)
            of_new = min(1.0, self._ahead[stage] / max(self._new_share, 1e-9))
            return min(
                1.0,
                new * self._share_of(stage, True, of_new)
                + (1 - new) * self._share_of(stage, False, 0.0),
            )
        worked, seen = len(self._worked(stage)), len(self._seen[stage])
        return (worked + _SAMPLE_WEIGHT * self._ahead[stage]) / (seen + _SAMPLE_WEIGHT)

    def _share_of(self, stage: str, is_new: bool, before: float) -> float:
        """Return that share of points with (or without) a new kernel; `before` any has finished."""
        to_do, done = (self._counts[stage, is_new, x] for x in (True, False))
        return (to_do + _SAMPLE_WEIGHT * before) / (to_do + done + _SAMPLE_WEIGHT)

    def _variance(self, stage: str, share: float, ratio: float) -> float:
        """Return the variance of the mean ratio of remaining points, estimation error included."""
        seen, usual = len(self._seen[stage]), _trimmed(self._worked(stage))
        differ = (
            _TRIMMED_SPREAD * float(np.std(usual, ddof=1))
            if len(usual) > 1
            else _RELATIVE_SPREAD * ratio
        )
        of_one = share * differ**2
        if stage != "check":  # both kinds of points may still occur
            count = seen + _SAMPLE_WEIGHT
            to_do = (share * count + 0.5) / (count + 1)
            of_one += to_do * (1 - to_do) * ratio**2
        return of_one * (1 / max(1, seen) + 1 / max(1, self.points_left))

    def _ratios(self, stage: str) -> tuple[float, float]:
        """Return the mean ratio of all finished points and that of the newest."""
        if worked := self._worked(stage):
            return fmean(_trimmed(worked)), fmean(_trimmed(worked[-_NEWEST:]))
        ratio, _ = self._before.get(f"{self._kind}, {stage}", (1.0, 0.0))
        return ratio, ratio

    def _cached_ratio(self, stage: str) -> float:
        """Return the ratio of a stage whose work is cached."""
        found = [ratio for ratio, to_do in self._seen[stage] if not to_do]
        return fmean(found) if found else _CACHED_RATIO

    def _error(self, stage: str) -> float:
        """Return the factor by which the estimate may be off before enough points have finished."""
        off = self._before.get(f"{self._kind}, {stage}")
        if off is not None:
            return min(max(exp(_SPREAD * off[1]), 1.3), _DEFAULT_ERROR**2)
        return sqrt(_DEFAULT_ERROR) if self._worked(stage) else _DEFAULT_ERROR


def _combined(*factors: float) -> float:
    """Combine independent error factors into one."""
    return exp(sqrt(sum(log(factor) ** 2 for factor in factors)))


def _trimmed(ratios: Iterable[float]) -> list[float]:
    """Return the sorted ratios without the smallest and largest."""
    ordered = sorted(ratios)
    cut = max(int(_TRIMMED_SHARE * len(ordered)), int(len(ordered) >= _MIN_EVALUATIONS))
    return ordered[cut : len(ordered) - cut]


def learned() -> dict[str, tuple[float, float]]:
    """Return the ratio of earlier sweeps by kind and stage, and the log of its error factor."""
    payload = read_entry(_learned_path())
    return {} if payload is None else {n: (r, off) for n, (r, off) in json.loads(payload).items()}


def _learned_path() -> Path:
    return cache_root() / "sweeps" / "speeds.json"


def _kind(request: EvaluationRequest, on_gpu: bool) -> str:
    where = "gpu" if on_gpu else request.backend
    return f"{where} {request.effort}" if request.execute else "not executed"
