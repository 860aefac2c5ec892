"""The ledger of predictions: each one that was made, and how it fared once a time was taken.

Predictions are kept as they are made (`engine.history.history`). Each is scored against the
times that sessions hold (`engine.sessions.known_times`): the last prediction before the time was
known counts; one that was made afterwards is listed and not counted, and neither is one of another
source than was timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.base.table import Table
from engine.base.units import format_us
from engine.history.history import Prediction
from engine.history.known_time import KnownTime


@dataclass(frozen=True, slots=True)
class Score:
    """A prediction beside a time that was taken of the same variant, config, problem and GPU."""

    prediction: Prediction
    time: KnownTime

    @property
    def ratio(self) -> float:
        """Predicted / measured."""
        return self.prediction.latency.median_us / self.time.latency.median_us

    @property
    def is_inside(self) -> bool:
        """Whether the prediction's 90 % interval holds the time."""
        latency = self.prediction.latency
        return latency.low_us <= self.time.latency.median_us <= latency.high_us

    @property
    def is_same_source(self) -> bool:
        sha256 = self.time.source_sha256
        return bool(sha256) and sha256 == self.prediction.source_sha256

    @property
    def came_first(self) -> bool:
        """Whether it was predicted before the time was known."""
        return self.prediction.when <= self.time.when

    @property
    def counts(self) -> bool:
        return self.is_same_source and self.came_first

    @property
    def remark(self) -> str:
        """Why it does not count; empty where it does."""
        if not self.is_same_source:
            return "another source" if self.time.source_sha256 else "source not recorded"
        return "" if self.came_first else "predicted afterwards"


@dataclass(frozen=True, slots=True)
class Ledger:
    """All scores, the newest prediction first, and how many predictions wait for a time."""

    scores: tuple[Score, ...]
    waiting: int

    @property
    def counted(self) -> tuple[Score, ...]:
        return tuple(score for score in self.scores if score.counts)

    @property
    def reason(self) -> str:
        """What the scores that count come to, in a sentence."""
        counted = self.counted
        wait = "prediction waits" if self.waiting == 1 else "predictions wait"
        waiting = f"{self.waiting:,} {wait} for a time."
        if not counted:
            return f"No prediction was measured yet. {waiting}"
        inside = sum(score.is_inside for score in counted)
        errors = [abs(score.ratio - 1) for score in counted]
        return (
            f"{inside} of {len(counted)} times lie inside the 90 % interval of their prediction; "
            f"the median error is {statistics.median(errors):.0%}, the worst {max(errors):.0%}. "
            f"{waiting}"
        )


def score(predicted: Sequence[Prediction], times: Iterable[KnownTime]) -> Ledger:
    """Every prediction of which a time is known, beside it.

    A time is scored once: by the last prediction of its source before it, else by the one that fits
    best by source and then is the first.
    """
    of_key: dict[object, list[Prediction]] = {}
    for prediction in predicted:
        of_key.setdefault(prediction.key, []).append(prediction)
    scores, used = [], set()
    for time in times:
        if time.is_sdpa or time.latency.kind != "device_warm":
            continue
        key = (time.name, tuple(sorted(time.config.items())), time.problem, time.device)
        candidates = [Score(prediction, time) for prediction in of_key.get(key, ())]
        if candidates:
            used.add(key)
            scores.append(max(candidates, key=_fitness))
    ordered = sorted(scores, key=lambda s: s.prediction.when, reverse=True)
    return Ledger(tuple(ordered), sum(key not in used for key in of_key))


def ledger_table(ledger: Ledger) -> Table:
    """The scores as people read them."""
    return Table.of(
        "Predictions against times",
        (
            {
                "predicted, UTC": s.prediction.when[:16].replace("T", " "),
                "kernel": " ".join(
                    [s.prediction.variant, *(f"{k}={v}" for k, v in s.prediction.config.items())]
                ),
                "problem": s.prediction.problem.label(),
                "GPU": s.prediction.device,
                "predicted": format_us(s.prediction.latency.median_us),
                "90 % interval": f"{format_us(s.prediction.latency.low_us)} to "
                f"{format_us(s.prediction.latency.high_us)}",
                "time": f"{format_us(s.time.latency.median_us)} {s.time.latency.origin}",
                "predicted / time": f"{s.ratio:.3g}",
                "inside": "yes" if s.is_inside else "no",
                "not counted, because": s.remark or None,
                "session": s.time.session,
            }
            for s in ledger.scores
        ),
        ledger.reason,
    )


def _fitness(scored: Score) -> tuple[bool, bool, str]:
    return scored.is_same_source, scored.came_first, scored.prediction.when
