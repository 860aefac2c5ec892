"""What the pages show of one evaluation, whether it was just run, only previewed, or recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.evaluation.maps import ErrorMapView
from engine.attention.evaluation import Evaluation, Latency, PassReport
from engine.attention.problem import Problem
from engine.devices.spec import DeviceSpec
from engine.history.known_time import KnownTime
from engine.machine_code.launch_report import Residency
from engine.model.equations import Terms
from kernels.variant import Variant


@dataclass(frozen=True, slots=True)
class Residencies:
    """The main pass's time by CTAs per SM, simulated."""

    times: Callable[[], tuple[Residency, ...]]  # empty where its machine code was not read
    read: Callable[[], object]  # begins to read it: a button's callback
    is_being_read: Callable[[], bool]


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
    bound_us: float | None  # in its place: what the launch takes at least
    predicted: Latency | None  # beside a measured one
    terms: Terms | None  # of the prediction, arrays of one
    kernel: Variant | None  # the file that stands here; None for a snapshot's
    known: tuple[KnownTime, ...]  # of the same problem and GPU, in whichever session
    evaluation: Evaluation | None  # None: not run yet
    maps: tuple[ErrorMapView, ...]
    source_name: str
    source_path: str  # of this machine's file; empty where it is a snapshot's
    source: str
    headers: Mapping[str, str]  # their texts by file name, where they are known
    flags: tuple[str, ...]
    log: str
    is_recorded: bool
    residencies: Residencies | None = None
    is_stale: bool = False  # the source has changed since the evaluation
