"""The evaluations of a session: which question each answers, and in what time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from engine.evaluation import Evaluation, Latency, Status
from engine.measure.statistics import MIN_SAMPLES, MedianInterval, median_interval
from engine.problem import Problem

# (variant, config, problem): what makes two evaluations the same question.
Key: TypeAlias = tuple[str, tuple[tuple[str, int], ...], Problem]

DEVICE_WARM = "device_warm"


def config_label(config: Mapping[str, int]) -> str:
    """`block_n=64, num_splits=4`; `default` where a variant has no tunables."""
    return ", ".join(f"{name}={value}" for name, value in sorted(config.items())) or "default"


def key_of(evaluation: Evaluation) -> Key:
    """The question that an evaluation answers."""
    return evaluation.variant, tuple(sorted(evaluation.config.items())), evaluation.problem


def newest_by_question(evaluations: Iterable[Evaluation]) -> dict[Key, dict[str, Evaluation]]:
    """The newest evaluation of each question by device."""
    newest: dict[Key, dict[str, Evaluation]] = {}
    for e in sorted(evaluations, key=lambda e: e.when):
        newest.setdefault(key_of(e), {})[e.device] = e
    return newest


def latency_of_kind(evaluation: Evaluation, kind: str) -> Latency | None:
    """The evaluation's latency of one kind; None where there is none."""
    latencies = (evaluation.latency, *evaluation.other_latencies)
    return next((x for x in latencies if x is not None and x.kind == kind), None)


def was_checked(evaluation: Evaluation) -> bool:
    """Whether the result was checked where it was timed; imported figures were not."""
    return evaluation.status is Status.PASSED


def may_be_compared(evaluation: Evaluation, latency: Latency | None) -> bool:
    """Whether it is the time of a kernel that passed, or was recorded elsewhere as it is."""
    return was_checked(evaluation) or (
        evaluation.status is Status.SKIPPED and latency is not None and latency.origin == "recorded"
    )


def interval_of(latency: Latency) -> tuple[MedianInterval | None, int]:
    """The median with its 95 % interval, and how many raw samples it comes from.

    Without enough raw samples it is the stored interval, and the number is 0. A single figure has
    no interval: None.
    """
    samples = latency.samples_us
    if len(samples) >= MIN_SAMPLES:
        return median_interval(samples), len(samples)
    if latency.low_us == latency.high_us:
        return None, 0
    return MedianInterval(latency.median_us, latency.low_us, latency.high_us), 0
