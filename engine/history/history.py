"""`History`: the object that decides between measured, recorded, simulated and assumed times.

`time_of` returns the first that exists of these times:

1. measured here, with this source;
2. recorded with this source on this GPU;
3. simulated from the machine code, calibrated on known times of this source;
4. simulated;
5. by roofline, calibrated or not, which is little more than a bound.

Times of another source are `Reference`s and are never returned. Every prediction is recorded
(`Prediction`) in one file for all sessions, the ledger; `engine.sessions.known_times` compares it
with later measurements.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from engine.attention.config import TunedConfig, load_tuned
from engine.attention.evaluation import Evaluation, Latency, Origin, Resources
from engine.attention.plan import LaunchPlan, resources
from engine.attention.problem import Problem
from engine.base import files
from engine.base.errors import AttuneError, StoreError, ToolMissing
from engine.base.files import data_folder
from engine.base.schema import Integer, Line, Stored, decode, encode
from engine.base.table import Bars, Table, Tabular
from engine.base.units import format_us
from engine.cuda_source import CompiledKernel, CompileReport
from engine.history.known_time import (
    KnownTime,
    Reference,
    TimeSource,
    known_time_of,
    points_of,
    references_in,
    source_match,
)
from engine.model.backward import PassTime, estimate_backward
from engine.model.calibrate import calibrate, prepare
from engine.model.kernel import (
    Estimate,
    Kernel,
    cached_kernel,
    compile_plan,
    estimate,
    known_report,
    misfit_of,
    pass_reports,
)

if TYPE_CHECKING:
    import pandas as pd

    from engine.model.equations import Calibration, CtaCurve
    from engine.model.launches import Launches
    from engine.model.measured_points import Measurement
    from engine.model.occupancy import IntArray


@dataclass(frozen=True, slots=True)
class Prediction(Stored):
    """One prediction of one launch."""

    when: Line  # UTC, ISO 8601
    variant: Line
    config: Mapping[Line, Integer]
    problem: Problem
    device: Line
    source_sha256: Line
    latency: Latency

    @property
    def key(self) -> tuple[object, ...]:
        """Return the key of the launch: variant, config, problem, GPU."""
        return self.variant, tuple(sorted(self.config.items())), self.problem, self.device


def predictions_path() -> Path:
    """Return the file of the ledger."""
    return data_folder() / "predictions.jsonl"


def log_prediction(evaluation: Evaluation, predicted: Latency | None) -> None:
    """Record an evaluation's prediction in the ledger. Write errors are ignored: they must not
    fail an evaluation."""
    if predicted is None or not evaluation.source_sha256:
        return
    path = predictions_path()
    of_both = {f.name: getattr(evaluation, f.name) for f in fields(Prediction)}
    try:
        files.make_folder(path.parent)
        files.append_event(path, encode(Prediction(**(of_both | {"latency": predicted}))))
    except (ImportError, OSError, StoreError):
        return  # no prediction, or a full disk: the evaluation is more important


def predictions() -> list[Prediction]:
    """Return the recorded predictions, oldest first, without duplicates. Damaged lines are skipped.

    Raises:
        StoreError: the file cannot be read.
    """
    events, _ = files.read_events(predictions_path(), 0)
    kept: dict[object, Prediction] = {}
    for event in events:
        try:
            prediction = decode(Prediction, event)
        except AttuneError:
            continue
        latency = prediction.latency
        if latency.origin != "predicted":  # the ledger has only predictions
            continue
        figures = (latency.low_us, latency.median_us, latency.high_us)
        kept.setdefault((prediction.key, prediction.source_sha256, figures), prediction)
    return list(kept.values())


# Work that is allowed to find a time: only look-ups (milliseconds); also compiling; compiling and
# simulating.
Work: TypeAlias = Literal["look up", "compile", "simulate"]

_MAX_FITS = 64
_MAX_POINTS = 256  # maximum points of a calibration, from the newest sessions
NOT_COMPILED = "Its kernel is not compiled yet."


@dataclass(frozen=True, slots=True, repr=False)
class Time(Tabular):
    """The time of a launch, as pages and commands show it."""

    us: float
    low_us: float
    high_us: float
    origin: Origin
    # method of the prediction (`evaluation.METHODS`); empty for a measured or recorded time
    method: str
    calibrated_on: int  # for a prediction: number of times of this source that it is calibrated on
    where: str  # `session L4 study`; empty for a prediction
    reason: str  # limiting term, or how it was measured

    @classmethod
    def of_known(cls, time: KnownTime) -> Self:
        """Return a measured or recorded time."""
        x, where = time.latency, f"session {time.session}"
        return cls(x.median_us, x.low_us, x.high_us, x.origin, "", 0, where, x.reason)

    @classmethod
    def predicted(cls, made: Estimate) -> Self | None:
        """Return the time of a prediction; None if it has no latency."""
        if (x := made.latency) is None:
            return None
        points = made.calibrated_on
        return cls(x.median_us, x.low_us, x.high_us, x.origin, x.method, points, "", x.reason)

    def tables(self) -> tuple[Table, ...]:
        """Return a table of value, interval and origin."""
        made = self.where or self.method
        rows = (
            ("time", f"{format_us(self.us)} {self.origin}"),
            ("interval", f"{format_us(self.low_us)} – {format_us(self.high_us)}"),
            ("by", f"{made}, calibrated on {self.calibrated_on}" if self.calibrated_on else made),
        )
        return (Table("Time of a launch", ("figure", "value"), rows, self.reason),)

    def to_frame(self) -> pd.DataFrame:
        """Return one row with the fields as columns; times in µs."""
        import pandas as pd

        return pd.DataFrame([asdict(self)])

    def bars(self) -> Bars:
        """Return a bar chart of the time with its interval."""
        value = {self.where or f"by {self.method}": (self.us, self.low_us, self.high_us)}
        return Bars("Time of a launch", f"µs, {self.origin}", value)

    @property
    def latency(self) -> Latency:
        """Return the time as a `Latency`."""
        return Latency(self.origin, self.us, self.low_us, self.high_us, self.reason)


@dataclass(frozen=True, slots=True)
class _Fits:
    """Cache of the last calibrations, which a slider requests repeatedly."""

    kept: dict[tuple[object, ...], Calibration | None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, key: tuple[object, ...], fitted: Calibration | None) -> Calibration | None:
        with self.lock:
            while len(self.kept) >= _MAX_FITS:
                self.kept.pop(next(iter(self.kept)), None)
            self.kept[key] = fitted
        return fitted


@dataclass(frozen=True, slots=True)
class History:
    """Times known before a run. Nothing is read before it is needed.

    Args:
        times: times of sessions, as in `engine.sessions.known_times.open_history`; None: no times
            of sessions.
        work: work that is allowed to find a time.
        shipped: use figures that ship with Attune (`engine.history.shipped`) for kernels that are
            not compiled and simulated yet. For tables of many kernels; a kernel that is executed is
            compiled anyway.
    """

    times: TimeSource | None = None
    work: Work = "simulate"
    shipped: bool = False
    # With `work` "look up": requests that were not found, and the work that they need.
    missing: list[tuple[Kernel, Problem, Literal["compile", "simulate"]]] = field(
        default_factory=list
    )
    _fits: _Fits = field(default_factory=_Fits)

    def doing(self, work: Work) -> History:
        """Return a copy that allows other work, with its own `missing` list."""
        return replace(self, work=work, missing=[])

    def with_shipped(self) -> Self:
        """Return a copy that uses figures that ship with Attune, with the same `missing` list."""
        return replace(self, shipped=True)

    # Times

    def time_of(self, kernel: Kernel, problem: Problem) -> Time | None:
        """Return the time of a launch, by the order of preference in this module's docstring.

        None if it cannot be launched or predicted; `estimate` gives the reason.
        """
        if (known := self.known_time(kernel, problem)) is not None:
            return Time.of_known(known)
        try:
            return Time.predicted(self.estimate(kernel, problem))
        except AttuneError:
            return None

    def at(self, problem: Problem, device: str) -> tuple[KnownTime, ...]:
        """Return all measured and recorded times of a problem on a GPU: kernels of any source
        and PyTorch's attention."""
        return self.times.on(device, problem) if self.times is not None else ()

    def known_time(self, kernel: Kernel, problem: Problem) -> KnownTime | None:
        """Return the measured or recorded time of this source, config, problem and GPU.

        None at another clock than boost: known times are at the clock that the GPU took itself.
        """
        if kernel.device.clock != "boost":
            return None
        return known_time_of(self.at(problem, kernel.device.name), kernel.variant, kernel.config)

    def references(self, problem: Problem, device: str) -> tuple[Reference, ...]:
        """Return times of kernels with other sources on the same problem and GPU."""
        return references_in(self.at(problem, device))

    def tuned(self) -> list[TunedConfig]:
        """Return the tuned configs. Raises StoreError if they cannot be read."""
        return load_tuned()

    def keep(self, evaluation: Evaluation, predicted: Latency | None) -> None:
        """Record a prediction, to be scored when the launch is measured later."""
        log_prediction(evaluation, predicted)

    # Predictions

    def estimate(
        self, kernel: Kernel, problem: Problem, calibration: Calibration | None = None
    ) -> Estimate:
        """Return the prediction of a launch.

        Args:
            calibration: a calibration on the caller's points, used instead of the sessions' points.

        Raises:
            InvalidProblem: variant, config or GPU do not take the problem.
            UnknownName: the SM limits of the GPU's compute capability are not known.
            CompileError: it does not compile.
            ToolMissing: there is no NVRTC, or it is not compiled yet and is only looked up.
        """
        plan = kernel.plan(problem)
        return self.estimate_plan(kernel, plan, self._compiled(kernel, plan), calibration)

    def estimate_plan(
        self,
        kernel: Kernel,
        plan: LaunchPlan,
        compiled: CompileReport,
        calibration: Calibration | None = None,
    ) -> Estimate:
        """Return `estimate` of a plan that is compiled for the kernel's GPU."""
        passes = pass_reports(kernel, plan, resources(plan, compiled))
        if misfit_of(kernel, passes):
            return estimate(kernel, plan, passes)
        if plan.is_backward:
            times = self._passes(kernel, plan, compiled)
            return estimate_backward(kernel, plan, passes, times)
        curve = None
        if calibration is None or calibration.by_machine_code:
            curve = self._curve(kernel, plan, compiled, passes[0].occupancy.ctas_per_sm)
        if calibration is None:
            # With its own list, to tell what is missing for the calibration.
            here = self.doing(self.work)
            calibration = here._calibration(kernel, plan.problem, curve is not None)
            if here.missing:  # calibrated on some of the points, it would be another time
                self.missing.extend(here.missing)
                calibration = curve = None
        return estimate(kernel, plan, passes, calibration, curve)

    def resources(self, kernel: Kernel, problem: Problem) -> tuple[Resources, ...]:
        """Return the resources of each pass. Raises as `estimate`."""
        plan = kernel.plan(problem)
        return resources(plan, self._compiled(kernel, plan))

    def calibration(self, kernel: Kernel, problem: Problem) -> Calibration | None:
        """Return the calibration for such problems. Raises as `estimate`."""
        plan = kernel.plan(problem)
        compiled = self._compiled(kernel, plan)
        passes = pass_reports(kernel, plan, resources(plan, compiled))
        if plan.is_backward or misfit_of(kernel, passes):
            return None
        curve = self._curve(kernel, plan, compiled, passes[0].occupancy.ctas_per_sm)
        return self._calibration(kernel, problem, curve is not None)

    def batch_curve(
        self, kernel: Kernel, problem: Problem, launches: Launches, resident: IntArray
    ) -> CtaCurve | None:
        """Return simulated CTA times of a problem at many batches, as `Known` declares it."""
        from engine.history.ctas import known_batch_curve

        if self.work == "simulate":
            try:
                plan = kernel.plan(replace(problem, batch=1))
                self._curve(kernel, plan, self._compiled(kernel, plan), int(resident[0, 0]))
            except AttuneError:
                return None
        curve = known_batch_curve(kernel, problem, launches, resident)
        if curve is None and self.work == "look up":
            self.missing.append((kernel, replace(problem, batch=1), "simulate"))
        return curve

    def points_curve(
        self, kernel: Kernel, problems: tuple[Problem, ...], resident: IntArray
    ) -> CtaCurve | None:
        """Return simulated CTA times of several problems; None unless all have them."""
        from engine.model.equations import CtaCurve

        curves = []
        for problem, ctas in zip(problems, resident.tolist(), strict=True):
            try:
                plan = kernel.plan(problem)
                curve = self._curve(kernel, plan, self._compiled(kernel, plan), ctas)
            except AttuneError:
                return None
            if curve is None:
                return None
            curves.append(curve)
        return CtaCurve.joined(curves) if curves else None

    def points(self, kernel: Kernel, problem: Problem) -> tuple[Measurement, ...]:
        """Return the times of this source that can calibrate a prediction of such a problem; none
        at another clock than boost, as `known_time`."""
        if self.times is None or kernel.device.clock != "boost":
            return ()
        mine = [
            t
            for t in self.times.on(kernel.device.name, name=kernel.variant.id)
            if not t.is_sdpa
            and dict(t.config) == kernel.config
            and t.problem.dtype == problem.dtype
            and source_match(t, kernel.variant) == "this source"
        ]
        points = points_of(mine)[:_MAX_POINTS]
        has = {q: self._has_resources(kernel, q) for q in dict.fromkeys(p.problem for p in points)}
        return tuple(p for p in points if has[p.problem])

    # Inputs of predictions

    def report(self, kernel: Kernel, plan: LaunchPlan) -> CompileReport | None:
        """Return the compiler's report on a plan if it is known without compiling."""
        arch = kernel.device.arch
        if not self.shipped:
            return cached_kernel(plan, arch)
        from engine.history.shipped import shipped_figures

        return known_report(plan, arch, shipped_figures().report)

    def _compiled(self, kernel: Kernel, plan: LaunchPlan) -> CompileReport:
        if self.work != "look up":
            known = self.report(kernel, plan) if self.shipped else None
            return known or compile_plan(plan, kernel.device.arch)
        compiled = self.report(kernel, plan)
        if compiled is None:
            self.missing.append((kernel, plan.problem, "compile"))
            raise ToolMissing(NOT_COMPILED)
        return compiled

    def _curve(
        self, kernel: Kernel, plan: LaunchPlan, compiled: CompileReport, resident: int
    ) -> CtaCurve | None:
        from engine.history.ctas import known_launch_curve

        curve = known_launch_curve(kernel, plan, compiled, resident, self.shipped)
        if curve is None and self.work == "simulate":
            from engine.history.simulation import launch_curve

            return launch_curve(kernel, plan, _whole(kernel, plan, compiled), resident)
        if curve is None and self.work == "look up":
            self.missing.append((kernel, plan.problem, "simulate"))
        return curve

    def _passes(
        self, kernel: Kernel, plan: LaunchPlan, compiled: CompileReport
    ) -> tuple[PassTime, ...] | None:
        """Return the simulated time of each pass of a backward launch, if `work` allows it."""
        from engine.history.simulation import known_passes, simulated_passes

        if self.work == "simulate":
            return simulated_passes(plan, _whole(kernel, plan, compiled), kernel.device)
        times = known_passes(plan, compiled, kernel.device)
        if times is None and self.work == "look up":
            self.missing.append((kernel, plan.problem, "simulate"))
        return times

    def _calibration(
        self, kernel: Kernel, problem: Problem, by_machine_code: bool
    ) -> Calibration | None:
        """Return a calibration, based on simulated CTA times if `by_machine_code` and all points
        have them, else on the roofline."""
        points = self.points(kernel, problem)
        if not points:
            return None
        key = (kernel, problem.dtype, points)
        if by_machine_code:
            fitted = self._fits.kept.get((*key, "simulated"))
            fitted = fitted or self._fit(kernel, points, simulated=True)
            if fitted is not None:
                return self._fits.keep((*key, "simulated"), fitted)
        if key in self._fits.kept:
            return self._fits.kept[key]
        return self._fits.keep(key, self._fit(kernel, points, simulated=False))

    def _has_resources(self, kernel: Kernel, problem: Problem) -> bool:
        try:
            self.resources(kernel, problem)
        except AttuneError:
            return False
        return True

    def _fit(
        self, kernel: Kernel, points: tuple[Measurement, ...], *, simulated: bool
    ) -> Calibration | None:
        """Fit a calibration. With `simulated`, it is based on the points' CTA times; None if a
        point has none."""
        try:
            prepared = prepare(kernel, points, self)
            if simulated:
                problems = tuple(p.problem for p in points)
                curve = self.points_curve(kernel, problems, prepared.resident[0])
                if curve is None:
                    return None
                prepared = replace(prepared, curve=curve)
            return calibrate(prepared)
        except AttuneError:  # a time that is impossible on this GPU, or a GPU without figures
            return None


def _whole(kernel: Kernel, plan: LaunchPlan, compiled: CompileReport) -> CompiledKernel:
    """Return the report with machine code, which shipped reports lack."""
    if isinstance(compiled, CompiledKernel):
        return compiled
    return compile_plan(plan, kernel.device.arch)
