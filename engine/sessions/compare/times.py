"""The evaluations of a snapshot's JSON object: which question each answers, and in what time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from engine.measure.statistics import MIN_SAMPLES, MedianInterval, median_interval
from engine.problem import Problem

Json: TypeAlias = Mapping[str, Any]
# (variant, config, problem): what makes two evaluations the same question.
Key: TypeAlias = tuple[str, tuple[tuple[str, Any], ...], tuple[tuple[str, Any], ...]]

DEVICE_WARM = "device_warm"


def problem_label(problem: Json) -> str:
    """`B1 H8 S128 D64 fp16 causal`."""
    return Problem(**problem).label()


def config_label(config: Json) -> str:
    """`block_n=64, num_splits=4`; `default` where a variant has no tunables."""
    return ", ".join(f"{name}={value}" for name, value in sorted(config.items())) or "default"


def key_of(evaluation: Json) -> Key:
    return (
        evaluation["variant"],
        tuple(sorted(evaluation["config"].items())),
        tuple(sorted(evaluation["problem"].items())),
    )


def last_of_each(evaluations: Iterable[Json]) -> dict[Key, dict[str, Json]]:
    """The newest evaluation of each question on each device."""
    found: dict[Key, dict[str, Json]] = {}
    for evaluation in sorted(evaluations, key=lambda e: str(e.get("when", ""))):
        found.setdefault(key_of(evaluation), {})[evaluation["device"]] = evaluation
    return found


def time_of(evaluation: Json, kind: str) -> Json | None:
    """The evaluation's latency of one kind; None where there is none."""
    candidates = [evaluation.get("latency"), *(evaluation.get("other_latencies") or ())]
    return next((x for x in candidates if x is not None and x["kind"] == kind), None)


def was_checked(evaluation: Json) -> bool:
    """Whether the result was checked where it was timed; imported figures were not."""
    return bool(evaluation["status"] == "PASSED")


def counts(evaluation: Json, latency: Json | None) -> bool:
    """Whether a time may be compared: of a kernel that passed, or recorded elsewhere as it is."""
    return was_checked(evaluation) or (
        evaluation["status"] == "SKIPPED"
        and latency is not None
        and latency["origin"] == "recorded"
    )


def interval_of(latency: Json) -> tuple[MedianInterval | None, int]:
    """The median with its 95 % interval, and how many raw samples it comes from.

    Without enough raw samples it is the stored interval, and the number is 0. A single figure has
    no interval: None.
    """
    samples = latency.get("samples_us") or ()
    if len(samples) >= MIN_SAMPLES:
        return median_interval(samples), len(samples)
    low, median, high = latency["low_us"], latency["median_us"], latency["high_us"]
    return (None if low == high else MedianInterval(median, low, high)), 0
