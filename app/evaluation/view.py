"""What pages show of one evaluation: just run, previewed or recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.attention.evaluation import Evaluation, Latency, PassReport
from engine.attention.problem import Problem
from engine.correctness import ErrorMap
from engine.devices.spec import DeviceSpec
from engine.history.known_time import KnownTime
from engine.machine_code.launch_report import Residency
from engine.model.equations import Terms
from kernels.variant import Variant


@dataclass(frozen=True, slots=True)
class Residencies:
    """The main pass's simulated time by CTAs per SM."""

    times: Callable[[], tuple[Residency, ...]]  # empty if its machine code was not read
    read: Callable[[], object]  # starts reading the machine code: a button's callback
    is_being_read: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """All that tiles and tabs show."""

    variant: str
    problem: Problem
    config: Mapping[str, int]
    device_name: str
    device: DeviceSpec | None  # None if the device table lacks it
    passes: tuple[PassReport, ...]
    latency: Latency | None
    latency_reason: str  # why there is no latency
    bound_us: float | None  # lower bound of the time, shown without a latency
    predicted: Latency | None  # beside a measured one
    terms: Terms | None  # of the prediction, arrays of length 1
    kernel: Variant | None  # this machine's kernel; None for a snapshot's
    known: tuple[KnownTime, ...]  # of the same problem and GPU, in any session
    evaluation: Evaluation | None  # None: not run yet
    maps: tuple[ErrorMap, ...]
    source_name: str
    source_path: str  # of this machine's file; empty for a snapshot's
    source: str
    headers: Mapping[str, str]  # texts by file name, if known
    flags: tuple[str, ...]
    log: str
    is_recorded: bool
    residencies: Residencies | None = None
    is_stale: bool = False  # the source has changed since the evaluation
