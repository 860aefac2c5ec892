"""The result of one evaluation, as frozen dataclasses that reject impossible states.

An evaluation is variant × config × problem × device → status, resources, occupancy, correctness,
timing. Expected failures are statuses with a reason, never exceptions that reach a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, cast

from annotated_types import MaxLen

from engine.attention.coverage import LineCoverage
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.schema import (
    Count,
    ErrorSize,
    FieldError,
    Identifier,
    Integer,
    Line,
    Log,
    Microseconds,
    Name,
    NanAsNull,
    NotNegative,
    PerSm,
    RegistersPerThread,
    Sentence,
    Sha256,
    Sha256OrEmpty,
    Share,
    SmCount,
    Stored,
    ThreadsPerCta,
    TimeOrEmpty,
    Tolerance,
    decode,
    encode,
)
from engine.base.table import Bars, Table, Tabular
from engine.base.units import format_bytes, format_count, format_thread_fill, format_us

if TYPE_CHECKING:
    import pandas as pd

Origin: TypeAlias = Literal["measured", "recorded", "predicted"]  # in order of preference
LatencyKind: TypeAlias = Literal["device_warm", "device_cold", "end_to_end"]
ALL_KINDS: tuple[LatencyKind, ...] = ("device_warm", "device_cold", "end_to_end")
MAX_SAMPLES = 100_000  # of one latency
# Methods of prediction, the most accurate first, as in reasons: "By machine code: …".
METHODS = ("machine code", "roofline")
CALIBRATED = "Calibrated on"  # in the reason of a prediction that was calibrated on known times


def method_of(origin: str, reason: str) -> str:
    """Return the method in `METHODS` of a prediction; empty if not known."""
    known = METHODS if origin == "predicted" else ()
    return next((method for method in known if f"By {method}" in reason), "")


def basis_of(origin: str, reason: str) -> str:
    """Return a time's origin and method: `recorded`, `predicted by machine code, calibrated`."""
    method = method_of(origin, reason)
    calibrated = ", calibrated" if CALIBRATED in reason else ""
    return f"{origin} by {method}{calibrated}" if method else origin


@dataclass(frozen=True, slots=True)
class Latency(Stored):
    """The time of one launch on the evaluation's device."""

    always_written: ClassVar[tuple[str, ...]] = ("kind", "samples_us")
    derived: ClassVar[tuple[str, ...]] = ("method",)

    origin: Origin
    median_us: Microseconds
    # 95 % CI of the median when measured; the model's 90 % interval when predicted.
    low_us: Microseconds
    high_us: Microseconds
    reason: Sentence  # what limits it (predicted) or how it was measured
    kind: LatencyKind = "device_warm"
    samples_us: Annotated[tuple[Microseconds, ...], MaxLen(MAX_SAMPLES)] = ()
    # SM clock in MHz right after each sample; empty if it was not read.
    sm_clocks_mhz: Annotated[tuple[Count, ...], MaxLen(MAX_SAMPLES)] = ()

    def __post_init__(self) -> None:
        if not 0 < self.low_us <= self.median_us <= self.high_us:
            raise ValueError(
                f"latency needs 0 < low ≤ median ≤ high, not "
                f"{self.low_us}, {self.median_us}, {self.high_us}"
            )
        if self.sm_clocks_mhz and len(self.sm_clocks_mhz) != len(self.samples_us):
            raise ValueError("every sample has its clock, or none has")

    def text(self) -> str:
        """Return the time with its origin, interval and reason."""
        return (
            f"{format_us(self.median_us)} {self.origin} "
            f"({format_us(self.low_us)} – {format_us(self.high_us)}); {self.reason}"
        )

    @property
    def method(self) -> str:
        """Return the method of the prediction, from its reason; empty if not known."""
        return method_of(self.origin, self.reason)

    @property
    def basis(self) -> str:
        """Return the origin and method, as `basis_of` writes them."""
        return basis_of(self.origin, self.reason)

    @property
    def is_calibrated(self) -> bool:
        """True if the prediction is calibrated on known times."""
        return CALIBRATED in self.reason

    @property
    def is_simulated(self) -> bool:
        """True if predicted by machine code without calibration on known times."""
        return self.method == METHODS[0] and not self.is_calibrated

    @property
    def is_bound(self) -> bool:
        """True if predicted by roofline only, in which case pages show a lower bound."""
        return self.method == METHODS[1] and not self.is_calibrated


@dataclass(frozen=True, slots=True)
class BaselineTiming(Stored):
    """One PyTorch SDPA backend on the same problem and device, in the same run."""

    always_written: ClassVar[tuple[str, ...]] = ("reason",)

    name: Line  # "flash", "cudnn", "efficient", "math"
    latency: Latency | None
    reason: Sentence = ""  # why there is no latency
    other_latencies: Annotated[tuple[Latency, ...], MaxLen(16)] = ()  # cold device, end to end


def baseline_label(name: str) -> str:
    """Return a baseline's label: `SDPA flash`, or `SDPA` if the backend is not known."""
    backend = name.removeprefix("sdpa ")
    return "SDPA" if backend.casefold() == "sdpa" else f"SDPA {backend}"


Limiter: TypeAlias = Literal["warps", "registers", "shared memory", "ctas", "does not fit"]


@dataclass(frozen=True, slots=True)
class Resources(Stored):
    """One pass' resources from the compiler for the target arch, plus its dynamic shared memory."""

    derived: ClassVar[tuple[str, ...]] = ("smem_bytes", "spill_bytes")

    entry: Line
    arch: Line
    threads_per_cta: ThreadsPerCta
    registers_per_thread: RegistersPerThread
    static_smem_bytes: Count
    dynamic_smem_bytes: Count
    spill_store_bytes: Count
    spill_load_bytes: Count
    stack_bytes: Count

    @property
    def smem_bytes(self) -> int:
        """Static + dynamic, per CTA."""
        return self.static_smem_bytes + self.dynamic_smem_bytes

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes

    @property
    def uses_local_memory(self) -> bool:
        """True if a thread has a stack or spills."""
        return self.spill_bytes > 0 or self.stack_bytes > 0


@dataclass(frozen=True, slots=True, repr=False)
class Occupancy(Stored, Tabular):
    """Occupancy of one pass. Values are None if the device's number of SMs is not known."""

    derived: ClassVar[tuple[str, ...]] = ("occupancy", "limiter", "wave_efficiency")
    omitted_defaults: ClassVar[tuple[str, ...]] = ("idle_ctas",)

    ctas: Count
    ctas_per_sm: PerSm  # resident at once; 0 if not even one fits
    active_warps_per_sm: PerSm
    max_warps_per_sm: PerSm
    # CTAs per SM that each resource alone would allow, in the order in which `limiter` names one.
    limits: Annotated[Mapping[Line, Count], MaxLen(16)]
    num_sms: SmCount | None
    waves: NotNegative | None  # useful CTAs / (ctas_per_sm · num_sms)
    tail_ctas: Count | None  # CTAs in the last, incomplete wave; 0 when it is full
    sm_fill: NotNegative | None  # SMs that get at least one useful CTA in the first wave, 0..1
    # Threads of useful CTAs / (num_sms · max threads per SM); may exceed 1.
    thread_fill: NotNegative | None
    ctas_to_fill: Count | None  # CTAs of this size whose threads fill every SM's thread capacity
    reason: Sentence  # one sentence: what limits it and what would help
    idle_ctas: Count = 0  # launched CTAs of empty splits

    @property
    def occupancy(self) -> float:
        """Active warps / max warps, of a full SM, 0..1."""
        return self.active_warps_per_sm / self.max_warps_per_sm if self.max_warps_per_sm else 0.0

    @property
    def limiter(self) -> Limiter:
        """The first limiting resource."""
        limiters = self.limiters if self.ctas_per_sm else ()
        return cast("Limiter", next(iter(limiters), "does not fit"))

    @property
    def wave_efficiency(self) -> float | None:
        """Return waves / ⌈waves⌉; None if nothing fits or the number of SMs is not known."""
        return self.waves / math.ceil(self.waves) if self.waves else None

    @property
    def limiters(self) -> tuple[str, ...]:
        """Return the resources that allow the fewest CTAs per SM; `limiter` is the first."""
        fewest = min(self.limits.values(), default=0)
        return tuple(name for name, n in self.limits.items() if n == fewest)

    def limited_by(self) -> str:
        """Return the limiting resources as text: `registers and shared memory`."""
        limiters = self.limiters if self.ctas_per_sm else (self.limiter,)
        return " and ".join("CTA slots" if name == "ctas" else name for name in limiters)

    @property
    def useful_ctas(self) -> int:
        """CTAs that have keys to visit."""
        return self.ctas - self.idle_ctas

    @property
    def gpu_fill(self) -> float | None:
        """Return how full the GPU is, 0 to 1: the share of warp slots with work, over all waves.

        It is `occupancy` × `wave_efficiency`.
        """
        return None if self.wave_efficiency is None else self.occupancy * self.wave_efficiency

    def launched(self) -> str:
        """Return `64 CTAs`, or `4 of 64 CTAs with keys` if splits are empty."""
        word = "CTA" if self.ctas == 1 else "CTAs"
        if not self.idle_ctas:
            return f"{format_count(self.ctas)} {word}"
        return f"{format_count(self.useful_ctas)} of {format_count(self.ctas)} {word} with keys"

    def rows(self) -> list[tuple[str, object]]:
        """Return the figures in reading order, by name."""
        limits = ", ".join(f"{name} {count}" for name, count in self.limits.items())
        return [
            ("GPU fill", _shown(self.gpu_fill, format_thread_fill)),
            ("CTAs", self.ctas),
            *([("CTAs with keys to visit", self.useful_ctas)] if self.idle_ctas else []),
            ("CTAs per SM", self.ctas_per_sm),
            ("limiter", f"{self.limited_by()} (CTAs per SM each would allow: {limits})"),
            ("active warps per SM", f"{self.active_warps_per_sm} of {self.max_warps_per_sm}"),
            ("occupancy", f"{self.occupancy:.1%}"),
            ("waves", self.waves),
            ("tail CTAs", self.tail_ctas),
            ("wave efficiency", _shown(self.wave_efficiency)),
            ("SM fill", _shown(self.sm_fill)),
            ("thread fill", _shown(self.thread_fill, format_thread_fill)),
            ("CTAs to fill the GPU's threads", self.ctas_to_fill),
        ]

    def tables(self) -> tuple[Table, ...]:
        return (Table("Occupancy", ("figure", "value"), tuple(self.rows()), self.reason),)

    def to_frame(self) -> pd.DataFrame:
        """One row: the figures under the names of the fields, a share as 0 to 1."""
        import pandas as pd

        names = [*(n for n in self.__slots__ if n != "limits"), *self.derived]
        return pd.DataFrame([{n: getattr(self, n) for n in names}])

    def bars(self) -> Bars:
        """CTAs per SM that each resource alone would allow; the fewest are resident."""
        limits = {name: (float(n), float(n), float(n)) for name, n in self.limits.items()}
        title = f"{self.occupancy:.1%} occupancy, limited by {self.limited_by()}"
        return Bars(title, "CTAs per SM that each alone would allow", limits)

    def _check_file(self, raw: Mapping[str, Any]) -> None:
        if raw.get("idle_ctas", 1) < 1 or self.idle_ctas >= max(self.ctas, 1):
            raise FieldError("it is left out where it is 0, and less than ctas", "idle_ctas")


def _shown(share: float | None, text: Callable[[float], str] = "{:.1%}".format) -> str | None:
    return None if share is None else text(share)


@dataclass(frozen=True, slots=True)
class PassReport(Stored):
    """Resources and occupancy of one pass."""

    resources: Resources
    occupancy: Occupancy


@dataclass(frozen=True, slots=True)
class CodeCounts(Stored):
    """Exact counts of the machine code that a launch executes, all passes together."""

    code_sha256: Sha256  # of code and launches: equal hashes behave the same
    code_bytes: Count
    instructions: Count  # warp instructions
    conflicts: Count  # shared-memory wavefronts beyond those needed
    wavefronts: Count  # of shared memory
    sectors: Count  # of global memory, 32 bytes each
    local_sectors: Count  # spills and arrays on the stack


@dataclass(frozen=True, slots=True)
class Finding(Stored):
    """A recognised pattern of wrong elements, in words, with the share of the error that it
    explains."""

    omitted_defaults: ClassVar[tuple[str, ...]] = ("place",)

    pattern: Line  # "kv_split_seam", "tail_tile", "one_head", …
    sentence: Sentence
    share: Share  # covered share of the wrong elements, 0..1
    place: Line = ""  # "v02_all_threads.cu:113", where to look; empty where it is not known

    def text(self) -> str:
        """Return what was found, where to look, and the explained share of the error."""
        place = f" See {self.place}." if self.place else ""
        return f"{self.sentence}{place} ({self.share:.0%} of the wrong elements)"


@dataclass(frozen=True, slots=True)
class OutputError(Stored):
    """The error of one of several outputs: dQ, dK or dV."""

    name: Name
    passed: bool
    max_abs_err: ErrorSize
    rms_err: ErrorSize
    baseline_err: ErrorSize  # of the same output in PyTorch's SDPA
    tolerance: Tolerance
    bad_count: Count  # elements over the tolerance, NaN, infinite or never written


@dataclass(frozen=True, slots=True)
class Correctness(Stored):
    """The verdict on one output against the float64 reference. See engine/correctness/check.py."""

    always_written: ClassVar[tuple[str, ...]] = ("findings",)
    derived: ClassVar[tuple[str, ...]] = ("within_fixed_bound",)
    omitted_defaults: ClassVar[tuple[str, ...]] = ("warnings", "outputs", "fp8_err")

    passed: bool
    reason: Sentence
    max_abs_err: ErrorSize
    mean_abs_err: ErrorSize
    rms_err: ErrorSize
    cosine: Annotated[float, NanAsNull()]
    baseline_err: ErrorSize  # max|sdpa_same_dtype − ref|
    baseline_name: Line
    tolerance: Tolerance  # 2·baseline_err + atol
    fixed_bound: NotNegative  # 0.002 in FP16: the study's old bound, shown beside it
    bad_count: Count  # elements over the tolerance
    nonfinite_count: Count
    unwritten_count: Count
    first_bad_index: tuple[Count, Count, Count, Count] | None  # (batch, head, row, column)
    inputs_unchanged: bool
    repeatable: bool  # the second run gave the same bits
    guards_intact: bool
    findings: Annotated[tuple[Finding, ...], MaxLen(64)] = ()
    # On an output that passes: errors within the tolerance that are not due to rounding.
    warnings: Annotated[tuple[Sentence, ...], MaxLen(8)] = ()
    # For the backward pass, each output by itself; the figures above are those of the worst one.
    outputs: Annotated[tuple[OutputError, ...], MaxLen(8)] = ()
    # Largest change of O by rounding K and V to FP8: due to the format, not the kernel.
    fp8_err: ErrorSize | None = None

    @property
    def within_fixed_bound(self) -> bool:
        """True if every element was written, is finite and has an error of at most
        `fixed_bound`."""
        errors = (self.max_abs_err, *(each.max_abs_err for each in self.outputs))
        is_whole = self.nonfinite_count + self.unwritten_count == 0
        return is_whole and all(error <= self.fixed_bound for error in errors)


@dataclass(frozen=True, slots=True)
class Execution(Stored):
    """How the kernel was executed for the correctness check."""

    omitted_defaults: ClassVar[tuple[str, ...]] = ("partial",)

    backend: Literal["cuda", "cpu", "machine-code"]
    build: Literal["fast", "check", "device"]
    schedule: Literal["in_order", "random", "reverse", "device"]
    seed: Integer
    # Wall time of the execution on the CPU, also of machine code; never shown as a GPU latency.
    cpu_execution_ms: NotNegative | None
    partial: Line = ""  # "partial: 12 of 131,072 CTAs"; empty where all ran


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(Stored, Tabular):
    """The result of one evaluation."""

    derived: ClassVar[tuple[str, ...]] = ("resources", "occupancy")
    omitted_defaults: ClassVar[tuple[str, ...]] = ("line_coverage", "counts")
    always_written: ClassVar[tuple[str, ...]] = (
        "passes",
        "execution",
        "correctness",
        "latency",
        "other_latencies",
        "baselines",
        "notes",
        "log",
        "source_sha256",
        "flags",
    )

    status: Status
    reason: Sentence
    variant: Name
    problem: Problem
    config: Annotated[Mapping[Identifier, Integer], MaxLen(64)]
    device: Line  # the target GPU's name, or "unknown"
    when: TimeOrEmpty  # UTC, ISO 8601
    passes: Annotated[tuple[PassReport, ...], MaxLen(16)] = ()
    execution: Execution | None = None
    correctness: Correctness | None = None
    latency: Latency | None = None
    other_latencies: Annotated[tuple[Latency, ...], MaxLen(16)] = ()  # cold device, end to end
    baselines: Annotated[tuple[BaselineTiming, ...], MaxLen(16)] = ()
    notes: Annotated[tuple[Sentence, ...], MaxLen(64)] = ()  # on what is not known, and why
    log: Log = ""
    source_sha256: Sha256OrEmpty = ""
    flags: Annotated[tuple[Line, ...], MaxLen(128)] = ()
    # By file, the kernel's own first; only from the CPU backend's check build.
    line_coverage: Annotated[tuple[LineCoverage, ...], MaxLen(64)] = ()
    counts: CodeCounts | None = None  # of the simulated code

    def __post_init__(self) -> None:
        measured = self.latency is not None and self.latency.origin == "measured"
        if self.correctness is not None and not self.correctness.passed and measured:
            raise ValueError("no timing is stored for an incorrect result")
        if self.status is Status.PASSED and self.correctness is None:
            raise ValueError("PASSED needs a correctness verdict")
        if self.status is Status.PASSED and self.correctness and not self.correctness.passed:
            raise ValueError("PASSED needs a passing correctness verdict")
        if self.status is not Status.PASSED and not self.reason:
            raise ValueError(f"{self.status} needs a reason")

    @property
    def resources(self) -> Resources | None:
        """Return the resources of the first pass."""
        return self.passes[0].resources if self.passes else None

    @property
    def occupancy(self) -> Occupancy | None:
        """Return the occupancy of the first pass."""
        return self.passes[0].occupancy if self.passes else None

    @property
    def main_pass(self) -> PassReport | None:
        """Return the main pass, see `Problem.main_of`; None if it was not compiled."""
        return self.problem.main_of(self.passes) if self.passes else None

    def rows(self) -> list[tuple[str, object]]:
        """Return all known figures in reading order, by name."""
        return list(self._rows())

    def _rows(self) -> Iterator[tuple[str, object]]:
        if self.main_pass is not None:
            r = self.main_pass.resources
            yield from [
                ("compiled for", r.arch),
                ("registers per thread", r.registers_per_thread),
                ("shared memory per CTA", format_bytes(r.smem_bytes)),
                ("spills", format_bytes(r.spill_bytes)),
                *self.main_pass.occupancy.rows(),
            ]
        if self.correctness is not None:
            c = self.correctness
            yield from [
                ("max |error|", f"{c.max_abs_err:.3g} (allowed {c.tolerance:.3g})"),
                *(
                    (f"max |error| of {x.name}", f"{x.max_abs_err:.3g} (allowed {x.tolerance:.3g})")
                    for x in c.outputs
                ),
                (f"{c.baseline_name} error", f"{c.baseline_err:.3g}"),
                *([("K and V in FP8 alone", f"{c.fp8_err:.3g}")] if c.fp8_err is not None else []),
                (f"within {c.fixed_bound:g}", "yes" if c.within_fixed_bound else "no"),
                *(("finding", f.text()) for f in c.findings),
            ]
        for latency in ([self.latency] if self.latency else []) + list(self.other_latencies):
            yield f"latency, {latency.kind.replace('_', ' ')}", latency.text()
        for baseline in self.baselines:
            shown = baseline.latency.text() if baseline.latency else baseline.reason
            yield baseline_label(baseline.name), shown
        if self.execution is not None and self.execution.cpu_execution_ms is not None:
            ms, partial = self.execution.cpu_execution_ms, self.execution.partial
            took = f"{ms:.1f} ms of CPU execution (not a GPU latency)"
            yield "executed", "; ".join(filter(None, [self.executed_as, partial, took]))

    @property
    def executed_as(self) -> str:
        """Return "machine code for sm_89, in software", or an empty text for other backends."""
        if self.execution is None or self.execution.backend != "machine-code":
            return ""
        of = f" for {self.main_pass.resources.arch}" if self.main_pass is not None else ""
        return f"machine code{of}, in software"

    def bars(self) -> Bars:
        """Return a bar chart of its warm time and those of PyTorch's attention."""
        timed = {self.variant: self.latency}
        timed |= {baseline_label(b.name): b.latency for b in self.baselines}
        known = {name: x for name, x in timed.items() if x is not None}
        origins = " and ".join(dict.fromkeys(x.origin for x in known.values()))
        return Bars(
            f"{self.variant} at {self.problem.label()} on {self.device}: {self.status}",
            f"µs, {origins}" if origins else "no time is known",
            {name: (x.median_us, x.low_us, x.high_us) for name, x in known.items()},
        )

    def tables(self) -> tuple[Table, ...]:
        subject = [
            ("variant", self.variant),
            ("problem", self.problem.label()),
            ("config", ", ".join(f"{k}={v}" for k, v in self.config.items()) or "none"),
            ("device", self.device),
        ]
        title = f"{self.status}: {self.reason}"
        notes = " ".join(self.notes)
        return (Table(title, ("figure", "value"), (*subject, *self._rows()), notes),)

    def to_frame(self) -> pd.DataFrame:
        """One row: what it was, how it ended, time in µs, resources, occupancy, errors."""
        import pandas as pd

        latency, timed = self.latency, ("origin", "median_us", "low_us", "high_us")
        return pd.DataFrame(
            [
                {
                    "status": str(self.status),
                    "reason": self.reason,
                    "device": self.device,
                    "variant": self.variant,
                    "problem": self.problem.label(),
                    **{f"config.{name}": value for name, value in self.config.items()},
                    **{name: getattr(latency, name, None) for name in timed},
                    **figures_of(encode(self)),
                }
            ]
        )

    def as_recorded(self) -> Evaluation:
        """The evaluation as read from a file: "measured" becomes "recorded"."""
        return replace(
            self,
            latency=_recorded(self.latency),
            other_latencies=tuple(map(_recorded, self.other_latencies)),
            baselines=tuple(
                replace(
                    baseline,
                    latency=_recorded(baseline.latency),
                    other_latencies=tuple(map(_recorded, baseline.other_latencies)),
                )
                for baseline in self.baselines
            ),
        )


T = TypeVar("T", Latency, Latency | None)


def _recorded(latency: T) -> T:
    if latency is None or latency.origin != "measured":
        return latency
    return replace(latency, origin="recorded")


def figures_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Occupancy, resources, errors and CPU time of an encoded evaluation, flat; None: not known."""
    first = decode(PassReport, result["passes"][0]) if result["passes"] else None
    correctness, execution = result["correctness"] or {}, result["execution"] or {}
    held = ("occupancy", "limiter", "ctas", "waves", "wave_efficiency")
    used = ("registers_per_thread", "smem_bytes", "spill_bytes")
    return {
        **{name: getattr(first.occupancy, name) if first else None for name in held},
        **{name: getattr(first.resources, name) if first else None for name in used},
        **{name: correctness.get(name) for name in ("max_abs_err", "tolerance")},
        # Of the CPU backend, in ms; says nothing about a GPU.
        "cpu_execution_ms": execution.get("cpu_execution_ms"),
    }
