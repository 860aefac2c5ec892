"""One finished evaluation of a sweep, as its journal holds it, and how two compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Self

from engine.evaluation import Evaluation, Origin, Status, method_of
from engine.measure.statistics import MedianInterval
from engine.measure.verdict import RANKING_ERROR, Verdict, interval_verdict
from engine.pipeline.request import EvaluationRequest
from engine.problem import Problem
from engine.records.encoding import encode
from engine.search.location import UNKNOWN_LOCATION, Location
from engine.search.space import SweepPoint


@dataclass(frozen=True, slots=True)
class SweepRow:
    """What one point came to. `result` is the encoded `Evaluation`."""

    point: str
    variant: str
    problem: Problem
    config: Mapping[str, int]
    status: Status
    reason: str
    device: str
    origin: Origin | None  # of the latency; None where there is none
    method: str  # what it was predicted by, one of METHODS; empty where that is not known
    kind: str
    interval: MedianInterval | None  # µs
    elapsed_s: float
    result: Mapping[str, Any]
    location: Location = UNKNOWN_LOCATION

    @property
    def measured_on(self) -> str:
        """Which GPU its time was measured on; times of different ones are never compared."""
        return self.location.gpu if self.origin == "measured" else ""

    @property
    def median_us(self) -> float | None:
        """The time that this point is ranked by: of correct results only."""
        return self.interval.median if self.interval else None

    def label(self) -> str:
        """`v05 num_splits=4 block_n=64`."""
        return " ".join([self.variant, *(f"{k}={v}" for k, v in self.config.items())])

    @classmethod
    def make(
        cls,
        point: SweepPoint,
        evaluation: Evaluation,
        elapsed_s: float,
        location: Location = UNKNOWN_LOCATION,
    ) -> Self:
        return cls.from_result(point.id, encode(evaluation), elapsed_s, location)

    @classmethod
    def from_result(
        cls,
        point: str,
        result: Mapping[str, Any],
        elapsed_s: float,
        location: Location = UNKNOWN_LOCATION,
    ) -> Self:
        """From a journal's line.

        Raises:
            KeyError, TypeError, ValueError, InvalidProblem: the result is not an evaluation's.
        """
        status = Status(result["status"])
        latency = result["latency"] if _is_usable(status, result) else None
        return cls(
            point=point,
            variant=result["variant"],
            problem=_problem(tuple(result["problem"].items())),
            config=dict(result["config"]),
            status=status,
            reason=result["reason"],
            device=result["device"],
            origin=latency["origin"] if latency else None,
            method=method_of(latency["origin"], latency["reason"]) if latency else "",
            kind=latency["kind"] if latency else "",
            interval=MedianInterval(latency["median_us"], latency["low_us"], latency["high_us"])
            if latency
            else None,
            elapsed_s=elapsed_s,
            result=result,
            location=location,
        )


@lru_cache(maxsize=4096)
def _problem(sizes: tuple[tuple[str, Any], ...]) -> Problem:
    """One object for the many rows of a problem: cheaper to read, to keep and to compare."""
    return Problem(**dict(sizes))


def _is_usable(status: Status, result: Mapping[str, Any]) -> bool:
    """A time counts when the result is right, or was predicted without executing it."""
    not_executed = status is Status.SKIPPED and result["execution"] is None
    return result["latency"] is not None and (status is Status.PASSED or not_executed)


def skipped_row(point: SweepPoint) -> SweepRow:
    """The row of a point that a constraint excludes; nothing of it is compiled or run."""
    evaluation = without_result(point.request, Status.SKIPPED, point.why_not or "")
    return SweepRow.make(point, evaluation, 0.0)


def without_result(
    request: EvaluationRequest, status: Status, reason: str, log: str = ""
) -> Evaluation:
    """The evaluation of a request that came to nothing, and why."""
    return Evaluation(
        status=status,
        reason=reason,
        variant=request.variant,
        problem=request.problem,
        config=dict(request.config),
        device=request.gpu or "unknown",
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        log=log,
    )


def compare_rows(row: SweepRow, against: SweepRow) -> Verdict:
    """Is `row` faster than `against`? From times that were not taken side by side.

    Measured ones differ when their intervals and what runs differ by say so. Predicted ones differ
    when they are further apart than the error of ranking by machine code.
    UNDECIDED whenever GPU (which of them, too), problem, kind, origin or method of the time are not
    the same.
    """
    a, b = against.interval, row.interval
    same = ("device", "measured_on", "problem", "kind", "origin", "method")
    if a is None or b is None or any(getattr(row, n) != getattr(against, n) for n in same):
        return Verdict.UNDECIDED
    if row.origin == "predicted":
        difference = math.log(b.median / a.median)
        if abs(difference) <= math.log1p(RANKING_ERROR):
            return Verdict.SAME
        return Verdict.SLOWER if difference > 0 else Verdict.FASTER
    return interval_verdict(a, b).verdict


def problem_columns(problem: Problem) -> dict[str, Any]:
    return {"problem": problem.label(), **asdict(problem)}
