"""A finished evaluation of a sweep, as stored in its journal; comparison and ranking of several."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, get_args

from engine.attention.evaluation import METHODS, Evaluation, Origin, basis_of, method_of
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.schema import Stored, encode
from engine.history.known_time import RANKING_ERROR, are_comparable
from engine.measure.sampler import SamplingRun
from engine.measure.statistics import MedianInterval, Verdict, interval_verdict
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
    reason: str  # of the status; for a correct kernel without a time, why there is none
    device: str
    origin: Origin | None  # of the latency; None without a latency
    method: str  # method of a prediction, one of METHODS; empty if not known
    kind: str
    interval: MedianInterval | None  # µs
    elapsed_s: float
    result: Mapping[str, Any]
    location: Location = UNKNOWN_LOCATION

    @property
    def measured_on(self) -> str:
        """Return the GPU on which its time was measured. Times of different GPUs are never
        compared."""
        return self.location.gpu if self.origin == "measured" else ""

    @property
    def median_us(self) -> float | None:
        """Return the time by which this point is ranked; None for incorrect results."""
        return self.interval.median if self.interval else None

    @property
    def basis(self) -> str:
        """Return the latency's `Latency.basis`; empty without a latency."""
        return basis_of(self.origin, self.result["latency"]["reason"]) if self.origin else ""

    def label(self) -> str:
        """Return `v05 num_splits=4 block_n=64`."""
        return " ".join([self.variant, *(f"{k}={v}" for k, v in self.config.items())])

    @classmethod
    def make(
        cls,
        point: SweepPoint,
        evaluation: Evaluation,
        elapsed_s: float,
        location: Location = UNKNOWN_LOCATION,
    ) -> Self:
        """Return the row of an evaluation, which took `elapsed_s` seconds."""
        return cls.from_result(point.id, encode(evaluation), elapsed_s, location)

    @classmethod
    def from_result(
        cls,
        point: str,
        result: Mapping[str, Any],
        elapsed_s: float,
        location: Location = UNKNOWN_LOCATION,
    ) -> Self:
        """Create a row from a journal's line.

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
    """Return the same object for equal problems, of which a journal has many rows."""
    return Problem(**dict(sizes))


def _is_usable(status: Status, result: Mapping[str, Any]) -> bool:
    """True if the result is correct, or was predicted without execution."""
    not_executed = status is Status.SKIPPED and result["execution"] is None
    return result["latency"] is not None and (status is Status.PASSED or not_executed)


def _reason(status: Status, result: Mapping[str, Any]) -> str:
    notes: Sequence[str] = result.get("notes", ())
    is_fault = status not in (Status.PASSED, Status.SKIPPED)
    if is_fault or result["latency"] is not None or not notes:
        return str(result["reason"])
    return " ".join(notes)


def skipped_row(point: SweepPoint) -> SweepRow:
    """Return the row of a point that a constraint excludes, which is not compiled or run."""
    evaluation = without_result(point.request, Status.SKIPPED, point.why_not or "")
    return SweepRow.make(point, evaluation, 0.0)


def without_result(
    request: EvaluationRequest, status: Status, reason: str, log: str = ""
) -> Evaluation:
    """Return the evaluation of a request without a result, with the reason."""
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
    """Compare two rows by times that were not measured side by side.

    Measured times differ if their intervals and run-to-run differences imply it. Predicted times
    differ if they are further apart than the ranking error of simulated times. The verdict is
    UNDECIDED if the individual GPU, problem, kind, origin or method of the times differ.
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


@lru_cache(maxsize=4096)
def problem_columns(problem: Problem) -> Mapping[str, Any]:
    """Return the problem's label and its fields, as columns of a table."""
    sizes = {f.name: getattr(problem, f.name) for f in fields(problem)}
    return MappingProxyType({"problem": problem.label(), **sizes})


# Points ranked from fast to slow; points with indistinguishable times share a place.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankedPoint(Stored):
    """A point and its place. Points with equal `place` have indistinguishable times."""

    place: int
    point: str
    interval: MedianInterval  # µs
    ratio: float | None  # time / time of the fastest; None if the two are not comparable
    removed: ClassVar[tuple[str, ...]] = ("tied",)  # follows from all places: `ties`


def ties(places: Iterable[RankedPoint]) -> frozenset[int]:
    """Return the places that several of these points share."""
    counts = Counter(p.place for p in places)
    return frozenset(place for place, count in counts.items() if count > 1)


def assign_places(ordered: Sequence[T], is_slower: Callable[[T, T], bool]) -> list[int]:
    """Return the place of each item; items are ordered from fast to slow.

    An item that is not slower than the first of a place shares that place; the next place counts
    all items before it (1, 1, 3).
    """
    places: list[int] = []
    lead = 0
    for i, item in enumerate(ordered):
        if i > 0 and is_slower(item, ordered[lead]):
            lead = i
        places.append(lead + 1)
    return places


def rank_run(run: SamplingRun, without: Container[str] = ()) -> list[RankedPoint]:
    """Rank the kernels of one interleaved run by paired ratios within rounds, for the run's
    first kind of time."""
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
    """Rank evaluations of one problem on one GPU that were timed separately or predicted.

    Times of different origins or prediction methods are never mixed: see `comparable`.
    """
    by_point = {row.point: row for row in comparable(rows)}
    return _rank(
        {point: row.interval for point, row in by_point.items() if row.interval is not None},
        lambda slow, fast: compare_rows(by_point[slow], by_point[fast]) is Verdict.SLOWER,
        lambda a, b: are_comparable(by_point[a].basis, by_point[b].basis),
    )


def comparable(rows: Iterable[SweepRow]) -> list[SweepRow]:
    """Return the rows with a time of the best origin and, if predicted, the best method.

    Measured comes before recorded before predicted, and machine code before roofline; predictions
    of the two methods may differ fourfold.
    """
    timed = [row for row in rows if row.interval is not None]
    origin = ranking_origin(timed)
    of_origin = [row for row in timed if row.origin == origin]
    methods = {row.method for row in of_origin}
    best = next((method for method in METHODS if method in methods), "")
    return [row for row in of_origin if row.method == best]


def ranking_origin(rows: Iterable[SweepRow]) -> Origin | None:
    """Return the best origin among the rows."""
    origins = {row.origin for row in rows}
    return next((o for o in get_args(Origin) if o in origins), None)


def by_problem(rows: Iterable[SweepRow]) -> dict[tuple[str, Problem], list[SweepRow]]:
    """Return rows by (GPU, problem), in order of first appearance.

    GPUs have their names from `gpu_names`: two GPUs of one model have different names.
    """
    rows = list(rows)
    name_of = gpu_names(rows)
    groups: dict[tuple[str, Problem], list[SweepRow]] = {}
    # Rows mostly share their problem's object, whose identity is quicker to look up.
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
    """Return each row's GPU name: its model, and its id if rows were measured on several."""
    measured: dict[str, set[str]] = {}
    for row in rows:
        if row.origin == "measured":
            measured.setdefault(row.device, set()).add(row.measured_on)

    def name_of(row: SweepRow) -> str:
        several = row.origin == "measured" and len(measured[row.device]) > 1
        return row.location.label(row.device) if several else row.device

    return name_of


def _rank(
    intervals: Mapping[str, MedianInterval],
    is_slower: Callable[[str, str], bool],
    has_ratio: Callable[[str, str], bool] = lambda _a, _b: True,
) -> list[RankedPoint]:
    ordered = sorted(intervals, key=lambda point: intervals[point].median)
    places = assign_places(ordered, is_slower)
    return [
        RankedPoint(
            place=place,
            point=point,
            interval=intervals[point],
            ratio=intervals[point].median / intervals[ordered[0]].median
            if has_ratio(point, ordered[0])
            else None,
        )
        for place, point in zip(places, ordered, strict=True)
    ]
