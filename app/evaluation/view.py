"""What a page shows of one evaluation, whether it was just run, only previewed, or recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.evaluation.maps import ErrorMapView, of_snapshot
from app.shared.runs import Standing
from app.shared.selection import Chosen
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.errors import UnknownName
from engine.evaluation import Evaluation, Latency, PassReport
from engine.model.equations import Terms
from engine.problem import Problem
from engine.records.snapshot import Snapshot
from kernels.variant import Variant


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything the metrics row and the tabs need."""

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


def from_standing(
    chosen: Chosen, problem: Problem, now: Standing, maps: tuple[ErrorMapView, ...]
) -> Shown:
    """The present state of the Tune page's request."""
    seen = now.preview
    found = now.evaluation
    predicted = seen.latency if seen else None
    timed = (
        found.latency if found and found.latency and found.latency.origin == "measured" else None
    )
    compiled = now.compiled or found
    return Shown(
        variant=chosen.variant.id,
        problem=problem,
        config=chosen.config,
        device_name=chosen.gpu_name,
        device=seen.device if seen else None,
        passes=seen.passes if seen and seen.passes else (found.passes if found else ()),
        latency=timed or predicted,
        latency_reason=seen.latency_reason if seen else now.error,
        predicted=predicted,
        terms=seen.estimate.terms if seen and seen.estimate else None,
        evaluation=found,
        maps=maps,
        source_name=chosen.variant.source.name,
        source=_text(chosen.variant),
        flags=compiled.flags if compiled else (),
        log=compiled.log if compiled else "",
        is_recorded=False,
    )


def from_snapshot(snapshot: Snapshot, index: int) -> Shown:
    """One evaluation of an opened snapshot; nothing of it is taken from this machine."""
    found = snapshot.opened()[index]
    source = next((s for s in snapshot.sources if s.sha256 == found.source_sha256), None)
    return Shown(
        variant=found.variant,
        problem=found.problem,
        config=found.config,
        device_name=found.device,
        device=_device(found.device),
        passes=found.passes,
        latency=found.latency,
        latency_reason="The snapshot holds no latency for this evaluation.",
        predicted=None,
        terms=None,
        evaluation=found,
        maps=tuple(of_snapshot(m) for m in snapshot.error_maps if m.evaluation == index),
        source_name=source.name if source else "",
        source=source.text if source else "",
        flags=found.flags,
        log=found.log,
        is_recorded=True,
    )


def _device(name: str) -> DeviceSpec | None:
    try:
        return find_device(name)
    except UnknownName:
        return None


def _text(variant: Variant) -> str:
    try:
        return variant.source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
