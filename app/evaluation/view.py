"""What the pages show of one evaluation, whether it was just run, only previewed, or recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.evaluation.maps import ErrorMapView
from engine.devices.spec import DeviceSpec
from engine.evaluation import Evaluation, Latency, PassReport
from engine.model.equations import Terms
from engine.problem import Problem


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """Everything that the tiles and the tabs need."""

    variant: str
    problem: Problem
    config: Mapping[str, int]
    device_name: str
    device: DeviceSpec | None  # None where the table has no such row
    passes: tuple[PassReport, ...]
    latency: Latency | None
    latency_reason: str  # why there is none
    predicted: Latency | None  # beside a measured one
    terms: Terms | None  # of the prediction, arrays of one
    evaluation: Evaluation | None  # None: not run yet
    maps: tuple[ErrorMapView, ...]
    source_name: str
    source: str
    flags: tuple[str, ...]
    log: str
    is_recorded: bool
