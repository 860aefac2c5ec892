"""Points ranked from fast to slow; points whose times do not differ share a place."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from engine.evaluation import METHODS, Origin
from engine.measure.sampler import SamplingRun
from engine.measure.statistics import MedianInterval
from engine.measure.verdict import Verdict
from engine.problem import Problem
from engine.schema import Stored
from engine.search.rows import SweepRow, compare_rows

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
    """From an interleaved run, by its first kind of time: paired ratios within rounds decide."""
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
    """From evaluations that were timed by themselves (or predicted), of one problem on one GPU.

    Times of several origins, or predicted by several methods, are never mixed: see `comparable`.
    """
    by_point = {row.point: row for row in comparable(rows)}
    return _rank(
        {point: row.interval for point, row in by_point.items() if row.interval is not None},
        lambda slow, fast: compare_rows(by_point[slow], by_point[fast]) is Verdict.SLOWER,
    )


def comparable(rows: Iterable[SweepRow]) -> list[SweepRow]:
    """Those with a time of the best origin and, where it is predicted, by the best method.

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
