"""Made-up evaluations with known times, for tests of searches and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulated_gpu import SimulatedDevice
from verdicts import RIGHT

from engine.attention.config import find_variant
from engine.attention.evaluation import (
    Correctness,
    Evaluation,
    Execution,
    Latency,
    Origin,
    PassReport,
    Resources,
)
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.devices import find_device, limits_for
from engine.measure.sampler import Sample, SamplerSettings, SamplingRun, run_rounds
from engine.model.occupancy import occupancy
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest
from engine.search.ranking import SweepRow
from engine.search.space import UNKNOWN_LOCATION, Location, SweepOptions, SweepPoint

WHEN = "2026-01-01T00:00:00+00:00"
SMALL = Problem(1, 1, 128, 64)


def correctness(passed: bool = True) -> Correctness:
    if passed:
        return RIGHT
    return replace(
        RIGHT,
        passed=False,
        reason="Wrong in 12 elements.",
        max_abs_err=0.5,
        bad_count=12,
        first_bad_index=(0, 0, 3, 4),
    )


def latency(median_us: float, origin: Origin = "measured", spread: float = 0.002) -> Latency:
    return Latency(
        origin=origin,
        median_us=median_us,
        low_us=median_us * (1 - spread),
        high_us=median_us * (1 + spread),
        reason="made up",
    )


def pass_report(threads: int = 256, registers: int = 64, smem: int = 16384) -> PassReport:
    device = find_device("L4")
    limits = limits_for(device.compute_capability)
    resources = Resources("attention_forward", "sm_89", threads, registers, 0, smem, 0, 0, 0)
    found = occupancy(limits, device.num_sms, 128, threads, registers, smem)
    return PassReport(resources, found)


def evaluation(
    request: EvaluationRequest,
    time_us: float | None,
    *,
    status: Status = Status.PASSED,
    origin: Origin = "measured",
    device: str = "L4",
    registers: int = 64,
) -> Evaluation:
    """Return an evaluation that passed with this time, or failed with this status."""
    passed = status is Status.PASSED
    return Evaluation(
        status=status,
        reason="" if passed else f"Made up to be {status}.",
        variant=request.variant,
        problem=request.problem,
        config=dict(request.config),
        device=device,
        when=WHEN,
        passes=(pass_report(registers=registers),),
        execution=Execution("cpu", "fast", "in_order", 0, 1.0),
        correctness=correctness() if passed else None,
        latency=None if time_us is None else latency(time_us, origin),
    )


def point(variant: str, problem: Problem = SMALL, **config: int) -> SweepPoint:
    found = find_variant(variant)
    asked = SweepOptions(gpu="L4").request(found.id, problem, {**found.default_config(), **config})
    return SweepPoint.of(asked, find_device("L4"))


def row(
    variant: str,
    time_us: float | None,
    problem: Problem = SMALL,
    config: Mapping[str, int] | None = None,
    gpu: str = "",
    **how: Any,
) -> SweepRow:
    made = point(variant, problem, **(config or {}))
    found = evaluation(made.request, time_us, **how)
    return SweepRow.make(made, found, 0.5, Location("node7", gpu) if gpu else UNKNOWN_LOCATION)


class Landscape:
    """An `Evaluate` with a known time for every config, which records the requests."""

    def __init__(
        self,
        time_us: Callable[[EvaluationRequest], float | None],
        status: Callable[[EvaluationRequest], Status] = lambda _: Status.PASSED,
        origin: Origin = "measured",
    ) -> None:
        self.time_us, self.status, self.origin = time_us, status, origin
        self.asked: list[EvaluationRequest] = []

    def __call__(self, request: EvaluationRequest) -> EvaluationOutcome:
        self.asked.append(request)
        status = self.status(request)
        time_us = self.time_us(request) if status is Status.PASSED else None
        made = evaluation(request, time_us, status=status, origin=self.origin)
        return EvaluationOutcome(made)


def bowl(request: EvaluationRequest) -> float:
    """Return a time that is lowest at num_splits=8, threads_per_row=4, block_n=64."""
    best = {"num_splits": 8, "threads_per_row": 4, "block_n": 64}
    factor = 1.0
    for name, value in request.config.items():
        factor *= 1 + 0.2 * abs(value.bit_length() - best[name].bit_length())
    return 10.0 * factor * request.problem.seqlen / 128


class SimulatedCandidates:
    """`Candidates` on a simulated device; those in `failing` fail after their first run."""

    def __init__(
        self, device: SimulatedDevice, names: Sequence[str], failing: Sequence[str] = ()
    ) -> None:
        self.device, self.names = device, tuple(dict.fromkeys(names))
        self.failing, self.failures = failing, dict[str, str]()

    def run(
        self,
        incumbent: str,
        settings: SamplerSettings,
        candidates: Sequence[str],
        on_round: Callable[[Sequence[Sample]], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> SamplingRun:
        run = run_rounds(self.device, incumbent, candidates, settings, on_round, should_stop)
        ran = {incumbent, *candidates}
        self.failures |= {n: "Made up to fail." for n in self.failing if n in ran}
        return run
