"""The batch whose measurement would narrow the recommendation most.

A measured point narrows the model's parameters in the direction that changes its own latency. This
is linear algebra on logarithms and does not need the point's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.model.calibrate import log_parameters, log_total_of, prepare, sensitivity
from engine.model.equations import (
    NOISE,
    Z90,
    Calibration,
    CtaCurve,
    Machine,
    machine,
    predict_arrays,
    priors,
)
from engine.model.kernel import Kernel, Known
from engine.model.launches import Launches
from engine.model.measured_points import Measurement
from engine.model.occupancy import IntArray
from kernels.variant import Variant

_MAX_CANDIDATES = 64
_FARTHEST = 8  # times the recommended batch; larger launches depend on other terms
_WORTH_MEASURING = 0.9  # maximum remaining share of the interval's width


@dataclass(frozen=True, slots=True)
class NextPoint:
    """A batch to measure. Factors: the 90 % interval of the recommended batch's latency is from
    median / factor to median · factor."""

    batch: int
    recommended: int
    factor_now: float
    factor_then: float
    reason: str


def candidates(last: int, recommended: int) -> IntArray:
    """Return the batches to compare: evenly spaced logarithmically, plus the recommended one."""
    end = min(last, _FARTHEST * recommended)
    spaced = np.geomspace(1, end, _MAX_CANDIDATES).astype(np.int64)
    return np.unique(np.append(spaced, recommended))


def measure_next(
    variant: Variant,
    launches: Launches,
    resident: IntArray,
    machine: Machine,
    calibration: Calibration | None,
    recommended: int,
    curve: CtaCurve | None = None,
) -> NextPoint | None:
    """Return the batch whose measurement most narrows the recommended batch's latency and its share
    of the plateau.

    Args:
        launches: those of the candidates, including `recommended` and the largest batch.
        resident: CTAs per SM of each, `[passes, n]`.

    Returns:
        None if no point would narrow it noticeably.
    """
    parameters, covariance = priors(variant, curve)
    if calibration is not None:
        parameters, covariance = calibration.parameters, np.array(calibration.covariance)
    noise = NOISE if calibration is None else calibration.noise
    log_total = log_total_of(variant, launches, resident, machine, curve)
    effect = sensitivity(log_total, log_parameters(parameters))
    at = int(np.flatnonzero(launches.batch == recommended)[0])
    # The figures to narrow: latency of the recommended batch, and its ratio to the largest batch's.
    goals = np.stack([effect[at], effect[at] - effect[-1]])
    spread = np.einsum("gi,ij,gj->g", goals, covariance, goals)
    along = covariance @ effect.T  # [parameters, candidates]
    variance = np.einsum("ci,ic->c", effect, along) + noise**2
    left = spread.sum() - np.sum((goals @ along) ** 2, axis=0) / variance
    best = int(np.argmin(left))
    of_latency = spread[0] - (goals[0] @ along[:, best]) ** 2 / variance[best]
    now, then = (
        float(np.exp(Z90 * np.sqrt(max(x, 0.0) + noise**2))) for x in (spread[0], of_latency)
    )
    if np.log(then) > _WORTH_MEASURING * np.log(now):
        return None
    batch = int(launches.batch[best])
    return NextPoint(
        batch,
        recommended,
        now,
        then,
        f"Measure B={batch:,} next: of all batches, it narrows the recommendation most. The "
        f"latency of B={recommended:,} is now known within a factor of {now:.3g}, and would then "
        f"be within {then:.3g}.",
    )


# Measured points beside their predictions, with the difference of each.


# An interval wider than this factor says little, even if it contains the value.
_WIDE = 2.0
_GOAL_INSIDE = 0.8  # share of the measured values inside the 90 % intervals
_WORTH = {
    False: "narrow enough to distinguish a good model from a poor one.",
    True: "so wide that lying inside means little; see the differences below.",
}


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One measured point beside its prediction."""

    problem: Problem
    ctas: int
    predicted_us: float
    low_us: float
    high_us: float
    measured_us: float

    @property
    def name(self) -> str:
        """Return `B1 H8 S128 D64`."""
        p = self.problem
        return f"B{p.batch} {p.heads_label()} {p.lengths_label()} D{p.head_dim}"

    @property
    def difference(self) -> float:
        """Return predicted / measured − 1."""
        return self.predicted_us / self.measured_us - 1

    @property
    def verdict(self) -> Literal["as predicted", "faster than predicted", "slower than predicted"]:
        """Return whether the measured value lies in, below or above the 90 % interval."""
        if self.measured_us < self.low_us:
            return "faster than predicted"
        return "slower than predicted" if self.measured_us > self.high_us else "as predicted"


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows, and how many known times lie inside the 90 % intervals."""

    rows: tuple[ValidationRow, ...]
    inside: int

    @property
    def share_inside(self) -> float:
        """Return the share of measured values inside the intervals, 0..1."""
        return self.inside / len(self.rows)

    @property
    def is_worth_something(self) -> bool:
        """Return True if most values are inside, and the intervals narrow enough for that to
        matter."""
        return self.share_inside >= _GOAL_INSIDE and self.width <= _WIDE

    @property
    def width(self) -> float:
        """Return the median width of the intervals, high end divided by low end."""
        return median(row.high_us / row.low_us for row in self.rows)

    @property
    def reason(self) -> str:
        """Return the result in one sentence."""
        return (
            f"{self.inside} of {len(self.rows)} known times ({self.share_inside:.0%}) lie "
            f"inside the 90 % interval of their prediction, which is a factor of {self.width:.2g} "
            f"wide: {_WORTH[self.width > _WIDE]}"
        )


def validate(
    kernel: Kernel,
    measurements: Sequence[Measurement],
    known: Known,
    calibration: Calibration | None = None,
    *,
    simulated: bool = False,
) -> Validation:
    """Predict each measured point and compare.

    A calibration on the same points validates nothing; `engine.model.calibrate.leave_one_out` does.

    Args:
        simulated: predict by machine code if all points have simulated CTA times.

    Raises:
        InvalidProblem: as `engine.model.calibrate.prepare`.
    """
    points = prepare(kernel, measurements, known)
    m = machine(kernel.device, kernel.variant, measurements[0].problem.dtype)
    curve = None
    if simulated:
        problems = tuple(p.problem for p in measurements)
        curve = known.points_curve(kernel, problems, points.resident[0])
    spread = predict_arrays(kernel.variant, points.launches, points.resident, m, calibration, curve)
    rows = [
        ValidationRow(
            problem=point.problem,
            ctas=int(points.launches.ctas[0, i]),
            predicted_us=float(spread.terms.total_us[i]),
            low_us=float(spread.low_us[i]),
            high_us=float(spread.high_us[i]),
            measured_us=point.measured_us,
        )
        for i, point in enumerate(points.measurements)
    ]
    inside = sum(row.verdict == "as predicted" for row in rows)
    return Validation(tuple(rows), inside)


def from_evaluations(evaluations: Iterable[Evaluation], kernel: Kernel) -> tuple[Measurement, ...]:
    """Return the kernel's measured and recorded warm latencies in these evaluations."""
    return tuple(
        Measurement(
            problem=e.problem,
            measured_us=e.latency.median_us,
            ctas=e.main_pass.occupancy.ctas if e.main_pass else None,
        )
        for e in evaluations
        if e.latency is not None
        and e.latency.origin in ("measured", "recorded")
        and e.latency.kind == "device_warm"
        and e.variant == kernel.variant.id
        and dict(e.config) == kernel.config
        and e.device == kernel.device.name
    )
