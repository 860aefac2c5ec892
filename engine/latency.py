"""A time of a launch on a GPU, with its origin and interval, and what may be compared with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from annotated_types import MaxLen

from engine.base.text import Line, Sentence
from engine.base.units import format_us
from engine.schema import Count, Microseconds, Stored

Origin: TypeAlias = Literal["measured", "recorded", "predicted"]
LatencyKind: TypeAlias = Literal["device_warm", "device_cold", "end_to_end"]
ALL_KINDS: tuple[LatencyKind, ...] = ("device_warm", "device_cold", "end_to_end")

MAX_SAMPLES = 100_000  # of one latency


def are_comparable(origin: str, other: str) -> bool:
    """Whether a ratio of two times says something: a predicted one over one that was taken does
    not, and is never written as if both were taken."""
    return (origin == "predicted") == (other == "predicted")


NOT_COMPARABLE = "not comparable"


def not_comparable(origin: str, other: str) -> str:
    """What stands in place of such a ratio: `predicted ÷ recorded, not comparable`."""
    first, second = (other, origin) if other == "predicted" else (origin, other)
    return f"{first} ÷ {second}, {NOT_COMPARABLE}"


# What predictions are made by, the better one first; in their reasons: "By machine code: …".
METHODS = ("machine code", "roofline")
CALIBRATED = "Calibrated on"  # stands in the reason of a prediction that rests on points


def method_of(origin: str, reason: str) -> str:
    """Which of `METHODS` a time was predicted by; empty where that is not known."""
    if origin != "predicted":
        return ""
    return next((method for method in METHODS if f"By {method}" in reason), "")


@dataclass(frozen=True, slots=True)
class Latency(Stored):
    """One launch's time on the GPU named by the evaluation's device."""

    always_written: ClassVar[tuple[str, ...]] = ("kind", "samples_us")

    origin: Origin
    median_us: Microseconds
    # 95 % CI of the median when measured; the model's 90 % interval when predicted.
    low_us: Microseconds
    high_us: Microseconds
    reason: Sentence  # what binds (predicted) or how it was measured
    kind: LatencyKind = "device_warm"
    samples_us: Annotated[tuple[Microseconds, ...], MaxLen(MAX_SAMPLES)] = ()
    # SM clock right after each of the samples; empty where nobody reads it.
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
        """The time with its origin, its interval and why it is so."""
        return (
            f"{format_us(self.median_us)} {self.origin} "
            f"({format_us(self.low_us)} – {format_us(self.high_us)}); {self.reason}"
        )

    @property
    def method(self) -> str:
        """How it was predicted, by what its reason says; empty where that is not known."""
        return method_of(self.origin, self.reason)

    @property
    def is_simulated(self) -> bool:
        """True if predicted by machine code alone, not calibrated on times that were taken."""
        return self.method == METHODS[0] and CALIBRATED not in self.reason

    @property
    def is_bound(self) -> bool:
        """True if by roofline alone, whose assumed CTA time is no prediction: shown in its place is
        what the launch takes at least (`engine.model.equations.Terms.bound_us`)."""
        return self.method == METHODS[1] and CALIBRATED not in self.reason


@dataclass(frozen=True, slots=True)
class BaselineTiming(Stored):
    """One PyTorch SDPA backend on the same problem and device, in the same run."""

    always_written: ClassVar[tuple[str, ...]] = ("reason",)

    name: Line  # "flash", "cudnn", "efficient", "math"
    latency: Latency | None
    reason: Sentence = ""  # why there is no latency
    other_latencies: Annotated[tuple[Latency, ...], MaxLen(16)] = ()  # cold device, end to end


def baseline_label(name: str) -> str:
    """A baseline by its name: `SDPA flash`, or `SDPA` where the backend is not known."""
    backend = name.removeprefix("sdpa ")
    return "SDPA" if backend.casefold() == "sdpa" else f"SDPA {backend}"
