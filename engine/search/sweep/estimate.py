"""Estimate how long a sweep will take, from defaults at first, then from its finished evaluations.

An evaluation compiles, checks and simulates. How much longer each of the three takes here than the
default says is learned apart, and so is how many points have to be compiled or simulated at all:
what was before takes no time. Seconds are kept as on an idle machine; an estimate is for the load
of the moment.
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
from statistics import fmean, stdev
from typing import Final

from engine.base.errors import AttuneError
from engine.base.files import cache_root, read_entry, write_entry
from engine.history import History
from engine.machine_code.native_library import are_libraries_built
from engine.pipeline.request import Effort, EvaluationRequest, resolve
from engine.search.space import SweepPoint

STAGES: Final = ("compile", "check", "simulate")

# Seconds of CPU time, from 2 cores of a desktop CPU. The first finished points correct them.
# On another machine, two threads of one core of a server, 12 rungs took 1.9 to 5.6 s a point where
# these come to 3.0, libraries that were built once left out.
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

_LEARNED_FROM = 3  # evaluations of a sweep, at least
_RECENT = 100  # evaluations that say how fast this machine is
_NEWEST = 10  # of them count as much as all together: the rate may change while a sweep runs
_LEFT_OUT = 0.2  # of the shortest and of the longest, so that odd ones do not decide
_LEFT_OUT_SPREAD = 2.0  # a normal spread without them is half as wide
_UNSURE = 2.0  # a default may be so much too long or too short
_LEAST_UNSURE = 1.1
_SPREAD = 1.65  # standard errors: nine sweeps of ten end within the range
_DONE_BEFORE = 0.05  # of the default: who compiles or simulates in less found it done
_FOUND = 0.01  # what it takes then, as far as none was seen
_LOOKED_UP = 12  # points that are looked up before a sweep, and
_PRIOR_POINTS = 2  # how many finished ones what was found counts for
_AT_ONE_POINT = 0.7  # how far evaluations differ, of their mean, where two have yet to say it


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
    sample = runnable[:: -(-len(runnable) // _LOOKED_UP)] if runnable else []
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

    The default knows which points are dear beside which; how fast this machine is comes from the
    mean of actual over default, by stage; before the first point from that of earlier sweeps of the
    kind, whose range is as wide as they were off.

    Args:
        ahead: as `work_ahead` finds it; without it all points are compiled and simulated.
        load: by what an evaluation takes longer now than on an idle machine.
        is_built: whether a simulation waits for no compiler.
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
        # Actual over default, and whether there was something to do.
        self._seen: dict[str, deque[tuple[float, bool]]] = {
            s: deque(maxlen=_RECENT) for s in STAGES
        }
        self._ahead = dict.fromkeys(STAGES, 1.0) | dict(ahead or {})
        # The first point of a kernel compiles and simulates it, for all others that there are.
        self._kernels = {p.id: _kernel_of(p.request) for p in points} if ahead is not None else {}
        self._new = set(self._kernels.values())
        self._new_share = len(self._new) / max(1, len(points))
        self._counts = Counter[tuple[str, bool, bool]]()  # points: stage, kernel is new, to do
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
        """Record a finished point.

        Args:
            elapsed_s: how long it took in all.
            spent_s: of that the seconds that its stages took, as far as they are known; what they
                leave was the check's. None: nothing is known of stages, as of a point of an
                earlier run, and each counts as longer in the same proportion.
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
                to_do = stage == "check" or spent_s is None or ratio >= _DONE_BEFORE
                self._seen[stage].append((ratio / slowed, to_do))
                self._counts[stage, is_new, to_do] += 1

    def left(self) -> TimeLeft:
        """Return the time for all unfinished points at the present load."""
        slowed = self._load()
        by_load = sqrt(slowed)  # others may end, or more begin
        expected_s = low_s = high_s = variance = drift_s = 0.0
        for stage in STAGES:
            left_s, share = max(0.0, self._left_s[stage]) * slowed, self._share(stage)
            overall, newest = self._ratios(stage)
            ratio = (overall + newest) / 2
            off = _either(self._unsure(stage), by_load)
            found_s = left_s * (1 - share) * self._ratio_found(stage)
            expected_s += left_s * share * ratio + found_s
            low_s += left_s * share * ratio / off + found_s / by_load
            high_s += left_s * share * ratio * off + found_s * by_load
            drift_s += left_s * share * abs(overall - newest) / 2
            variance += left_s**2 * self._variance(stage, share, ratio)
        if any(len(_usual(r for r, _ in seen)) > 1 for seen in self._seen.values()):
            either_way_s = _SPREAD * sqrt(variance) + drift_s
            low_s = max(0.0, min(expected_s - either_way_s, expected_s / _LEAST_UNSURE)) / by_load
            high_s = max(expected_s + either_way_s, expected_s * _LEAST_UNSURE) * by_load
        elif self._waits_for_libraries():
            libraries_s, off = _LIBRARIES_S * slowed, _either(_UNSURE, by_load)
            expected_s += libraries_s
            low_s, high_s = low_s + libraries_s / off, high_s + libraries_s * off
        return TimeLeft(expected_s, low_s, high_s)

    def learn(self) -> None:
        """Store this machine's speed for the initial estimate of the next sweep."""
        kept = {}
        for stage in STAGES:
            if len(worked := self._worked(stage)) < _LEARNED_FROM:
                continue
            ratio, name = fmean(_usual(worked)), f"{self._kind}, {stage}"
            if (old := self._before.get(name)) is None:
                kept[name] = (ratio, log(_UNSURE) / 2)
            else:  # both count: one sweep is not like the other
                off = abs(log(ratio / old[0]))
                kept[name] = (sqrt(ratio * old[0]), (old[1] + off) / 2)
        if kept:
            write_entry(_learned_path(), json.dumps({**learned(), **kept}).encode())

    def _waits_for_libraries(self) -> bool:
        """Whether the first simulation here will build what it runs on."""
        if self._seen["simulate"] or self._left_s["simulate"] * self._share("simulate") == 0:
            return False
        return not self._is_built()

    def _worked(self, stage: str) -> list[float]:
        """Actual over default of the points at which there was something to do."""
        return [ratio for ratio, to_do in self._seen[stage] if to_do and ratio > 0]

    def _share(self, stage: str) -> float:
        """Of the points at which there is something to do."""
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
        return (worked + _PRIOR_POINTS * self._ahead[stage]) / (seen + _PRIOR_POINTS)

    def _share_of(self, stage: str, is_new: bool, before: float) -> float:
        """Of the points whose kernel is new, or is not; `before` any of them ended, so much."""
        to_do, done = (self._counts[stage, is_new, x] for x in (True, False))
        return (to_do + _PRIOR_POINTS * before) / (to_do + done + _PRIOR_POINTS)

    def _variance(self, stage: str, share: float, ratio: float) -> float:
        """Of the mean over the points left, with what is not known of it: actual over default."""
        seen, usual = len(self._seen[stage]), _usual(self._worked(stage))
        differ = _LEFT_OUT_SPREAD * stdev(usual) if len(usual) > 1 else _AT_ONE_POINT * ratio
        of_one = share * differ**2
        if stage != "check":  # a point to do, or one that is done, is never ruled out
            count = seen + _PRIOR_POINTS
            to_do = (share * count + 0.5) / (count + 1)
            of_one += to_do * (1 - to_do) * ratio**2
        return of_one * (1 / max(1, seen) + 1 / max(1, self.points_left))

    def _ratios(self, stage: str) -> tuple[float, float]:
        """Actual over default: of all finished points, and of the newest."""
        if worked := self._worked(stage):
            return fmean(_usual(worked)), fmean(_usual(worked[-_NEWEST:]))
        ratio, _ = self._before.get(f"{self._kind}, {stage}", (1.0, 0.0))
        return ratio, ratio

    def _ratio_found(self, stage: str) -> float:
        """What is left of the default where the work was done before: it is looked up."""
        found = [ratio for ratio, to_do in self._seen[stage] if not to_do]
        return fmean(found) if found else _FOUND

    def _unsure(self, stage: str) -> float:
        """How many times as long or as short it may take, before enough points have ended."""
        off = self._before.get(f"{self._kind}, {stage}")
        if off is not None:
            return min(max(exp(_SPREAD * off[1]), 1.3), _UNSURE**2)
        return sqrt(_UNSURE) if self._worked(stage) else _UNSURE


def _either(*factors: float) -> float:
    """How far off what is uncertain by each of these factors may be, where none knows of another:
    not by all of them at once."""
    return exp(sqrt(sum(log(factor) ** 2 for factor in factors)))


def _usual(ratios: Iterable[float]) -> list[float]:
    """The ratios, sorted, without the largest and the smallest."""
    ordered = sorted(ratios)
    cut = max(int(_LEFT_OUT * len(ordered)), int(len(ordered) >= _LEARNED_FROM))
    return ordered[cut : len(ordered) - cut]


def learned() -> dict[str, tuple[float, float]]:
    """What earlier sweeps took over what the default says, by kind of evaluation and stage, and how
    far they were off, as the logarithm of a factor."""
    payload = read_entry(_learned_path())
    return {} if payload is None else {n: (r, off) for n, (r, off) in json.loads(payload).items()}


def _learned_path() -> Path:
    return cache_root() / "sweeps" / "speeds.json"


def _kind(request: EvaluationRequest, on_gpu: bool) -> str:
    where = "gpu" if on_gpu else request.backend
    return f"{where} {request.effort}" if request.execute else "not executed"
