"""A one-line verdict on a launch: correctness, share of the roofline, next step.

Nothing is compiled, executed or simulated here; the verdict summarizes results.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from engine.attention.config import find_variant, fitting_config
from engine.attention.evaluation import Evaluation, Execution, Finding, Latency, Origin
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, Status
from engine.base.units import format_us
from engine.choose.auto import Choice, choose
from engine.correctness.findings import FindingCode, Place, place_in, places_in
from engine.history import History
from engine.history.known_time import preferred
from engine.machine_code.advice import NEXT_WORDS
from engine.machine_code.launch_report import Hint, PassReport
from engine.machine_code.timing.constants import StallReason
from engine.model.kernel import Kernel
from engine.model.roofline import launch_work, roofline_points, roofs_of
from engine.pipeline.request import EvaluationRequest, preview, resolve
from engine.pipeline.simulated_launches import read_machine_code
from kernels.description import place_of_key
from kernels.ladder import LADDER
from kernels.possible import invalid_formula_keys
from kernels.toml_block import KernelDescriptionError

# `Status` in lower case, or the state of a kernel that was not executed.
Result: TypeAlias = Literal["not_run", "running", "stale"] | str
PartCode: TypeAlias = Literal["result", "finding", "time", "roof", "limit", "next", "auto", "check"]

REMEDIES: Mapping[Status, str] = {
    Status.SKIPPED: "select another variant, config, problem or target GPU",
    Status.COMPILE_ERROR: "fix what the reason or the log names, in the source or its description",
    Status.LAUNCH_ERROR: "fix what the reason or the log names, in the source or its description",
    Status.OUT_OF_MEMORY: "use a smaller batch, fewer heads or a shorter sequence",
    Status.INCORRECT: "see the error maps in the app's tab Correctness",
    Status.RACE: "order the two accesses: a barrier, a fence, or a wait for the copy",
    Status.OUT_OF_BOUNDS: "guard the access or fix its offset; the check build names the line",
    Status.CRASHED: "run it once with the check build: it names line, CTA and thread",
    Status.TIMEOUT: "look for a loop that does not end, or raise the time limit",
    Status.THROTTLED: "let the GPU cool down or reduce its load, then run again",
    Status.CANCELLED: "run it again at any time",
}
_CHECK_BUILD = "; the check build (--check) finds races and out-of-bounds accesses"
_OWN_REMEDY = "correct the kernel's description, or select another problem or target GPU"
# A GPU also refuses launches that are too large; software does not.
_GPU_LAUNCH_REMEDY = "see the log; a smaller tile or another config may launch"
_STALLS: Mapping[str, str] = {
    StallReason.WAIT.label: "fixed latencies",
    StallReason.LONG_SCOREBOARD.label: "global loads",
    StallReason.SHORT_SCOREBOARD.label: "shared memory and special functions",
    StallReason.BARRIER.label: "barriers",
    StallReason.MEMBAR.label: "memory fences",
    StallReason.MATH_PIPE_THROTTLE.label: "the math pipe",
    StallReason.MIO_THROTTLE.label: "the queue to shared memory",
    StallReason.LG_THROTTLE.label: "the queue to global memory",
    StallReason.NOT_SELECTED.label: "other warps to issue",
    StallReason.NO_INSTRUCTION.label: "instruction fetch",
    StallReason.GMMA.label: "the warpgroup's products",
}
# For each kind of advice, the last rung without the change and the first rung with it. The
# difference of their simulated times is the gain of the advice.
_RUNGS: Mapping[str, tuple[str, str]] = {
    "conflicts": ("v08", "v09"),
    "sectors": ("v02", "v03"),
    "narrow": ("v02", "v03"),
    "copy_ahead": ("v09", "v10"),
    "barrier": ("v09", "v10"),
    "tensor_idle": ("v10", "v11"),
    "few_ctas": ("v02", "v05"),
}
_FAULT = re.compile(r"[\w.-]+\.cuh?:\d+: (?P<kind>[\w ]+) in kernel ")


@dataclass(frozen=True, slots=True)
class VerdictTime:
    """Time of the launch; a lower bound if `is_bound`."""

    us: float
    origin: Origin
    is_bound: bool


@dataclass(frozen=True, slots=True)
class RoofShare:
    """Achieved share of the lowest roof, 0 to 1."""

    roof: str  # "tensor", "TF32 tensor" of FP32 tensors, "FMA" or "DRAM"
    share: float


@dataclass(frozen=True, slots=True)
class Limit:
    """The busiest unit if it is the bottleneck, else the main stall reason; simulated."""

    kind: Literal["unit", "stall"]
    name: str  # a key of `PassReport.units` or `.stalls`
    share: float  # of the time, or of the warps' cycles


@dataclass(frozen=True, slots=True)
class NextStep:
    """The advice with the most certain gain."""

    kind: str  # an `AdviceKind`
    place: Place | None
    low: float  # share of the launch's time, simulated; the range includes `rung_gain`
    high: float
    rung: str = ""  # the rung of the ladder that implements it
    # Gain of that rung over the last rung without the change; None: not known.
    rung_gain: float | None = None

    @property
    def gain(self) -> str:
        """`7–23% (v10 does it: 23%)`."""
        low, high = f"{100 * self.low:.0f}", f"{100 * self.high:.0f}"
        gain = f"{high}%" if low == high else f"{low}–{high}%"
        if not self.rung:
            return gain
        gains = "" if self.rung_gain is None else f": {100 * self.rung_gain:.0f}%"
        return f"{gain} ({self.rung} does it{gains})"


@dataclass(frozen=True, slots=True)
class AutoPick:
    """The kernel that `auto` would choose."""

    variant: str
    config: Mapping[str, int]
    us: float | None  # None: not simulated yet
    origin: Origin | None
    # Tunables that differ, if it is the same variant.
    differing: Mapping[str, int] = field(default_factory=dict)
    is_final: bool = True  # False: another candidate, not simulated yet, may be faster


@dataclass(frozen=True, slots=True)
class VerdictPart:
    """One part of the line, with its place in the source."""

    code: PartCode
    text: str
    place: Place | None = None
    other: Place | None = None  # of a race: the other access

    def with_place(self) -> str:
        """Return the text, with places or option appended if the text does not contain them."""
        if self.code == "check":
            return f"{self.text} (--check)"
        if self.place is None or self.code not in ("result", "finding"):
            return self.text
        places = (self.place, self.other) if self.other is not None else (self.place,)
        where = " and ".join(f"{place.file}:{place.line}" for place in places)
        return f"{where}: {self.text}" if self.code == "finding" else f"{self.text} at {where}"


@dataclass(frozen=True, slots=True)
class LaunchVerdict:
    """The verdict on one launch, with the most severe part first; `sentence` is the line."""

    result: Result
    partial: str = ""  # of a partial run: "12 of 131,072 CTAs"
    awaits_whole: bool = False  # a partial verdict while all CTAs are still being executed
    # FP32 tensors are multiplied in TF32 by design, and checked with that tolerance.
    in_tf32: bool = False
    finding: str = ""  # of an incorrect output: what is wrong
    fault: str = ""  # of a launch that was stopped: "uninitialised shared memory"
    place: Place | None = None  # where
    other: Place | None = None  # of a race: the other access
    remedy: str = ""  # of a launch that failed
    time: VerdictTime | None = None
    roof: RoofShare | None = None
    limit: Limit | None = None
    next: NextStep | None = None
    auto: AutoPick | None = None
    # Correct, or dependent on the order of threads, in a build without race checks.
    races_unchecked: bool = False
    reads_unchecked: bool = False  # NaN, in a build that does not detect uninitialised reads

    @property
    def parts(self) -> tuple[VerdictPart, ...]:
        """Return the parts in reading order; the first always exists."""
        places = (None, None) if self.finding else (self.place, self.other)
        made = [VerdictPart("result", self._result(), *places)]
        if self.finding:
            made.append(VerdictPart("finding", self.finding.rstrip("."), self.place))
        if self.finding and self.races_unchecked:
            return (*made, VerdictPart("check", "next: look for the race"))
        if self.finding and self.reads_unchecked:
            return (
                *made,
                VerdictPart("check", "next: see whether it is read before it is written"),
            )
        if self.remedy:
            return (*made, VerdictPart("next", f"next: {self.remedy}"))
        figures = [text for text in (self._time(), self._roof(), self._limit()) if text]
        if figures:
            made.append(VerdictPart("time", ", ".join(figures)))
        if self.next is not None:
            made.append(VerdictPart("next", self._next(self.next), self.next.place))
        if self.auto is not None:
            made.append(VerdictPart("auto", self._auto(self.auto)))
        if self.races_unchecked:
            made.append(VerdictPart("check", "races not checked"))
        return tuple(made)

    @property
    def sentence(self) -> str:
        """`Correct · 54% of the tensor roof, waits for global loads (39%) · next: …`."""
        return " · ".join(part.with_place() for part in self.parts)

    def encoded(self) -> dict[str, Any]:
        """Return the verdict as in `--json`: codes and figures beside the sentence."""
        return {"sentence": self.sentence, **asdict(self)}

    def _result(self) -> str:
        words = {
            "not_run": "Not run yet",
            "running": "Running",
            "stale": "Source changed since the last run",
            "passed": "Correct",
        }
        text = words.get(self.result, self.result.replace("_", " ").capitalize())
        if self.fault:
            text = f"{text}: {self.fault}"
        if self.in_tf32 and self.result == "passed":
            text = "Correct in TF32"
        if not self.partial:
            return text
        return f"{text} in {self.partial}" + (
            ", the rest still running" if self.awaits_whole else ""
        )

    def _time(self) -> str:
        if self.time is None:
            return ""
        if self.time.is_bound:
            return f"at least {format_us(self.time.us)}"
        return f"{format_us(self.time.us)} {self.time.origin}"

    def _roof(self) -> str:
        return f"{_percent(self.roof.share)} of the {self.roof.roof} roof" if self.roof else ""

    def _limit(self) -> str:
        if self.limit is None:
            return ""
        share = _percent(self.limit.share)
        if self.limit.kind == "unit":
            return f"limiter: {self.limit.name} (busy {share})"
        return f"waits for {_STALLS[self.limit.name]} ({share})"

    @staticmethod
    def _next(step: NextStep) -> str:
        where = f"line {step.place.line}, " if step.place else ""
        return f"next: {where}{NEXT_WORDS[step.kind]}, saves {step.gain}"

    @staticmethod
    def _auto(pick: AutoPick) -> str:
        name = " ".join([pick.variant, *(f"{k}={v}" for k, v in pick.differing.items())])
        if pick.us is None:
            return f"auto takes {name}, not simulated here yet"
        so_far = "" if pick.is_final else ", the fastest of those simulated here"
        return f"auto takes {name}, {format_us(pick.us)} {pick.origin}{so_far}"


def verdict_of(
    evaluation: Evaluation | None,
    kernel: Kernel | None,
    problem: Problem,
    *,
    latency: Latency | None = None,
    bound_us: float | None = None,
    ctas_per_sm: int | None = None,
    report: PassReport | None = None,
    choice: Choice | None = None,
    stopped: Status | None = None,
    is_stale: bool = False,
    is_running: bool = False,
    part: Evaluation | None = None,
    history: History | None = None,
) -> LaunchVerdict:
    """Return the verdict on a launch.

    Args:
        evaluation: the newest run; None or not executed: not run yet.
        kernel: None without a GPU.
        latency: the shown latency; if None or by roofline, `bound_us` is used.
        bound_us: lower bound of the launch's time.
        ctas_per_sm: of the main pass.
        report: of the main pass's machine code, if it was read.
        choice: of `auto`, for the problem on the GPU.
        stopped: status if the present source cannot be run or does not compile.
        is_stale: the source has changed since the run.
        part: verdict on a few CTAs of the running evaluation.
        history: gives the gain of the rung that implements the next step.
    """
    if stopped is not None:
        return _stopped(stopped, evaluation, kernel, problem)
    awaits_whole = is_running and part is not None
    if part is not None and awaits_whole:
        evaluation, is_stale, is_running = part, False, False
    executed = evaluation is not None and _was_executed(evaluation)
    has_failed = executed and evaluation is not None and evaluation.status is not Status.PASSED
    if evaluation is not None and has_failed and not is_stale and not is_running:
        return replace(_failed(evaluation), partial=_partial(evaluation), awaits_whole=awaits_whole)
    result: Result = "passed" if executed else "not_run"
    if is_running:
        result = "running"
    elif executed and is_stale:
        result = "stale"
    time = _time(latency, bound_us)
    is_known = time is not None and not time.is_bound
    run = evaluation.execution if evaluation is not None and result == "passed" else None
    return LaunchVerdict(
        result,
        partial=_partial(evaluation) if evaluation is not None and run is not None else "",
        awaits_whole=awaits_whole,
        in_tf32=problem.dtype == "float32" and kernel is not None and kernel.variant.tf32,
        time=time,
        roof=_roof(kernel, problem, time.us, ctas_per_sm) if time and is_known else None,
        limit=_limit(report) if report is not None else None,
        next=_next(report, kernel, problem, history) if report is not None else None,
        auto=_auto(choice, kernel, problem, time) if choice is not None else None,
        races_unchecked=run is not None and not awaits_whole and _looks_for_no_races(run),
    )


def verdict_on_run(
    request: EvaluationRequest, evaluation: Evaluation, history: History
) -> LaunchVerdict:
    """Return the verdict on a finished run. If the output is correct, read the machine code, which
    takes a few seconds the first time. Other unknown parts are left out.

    Args:
        request: the request of `evaluation`.
    """
    named = replace(request, variant=evaluation.variant, config=evaluation.config)
    kernel = resolve(named, history).kernel
    problem = evaluation.problem
    if evaluation.status is Status.SKIPPED and request.execute:
        return verdict_of(evaluation, kernel, problem, stopped=Status.SKIPPED)
    if kernel is None or evaluation.status not in (Status.PASSED, Status.SKIPPED):
        return verdict_of(evaluation, kernel, problem, latency=evaluation.latency)
    known = history.doing("look up")
    latency = evaluation.latency
    if latency is not None and latency.origin == "predicted":
        latency = preferred(known.known_time(kernel, problem), latency)
    bound_us, report, choice = None, None, None
    with suppress(AttuneError):
        bound_us = preview(replace(named, execute=False), known).bound_us
    with suppress(AttuneError):
        report = problem.main_of(read_machine_code(named, history).passes)
    with suppress(AttuneError):
        choice = choose(problem, kernel.device, None, known)
    return verdict_of(
        evaluation,
        kernel,
        problem,
        latency=latency,
        bound_us=bound_us,
        ctas_per_sm=main.occupancy.ctas_per_sm if (main := evaluation.main_pass) else None,
        report=report,
        choice=choice,
        history=history,
    )


def next_step(status: Status, reason: str, run: Execution | None = None) -> str:
    """Return a sentence that says what to do after a failure.

    Args:
        run: how it was executed; None if it was not.
    """
    has_place = place_in(reason) is not None
    if status is Status.COMPILE_ERROR and has_place:
        return "Fix the line that is named."
    if status is Status.OUT_OF_BOUNDS and has_place:
        return "Guard the access or fix its offset."
    if status is Status.LAUNCH_ERROR and has_place and "uninitialised" in _fault(reason):
        return "Put a barrier before the read, or fix the index that is written or read."
    if status is Status.LAUNCH_ERROR and has_place:
        return "Look at the line that is named: a run stops at the first fault."
    if status is Status.LAUNCH_ERROR and run is not None and _looks_for_no_races(run):
        return (
            f"{REMEDIES[status][0].upper()}{REMEDIES[status][1:]}; the check build (--check) "
            "names the line of an access out of bounds."
        )
    on_gpu = run is not None and run.backend == "cuda"
    is_of_size = status is Status.LAUNCH_ERROR and on_gpu
    remedy = _GPU_LAUNCH_REMEDY if is_of_size else REMEDIES[status]
    if status is Status.INCORRECT and run is not None and _looks_for_no_races(run):
        remedy += _CHECK_BUILD
    return f"{remedy[0].upper()}{remedy[1:]}."


def _fault(reason: str) -> str:
    """Return the kind of fault in a reason that names its source line; empty for other reasons."""
    found = _FAULT.match(reason)
    return found["kind"] if found is not None else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.01 else f"{100 * share:.0f}%"


def _partial(evaluation: Evaluation) -> str:
    """Return `12 of 131,072 CTAs`; empty if all were executed."""
    run = evaluation.execution
    return run.partial.removeprefix("partial: ") if run is not None else ""


def _was_executed(evaluation: Evaluation) -> bool:
    """True if execution was tried. A preview's evaluation is SKIPPED without an execution."""
    return evaluation.execution is not None or evaluation.status is not Status.SKIPPED


def _failed(evaluation: Evaluation) -> LaunchVerdict:
    status = evaluation.status
    finding, by_order, is_nan = "", False, False
    if status is Status.INCORRECT:
        findings = _findings(evaluation)
        finding = findings[0].sentence if findings else evaluation.reason
        by_order = any(f.pattern == FindingCode.ORDER_OF_THREADS for f in findings)
        is_nan = bool(findings) and findings[0].pattern == FindingCode.NAN_ROW
    run, place = evaluation.execution, _place(evaluation)
    remedy = next_step(status, evaluation.reason, run).rstrip(".")
    is_race = status is Status.RACE
    other = next((p for p in places_in(evaluation.reason) if is_race and p != place), None)
    return LaunchVerdict(
        status.lower(),
        finding=finding,
        fault=_fault(evaluation.reason) if status is Status.LAUNCH_ERROR else "",
        place=place,
        other=other,
        remedy=f"{remedy[0].lower()}{remedy[1:]}",
        races_unchecked=by_order,
        reads_unchecked=is_nan and run is not None and _looks_for_no_races(run),
    )


def _stopped(
    status: Status, evaluation: Evaluation | None, kernel: Kernel | None, problem: Problem
) -> LaunchVerdict:
    """Return the verdict on a launch that cannot run; for an own kernel, name the mistake in its
    description."""
    place, remedy = None, REMEDIES[status]
    if status is Status.COMPILE_ERROR:
        place = _place(evaluation)
    if status is Status.SKIPPED and kernel is not None and kernel.variant.id not in LADDER.names():
        remedy = _OWN_REMEDY
        if keys := invalid_formula_keys(kernel.variant, problem, kernel.config):
            field = next(str(key) for key in reversed(keys) if isinstance(key, str))
            remedy = f"correct {field} in the kernel's description"
            with suppress(KernelDescriptionError):
                path, line = place_of_key(kernel.variant.source, keys)
                place = Place(path.name, line)
    return LaunchVerdict(status.lower(), place=place, remedy=remedy)


def _place(evaluation: Evaluation | None) -> Place | None:
    """Return the source line in the first finding, else in the reason or the log."""
    if evaluation is None:
        return None
    texts = [f"{f.place} {f.sentence}" for f in _findings(evaluation)]
    texts += [evaluation.reason, evaluation.log]
    return next((place for text in texts if (place := place_in(text)) is not None), None)


def _findings(evaluation: Evaluation) -> Sequence[Finding]:
    """Return the findings, those with a source line first."""
    found = evaluation.correctness.findings if evaluation.correctness is not None else ()
    return sorted(found, key=lambda f: place_in(f"{f.place} {f.sentence}") is None)


def _looks_for_no_races(run: Execution) -> bool:
    return run.backend != "cuda" and run.build != "check"


def _time(latency: Latency | None, bound_us: float | None) -> VerdictTime | None:
    if latency is not None and not latency.is_bound:
        return VerdictTime(latency.median_us, latency.origin, False)
    return None if bound_us is None else VerdictTime(bound_us, "predicted", True)


def _roof(
    kernel: Kernel | None, problem: Problem, us: float, ctas_per_sm: int | None
) -> RoofShare | None:
    if kernel is None or not ctas_per_sm:
        return None
    variant, device = kernel.variant, kernel.device
    try:
        roofs = roofs_of(device, variant, problem.dtype)
        work = launch_work(kernel, kernel.plan(problem), ctas_per_sm)
    except AttuneError:  # the GPU's row lacks a figure
        return None
    of_fp32 = "TF32 tensor" if problem.dtype == "float32" else "tensor"
    math = "FMA" if variant.work.math_unit == "fma" else of_fp32
    reached = problem.flops / us / 1e6
    # L2's bandwidth is assumed, so a share of it would be misleading.
    points = roofline_points(roofs, work, [(us, "predicted")])
    dram = next((p for p in points if p.level == "DRAM"), None)
    if dram is None or dram.roof_tflops >= roofs.math_tflops:
        return RoofShare(math, reached / roofs.math_tflops)
    return RoofShare(dram.level, dram.share)


def _limit(report: PassReport) -> Limit | None:
    busiest = report.units[0] if report.units else None
    if busiest is not None and busiest.binds:
        return Limit("unit", busiest.name, busiest.share)
    waits = [s for s in report.stalls if s.name in _STALLS]
    return Limit("stall", waits[0].name, waits[0].share) if waits else None


def _next(
    report: PassReport, kernel: Kernel | None, problem: Problem, history: History | None
) -> NextStep | None:
    """Return the advice with the largest worst-case simulated gain; None without advice."""
    hints: list[Hint] = [hint for hint in report.hints if hint.high]
    if not hints or kernel is None:
        return None
    best = max(hints, key=lambda hint: (hint.low, hint.high))
    return step_of(best, kernel, problem, history)


def step_of(hint: Hint, kernel: Kernel, problem: Problem, history: History | None) -> NextStep:
    """Return advice with its gain; the range includes the gain of the rung that implements it.

    Args:
        hint: advice on `kernel`'s machine code, with a simulated gain.
        history: None: no rung is named.
    """
    place = Place(kernel.variant.source.name, hint.line) if hint.line else None
    step = NextStep(hint.kind, place, hint.low, hint.high)
    if history is None or hint.kind not in _RUNGS or problem.direction == "backward":
        return step
    before, after = _RUNGS[hint.kind]
    mine = kernel.variant.id
    if mine in LADDER.names() and mine >= after:  # this rung already implements the advice
        return step
    step = replace(step, rung=after)
    times = [_rung_us(name, kernel, problem, history) for name in (before, after)]
    if times[0] is None or times[1] is None or times[1] >= times[0]:
        return step
    gain = 1 - times[1] / times[0]
    return replace(step, rung_gain=gain, low=min(step.low, gain), high=max(step.high, gain))


def _rung_us(name: str, kernel: Kernel, problem: Problem, history: History) -> float | None:
    """Return a rung's simulated time, with `kernel`'s values for common tunables and defaults
    for others. None if it is calibrated: the other rung's may not be."""
    try:
        variant = find_variant(name)
        shared = {
            t.name: kernel.config[t.name] for t in variant.tunables if t.name in kernel.config
        }
        given = shared if variant.invalid_values(shared) is None else {}
        config = fitting_config(variant, given, problem, kernel.device)
        found = history.estimate(Kernel.of(variant, kernel.device, config), problem)
    except AttuneError:
        return None
    return found.latency.median_us if found.latency and found.latency.is_simulated else None


def _auto(
    choice: Choice, kernel: Kernel | None, problem: Problem, time: VerdictTime | None
) -> AutoPick | None:
    """Return auto's choice; None if it is this kernel, is not faster or cannot run."""
    picked = choice.kernel
    if kernel is None or picked == kernel or picked.unsupported(problem) is not None:
        return None
    known = choice.time
    if known is not None and time is not None and not time.is_bound and known.us >= time.us:
        return None
    return AutoPick(
        picked.variant.id,
        picked.config,
        known.us if known is not None else None,
        known.origin if known is not None else None,
        {k: v for k, v in picked.config.items() if kernel.config.get(k) != v}
        if picked.variant.id == kernel.variant.id
        else {},
        choice.is_final or known is None,
    )
