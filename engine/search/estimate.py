"""How long a sweep will take: from a prior before it starts, from its own evaluations after."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from engine.evaluate import EvaluationRequest
from engine.search.space import SweepPoint

# Seconds, from runs on 2 cores of a desktop CPU. The first finished points correct them.
_COMPILE_S = 0.2  # NVRTC takes 0.05 to 0.3 s a kernel
_CHECK_S = 0.1  # reference, SDPA and the comparison of a small problem
_CPU_FLOPS_PER_S = 1.1e9  # the CPU backend's fast build: v01 at S=512, D=64 in 60 ms
_CHECK_BUILD_SLOWDOWN = 20.0
_REFERENCE_FLOPS_PER_S = 2e10
_RUNS = 2  # every kernel is executed twice and compared with itself
_MEASURE_S = 5.0  # warm, cold, end to end, and the baselines


def prior_s(request: EvaluationRequest, on_gpu: bool) -> float:
    """Seconds one evaluation may take, when nothing was measured yet."""
    seconds = _COMPILE_S
    if not request.execute:
        return seconds
    flops = request.problem.flops
    seconds += _CHECK_S + flops / _REFERENCE_FLOPS_PER_S
    if on_gpu:
        return seconds + _MEASURE_S
    slowdown = _CHECK_BUILD_SLOWDOWN if request.check else 1.0
    return seconds + _RUNS * slowdown * flops / _CPU_FLOPS_PER_S


class Estimator:
    """The time that a set of points still takes; every finished one makes it better.

    The prior knows which points are dear beside which; how fast this machine is comes from the
    median of actual over prior.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._ratios: list[float] = []

    @property
    def is_measured(self) -> bool:
        """Whether any evaluation has been timed."""
        return bool(self._ratios)

    def learn(self, request: EvaluationRequest, elapsed_s: float) -> None:
        self._ratios.append(elapsed_s / prior_s(request, self._on_gpu))

    def seconds(self, points: Iterable[SweepPoint]) -> float:
        """For all of these points; those that constraints exclude take none."""
        total = sum(prior_s(p.request, self._on_gpu) for p in points if p.why_not is None)
        return total * (median(self._ratios) if self._ratios else 1.0)


def runs_on_gpu(request: EvaluationRequest) -> bool:
    """Whether the evaluation would be measured on this machine's GPU."""
    if request.backend == "cpu" or not request.execute:
        return False
    from engine.backends.cuda import why_not_cuda
    from engine.devices import find_device

    return why_not_cuda(find_device(request.gpu) if request.gpu else None) is None
