"""What was tried, kept or dropped, each with its gain against the session's start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.base.status import Status
from engine.base.units import format_us
from engine.evaluation import Evaluation, Latency
from engine.sessions.snapshot import TimelineEntry


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One line. `gain` is start / now for the same problem and device; None without such a start.

    A predicted latency is only ever compared with a predicted one.
    """

    index: int
    when: str
    what: str
    outcome: str
    evaluation: int | None
    latency: Latency | None
    gain: float | None


def describe(evaluation: Evaluation) -> str:
    """`v05 num_splits=4 · B1 H1 S128 D64 fp16 · 12.5 µs predicted`."""
    config = " ".join(f"{name}={value}" for name, value in sorted(evaluation.config.items()))
    result = str(evaluation.status)
    if evaluation.latency is not None:
        result = f"{format_us(evaluation.latency.median_us)} {evaluation.latency.origin}"
    name = f"{evaluation.variant} {config}".strip()
    return f"{name} · {evaluation.problem.label()} · {result}"


def timeline_rows(
    entries: Sequence[TimelineEntry], evaluations: Sequence[Evaluation]
) -> list[TimelineRow]:
    """The timeline in order, gains computed against the first timed evaluation of each problem."""
    rows = []
    for index, entry in enumerate(entries):
        latency, gain = None, None
        if entry.evaluation is not None:
            now = evaluations[entry.evaluation]
            latency = now.latency
            gain = _gain(now, evaluations)
        rows.append(
            TimelineRow(
                index,
                entry.when,
                entry.what,
                entry.outcome,
                entry.evaluation,
                latency,
                gain,
            )
        )
    return rows


def _gain(now: Evaluation, evaluations: Sequence[Evaluation]) -> float | None:
    if now.latency is None or now.status is Status.INCORRECT:
        return None
    kind = now.latency.origin == "predicted"
    for start in evaluations:
        if (
            start.latency is not None
            and start.status is not Status.INCORRECT
            and (start.problem, start.device) == (now.problem, now.device)
            and (start.latency.origin == "predicted") is kind
        ):
            return start.latency.median_us / now.latency.median_us
    return None
