"""Predicted against measured: difference and verdict, point by point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from engine.devices.spec import DeviceSpec
from engine.evaluation import Evaluation
from engine.model.calibrate import prepare
from engine.model.equations import Calibration, machine, predict_arrays
from engine.model.estimate import Footprint
from engine.model.measurements import Measurement
from kernels.variant import Config, Variant


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One measured point beside its prediction."""

    batch: int
    heads: int
    seqlen: int
    head_dim: int
    seqlen_kv: int | None  # where there are other keys than queries
    ctas: int
    predicted_us: float
    low_us: float
    high_us: float
    measured_us: float
    difference: float  # predicted / measured − 1
    verdict: Literal["as predicted", "faster than predicted", "slower than predicted"]

    @property
    def name(self) -> str:
        """`B1 H8 S128 D64`."""
        keys = "" if self.seqlen_kv is None else f" KV{self.seqlen_kv}"
        return f"B{self.batch} H{self.heads} S{self.seqlen}{keys} D{self.head_dim}"


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows, and how many of the measured values the 90 % intervals held."""

    rows: tuple[ValidationRow, ...]
    inside: int

    @property
    def share_inside(self) -> float:
        return self.inside / len(self.rows)

    @property
    def reason(self) -> str:
        return (
            f"{self.inside} of {len(self.rows)} measured values ({self.share_inside:.0%}) lie "
            f"inside the 90 % interval of their prediction."
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": [asdict(row) for row in self.rows],
            "inside": self.inside,
            "share_inside": self.share_inside,
            "reason": self.reason,
        }


def validate(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    measurements: Sequence[Measurement],
    footprint: Footprint,
    calibration: Calibration | None = None,
) -> Validation:
    """Predict each measured point and compare.

    A calibration on the same points proves nothing; `engine.model.calibrate.leave_one_out` does.

    Raises:
        InvalidProblem: as `engine.model.calibrate.prepare`.
    """
    points = prepare(variant, config, device, measurements, footprint)
    m = machine(device, variant, measurements[0].problem.dtype)
    spread = predict_arrays(variant, points.launches, points.resident, m, calibration)
    rows = []
    for i, point in enumerate(points.measurements):
        low, high = float(spread.low_us[i]), float(spread.high_us[i])
        predicted = float(spread.terms.total_us[i])
        p = point.problem
        rows.append(
            ValidationRow(
                batch=p.batch,
                heads=p.num_heads,
                seqlen=p.seqlen,
                head_dim=p.head_dim,
                seqlen_kv=p.seqlen_kv,
                ctas=int(points.launches.ctas[0, i]),
                predicted_us=predicted,
                low_us=low,
                high_us=high,
                measured_us=point.measured_us,
                difference=predicted / point.measured_us - 1,
                verdict=(
                    "faster than predicted"
                    if point.measured_us < low
                    else "slower than predicted"
                    if point.measured_us > high
                    else "as predicted"
                ),
            )
        )
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
