"""One finished evaluation of a sweep, as its journal holds it, and how two compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Self, TypeVar

from engine.attention.evaluation import METHODS, Evaluation, Origin, method_of
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.schema import Stored, encode
from engine.measure.sampler import SamplingRun
from engine.measure.statistics import RANKING_ERROR, MedianInterval, Verdict, interval_verdict
from engine.pipeline.request import EvaluationRequest
from engine.search.space import UNKNOWN_LOCATION, Location, SweepPoint


@dataclass(frozen=True, slots=True)
class SweepRow:
    """The result of one point. `result` is the encoded `Evaluation`."""

    point: str
    variant: str
    problem: Problem
    config: Mapping[str, int]
    status: Status
    reason: str  # of the status; where nothing is wrong and there is no time, why there is none
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
            reason=_reason(status, result),
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
    """The same object for equal problems, of which a journal has many rows."""
    return Problem(**dict(sizes))


def _is_usable(status: Status, result: Mapping[str, Any]) -> bool:
    """A time counts when the result is right, or was predicted without executing it."""
    not_executed = status is Status.SKIPPED and result["execution"] is None
    return result["latency"] is not None and (status is Status.PASSED or not_executed)


def _reason(status: Status, result: Mapping[str, Any]) -> str:
    notes: Sequence[str] = result.get("notes", ())
    is_fault = status not in (Status.PASSED, Status.SKIPPED)
    if is_fault or result["latency"] is not None or not notes:
        return str(result["reason"])
    return " ".join(notes)


def skipped_row(point: SweepPoint) -> SweepRow:
    """The row of a point that a constraint excludes; nothing of it is compiled or run."""
    evaluation = without_result(point.request, Status.SKIPPED, point.why_not or "")
    return SweepRow.make(point, evaluation, 0.0)


def without_result(
    request: EvaluationRequest, status: Status, reason: str, log: str = ""
) -> Evaluation:
    """The evaluation of a request without a result, and the reason."""
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


# Points ranked from fast to slow; points with indistinguishable times share a place.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankedPoint(Stored):
    """A point and its place. Points of equal `place` have times that do not tell them apart."""

    place: int
    point: str
    interval: MedianInterval  # µs
    ratio: float  # time / time of the fastest
    tied: bool  # shares its place with another


def assign_places(ordered: Sequence[T], is_slower: Callable[[T, T], bool]) -> list[int]:
    """The place of each, given from fast to slow.

    An item that is not slower than the first of a place shares it; the next place counts all
    before it (1, 1, 3).
    """
    places: list[int] = []
    lead = 0
    for i, item in enumerate(ordered):
        if i > 0 and is_slower(item, ordered[lead]):
            lead = i
        places.append(lead + 1)
    return places


def rank_run(run: SamplingRun, without: Container[str] = ()) -> list[RankedPoint]:
    """Rank the kernels of one interleaved run by paired ratios within its rounds, of its first kind
    of time."""
    kind = run.settings.kinds[0]
    intervals: dict[str, MedianInterval] = {}
    for candidate in (run.incumbent, *run.candidates):
        interval = run.table.interval(candidate, kind)
        if interval is not None and candidate not in without:
            intervals[candidate] = interval
    return _rank(
        intervals,
        lambda slow, fast: run.table.compare(slow, fast, kind).verdict is Verdict.SLOWER,
    )


def rank_rows(rows: Iterable[SweepRow]) -> list[RankedPoint]:
    """Rank evaluations of one problem on one GPU that were timed by themselves, or predicted.

    Times of several origins, or predicted by several methods, are never mixed: see `comparable`.
    """
    by_point = {row.point: row for row in comparable(rows)}
    return _rank(
        {point: row.interval for point, row in by_point.items() if row.interval is not None},
        lambda slow, fast: compare_rows(by_point[slow], by_point[fast]) is Verdict.SLOWER,
    )


def comparable(rows: Iterable[SweepRow]) -> list[SweepRow]:
    """The rows with a time of the best origin and, where it is predicted, by the best method.

    Measured before recorded before predicted, by machine code before by roofline: one method may
    take a kernel for four times as slow as the other does.
    """
    timed = [row for row in rows if row.interval is not None]
    origin = ranking_origin(timed)
    of_origin = [row for row in timed if row.origin == origin]
    methods = {row.method for row in of_origin}
    best = next((method for method in METHODS if method in methods), "")
    return [row for row in of_origin if row.method == best]


def ranking_origin(rows: Iterable[SweepRow]) -> Origin | None:
    """The best origin there is among the rows."""
    origins = {row.origin for row in rows}
    order: tuple[Origin, ...] = ("measured", "recorded", "predicted")
    return next((o for o in order if o in origins), None)


def by_problem(rows: Iterable[SweepRow]) -> dict[tuple[str, Problem], list[SweepRow]]:
    """Rows by (GPU, problem), in the order in which those first appear.

    The GPU is named as by `gpu_names` of these rows: two GPUs of one model have two names.
    """
    rows = list(rows)
    name_of = gpu_names(rows)
    groups: dict[tuple[str, Problem], list[SweepRow]] = {}
    # Rows mostly share their problem's object, which is quicker to look up than an equal problem.
    of_object: dict[tuple[str, int], list[SweepRow]] = {}
    for row in rows:
        name = name_of(row)
        group = of_object.get((name, id(row.problem)))
        if group is None:
            group = groups.setdefault((name, row.problem), [])
            of_object[name, id(row.problem)] = group
        group.append(row)
    return groups


def gpu_names(rows: Iterable[SweepRow]) -> Callable[[SweepRow], str]:
    """What to call each row's GPU: its model, and which one where rows were measured on several."""
    measured: dict[str, set[str]] = {}
    for row in rows:
        if row.origin == "measured":
            measured.setdefault(row.device, set()).add(row.measured_on)

    def name_of(row: SweepRow) -> str:
        several = row.origin == "measured" and len(measured[row.device]) > 1
        return row.location.label(row.device) if several else row.device

    return name_of


def _rank(
    intervals: Mapping[str, MedianInterval], is_slower: Callable[[str, str], bool]
) -> list[RankedPoint]:
    ordered = sorted(intervals, key=lambda point: intervals[point].median)
    places = assign_places(ordered, is_slower)
    return [
        RankedPoint(
            place=place,
            point=point,
            interval=intervals[point],
            ratio=intervals[point].median / intervals[ordered[0]].median,
            tied=places.count(place) > 1,
        )
        for place, point in zip(places, ordered, strict=True)
    ]
