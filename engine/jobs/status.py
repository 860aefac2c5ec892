"""The status of a job, folded from the journal's events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypeAlias, cast

from engine.records.encoding import decode
from engine.schema import Stored
from engine.search.ranking import gpu_names
from engine.search.rows import SweepRow
from engine.search.sweep.progress import SweepCounts

# Of one request, and short.
SingleJob: TypeAlias = Literal["evaluate", "simulate", "machine_code", "rung"]
JobKind: TypeAlias = SingleJob | Literal["sweep", "live"]
JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled", "crashed"]
ENDED: frozenset[str] = frozenset({"done", "failed", "cancelled", "crashed"})
_MAX_BEST = 20


@dataclass(frozen=True, slots=True)
class BestPoint(Stored):
    """The fastest point of one problem so far."""

    problem: str  # label
    point: str  # id of the row
    name: str  # variant and config
    median_us: float
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress(SweepCounts):
    """How far a sweep has come, as its events hold it."""

    best: tuple[BestPoint, ...] = ()  # of the problems first met, when there are very many

    @classmethod
    def of(cls, counts: SweepCounts, best: Iterable[SweepRow]) -> Self:
        """Of a sweep's counts and the fastest row of each GPU and problem."""
        best = list(best)
        name_of = gpu_names(best)
        points = (
            BestPoint(_heading(row, name_of(row)), row.point, row.label(), time_us, str(row.origin))
            for row in best[:_MAX_BEST]
            if (time_us := row.median_us) is not None
        )
        figures = {f.name: getattr(counts, f.name) for f in fields(SweepCounts)}
        return cls(**figures, best=tuple(points))


def _heading(row: SweepRow, gpu: str) -> str:
    """The problem; on which GPU, where there are several of one model."""
    label = row.problem.label()
    return label if gpu == row.device else f"{label} on {gpu}"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of one job.

    `result` is the encoded `Evaluation` once an evaluation is done; a sweep's rows are in its own
    journal (`JobManager.rows`), the samples of a latency stream in its file
    (`JobManager.read_stream`).
    """

    job_id: str
    state: JobState
    request: dict[str, Any]  # of an evaluation or stream; the spec of a sweep
    stage: str = ""
    submitted: float = 0.0  # Unix time
    started: float | None = None
    ended: float | None = None
    result: dict[str, Any] | None = None
    error: str = ""
    log: str = ""
    kind: JobKind = "evaluate"
    progress: JobProgress | None = None  # of a sweep
    # Of a sweep that is done: "finished" or "budget"; of a latency stream: "unseen" or "full", and
    # empty where its kernel was not right.
    end: str = ""
    journal: str = ""  # name of a sweep's own journal
    cluster: str = ""  # where a sweep's evaluations run: a Dask scheduler; empty is this machine
    final: tuple[Mapping[str, Any], ...] = ()  # of a sweep on a GPU; see `JobManager.results`

    @property
    def elapsed_s(self) -> float:
        if self.started is None:
            return 0.0
        return (self.ended or time.time()) - self.started

    @property
    def is_over(self) -> bool:
        return self.state in ENDED

    @classmethod
    def queued(cls, event: Mapping[str, Any]) -> Self:
        """From the event that queues a job."""
        return cls(
            job_id=str(event["job"]),
            state="queued",
            request=event.get("request") or {},
            submitted=float(event.get("t", 0.0)),
            kind=cast(JobKind, str(event.get("kind", "evaluate"))),  # `serve` refuses what is none
            journal=str(event.get("journal", "")),
            cluster=str(event.get("cluster", "")),
        )

    def after(self, event: Mapping[str, Any]) -> JobStatus:
        """The next state. The first end wins: a result that crosses a cancel is dropped."""
        kind, when = event.get("event"), float(event.get("t", 0.0))
        if self.is_over:
            return self
        if kind == "started":  # a sweep may be started again after its worker died
            return replace(self, state="running", started=self.started or when)
        if kind == "stage":
            return replace(self, stage=str(event.get("stage", "")))
        if kind == "progress":
            return replace(self, progress=decode(JobProgress, event["progress"]))
        if kind == "finished":
            return replace(
                self,
                state="done",
                ended=when,
                result=event.get("result"),
                end=str(event.get("end", "")),
                final=tuple(event.get("final", ())),
            )
        if kind in ("failed", "crashed", "cancelled"):
            state: JobState = kind
            error, log = str(event.get("error", "")), str(event.get("log", ""))
            return replace(self, state=state, ended=when, error=error, log=log)
        return self
