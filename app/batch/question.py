"""Query the batch model from a page; compile missing kernels and cache calibrations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.batch.inputs import batch_request, own_prices
from app.batch.points import MeasuredPoints
from app.shared import known_times, missing_kernels, runs
from app.shared.selection import Selection
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, ToolMissing
from engine.base.memory import Newest
from engine.choose.batch.recommend import calibrate_for, recommend_batch
from engine.choose.batch.types import BatchRequest, BatchResult, Calibrated
from engine.choose.batch.validate import Validation, validate
from engine.devices.spec import DeviceSpec
from engine.history import History
from engine.jobs.manager import JobStatus
from engine.model.kernel import Kernel

_CALIBRATIONS = "calibrations"  # in the tab's state
_MAX_CALIBRATIONS = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, or the reason why there is none; `waiting` are unfinished compiles."""

    result: BatchResult | None
    error: str = ""
    log: str = ""
    waiting: tuple[JobStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """Predictions beside measured points, or the reason why there are none (yet)."""

    validation: Validation | None
    reason: str = ""
    waiting: tuple[JobStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """The page's query: the sidebar's selection, the GPU, the batch axis, the measured points."""

    selection: Selection
    device: DeviceSpec
    axis: dict[str, Any]
    points: MeasuredPoints
    calibrate: bool

    @property
    def unit(self) -> str:
        """Return the unit of the batch axis."""
        return "B × H" if self.axis["heads_free"] else "B"

    @property
    def problem(self) -> Problem:
        """Return the sidebar's problem."""
        assert self.selection.problem is not None  # else the page shows why
        return self.selection.problem

    @property
    def local_gpu(self) -> str:
        """Return the name of the device that requests leave empty."""
        return self.device.name if self.selection.gpu is None else ""

    def request(self, **inputs: Any) -> BatchRequest:
        """Return the request to the model; `inputs` are the open tab's."""
        inputs = {"prices": own_prices(), **self.axis, **inputs}
        return batch_request(self.selection, self.device, inputs, self.points, self.calibrate)

    def ask(self, **inputs: Any) -> Answer:
        """Recommend a batch. The job worker compiles kernels that are not compiled yet."""
        deadline = time.monotonic() + runs.COMPILE_WAIT_S
        while True:
            history = known_times.history()
            result = None
            try:
                request = self.request(**inputs)
                calibrated = self._calibrated(request, history)
                result = recommend_batch(request, history, calibrated)
            except ToolMissing as error:
                if not history.missing:
                    return Answer(None, str(error))
            except AttuneError as error:
                return Answer(None, str(error))
            jobs = missing_kernels.jobs_for(history, self.local_gpu)
            waiting = tuple(job for job in jobs if not job.is_over)
            if result is not None:
                return Answer(result, waiting=waiting)
            if not waiting:
                return _not_compiled(jobs)
            if time.monotonic() > deadline:
                return Answer(None, waiting=waiting)
            time.sleep(0.01)

    def _calibrated(self, request: BatchRequest, history: History) -> Calibrated:
        """Return the calibration on the request's points, cached so that a slider does not fit it
        again."""
        if not request.measured or not request.calibrate:
            return calibrate_for(request, history)  # the history caches this fit
        known: Newest[Any, Calibrated] = st.session_state.setdefault(
            _CALIBRATIONS, Newest(_MAX_CALIBRATIONS)
        )
        kernel, problem = Kernel.of(request.variant, self.device, request.config), self.problem
        key = (
            *(kernel, request.measured, history.points(kernel, problem)),
            *(request.calibrate, request.measured_kernel),
        )
        if (calibrated := known.get(key)) is None:
            calibrated = known[key] = calibrate_for(request, history)
        return calibrated

    def bound_us(self) -> float | None:
        """Return the roofline's lower bound of a launch with the present batch."""
        request = self.request()
        kernel = Kernel.of(request.variant, self.device, request.config)
        try:
            return known_times.history().estimate(kernel, self.problem).bound_us
        except AttuneError:
            return None

    def check(self) -> CheckedModel:
        """Predict the measured points without calibration on them."""
        points = self.points.measurements
        if not points:
            return CheckedModel(None, self.points.reason)
        request = self.request()
        history = known_times.history()
        kernel = Kernel.of(request.variant, self.device, request.config)
        try:
            own = self.points.is_own_file
            return CheckedModel(validate(kernel, points, history, simulated=own))
        except ToolMissing as error:
            jobs = missing_kernels.jobs_for(history, self.local_gpu)
            waiting = tuple(job for job in jobs if not job.is_over)
            reason = "Compiling the kernels of these points." if waiting else str(error)
            return CheckedModel(None, reason, waiting)
        except AttuneError as error:
            return CheckedModel(None, str(error))


def _not_compiled(jobs: tuple[JobStatus, ...]) -> Answer:
    """Return why the kernel is missing although every compile has ended."""
    for job in jobs:
        result = job.result or {}
        notes = " ".join(result.get("notes", []))
        error = job.error or notes or str(result.get("reason", ""))
        if error:
            return Answer(None, error, job.log or str(result.get("log", "")))
    return Answer(None, "The kernel did not compile.")
