"""Asking the batch model from a page: compiles are waited for, calibrations are kept."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.batch.footprints import CachedFootprints, compile_missing
from app.shared.runs import COMPILE_WAIT_S
from engine.devices.spec import DeviceSpec
from engine.errors import AttuneError, ToolMissing
from engine.jobs.manager import JobStatus
from engine.model.batch.recommend import calibrate_for, recommend_batch
from engine.model.batch.types import BatchRequest, BatchResult, Calibrated
from engine.model.batch.validate import Validation, validate
from engine.model.measurements import Measurement
from engine.names import find_variant

_KEPT = "calibrations"
_MOST_KEPT = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, or why there is none; `waiting` are the compiles it still needs."""

    result: BatchResult | None
    why: str = ""
    log: str = ""
    waiting: tuple[JobStatus, ...] = ()


def ask(request: BatchRequest, local_gpu: str) -> Answer:
    """Recommend a batch. Kernels that are not compiled yet are compiled by the job worker."""
    deadline = time.monotonic() + COMPILE_WAIT_S
    while True:
        footprints = CachedFootprints(local_gpu)
        try:
            calibrated = _calibrated(request, footprints)
            result = recommend_batch(request, footprints, calibrated)
        except ToolMissing as error:
            if not footprints.missing:
                return Answer(None, str(error))
            result = None
        except AttuneError as error:
            return Answer(None, str(error))
        jobs = tuple(compile_missing(footprints.missing))
        waiting = tuple(job for job in jobs if not job.is_over)
        if result is not None:
            return Answer(result, waiting=waiting)
        if not waiting:
            return _not_compiled(jobs)
        if time.monotonic() > deadline:
            return Answer(None, waiting=waiting)
        time.sleep(0.01)


def _not_compiled(jobs: tuple[JobStatus, ...]) -> Answer:
    """Every compile has ended and the kernel is still not there: say what the compiler said."""
    for job in jobs:
        found = job.result or {}
        notes = " ".join(found.get("notes", []))
        why = job.error or notes or str(found.get("reason", ""))
        if why:
            return Answer(None, why, job.log or str(found.get("log", "")))
    return Answer(None, "The kernel did not compile.")


def _calibrated(request: BatchRequest, footprints: CachedFootprints) -> Calibrated:
    """The calibration on the request's points; dragging a slider does not fit it again."""
    kept: dict[Any, Calibrated] = st.session_state.setdefault(_KEPT, {})
    if not request.measured:
        return Calibrated((), None, None)
    config = tuple(sorted(request.config.items()))
    key = (request.variant, request.gpu, config, request.measured)
    if key not in kept:
        found = calibrate_for(request, footprints)
        while len(kept) >= _MOST_KEPT:
            kept.pop(next(iter(kept)))
        kept[key] = found
    return kept[key]


@dataclass(frozen=True, slots=True)
class Checked:
    """Predictions beside measured points, or why there are none (yet)."""

    validation: Validation | None
    why: str = ""
    waiting: tuple[JobStatus, ...] = ()


def check(
    request: BatchRequest, device: DeviceSpec, points: tuple[Measurement, ...], local_gpu: str
) -> Checked:
    """Predict the measured points without having seen them."""
    variant = find_variant(request.variant)
    footprints = CachedFootprints(local_gpu)
    config = {**variant.default_config(), **request.config}
    try:
        footprint = footprints(variant, config, device)
        return Checked(validate(variant, config, device, points, footprint))
    except ToolMissing as error:
        jobs = tuple(job for job in compile_missing(footprints.missing) if not job.is_over)
        return Checked(None, "Compiling the kernels of these points." if jobs else str(error), jobs)
    except AttuneError as error:
        return Checked(None, str(error))
