"""The result nouns: what one evaluation found out. Frozen, typed, impossible states rejected.

An evaluation is variant × config × problem × device → status, resources, occupancy, correctness,
timing. Expected failures are statuses with a reason, never exceptions that reach a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from engine.problem import Problem

Origin: TypeAlias = Literal["measured", "recorded", "predicted"]
LatencyKind: TypeAlias = Literal["device_warm", "device_cold", "end_to_end"]
Limiter: TypeAlias = Literal["warps", "registers", "shared memory", "ctas", "does not fit"]


class Status(StrEnum):
    PASSED = "PASSED"
    SKIPPED = "SKIPPED"
    COMPILE_ERROR = "COMPILE_ERROR"
    LAUNCH_ERROR = "LAUNCH_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INCORRECT = "INCORRECT"
    CRASHED = "CRASHED"
    TIMEOUT = "TIMEOUT"
    THROTTLED = "THROTTLED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler gave one pass on the target arch, plus its dynamic shared memory."""

    entry: str
    arch: str
    threads_per_cta: int
    registers_per_thread: int
    static_smem_bytes: int
    dynamic_smem_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int

    @property
    def smem_bytes(self) -> int:
        """Static + dynamic, per CTA."""
        return self.static_smem_bytes + self.dynamic_smem_bytes

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How one pass fills the target GPU. `None` where the device row lacks the number of SMs."""

    ctas: int
    ctas_per_sm: int  # resident at once; 0 when not even one fits
    active_warps_per_sm: int
    max_warps_per_sm: int
    occupancy: float  # active warps / max warps, of a full SM, 0..1
    limiter: Limiter
    limits: Mapping[str, int]  # CTAs per SM each resource alone would allow
    num_sms: int | None
    waves: float | None  # ctas / (ctas_per_sm · num_sms)
    tail_ctas: int | None  # CTAs in the last, incomplete wave; 0 when it is full
    wave_efficiency: float | None  # waves / ⌈waves⌉
    sm_fill: float | None  # SMs that get at least one CTA in the first wave, 0..1
    thread_fill: float | None  # launched threads / (num_sms · max threads per SM), may exceed 1
    ctas_to_fill: int | None  # CTAs of this size whose threads fill every SM's thread capacity
    reason: str  # one sentence: what limits it and what would help


@dataclass(frozen=True, slots=True)
class PassReport:
    """Resources and occupancy of one pass."""

    resources: Resources
    occupancy: Occupancy


@dataclass(frozen=True, slots=True)
class Finding:
    """A pattern the diagnosis recognised, in words, with how strongly it explains the error."""

    pattern: str  # "kv_split_seam", "tail_tile", "one_head", …
    sentence: str
    share: float  # share of the wrong elements it covers, 0..1


@dataclass(frozen=True, slots=True)
class Correctness:
    """The verdict on one output against the float64 reference. See engine/correctness/check.py."""

    passed: bool
    reason: str
    max_abs_err: float
    mean_abs_err: float
    rms_err: float
    cosine: float
    baseline_err: float  # max|sdpa_same_dtype − ref|
    baseline_name: str
    tolerance: float  # 2·baseline_err + atol
    fixed_bound: float  # 0.002 in FP16: the study's old bound, shown beside it
    within_fixed_bound: bool
    bad_count: int  # elements over the tolerance
    nonfinite_count: int
    unwritten_count: int
    first_bad_index: tuple[int, int, int, int] | None  # (batch, head, row, column)
    inputs_unchanged: bool
    repeatable: bool  # the second run gave the same bits
    guards_intact: bool
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Latency:
    """One launch's time on the GPU named by the evaluation's device."""

    origin: Origin
    median_us: float
    low_us: float  # 95 % CI of the median when measured; the model's 90 % interval when predicted
    high_us: float
    reason: str  # what binds (predicted) or how it was measured
    kind: LatencyKind = "device_warm"
    samples_us: tuple[float, ...] = ()
    # SM clock right after each of the samples; empty where nobody reads it.
    sm_clocks_mhz: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.low_us <= self.median_us <= self.high_us:
            raise ValueError(
                f"latency needs 0 < low ≤ median ≤ high, not "
                f"{self.low_us}, {self.median_us}, {self.high_us}"
            )
        if self.sm_clocks_mhz and len(self.sm_clocks_mhz) != len(self.samples_us):
            raise ValueError("every sample has its clock, or none has")


@dataclass(frozen=True, slots=True)
class BaselineTiming:
    """One PyTorch SDPA backend on the same problem and device, in the same run."""

    name: str  # "flash", "cudnn", "efficient", "math"
    latency: Latency | None
    reason: str = ""  # why there is no latency
    other_latencies: tuple[Latency, ...] = ()  # cold device, end to end


@dataclass(frozen=True, slots=True)
class Execution:
    """How the kernel was really executed for the correctness check."""

    backend: Literal["cuda", "cpu"]
    build: Literal["fast", "check", "device"]
    schedule: Literal["in_order", "random", "reverse", "device"]
    seed: int
    # Wall time of the CPU execution. Not a GPU latency; never shown as one.
    cpu_execution_ms: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything one evaluation found, as far as it got."""

    status: Status
    reason: str
    variant: str
    problem: Problem
    config: Mapping[str, int]
    device: str  # the target GPU's name, or "unknown"
    when: str  # UTC, ISO 8601
    passes: tuple[PassReport, ...] = ()
    execution: Execution | None = None
    correctness: Correctness | None = None
    latency: Latency | None = None
    other_latencies: tuple[Latency, ...] = ()  # cold device, end to end
    baselines: tuple[BaselineTiming, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be found out, and why; one sentence each
    log: str = ""
    source_sha256: str = ""
    flags: tuple[str, ...] = ()

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
    def main_pass(self) -> PassReport | None:
        """The pass that does the work: the first one."""
        return self.passes[0] if self.passes else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `python -m engine evaluate --json` and of snapshots.

        `resources` and `occupancy` are those of the main pass; `passes` lists all of them.
        """
        main = self.main_pass
        return {
            "status": str(self.status),
            "reason": self.reason,
            "variant": self.variant,
            "problem": self.problem.to_dict(),
            "config": dict(self.config),
            "device": self.device,
            "when": self.when,
            "resources": resources_dict(main.resources) if main else None,
            "occupancy": occupancy_dict(main.occupancy) if main else None,
            "passes": [
                {
                    "resources": resources_dict(p.resources),
                    "occupancy": occupancy_dict(p.occupancy),
                }
                for p in self.passes
            ],
            "execution": asdict(self.execution) if self.execution else None,
            "correctness": asdict(self.correctness) if self.correctness else None,
            "latency": asdict(self.latency) if self.latency else None,
            "other_latencies": [asdict(x) for x in self.other_latencies],
            "baselines": [asdict(b) for b in self.baselines],
            "notes": list(self.notes),
            "log": self.log,
            "source_sha256": self.source_sha256,
            "flags": list(self.flags),
        }


def resources_dict(resources: Resources) -> dict[str, Any]:
    return asdict(resources) | {
        "smem_bytes": resources.smem_bytes,
        "spill_bytes": resources.spill_bytes,
    }


def occupancy_dict(occupancy: Occupancy) -> dict[str, Any]:
    return asdict(occupancy)
