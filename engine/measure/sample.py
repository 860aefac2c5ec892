"""Raw samples as a `Latency`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from engine.evaluation import Latency
from engine.measure.statistics import median_interval

LatencyKind: TypeAlias = Literal["device_warm", "device_cold", "end_to_end"]


def measured_latency(samples_us: tuple[float, ...], kind: LatencyKind, how: str) -> Latency:
    """Median and 95 % interval of the samples. `how` says how they were taken."""
    found = median_interval(samples_us)
    return Latency(
        origin="measured",
        median_us=found.median,
        low_us=found.low,
        high_us=found.high,
        reason=how,
        kind=kind,
        samples_us=samples_us,
    )
