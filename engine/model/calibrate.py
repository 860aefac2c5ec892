"""Fit the latency model to measured points of one variant on one GPU.

Only as many parameters are fitted as the points can identify, the most informative first; the
others keep their priors, and the calibration says which. Errors are judged in per cent
(logarithms), because a series spans microseconds to milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.plan import make_plan
from engine.base.errors import InvalidProblem
from engine.model.equations import (
    PARAMETER_NAMES,
    Calibration,
    CtaCurve,
    FloatArray,
    Machine,
    Parameters,
    evaluate,
    machine,
    predict_arrays,
    priors,
)
from engine.model.kernel import Kernel, Known, resident_ctas
from engine.model.launches import Launches, collect
from engine.model.measured_points import Measurement
from engine.model.occupancy import IntArray
from kernels.variant import Variant

BoolArray: TypeAlias = npt.NDArray[np.bool_]

# Bounds of the fit, within which parameters are plausible.
_BOUNDS = {
    "floor_us": (0.5, 30.0),
    "pace": (0.01, 100.0),
    "contention": (0.05, 20.0),
    "bandwidth": (0.2, 3.0),
}
# A parameter is fitted if a change by a factor e changes some point's log time by this much, beyond
# the effect of parameters chosen before.
_MIN_EFFECT = 5e-4
# Assumed noise if there are no more points than parameters.
_ASSUMED_NOISE = 0.05
_MIN_NOISE = 0.02
_STEP = 0.1
# A time shorter than this share of the time at peak rates has a wrong unit.
_POSSIBLE = 0.5
# A kernel is assumed to skip absent keys if that reduces the error to this share.
_CLEARLY_BETTER = 0.5


@dataclass(frozen=True, slots=True)
class Points:
    """Measured points with the model's inputs for each."""

    kernel: Kernel
    measurements: tuple[Measurement, ...]
    launches: Launches
    resident: IntArray  # [passes, n]
    measured_us: FloatArray
    curve: CtaCurve | None = None  # simulated CTA times; None: assumed

    def without(self, i: int) -> Points:
        """Return all points but the i-th."""
        return self._take(~_one(i, len(self.measurements)))

    def only(self, i: int) -> Points:
        """Return the i-th point alone."""
        return self._take(_one(i, len(self.measurements)))

    def _take(self, keep: BoolArray) -> Points:
        kept = tuple(m for m, k in zip(self.measurements, keep, strict=True) if k)
        return Points(
            self.kernel,
            kept,
            self.launches.take(keep),
            self.resident[:, keep],
            self.measured_us[keep],
            self.curve.take(keep) if self.curve is not None else None,
        )


def prepare(kernel: Kernel, measurements: Sequence[Measurement], known: Known) -> Points:
    """Check the points and compute their launches.

    Args:
        known: gives their registers and shared memory.

    Raises:
        InvalidProblem: there is no point, or one that the variant cannot launch, has another CTA
            count, or is faster than the GPU's peak, or the device lacks figures.
    """
    if not measurements:
        raise InvalidProblem("There is no measured point to calibrate on.", code="no_point")
    variant, config, device = kernel.variant, kernel.config, kernel.device
    for point in measurements:
        try:
            make_plan(variant, point.problem, config)
        except InvalidProblem as error:
            raise InvalidProblem(f"{point.place}: {error}", code="point_not_taken") from None
    m = machine(device, variant, measurements[0].problem.dtype)
    launches = collect(kernel, [p.problem for p in measurements])
    for i, point in enumerate(measurements):
        launched = int(launches.ctas[0, i])
        if point.ctas is not None and point.ctas != launched:
            raise InvalidProblem(
                f"{point.place}, column ctas: {point.ctas:,} CTAs were measured and {variant.id} "
                f"launches {launched:,} for {point.problem.label()}: choose the variant and config "
                f"that were measured.",
                code="point_launched_otherwise",
            )
    n = len(measurements)
    resident = np.concatenate(
        [
            resident_ctas(kernel, launches.take(_one(i, n)), known.resources(kernel, p.problem))
            for i, p in enumerate(measurements)
        ],
        axis=1,
    )
    measured_us = np.array([p.measured_us for p in measurements])
    peak_us = evaluate(variant, launches, resident, m, Parameters()).peak_us
    for point, least in zip(measurements, peak_us.tolist(), strict=True):
        if point.measured_us < _POSSIBLE * least:
            raise InvalidProblem(
                f"{point.place}, column kernel_ms: {point.measured_us / 1e3:g} ms is less than "
                f"{device.name} needs at its peak ({least / 1e3:.3g} ms): is it in milliseconds, "
                f"and from this GPU?",
                code="point_too_fast",
            )
    return Points(kernel, tuple(measurements), launches, resident, measured_us)


def calibrate(points: Points, *, is_own_file: bool = True) -> Calibration:
    """Fit the parameters to the points, based on simulated CTA times if they have them.

    Args:
        is_own_file: the points are of the variant's file. Another kernel may skip the absent keys
            of the last tile that the variant pads; that is assumed if it fits better.

    Raises:
        InvalidProblem: the device lacks figures.
    """
    padded, padded_error = _fit(points)
    if is_own_file or points.curve is not None:
        return padded
    stops = replace(points, launches=points.launches.without_absent_keys())
    exact, exact_error = _fit(stops)
    if exact_error >= _CLEARLY_BETTER * padded_error:
        return padded
    note = (
        "This kernel skips absent keys: it stops at the last key where the variant pads its tile."
    )
    return replace(exact, notes=(note, *exact.notes), skips_absent_keys=True)


def _fit(points: Points) -> tuple[Calibration, float]:
    """Return the best parameters and the remaining sum of squared errors."""
    from scipy.optimize import least_squares

    variant, device = points.kernel.variant, points.kernel.device
    m = machine(device, variant, points.measurements[0].problem.dtype)
    before, prior = priors(variant, points.curve)
    center = log_parameters(before)
    target = np.log(points.measured_us)

    log_total = log_total_of(variant, points.launches, points.resident, m, points.curve)
    low, high = np.log([_BOUNDS[name] for name in PARAMETER_NAMES]).T
    theta = center
    chosen: list[int] = []
    for _ in range(2):  # at the fitted parameters, other parameters may be identifiable
        chosen = _tell_apart(sensitivity(log_total, theta))

        def residuals(free: FloatArray, free_at: list[int] = chosen) -> FloatArray:
            moved = center.copy()
            moved[free_at] = free
            return log_total(moved) - target

        fit = least_squares(
            residuals,
            np.clip(theta[chosen], low[chosen] + 1e-9, high[chosen] - 1e-9),
            bounds=(low[chosen], high[chosen]),
            jac="3-point",
            x_scale=1.0,
        )
        theta = center.copy()
        theta[chosen] = fit.x

    left = log_total(theta) - target
    spare = len(target) - len(chosen)
    noise = _ASSUMED_NOISE
    if spare > 0:
        noise = max(_MIN_NOISE, float(np.sqrt(np.sum(left**2) / spare)))
    effect = sensitivity(log_total, theta)
    covariance = np.linalg.inv(effect.T @ effect / noise**2 + np.linalg.inv(prior))
    fitted = tuple(PARAMETER_NAMES[i] for i in sorted(chosen))
    calibration = Calibration(
        parameters=Parameters(*np.exp(theta).tolist()),
        covariance=tuple(tuple(row) for row in covariance.tolist()),
        noise=noise,
        fitted=fitted,
        points=len(target),
        notes=_notes(fitted, points, left),
        by_machine_code=points.curve is not None,
    )
    return calibration, float(np.sum(left**2))


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Leave-one-out predictions: each point is predicted by a calibration on the others."""

    errors: tuple[float, ...]  # predicted / measured − 1
    inside: tuple[bool, ...]  # True if the 90 % interval contains the measured value
    places: tuple[str, ...]  # label of each point
    widths: tuple[float, ...]  # high end of each interval divided by its low end

    @property
    def mean_error(self) -> float:
        """Return the mean of |error|."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def worst_error(self) -> float:
        """Return the largest |error|."""
        return float(np.max(np.abs(self.errors)))

    @property
    def worst_place(self) -> str:
        """Return the label of the point with the largest error."""
        return self.places[int(np.argmax(np.abs(self.errors)))]

    @property
    def width(self) -> float:
        """Return the median width of the intervals, high end divided by low end."""
        return float(np.median(self.widths))


def leave_one_out(points: Points, *, is_own_file: bool = True) -> LeaveOneOut | None:
    """Predict each point from the others; None with fewer than two points."""
    n = len(points.measurements)
    if n < 2:
        return None
    variant = points.kernel.variant
    m = machine(points.kernel.device, variant, points.measurements[0].problem.dtype)
    errors, inside, widths = [], [], []
    for i in range(n):
        held = points.only(i)
        calibration = calibrate(points.without(i), is_own_file=is_own_file)
        spread = predict_arrays(variant, held.launches, held.resident, m, calibration, held.curve)
        measured = held.measured_us[0]
        errors.append(float(spread.terms.total_us[0] / measured - 1))
        inside.append(bool(spread.low_us[0] <= measured <= spread.high_us[0]))
        widths.append(float(spread.high_us[0] / spread.low_us[0]))
    places = tuple(p.place for p in points.measurements)
    return LeaveOneOut(tuple(errors), tuple(inside), places, tuple(widths))


def _one(i: int, n: int) -> BoolArray:
    only: BoolArray = np.arange(n) == i
    return only


def log_total_of(
    variant: Variant, launches: Launches, resident: IntArray, on: Machine, curve: CtaCurve | None
) -> Callable[[FloatArray], FloatArray]:
    """Return a function from the parameters' logarithms to log(total µs) of the launches, `[n]`."""

    def log_total(theta: FloatArray) -> FloatArray:
        parameters = Parameters(*np.exp(theta).tolist())
        return np.log(evaluate(variant, launches, resident, on, parameters, curve).total_us)

    return log_total


def log_parameters(parameters: Parameters) -> FloatArray:
    """Return the logarithms of the parameters, in the order of `PARAMETER_NAMES`, `[4]`."""
    return np.log([getattr(parameters, name) for name in PARAMETER_NAMES])


def sensitivity(log_total: Callable[[FloatArray], FloatArray], theta: FloatArray) -> FloatArray:
    """Return d log(total) / d log(parameter), `[points, parameters]`, by central differences."""
    columns = []
    for i in range(len(theta)):
        step = np.zeros_like(theta)
        step[i] = _STEP
        columns.append((log_total(theta + step) - log_total(theta - step)) / (2 * _STEP))
    return np.stack(columns, axis=1)


def _tell_apart(effect: FloatArray) -> list[int]:
    """Return the columns to fit, most informative first: at most one per point, none collinear."""
    remaining = effect.copy()
    chosen: list[int] = []
    for _ in range(min(effect.shape)):
        norms = np.linalg.norm(remaining, axis=0)
        norms[chosen] = 0.0
        best = int(np.argmax(norms))
        if norms[best] < _MIN_EFFECT:
            break
        chosen.append(best)
        direction = remaining[:, best] / norms[best]
        remaining = remaining - np.outer(direction, direction @ remaining)
    return chosen


def _notes(fitted: tuple[str, ...], points: Points, left: FloatArray) -> tuple[str, ...]:
    notes = []
    kept = [name for name in PARAMETER_NAMES if name not in fitted]
    n = len(points.measurements)
    if kept:
        notes.append(
            f"{n} point{'s' if n > 1 else ''} can identify {len(fitted)} of {len(PARAMETER_NAMES)} "
            f"parameters: {_listing(fitted)} "
            f"{'is' if len(fitted) == 1 else 'are'} fitted, {_listing(tuple(kept))} "
            f"{'keeps its' if len(kept) == 1 else 'keep their'} assumed value."
        )
    worst = int(np.argmax(np.abs(left)))
    miss = float(np.exp(left[worst]) - 1)
    if abs(miss) > 0.15:
        point = points.measurements[worst]
        notes.append(
            f"The model misses {point.place} by {miss:+.0%}: no single kernel of "
            f"this shape fits the points."
        )
    return tuple(notes)


def _listing(parameters: tuple[str, ...]) -> str:
    names = ["launch floor" if name == "floor_us" else name for name in parameters]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "none"
