"""Recommend a batch size, for the Batch size page and `recommend-batch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.attention.config import Resolved, resolve_kernel
from engine.attention.evaluation import Latency, Origin
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidProblem
from engine.choose.auto import Choice, choose
from engine.choose.batch.alternatives import Option, Situation, rank_options
from engine.choose.batch.batch_table import (
    Recommendation,
    batch_table,
    explain_knee,
    known_latencies,
    largest_launchable,
    memory_feasible,
    predict_curve,
    recommended_batches,
    step_warning,
)
from engine.choose.batch.cost import Saving, WaitPlan, cost, plan_waiting, queries_in, saving
from engine.choose.batch.types import BatchRequest, BatchResult, Calibrated, Point
from engine.choose.batch.validate import NextPoint, candidates, measure_next
from engine.devices import all_devices, target_gpu
from engine.devices.spec import DeviceSpec
from engine.history import History
from engine.model.calibrate import Points, calibrate, leave_one_out, prepare
from engine.model.equations import Calibration, CtaCurve, machine
from engine.model.kernel import Kernel, Known, pass_reports, resident_ctas
from engine.model.launches import collect_batches
from engine.model.measured_points import Measurement, read_measurements
from kernels.ladder import LADDER

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

# Points of the variant's file fit its simulated times at least about as well as assumed times.
_AS_GOOD = 2.0
_OF_ANOTHER = (
    "The points fit the simulated times of {variant} worse than those of an assumed kernel: if "
    "they belong to another kernel, name it with --measured-kernel."
)
_RANKED_BY = (
    "Batches are ranked by the time shown for each, a measured or recorded one before a "
    "prediction. Ratios and differences of the two are not given."
)
MAX_BATCHES = 65_536  # maximum rows of one curve


def calibrate_for(request: BatchRequest, known: History) -> Calibrated:
    """Calibrate on the request's measured points. A page does this once, not at every step of a
    slider.

    The calibration is based on simulated CTA times if all points and the request have them. Without
    points, or with points that are all times of the history, it is the history's calibration, on
    all its times, so that a batch has the time that other commands and pages give.

    Raises:
        As `recommend_batch`.
    """
    measurements = _measurements(request)
    kernel, _ = _resolve(request, known)
    own = not request.measured_kernel
    if not measurements or not request.calibrate or kernel.variant.is_backward:
        with suppress(AttuneError):  # the recommendation reports errors of the request
            return Calibrated(measurements, known.calibration(kernel, _problem(request)), None)
        return Calibrated(measurements, None, None)
    if _are_in_history(request, kernel, measurements, known):
        return _calibrated_by_history(request, kernel, measurements, known)
    points = prepare(kernel, measurements, known)
    calibration = calibrate(points, is_own_file=own)
    if own and (curve := _points_curve(_problem(request), points, known)) is not None:
        simulated = replace(points, curve=curve)
        on_top = calibrate(simulated)
        if on_top.noise <= _AS_GOOD * calibration.noise:
            points, calibration = simulated, on_top
        else:
            notes = (_OF_ANOTHER.format(variant=kernel.variant.id), *calibration.notes)
            calibration = replace(calibration, notes=notes)
    loo = leave_one_out(points, is_own_file=own)
    return Calibrated(measurements, calibration, loo, is_callers=True)


def _are_in_history(
    request: BatchRequest, kernel: Kernel, measurements: tuple[Measurement, ...], known: History
) -> bool:
    """Return True if all these points are times of the kernel that the history has."""
    if request.measured_kernel:
        return False
    times = {(p.problem, p.measured_us) for p in known.points(kernel, _problem(request))}
    return all((p.problem, p.measured_us) in times for p in measurements)


def _calibrated_by_history(
    request: BatchRequest, kernel: Kernel, measurements: tuple[Measurement, ...], known: History
) -> Calibrated:
    problem = _problem(request)
    calibration = known.calibration(kernel, problem)
    if calibration is None:
        return Calibrated(measurements, None, None)
    points = prepare(kernel, known.points(kernel, problem), known)
    if calibration.by_machine_code:
        points = replace(points, curve=_points_curve(problem, points, known))
    return Calibrated(measurements, calibration, leave_one_out(points))


def _points_curve(problem: Problem, points: Points, known: Known) -> CtaCurve | None:
    kernel = points.kernel
    launches = collect_batches(kernel, problem, np.array([1], dtype=np.int64))
    resident = resident_ctas(kernel, launches, known.resources(kernel, problem))
    if known.batch_curve(kernel, problem, launches, resident) is None:
        return None
    problems = tuple(p.problem for p in points.measurements)
    return known.points_curve(kernel, problems, points.resident[0])


def recommend_batch(
    request: BatchRequest, known: History, calibrated: Calibrated | None = None
) -> BatchResult:
    """Recommend a batch for a request.

    Args:
        known: gives resources, CTA times and calibrations.
        calibrated: result of `calibrate_for`; None calibrates here.

    Raises:
        UnknownName: no such variant or GPU.
        InvalidProblem: an invalid shape, config, target, price, CSV or rate; no batch fits in
            memory; or the GPU lacks figures for a prediction.
        CompileError, ToolMissing: the variant does not compile for the GPU, or there is no NVRTC.
    """
    kernel, made = _resolve(request, known)
    variant, device, config, resolved = kernel.variant, kernel.device, kernel.config, made.config
    if made.choice is not None:
        request = replace(request, variant=variant.id, config=config)
    problem = _problem(request)
    _check(request, kernel, problem)
    if calibrated is None:
        calibrated = calibrate_for(request, known)
    calibration = calibrated.calibration
    # With --measured-kernel, the recommendation is for a kernel other than the variant's file.
    by_machine_code = not request.measured_kernel and (
        calibration is None or calibration.by_machine_code
    )
    notes = [made.choice.note()] if made.choice is not None else []
    notes += resolved.notes
    if resolved.tuned is not None:
        notes.append(f"The config: {resolved.describe()}.")
    if variant.is_backward and calibrated.measurements and request.calibrate:
        notes.append(
            "Measured points are shown at their batches only: times of a backward pass are not "
            "calibrated."
        )

    axis_notes: list[str] = []
    asked = max(request.max_batch, min(request.batch_now, MAX_BATCHES))
    if asked > request.max_batch:
        axis_notes.append(
            f"Batches go up to {asked:,}, the present batch, instead of {request.max_batch:,}."
        )
    most, limit = largest_launchable(kernel, problem, asked)
    if limit:
        axis_notes.append(f"Batches end at {most:,}: {limit}")
    batches = range(1, most + 1)
    curve = predict_curve(
        kernel, problem, batches, known, calibration, by_machine_code=by_machine_code
    )
    if calibration is None:
        notes.append(_method_note(curve.method, is_backward=variant.is_backward))
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
        _measured_batches(request, kernel, calibrated, known),
    )
    recommendations = recommended_batches(table, curve.ends_us, device, request.targets)
    if (is_predicted := table["origin"] == "predicted").any() and not is_predicted.all():
        notes.append(_RANKED_BY)

    batch_now = min(request.batch_now, fitting)
    impossible = ""
    if batch_now < request.batch_now:
        why = limit or f"a curve has at most {MAX_BATCHES:,} batches."
        impossible = (
            f"B={request.batch_now:,} cannot be run now: {why} The figures given for it are "
            f"those of B={batch_now:,}, the largest."
        )
    now = replace(problem, batch=batch_now)
    price = request.prices.get(device.name, device.price_usd_per_hour)
    wait = _wait(request, table, notes)
    options: tuple[Option, ...] = ()
    if request.alternatives:
        here = replace(kernel, device=_priced(device, request.prices))
        own = not request.measured_kernel
        on_callers = calibration if calibrated.is_callers else None
        situation = Situation(here, now, price, on_callers, is_own_file=own)
        priced = [_priced(d, request.prices) for d in all_devices()]
        options, unjudged = rank_options(situation, LADDER.of(now), priced, wait, known)
        notes.extend(unjudged)
    main = now.main_of(pass_reports(kernel, kernel.plan(now), known.resources(kernel, now)))
    recommended = recommendations[len(recommendations) // 2]
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
        points=_points(request, kernel, known, calibrated),
        recommendations=recommendations,
        calibration=calibration,
        loo=calibrated.loo,
        kernel=request.measured_kernel,
        knee=explain_knee(main.occupancy, table, device),
        next_point=_next_point(
            kernel,
            problem,
            calibration,
            known,
            recommended.batch,
            fitting,
            by_machine_code=by_machine_code,
        ),
        saving=_saving(request, table, recommended, batch_now, price),
        wait=wait,
        options=options,
        warnings=tuple(dict.fromkeys(filter(None, warnings))),
        axis_notes=tuple(axis_notes),
        notes=tuple(notes),
    )


def _resolve(request: BatchRequest, known: History) -> tuple[Kernel, Resolved[Choice]]:
    """Return the kernel of the whole curve, with the config of today's batch."""
    problem = problem_now(request)
    device = target_gpu(request.gpu) if isinstance(request.gpu, str) else request.gpu
    auto = partial(choose, history=known)
    made = resolve_kernel(request.variant, request.config, problem, device, auto)
    return Kernel.of(made.variant, device, made.config.values), made


def problem_now(request: BatchRequest) -> Problem:
    """Return the problem at today's batch; at batch 1 if that is invalid.

    Raises:
        InvalidProblem: the shape is invalid.
    """
    problem = _problem(request)
    with suppress(InvalidProblem):  # `_check` reports the error
        problem = replace(problem, batch=request.batch_now)
    return problem


def _problem(request: BatchRequest) -> Problem:
    if request.heads_free and request.heads_kv not in (None, request.heads):
        raise InvalidProblem(
            "B · H cannot be the axis where query heads share K/V heads: one more head is not the "
            "same work as one more sequence. Vary the batch alone, or leave the K/V heads out.",
            code="axis_of_shared_heads",
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
        **request.features,
    )


def _check(request: BatchRequest, kernel: Kernel, problem: Problem) -> None:
    for name, value in (("max_batch", request.max_batch), ("batch_now", request.batch_now)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidProblem(
                f"{name} must be a whole number of at least 1, not {value!r}.", code="count_form"
            )
    if request.max_batch > MAX_BATCHES:
        raise InvalidProblem(
            f"max_batch must be at most {MAX_BATCHES:,}, not {request.max_batch:,}.",
            code="max_batch",
        )
    machine(kernel.device, kernel.variant, problem.dtype)  # raises if figures are missing
    kernel.plan(problem)


def _measurements(request: BatchRequest) -> tuple[Measurement, ...]:
    if request.measured is None:
        return ()
    if isinstance(request.measured, str | Path):
        return read_measurements(request.measured)
    return tuple(request.measured)


def _measured_batches(
    request: BatchRequest, kernel: Kernel, calibrated: Calibrated, known: History
) -> dict[int, Latency]:
    """Return batch → the known time of problems that differ from this
    one only in batch: those that the history prefers, unless the request is predicted by the
    caller's points; and the mean of points that the history does not have, whose interval is not
    known."""
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
    origin: Origin = "measured" if request.measured_here else "recorded"
    means = {batch: float(np.mean(us)) for batch, us in times.items()}
    given = {b: Latency(origin, us, us, us, "A measured point.") for b, us in means.items()}
    if calibrated.is_callers or request.measured_kernel:
        return given
    here = known_latencies(kernel, problem, known)
    mine = _are_in_history(request, kernel, calibrated.measurements, known)
    return given | here if mine else here | given


def _priced(device: DeviceSpec, prices: Mapping[str, float]) -> DeviceSpec:
    """Return the device with the user's price."""
    if device.name not in prices:
        return device
    return replace(
        device, price_usd_per_hour=prices[device.name], price_source="given", price_basis="given"
    )


def _next_point(
    kernel: Kernel,
    problem: Problem,
    calibration: Calibration | None,
    known: Known,
    recommended: int,
    most: int,
    *,
    by_machine_code: bool,
) -> NextPoint | None:
    variant = kernel.variant
    if variant.is_backward:
        return None  # its times have no parameters to calibrate
    launches = collect_batches(kernel, problem, candidates(most, recommended))
    if calibration is not None and calibration.skips_absent_keys:
        launches = launches.without_absent_keys()
    resident = resident_ctas(kernel, launches, known.resources(kernel, problem))
    m = machine(kernel.device, variant, problem.dtype)
    curve = known.batch_curve(kernel, problem, launches, resident) if by_machine_code else None
    return measure_next(variant, launches, resident, m, calibration, recommended, curve)


def _method_note(method: str, *, is_backward: bool) -> str:
    if is_backward and method == "machine code":
        return (
            "Predicted by machine code: the passes are simulated at B=1, 2, 3, 4, 6, 8, 12 …, and "
            "times between them follow the CTAs of the busiest SM. Nothing was measured."
        )
    if method == "machine code":
        return (
            "Predicted by machine code: a CTA's time is simulated on one SM. Nothing was measured; "
            "the intervals come from kernels that were measured and simulated."
        )
    return (
        "Predicted by roofline. Nothing was measured: the model is not calibrated, and its "
        "intervals are wide."
    )


def _points(
    request: BatchRequest, kernel: Kernel, known: Known, calibrated: Calibrated
) -> tuple[Point, ...]:
    """Return the measured points, then the requested ones, with measured times of the same
    problem."""
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
            kernel.plan(problem)
        except InvalidProblem as error:
            raise InvalidProblem(
                f"{problem.label()}: {error}", code="prediction_not_taken"
            ) from None
        result = known.estimate(kernel, problem, calibrated.calibration)
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
                ctas=problem.main_of(result.plan.passes).ctas,
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
            "Waiting to collect requests needs both an arrival rate and a time budget.",
            code="waiting_incomplete",
        )
    plan = plan_waiting(table, request.arrivals_per_s, request.budget_ms)
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
    # A request has all its heads, also if heads are the axis.
    one = replace(_problem(request), num_heads=request.heads, num_heads_kv=None)
    queries = request.traffic_per_day * queries_in(request.traffic_unit, one)
    at_now = table.iloc[batch_now - 1]
    now, then = (
        cost(us, queries, price, request.utilisation, problem=one, origin=origin)
        for us, origin in (
            (float(at_now["per_query_us"]), str(at_now["origin"])),
            (recommended.per_query_us, recommended.origin),
        )
    )
    return saving(now, then, queries, one)
