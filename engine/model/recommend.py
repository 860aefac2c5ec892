"""Recommend a batch size: the whole answer behind the page and `recommend-batch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.devices import all_devices, find_device
from engine.devices.spec import DeviceSpec
from engine.errors import InvalidProblem
from engine.model.alternatives import Option, Situation, rank_options
from engine.model.batch import (
    DEFAULT_TARGETS,
    Recommendation,
    batch_table,
    memory_feasible,
    recommend,
    step_warning,
)
from engine.model.calibrate import LeaveOneOut, calibrate, leave_one_out, prepare
from engine.model.cost import Saving, cost, saving
from engine.model.curve import curve_frame, launch_curve
from engine.model.footprint import Footprint, FootprintOf, compiled_footprint
from engine.model.latency import Calibration, predict_arrays
from engine.model.launches import unlaunchable
from engine.model.measurements import Measurement, read_measurements
from engine.model.terms import PARAMETER_NAMES, Machine, Parameters, machine
from engine.model.waiting import WaitPlan, plan_waiting
from engine.names import find_variant
from engine.problem import Problem
from kernels.ladder import LADDER
from kernels.variant import Dtype, Variant

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_MAX_BATCH = 4096
MOST_BATCHES = 65_536  # of one curve; more rows would not be looked at


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What to recommend a batch for. Missing tunables take their defaults.

    `heads_free` makes B·H the axis: the table's batch then counts units, with one head each.
    """

    variant: str
    gpu: str
    seqlen: int
    head_dim: int
    heads: int = 1
    heads_free: bool = False
    causal: bool = False
    dtype: Dtype = "float16"
    config: Mapping[str, int] = field(default_factory=dict)
    max_batch: int = DEFAULT_MAX_BATCH
    targets: tuple[float, ...] = DEFAULT_TARGETS
    measured: str | Path | Sequence[Measurement] | None = None  # a CSV file, or points
    predict: tuple[tuple[int, int, int], ...] = ()  # further points: (batch, heads, seqlen)
    batch_now: int = 1  # what is run today
    price_usd_per_hour: float | None = None  # None: the device table's
    queries_per_day: float | None = None  # traffic; None leaves costs per day out
    utilisation: float = 1.0
    arrivals_per_s: float | None = None  # requests (batch elements) a second, for waiting
    budget_ms: float | None = None  # latency that waiting may add
    alternatives: bool = False  # compiles other variants, and this one for other GPUs


@dataclass(frozen=True, slots=True)
class Point:
    """One problem's prediction beside what was measured, if it was."""

    batch: int
    heads: int
    seqlen: int
    head_dim: int
    ctas: int
    predicted_us: float
    low_us: float
    high_us: float
    measured_us: float | None
    difference: float | None  # predicted / measured − 1
    sdpa_us: float | None  # PyTorch's attention on the same problem, where it was measured


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The answer. `table` has a row per batch (see `engine.model.batch.batch_table`)."""

    variant: str
    device: str
    config: dict[str, int]
    problem: Problem  # at `batch_now`
    table: pd.DataFrame
    points: tuple[Point, ...]
    recommendations: tuple[Recommendation, ...]
    calibration: Calibration | None
    loo: LeaveOneOut | None
    saving: Saving | None  # at the middle target, where traffic is given
    wait: WaitPlan | None
    options: tuple[Option, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self, with_curve: bool = False) -> dict[str, Any]:
        """The JSON object of `recommend-batch --json`; `with_curve` adds every row."""
        data: dict[str, Any] = {
            "variant": self.variant,
            "device": self.device,
            "config": self.config,
            "problem": asdict(self.problem),
            "points": [asdict(p) for p in self.points],
            "recommendations": [asdict(r) for r in self.recommendations],
            "model": self._model(),
            "cost": None if self.saving is None else self.saving.to_dict(),
            "wait": None if self.wait is None else asdict(self.wait),
            "options": [asdict(o) for o in self.options],
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }
        if with_curve:
            # NaN stands for "unknown" in a DataFrame and has no place in JSON.
            table = self.table.astype(object).where(self.table.notna(), None)
            data["curve"] = table.to_dict(orient="records")
        return data

    def _model(self) -> dict[str, Any]:
        calibration, loo = self.calibration, self.loo
        parameters = calibration.parameters if calibration else Parameters()
        return {
            "origin": "predicted",
            "calibrated": calibration is not None,
            "parameters": {name: getattr(parameters, name) for name in PARAMETER_NAMES},
            "fitted": list(calibration.fitted) if calibration else [],
            "points": calibration.points if calibration else 0,
            "noise": calibration.noise if calibration else None,
            "loo_error": loo.mean_error if loo else None,
            "loo_worst_error": loo.worst_error if loo else None,
            "loo_inside": sum(loo.inside) / len(loo.inside) if loo else None,
            "notes": list(calibration.notes) if calibration else [],
        }


def recommend_batch(
    request: BatchRequest, footprint_of: FootprintOf = compiled_footprint
) -> BatchResult:
    """Answer a request.

    Args:
        footprint_of: where registers and shared memory come from: the compiler, or a stand-in.

    Raises:
        UnknownName: no such variant or GPU.
        InvalidProblem: a shape, config, target, price, CSV or rate that cannot be, no batch that
            fits in memory, or a GPU without the figures a prediction needs.
        CompileError, ToolMissing: the variant does not compile for the GPU, or there is no NVRTC.
    """
    variant, device = find_variant(request.variant), find_device(request.gpu)
    config = {**variant.default_config(), **request.config}
    problem = _problem(request)
    _check(request, variant, device, problem, config)
    m = machine(device, variant, problem.dtype)
    if isinstance(m, str):
        raise InvalidProblem(m)
    footprint = footprint_of(variant, config, device)

    measurements = _measurements(request)
    calibration, loo, notes = None, None, []
    if measurements:
        measured = prepare(variant, config, device, measurements, footprint)
        calibration = calibrate(variant, device, measured)
        loo = leave_one_out(variant, device, measured)
    else:
        notes.append(
            "Nothing was measured: the model is not calibrated and its intervals are wide."
        )

    most = _largest_launchable(variant, config, problem, request.max_batch)
    if most < request.max_batch:
        notes.append(f"Batches end at {most:,}: {variant.id} cannot launch more.")
    launches, resident = launch_curve(
        variant, problem, config, device, footprint(problem), range(1, most + 1)
    )
    fitting = memory_feasible(launches.device_bytes, device)
    if fitting < most:
        notes.append(f"Batches end at {fitting:,}: more do not fit in {device.name}'s memory.")
    if device.memory_bytes is None:
        notes.append(f"The memory of {device.name} is unknown: no batch was ruled out by it.")
    keep = np.arange(most) < fitting
    launches, resident = launches.take(keep), resident[:, keep]
    spread = predict_arrays(variant, launches, resident, m, calibration)
    table = batch_table(curve_frame(launches, resident, m, spread), problem, device)
    recommendations = recommend(table, spread.ends_us, device, request.targets)

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
        points=_points(request, variant, config, device, m, footprint, measurements, calibration),
        recommendations=recommendations,
        calibration=calibration,
        loo=loo,
        saving=_saving(request, table, recommendations, batch_now, price),
        wait=wait,
        options=options,
        warnings=tuple(dict.fromkeys(filter(None, warnings))),
        notes=tuple(notes),
    )


def _problem(request: BatchRequest) -> Problem:
    return Problem(
        batch=1,
        num_heads=1 if request.heads_free else request.heads,
        seqlen=request.seqlen,
        head_dim=request.head_dim,
        causal=request.causal,
        dtype=request.dtype,
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
    if (why := unlaunchable(variant, config, problem)) is not None:
        raise InvalidProblem(why)
    needed, has = variant.min_compute_capability, device.compute_capability
    if has < needed:
        raise InvalidProblem(
            f"{variant.id} needs compute capability {needed[0]}.{needed[1]} and {device.name} has "
            f"{has[0]}.{has[1]}: choose another variant or GPU."
        )


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
        if unlaunchable(variant, config, replace(problem, batch=middle)) is None:
            low = middle
        else:
            high = middle - 1
    return low


def _points(
    request: BatchRequest,
    variant: Variant,
    config: Mapping[str, int],
    device: DeviceSpec,
    m: Machine,
    footprint: Footprint,
    measurements: tuple[Measurement, ...],
    calibration: Calibration | None,
) -> tuple[Point, ...]:
    """The measured points, then those asked for (with what was measured for the same problem)."""
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
        if (why := unlaunchable(variant, config, problem)) is not None:
            raise InvalidProblem(f"{problem.label()}: {why}")
        launches, resident = launch_curve(
            variant, problem, config, device, footprint(problem), [problem.batch]
        )
        spread = predict_arrays(variant, launches, resident, m, calibration)
        predicted_us = float(spread.terms.total_us[0])
        points.append(
            Point(
                batch=problem.batch,
                heads=problem.num_heads,
                seqlen=problem.seqlen,
                head_dim=problem.head_dim,
                ctas=int(launches.ctas[0, 0]),
                predicted_us=predicted_us,
                low_us=float(spread.low_us[0]),
                high_us=float(spread.high_us[0]),
                measured_us=measured_us,
                difference=None if measured_us is None else predicted_us / measured_us - 1,
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
