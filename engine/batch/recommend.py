"""Recommend a batch size: the whole answer behind the page and `recommend-batch`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.base.errors import InvalidProblem
from engine.batch.alternatives import Option, Situation, rank_options
from engine.batch.cost import Saving, WaitPlan, cost, plan_waiting, queries_in, saving
from engine.batch.curve import predict_curve
from engine.batch.table import (
    Recommendation,
    batch_table,
    explain_knee,
    memory_feasible,
    smallest_batches,
    step_warning,
)
from engine.batch.types import BatchRequest, BatchResult, Calibrated, Point
from engine.batch.validate import NextPoint, candidates, measure_next
from engine.config import ResolvedConfig, resolve_config
from engine.devices import all_devices, find_device
from engine.devices.spec import DeviceSpec
from engine.model.calibrate import Points, calibrate, leave_one_out, prepare
from engine.model.equations import CtaCurve, machine
from engine.model.estimate import (
    BatchCurveOf,
    Footprint,
    FootprintOf,
    compiled_footprint,
    estimate,
    estimate_compiled,
    launch_plan,
    resident_ctas,
)
from engine.model.launches import collect_batches
from engine.model.measurements import Measurement, read_measurements
from engine.names import find_variant
from engine.problem import Problem
from kernels.ladder import LADDER
from kernels.variant import Variant

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "BatchRequest",
    "BatchResult",
    "Calibrated",
    "Point",
    "calibrate_for",
    "problem_now",
    "recommend_batch",
]

MOST_BATCHES = 65_536  # of one curve; more rows would not be looked at


def calibrate_for(
    request: BatchRequest,
    footprint_of: FootprintOf = compiled_footprint,
    curve_of: BatchCurveOf | None = None,
) -> Calibrated:
    """Calibrate on the request's measured points; a page does this once and then only drags.

    On top of simulated CTA times where all the points and the request itself have them.

    Raises:
        As `recommend_batch`.
    """
    measurements = _measurements(request)
    if not measurements or not request.calibrate:
        return Calibrated(measurements, None, None)
    variant, device, resolved = _resolve(request)
    config = resolved.values
    footprint = footprint_of(variant, config, device)
    points = prepare(variant, config, device, measurements, footprint)
    own = not request.measured_kernel
    if own and curve_of is not None:
        points = replace(points, curve=_points_curve(request, points, footprint, curve_of))
    return Calibrated(
        measurements,
        calibrate(variant, device, points, is_own_file=own),
        leave_one_out(variant, device, points, is_own_file=own),
    )


def _points_curve(
    request: BatchRequest, points: Points, footprint: Footprint, curve_of: BatchCurveOf
) -> CtaCurve | None:
    from engine.history.simulated import known_curve

    variant, device, resolved = _resolve(request)
    problem, config = _problem(request), resolved.values
    launches = collect_batches(variant, config, problem, np.array([1], dtype=np.int64))
    resident = resident_ctas(variant, launches, footprint(problem), device)
    if curve_of(variant, config, device, problem, launches, resident) is None:
        return None
    problems = [p.problem for p in points.measurements]
    return known_curve(variant, config, device, problems, points.resident[0])


def recommend_batch(
    request: BatchRequest,
    footprint_of: FootprintOf = compiled_footprint,
    calibrated: Calibrated | None = None,
    curve_of: BatchCurveOf | None = None,
) -> BatchResult:
    """Answer a request.

    Args:
        footprint_of: where registers and shared memory come from: the compiler, or a stand-in.
        calibrated: of `calibrate_for`, to save doing it again; None calibrates here.
        curve_of: CTA times by machine code: simulated now, or those that are known. None, and
            where it gives none, is the roofline.

    Raises:
        UnknownName: no such variant or GPU.
        InvalidProblem: a shape, config, target, price, CSV or rate that cannot be, no batch that
            fits in memory, or a GPU without the figures a prediction needs.
        CompileError, ToolMissing: the variant does not compile for the GPU, or there is no NVRTC.
    """
    variant, device, resolved = _resolve(request)
    config = resolved.values
    problem = _problem(request)
    _check(request, variant, device, problem, config)
    footprint = footprint_of(variant, config, device)
    if request.measured_kernel:
        curve_of = None  # the answer is about another kernel than the variant's file
    if calibrated is None:
        calibrated = calibrate_for(request, footprint_of, curve_of)
    calibration = calibrated.calibration
    if calibration is not None and not calibration.by_machine_code:
        curve_of = None
    notes = [resolved.error] if resolved.error else []
    if resolved.tuned is not None:
        notes.append(f"The config: {resolved.describe()}.")

    axis_notes: list[str] = []
    asked = max(request.max_batch, min(request.batch_now, MOST_BATCHES))
    if asked > request.max_batch:
        axis_notes.append(
            f"Batches go to {asked:,}, what is run now, and not to {request.max_batch:,} alone."
        )
    most, limit = _largest_launchable(variant, config, problem, asked)
    if limit:
        axis_notes.append(f"Batches end at {most:,}: {limit}")
    batches = range(1, most + 1)
    curve = predict_curve(
        variant, problem, config, device, footprint(problem), batches, calibration, curve_of
    )
    if calibration is None:
        notes.append(_method_note(curve.method))
    fitting = memory_feasible(curve.table["device_bytes"].to_numpy(), device)
    if fitting < most:
        limit = f"more do not fit in {device.name}'s memory."
        axis_notes.append(f"Batches end at {fitting:,}: {limit}")
    if device.memory_bytes is None:
        axis_notes.append(f"The memory of {device.name} is unknown: no batch was ruled out by it.")
    curve = curve.head(fitting)
    table = batch_table(
        curve.table,
        problem,
        device,
        _measured_batches(request, calibrated),
        "measured" if request.measured_here else "recorded",
    )
    recommendations = smallest_batches(table, curve.ends_us, device, request.targets)

    batch_now = min(request.batch_now, fitting)
    impossible = ""
    if batch_now < request.batch_now:
        why = limit or f"a curve has at most {MOST_BATCHES:,} batches."
        impossible = (
            f"B={request.batch_now:,} cannot be run now: {why} The figures given for it are "
            f"those of B={batch_now:,}, the largest."
        )
    now = replace(problem, batch=batch_now)
    price = request.prices.get(device.name, device.price_usd_per_hour)
    wait = _wait(request, table, notes)
    options: tuple[Option, ...] = ()
    if request.alternatives:
        here = _priced(device, request.prices)
        situation = Situation(variant, config, now, here, price, calibration)
        priced = [_priced(d, request.prices) for d in all_devices()]
        options, unjudged = rank_options(situation, LADDER, priced, footprint_of, wait, curve_of)
        notes.extend(unjudged)
    main = estimate(
        variant, launch_plan(variant, now, config, device), footprint(now), device
    ).passes[0]
    recommended = recommendations[len(recommendations) // 2]
    asked_of = _Kernel(variant, config, device, footprint, calibrated, curve_of)
    warnings = [
        impossible,
        step_warning(table, batch_now),
        *(r.warning for r in recommendations),
    ]
    return BatchResult(
        variant=variant.id,
        device=device.name,
        config=config,
        problem=now,
        table=table,
        method=curve.method,
        points=_points(request, asked_of),
        recommendations=recommendations,
        calibration=calibration,
        loo=calibrated.loo,
        kernel=request.measured_kernel,
        knee=explain_knee(main.occupancy, table, device),
        next_point=_next_point(asked_of, problem, recommended.batch, fitting),
        saving=_saving(request, table, recommended, batch_now, price),
        wait=wait,
        options=options,
        warnings=tuple(dict.fromkeys(filter(None, warnings))),
        axis_notes=tuple(axis_notes),
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What is asked about, and by what it is predicted."""

    variant: Variant
    config: Mapping[str, int]
    device: DeviceSpec
    footprint: Footprint
    calibrated: Calibrated
    curve_of: BatchCurveOf | None


def _resolve(request: BatchRequest) -> tuple[Variant, DeviceSpec, ResolvedConfig]:
    """One config serves the whole curve: that of the batch that is run today."""
    variant = find_variant(request.variant)
    device = find_device(request.gpu) if isinstance(request.gpu, str) else request.gpu
    config = resolve_config(variant, request.config, problem_now(request), device)
    return variant, device, config


def problem_now(request: BatchRequest) -> Problem:
    """The problem at the batch that is run today; at batch 1 where that cannot be.

    Raises:
        InvalidProblem: a shape that cannot be.
    """
    problem = _problem(request)
    with suppress(InvalidProblem):  # `_check` says what is wrong with it
        problem = replace(problem, batch=request.batch_now)
    return problem


def _problem(request: BatchRequest) -> Problem:
    if request.heads_free and request.heads_kv not in (None, request.heads):
        raise InvalidProblem(
            "B · H cannot be the axis where query heads share K/V heads: one more head is not the "
            "same work as one more sequence. Vary the batch alone, or leave the K/V heads out."
        )
    return Problem(
        batch=1,
        num_heads=1 if request.heads_free else request.heads,
        seqlen=request.seqlen,
        head_dim=request.head_dim,
        causal=request.causal,
        dtype=request.dtype,
        seqlen_kv=request.seqlen_kv,
        num_heads_kv=None if request.heads_free else request.heads_kv,
    )


def _check(
    request: BatchRequest,
    variant: Variant,
    device: DeviceSpec,
    problem: Problem,
    config: Mapping[str, int],
) -> None:
    for name, value in (("max_batch", request.max_batch), ("batch_now", request.batch_now)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidProblem(f"{name} must be a whole number of at least 1, not {value!r}.")
    if request.max_batch > MOST_BATCHES:
        raise InvalidProblem(
            f"max_batch must be at most {MOST_BATCHES:,}, not {request.max_batch:,}."
        )
    machine(device, variant, problem.dtype)  # raises where a prediction lacks figures
    launch_plan(variant, problem, config, device)


def _measurements(request: BatchRequest) -> tuple[Measurement, ...]:
    if request.measured is None:
        return ()
    if isinstance(request.measured, str | Path):
        return read_measurements(request.measured)
    return tuple(request.measured)


def _measured_batches(request: BatchRequest, calibrated: Calibrated) -> dict[int, float]:
    """Batch → measured µs, of the points that are this problem at another batch."""
    problem = _problem(request)
    times: dict[int, list[float]] = {}
    for point in calibrated.measurements:
        batch = point.problem.batch
        if request.heads_free and point.problem.num_heads_kv is None:
            batch *= point.problem.num_heads
            point_problem = replace(point.problem, batch=1, num_heads=1)
        else:
            point_problem = replace(point.problem, batch=1)
        if point_problem == problem:
            times.setdefault(batch, []).append(point.measured_us)
    return {batch: float(np.mean(us)) for batch, us in times.items()}


def _priced(device: DeviceSpec, prices: Mapping[str, float]) -> DeviceSpec:
    """The device at one's own price."""
    if device.name not in prices:
        return device
    return replace(
        device, price_usd_per_hour=prices[device.name], price_source="given", price_basis="given"
    )


def _next_point(at: _Kernel, problem: Problem, recommended: int, most: int) -> NextPoint | None:
    calibration = at.calibrated.calibration
    launches = collect_batches(at.variant, at.config, problem, candidates(most, recommended))
    if calibration is not None and calibration.skips_absent_keys:
        launches = launches.without_absent_keys()
    resident = resident_ctas(at.variant, launches, at.footprint(problem), at.device)
    m = machine(at.device, at.variant, problem.dtype)
    curve = None
    if at.curve_of is not None:
        curve = at.curve_of(at.variant, at.config, at.device, problem, launches, resident)
    return measure_next(at.variant, launches, resident, m, calibration, recommended, curve)


def _method_note(method: str) -> str:
    if method == "machine code":
        return (
            "Predicted by machine code: a CTA's time is simulated on one SM. Nothing was measured; "
            "the intervals come from kernels that were measured and simulated."
        )
    return (
        "Predicted by roofline. Nothing was measured: the model is not calibrated, and its "
        "intervals are wide."
    )


def _largest_launchable(
    variant: Variant, config: Mapping[str, int], problem: Problem, max_batch: int
) -> tuple[int, str]:
    """The batch, and why there is none beyond it; empty where `max_batch` can be launched.

    By halving: what CUDA's grid or the variant refuses, it refuses for every larger batch.
    """

    def refused(batch: int) -> str:
        return variant.unsupported(replace(problem, batch=batch), config) or ""

    most = 1 + bisect_left(range(2, max_batch + 1), True, key=lambda batch: bool(refused(batch)))
    return most, refused(most + 1) if most < max_batch else ""


def _points(request: BatchRequest, at: _Kernel) -> tuple[Point, ...]:
    """The measured points, then those asked for (with what was measured for the same problem)."""
    measurements = at.calibrated.measurements
    wanted: list[tuple[Problem, float | None, float | None]] = [
        (p.problem, p.measured_us, p.sdpa_us) for p in measurements
    ]
    for batch, heads, seqlen in request.predict:
        asked = replace(_problem(request), batch=batch, num_heads=heads, seqlen=seqlen)
        same = [p for p in measurements if p.problem == asked]
        wanted.append(
            (
                asked,
                _mean([p.measured_us for p in same]),
                _mean([p.sdpa_us for p in same if p.sdpa_us is not None]),
            )
        )
    points = []
    for problem, measured_us, sdpa_us in wanted:
        try:
            launch_plan(at.variant, problem, at.config, at.device)
        except InvalidProblem as error:
            raise InvalidProblem(f"{problem.label()}: {error}") from None
        result = estimate_compiled(
            at.variant,
            problem,
            at.config,
            at.device,
            lambda *_: at.footprint,
            at.calibrated.calibration,
            at.curve_of,
        )
        latency = result.latency
        if latency is None:
            raise InvalidProblem(result.reason)
        points.append(
            Point(
                batch=problem.batch,
                heads=problem.num_heads,
                heads_kv=problem.num_heads_kv,
                seqlen=problem.seqlen,
                head_dim=problem.head_dim,
                seqlen_kv=problem.seqlen_kv,
                ctas=result.plan.passes[0].ctas,
                predicted_us=latency.median_us,
                low_us=latency.low_us,
                high_us=latency.high_us,
                measured_us=measured_us,
                difference=None if measured_us is None else latency.median_us / measured_us - 1,
                sdpa_us=sdpa_us,
            )
        )
    return tuple(points)


def _mean(times_us: Sequence[float]) -> float | None:
    return float(np.mean(times_us)) if times_us else None


def _wait(request: BatchRequest, table: pd.DataFrame, notes: list[str]) -> WaitPlan | None:
    if request.arrivals_per_s is None and request.budget_ms is None:
        return None
    if request.arrivals_per_s is None or request.budget_ms is None:
        raise InvalidProblem(
            "Waiting to collect requests needs both an arrival rate and a time budget."
        )
    plan = plan_waiting(table["latency_us"].to_numpy(), request.arrivals_per_s, request.budget_ms)
    if isinstance(plan, str):
        notes.append(plan)
        return None
    return plan


def _saving(
    request: BatchRequest,
    table: pd.DataFrame,
    recommended: Recommendation,
    batch_now: int,
    price: float | None,
) -> Saving | None:
    if request.traffic_per_day is None:
        return None
    # A request has all its heads, also where they are the axis.
    one = replace(_problem(request), num_heads=request.heads, num_heads_kv=None)
    queries = request.traffic_per_day * queries_in(request.traffic_unit, one)
    now_us = float(table["per_query_us"].iloc[batch_now - 1])
    now, then = (
        cost(us, queries, price, request.utilisation, problem=one)
        for us in (now_us, recommended.per_query_us)
    )
    return saving(now, then, queries, one)
