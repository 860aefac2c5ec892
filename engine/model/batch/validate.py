"""Predicted against measured: difference and verdict, point by point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from engine.devices.spec import DeviceSpec
from engine.evaluation import Evaluation
from engine.model.calibrate import prepare
from engine.model.equations import Calibration, machine, predict_arrays
from engine.model.estimate import Footprint
from engine.model.measurements import Measurement
from engine.problem import Problem
from kernels.variant import Config, Variant

# Wider than this, an interval that holds a value says little for the model.
_WIDE = 2.0
_GOAL_INSIDE = 0.8  # of the measured values inside the 90 % intervals
_WORTH = {
    False: "narrow enough to tell a good model from a poor one.",
    True: "so wide that being inside says little; the differences below say more.",
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
        """`B1 H8 S128 D64`."""
        p = self.problem
        return f"B{p.batch} {p.heads()} {p.lengths()} D{p.head_dim}"

    @property
    def difference(self) -> float:
        """Predicted / measured − 1."""
        return self.predicted_us / self.measured_us - 1

    @property
    def verdict(self) -> Literal["as predicted", "faster than predicted", "slower than predicted"]:
        if self.measured_us < self.low_us:
            return "faster than predicted"
        return "slower than predicted" if self.measured_us > self.high_us else "as predicted"


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows, and how many of the measured values the 90 % intervals held."""

    rows: tuple[ValidationRow, ...]
    inside: int

    @property
    def share_inside(self) -> float:
        return self.inside / len(self.rows)

    @property
    def is_worth_something(self) -> bool:
        """Whether most values are inside, and the intervals narrow enough for that to mean much."""
        return self.share_inside >= _GOAL_INSIDE and self.width <= _WIDE

    @property
    def width(self) -> float:
        """The median width of the intervals, high end over low end."""
        return median(row.high_us / row.low_us for row in self.rows)

    @property
    def reason(self) -> str:
        return (
            f"{self.inside} of {len(self.rows)} measured values ({self.share_inside:.0%}) lie "
            f"inside the 90 % interval of their prediction, which is a factor of {self.width:.2g} "
            f"wide: {_WORTH[self.width > _WIDE]}"
        )


def validate(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    measurements: Sequence[Measurement],
    footprint: Footprint,
    calibration: Calibration | None = None,
    *,
    simulated: bool = False,
) -> Validation:
    """Predict each measured point and compare.

    A calibration on the same points proves nothing; `engine.model.calibrate.leave_one_out` does.

    Args:
        simulated: by machine code, where all the points' kernels were simulated before.

    Raises:
        InvalidProblem: as `engine.model.calibrate.prepare`.
    """
    from engine.model.simulated import known_curve

    points = prepare(variant, config, device, measurements, footprint)
    m = machine(device, variant, measurements[0].problem.dtype)
    curve = None
    if simulated:
        problems = [p.problem for p in measurements]
        curve = known_curve(variant, config, device, problems, points.resident[0])
    spread = predict_arrays(variant, points.launches, points.resident, m, calibration, curve)
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


def from_evaluations(
    evaluations: Iterable[Evaluation], variant: Variant, config: Config, device: DeviceSpec
) -> tuple[Measurement, ...]:
    """The measured or recorded warm latencies of this variant, config and device among them."""
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
        and e.variant == variant.id
        and dict(e.config) == dict(config)
        and e.device == device.name
    )
