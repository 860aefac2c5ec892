"""Ask the batch model from a page: missing kernels are compiled, calibrations are kept."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from app.batch.inputs import batch_request, own_prices
from app.batch.points import MeasuredPoints
from app.shared import runs
from app.shared.footprints import CachedFootprints
from app.shared.selection import Selection
from engine.base.errors import AttuneError, ToolMissing
from engine.batch.recommend import calibrate_for, recommend_batch
from engine.batch.types import BatchRequest, BatchResult, Calibrated
from engine.batch.validate import Validation, validate
from engine.compiled_plan import variant_sources
from engine.config import default_config
from engine.devices.spec import DeviceSpec
from engine.history.simulated import known_batch_curve
from engine.jobs.manager import JobStatus
from engine.names import find_variant
from engine.pipeline.request import EvaluationRequest

_CALIBRATIONS = "calibrations"  # in the tab's state
_MOST_CALIBRATIONS = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, or why there is none; `waiting` are the compiles it still needs."""

    result: BatchResult | None
    error: str = ""
    log: str = ""
    waiting: tuple[JobStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """Predictions beside measured points, or why there are none (yet)."""

    validation: Validation | None
    reason: str = ""
    waiting: tuple[JobStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """What the page asks the model: the sidebar, the GPU, the batch axis, the measured points."""

    selection: Selection
    device: DeviceSpec
    axis: dict[str, Any]
    points: MeasuredPoints
    calibrate: bool

    @property
    def unit(self) -> str:
        """What the batch axis counts."""
        return "B × H" if self.axis["heads_free"] else "B"

    @property
    def _local_gpu(self) -> str:
        """The device that requests leave unnamed."""
        return self.device.name if self.selection.gpu is None else ""

    def request(self, **inputs: Any) -> BatchRequest:
        """The request to the model; `inputs` are those of the open tab."""
        inputs = {"prices": own_prices(), **self.axis, **inputs}
        return batch_request(self.selection, self.device, inputs, self.points, self.calibrate)

    def ask(self, **inputs: Any) -> Answer:
        """Recommend a batch. Kernels that are not compiled yet are compiled by the job worker."""
        deadline = time.monotonic() + runs.COMPILE_WAIT_S
        while True:
            footprints = CachedFootprints(self._local_gpu)
            result = None
            try:
                request = self.request(**inputs)
                calibrated = _calibrated(request, footprints)
                result = recommend_batch(request, footprints, calibrated, known_batch_curve)
            except ToolMissing as error:
                if not footprints.missing:
                    return Answer(None, str(error))
            except AttuneError as error:
                return Answer(None, str(error))
            jobs = footprints.compile_missing()
            waiting = tuple(job for job in jobs if not job.is_over)
            if result is not None:
                return Answer(result, waiting=waiting + self._simulating(result))
            if not waiting:
                return _not_compiled(jobs)
            if time.monotonic() > deadline:
                return Answer(None, waiting=waiting)
            time.sleep(0.01)

    def _simulating(self, result: BatchResult) -> tuple[JobStatus, ...]:
        """The job that simulates the kernel, submitted here where the roofline stands in for it."""
        if result.method != "roofline" or result.kernel or result.calibration is not None:
            return ()
        gpu = None if self.device.name == self._local_gpu else self.device.name
        kernel = EvaluationRequest(
            result.variant, replace(result.problem, batch=1), result.config, gpu=gpu, execute=False
        )
        job = runs.simulate_job(kernel, variant_sources(find_variant(result.variant)).source_sha256)
        return () if job is None or job.is_over else (job,)

    def check(self) -> CheckedModel:
        """Predict the measured points without having seen them."""
        points = self.points.measurements
        if not points:
            return CheckedModel(None, self.points.reason)
        request = self.request()
        variant = find_variant(request.variant)
        footprints = CachedFootprints(self._local_gpu)
        config = default_config(variant, request.config, self.device)
        try:
            footprint = footprints(variant, config, self.device)
            own = self.points.is_own_file
            return CheckedModel(
                validate(variant, config, self.device, points, footprint, simulated=own)
            )
        except ToolMissing as error:
            waiting = tuple(job for job in footprints.compile_missing() if not job.is_over)
            reason = "Compiling the kernels of these points." if waiting else str(error)
            return CheckedModel(None, reason, waiting)
        except AttuneError as error:
            return CheckedModel(None, str(error))


def _not_compiled(jobs: tuple[JobStatus, ...]) -> Answer:
    """Every compile has ended and the kernel is still missing: why."""
    for job in jobs:
        result = job.result or {}
        notes = " ".join(result.get("notes", []))
        error = job.error or notes or str(result.get("reason", ""))
        if error:
            return Answer(None, error, job.log or str(result.get("log", "")))
    return Answer(None, "The kernel did not compile.")


def _calibrated(request: BatchRequest, footprints: CachedFootprints) -> Calibrated:
    """The calibration on the request's points; dragging a slider does not fit it again."""
    if not request.measured:
        return Calibrated((), None, None)
    known: dict[Any, Calibrated] = st.session_state.setdefault(_CALIBRATIONS, {})
    config = tuple(sorted(request.config.items()))
    key = (
        *(request.variant, request.gpu, config, request.measured),
        *(request.calibrate, request.measured_kernel),
    )
    if key not in known:
        calibrated = calibrate_for(request, footprints, known_batch_curve)
        while len(known) >= _MOST_CALIBRATIONS:
            known.pop(next(iter(known)))
        known[key] = calibrated
    return known[key]
