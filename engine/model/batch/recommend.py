"""Recommend a batch size: the whole answer behind the page and `recommend-batch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.config import ResolvedConfig, resolve_config
from engine.devices import all_devices, find_device
from engine.devices.spec import DeviceSpec
from engine.errors import InvalidProblem
from engine.model.batch.alternatives import Option, Situation, rank_options
from engine.model.batch.cost import Saving, cost, saving
from engine.model.batch.curve import predict_curve
from engine.model.batch.table import (
    Recommendation,
    batch_table,
    memory_feasible,
    smallest_batches,
    step_warning,
)
from engine.model.batch.types import BatchRequest, BatchResult, Calibrated, Point
from engine.model.batch.waiting import WaitPlan, plan_waiting
from engine.model.calibrate import calibrate, leave_one_out, prepare
from engine.model.equations import machine
from engine.model.estimate import (
    Footprint,
    FootprintOf,
    compiled_footprint,
    estimate,
    launch_plan,
)
from engine.model.measurements import Measurement, read_measurements
from engine.names import find_variant
from engine.plan import make_plan
from engine.problem import Problem
from kernels.ladder import LADDER
from kernels.variant import Variant

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BatchRequest", "BatchResult", "Calibrated", "Point", "calibrate_for", "recommend_batch"]

MOST_BATCHES = 65_536  # of one curve; more rows would not be looked at


def calibrate_for(
    request: BatchRequest, footprint_of: FootprintOf = compiled_footprint
) -> Calibrated:
    """Calibrate on the request's measured points; a page does this once and then only drags.

    Raises:
        As `recommend_batch`.
    """
    measurements = _measurements(request)
    if not measurements:
        return Calibrated((), None, None)
    variant, device, resolved = _resolve(request)
    config = resolved.values
    footprint = footprint_of(variant, config, device)
    points = prepare(variant, config, device, measurements, footprint)
    return Calibrated(
        measurements, calibrate(variant, device, points), leave_one_out(variant, device, points)
    )


def recommend_batch(
    request: BatchRequest,
    footprint_of: FootprintOf = compiled_footprint,
    calibrated: Calibrated | None = None,
) -> BatchResult:
    """Answer a request.

    Args:
        footprint_of: where registers and shared memory come from: the compiler, or a stand-in.
        calibrated: of `calibrate_for`, to save doing it again; None calibrates here.

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
    if calibrated is None:
        calibrated = calibrate_for(request, footprint_of)
    calibration = calibrated.calibration
    notes = [resolved.error] if resolved.error else []
    if resolved.tuned is not None:
        notes.append(f"The config: {resolved.describe()}.")
    if calibration is None:
        notes.append("Nothing was measured: the model is not calibrated, its intervals are wide.")

    most = _largest_launchable(variant, config, problem, request.max_batch)
    if most < request.max_batch:
        notes.append(f"Batches end at {most:,}: {variant.id} cannot launch more.")
    batches = range(1, most + 1)
    curve = predict_curve(
        variant, problem, config, device, footprint(problem), batches, calibration
    )
    fitting = memory_feasible(curve.table["device_bytes"].to_numpy(), device)
    if fitting < most:
        notes.append(f"Batches end at {fitting:,}: more do not fit in {device.name}'s memory.")
    if device.memory_bytes is None:
        notes.append(f"The memory of {device.name} is unknown: no batch was ruled out by it.")
    curve = curve.head(fitting)
    table = batch_table(curve.table, problem, device)
    recommendations = smallest_batches(table, curve.ends_us, device, request.targets)

    batch_now = min(request.batch_now, fitting)
    price = request.price_usd_per_hour
    if price is None:
        price = device.price_usd_per_hour
    wait = _wait(request, table, notes)
    options: tuple[Option, ...] = ()
    if request.alternatives:
        situation = Situation(
            variant, config, replace(problem, batch=batch_now), device, price, calibration
        )
        options, unjudged = rank_options(situation, LADDER, all_devices(), footprint_of, wait)
        notes.extend(unjudged)
    warnings = [step_warning(table, batch_now), *(r.warning for r in recommendations)]
    return BatchResult(
        variant=variant.id,
        device=device.name,
        config=config,
        problem=replace(problem, batch=batch_now),
        table=table,
        points=_points(request, variant, config, device, footprint, calibrated),
        recommendations=recommendations,
        calibration=calibration,
        loo=calibrated.loo,
        saving=_saving(request, table, recommendations, batch_now, price),
        wait=wait,
        options=options,
        warnings=tuple(dict.fromkeys(filter(None, warnings))),
        notes=tuple(notes),
    )


def _resolve(request: BatchRequest) -> tuple[Variant, DeviceSpec, ResolvedConfig]:
    """One config serves the whole curve: that of the batch that is run today."""
    variant = find_variant(request.variant)
    device = find_device(request.gpu) if isinstance(request.gpu, str) else request.gpu
    problem = _problem(request)
    with suppress(InvalidProblem):  # `_check` says what is wrong with it
        problem = replace(problem, batch=request.batch_now)
    return variant, device, resolve_config(variant, request.config, problem, device.name)


def _problem(request: BatchRequest) -> Problem:
    if request.heads_free and request.heads_kv not in (None, request.heads):
        raise InvalidProblem(
            "B · H cannot be the axis where query heads share K/V heads: a head more is not the "
            "same work as a sequence more. Vary the batch alone, or leave the K/V heads out."
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


def _largest_launchable(
    variant: Variant, config: Mapping[str, int], problem: Problem, max_batch: int
) -> int:
    """By halving: what CUDA's grid or the variant refuses, it refuses for every larger batch."""
    low, high = 1, max_batch
    while low < high:
        middle = (low + high + 1) // 2
        try:
            make_plan(variant, replace(problem, batch=middle), config)
            low = middle
        except InvalidProblem:
            high = middle - 1
    return low


def _points(
    request: BatchRequest,
    variant: Variant,
    config: Mapping[str, int],
    device: DeviceSpec,
    footprint: Footprint,
    calibrated: Calibrated,
) -> tuple[Point, ...]:
    """The measured points, then those asked for (with what was measured for the same problem)."""
    measurements = calibrated.measurements
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
            plan = launch_plan(variant, problem, config, device)
        except InvalidProblem as error:
            raise InvalidProblem(f"{problem.label()}: {error}") from None
        result = estimate(variant, plan, footprint(problem), device, calibrated.calibration)
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
                ctas=plan.passes[0].ctas,
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
    plan = plan_waiting(table["predicted_us"].to_numpy(), request.arrivals_per_s, request.budget_ms)
    if isinstance(plan, str):
        notes.append(plan)
        return None
    return plan


def _saving(
    request: BatchRequest,
    table: pd.DataFrame,
    recommendations: tuple[Recommendation, ...],
    batch_now: int,
    price: float | None,
) -> Saving | None:
    if request.queries_per_day is None:
        return None
    now_us = float(table["per_query_us"].iloc[batch_now - 1])
    then_us = recommendations[len(recommendations) // 2].per_query_us
    now, then = (
        cost(us, request.queries_per_day, price, request.utilisation) for us in (now_us, then_us)
    )
    return saving(now, then)
