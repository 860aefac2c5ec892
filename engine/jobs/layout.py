"""The files that a job manager and its worker share: one folder per running server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast, get_args

import numpy as np

from engine.base import files
from engine.base.schema import Stored, decode
from engine.search.ranking import SweepRow, gpu_names
from engine.search.sweep.journal import SweepCounts

if TYPE_CHECKING:
    from engine.correctness import ErrorMap


_MAX_WORKER_BYTES = 65_536


class RunDir:
    """The files of one server's jobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = root / "journal.jsonl"
        self.results = root / "results"
        self.sweeps = root / "sweeps"
        self.streams = root / "streams"
        self.worker_log = root / "worker.log"
        self.worker_lock = root / "worker.lock"
        self.manager_lock = root / "manager.lock"
        self._worker_file = root / "worker.json"

    def create(self) -> None:
        """Create the folders."""
        for folder in (self.root, self.results, self.sweeps, self.streams):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    # -- sweeps and latency streams write files of their own

    def sweep_journal(self, name: str) -> Path:
        """Return the journal of a sweep; `name` is the id of the job that started it."""
        return self.sweeps / f"{Path(name).name}.jsonl"

    def in_flight(self, name: str) -> Path:
        """Return the file that names the point being evaluated; it exists only during an
        evaluation."""
        return self.sweeps / f"{Path(name).name}.inflight"

    def stream(self, job_id: str) -> Path:
        """Return the file with a latency stream's samples."""
        return self.streams / f"{Path(job_id).name}.jsonl"

    # -- the worker's identity: a pid may be reused by another process

    def write_worker(self, pid: int, code: str) -> None:
        """Record the worker of this folder; `code` identifies the version of the program."""
        import psutil

        data = {"pid": pid, "created": psutil.Process(pid).create_time(), "code": code}
        files.write(self._worker_file, json.dumps(data).encode(), durable=False)

    def is_abandoned(self) -> bool:
        """True if no server holds this folder. A restarted server would have claimed it again."""
        return not (self.manager_lock.exists() and files.is_locked(self.manager_lock))

    def live_worker(self) -> int | None:
        """Return the pid of the live worker of this folder, or None. Zombies do not count."""
        import psutil

        try:
            data = self._worker()
            process = psutil.Process(data["pid"])
            same = abs(process.create_time() - data["created"]) <= 1.0
            return process.pid if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, psutil.Error):
            return None

    def worker_code(self) -> str:
        """Return the `code` of the last started worker."""
        try:
            return str(self._worker()["code"])
        except (OSError, ValueError, KeyError):
            return ""

    def _worker(self) -> dict[str, Any]:
        data = json.loads(files.read(self._worker_file, _MAX_WORKER_BYTES))
        if not isinstance(data, dict):
            raise ValueError("not a worker's identity")
        return data

    # -- results that are too large for a journal line

    def write_maps(self, job_id: str, maps: Iterable[ErrorMap]) -> None:
        """Write the error maps of a job for `read_maps`."""
        from engine.correctness import maps_to_arrays

        arrays = maps_to_arrays(maps)
        files.write_with(
            self.results / f"{job_id}.npz",
            lambda file: np.savez(file, allow_pickle=False, **arrays),
            durable=False,
        )

    def read_maps(self, job_id: str) -> dict[str, Any] | None:
        """Return the error maps of a job as named arrays, or None."""
        try:
            with np.load(self.results / f"{job_id}.npz", allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError):
            return None

    def tidy(self, keep: int = 200, max_age_s: float = 7 * 86400.0) -> None:
        """Delete old maps and streams, and start a new journal if the old one is large.

        Journals of sweeps are kept, because they contain measurements.
        """
        for stream in self.streams.iterdir():
            if time.time() - stream.stat().st_mtime > max_age_s:
                stream.unlink(missing_ok=True)
        results = sorted(self.results.iterdir(), reverse=True)
        for old in results[keep:]:
            if time.time() - old.stat().st_mtime > max_age_s or len(results) > 2 * keep:
                old.unlink(missing_ok=True)
        if self.journal.exists() and self.journal.stat().st_size > 64 << 20:
            self.journal.replace(self.journal.with_suffix(".old.jsonl"))


# The status of a job, computed from the journal's events.


# A single job does one task with one request, and is short.
JobKind: TypeAlias = Literal["single", "sweep", "live"]
# Background tasks need no backend and run beside other jobs.
BackgroundTask: TypeAlias = Literal["simulate", "machine_code", "rung", "history"]
Task: TypeAlias = Literal["evaluate", "invariance"] | BackgroundTask
BACKGROUND_TASKS: frozenset[str] = frozenset(get_args(BackgroundTask))
TASKS: frozenset[str] = BACKGROUND_TASKS | {"evaluate", "invariance"}
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
    """The progress of a sweep, as in its events."""

    best: tuple[BestPoint, ...] = ()  # of the first problems, if there are very many

    @classmethod
    def of(cls, counts: SweepCounts, best: Iterable[SweepRow]) -> Self:
        """Create the progress from a sweep's counts and the fastest row of each GPU and problem."""
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
    """Return the problem's label, with the GPU if there are several of one model."""
    label = row.problem.label()
    return label if gpu == row.device else f"{label} on {gpu}"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of one job.

    `result` is the encoded `Evaluation` of a finished evaluation, or the `KernelHistory` of a
    history job. A sweep's rows are in its own journal (`JobManager.rows`), the samples of a latency
    stream in its file (`JobManager.read_stream`).
    """

    job_id: str
    state: JobState
    request: dict[str, Any]  # request of an evaluation or stream; spec of a sweep
    stage: str = ""
    submitted: float = 0.0  # Unix time
    started: float | None = None
    ended: float | None = None
    result: dict[str, Any] | None = None
    part: dict[str, Any] | None = None  # while running: the encoded `Evaluation` of a few CTAs
    error: str = ""
    log: str = ""
    kind: JobKind = "single"
    task: Task = "evaluate"  # of a single job
    progress: JobProgress | None = None  # of a sweep
    progressed: float | None = None  # Unix time of `progress`
    # How a sweep ended: "finished" or "budget"; a latency stream: "unseen" or "full", empty if its
    # kernel was incorrect.
    end: str = ""
    journal: str = ""  # name of a sweep's own journal
    cluster: str = ""  # Dask scheduler of a sweep; empty: this machine
    final: tuple[Mapping[str, Any], ...] = ()  # of a sweep on a GPU; see `JobManager.results`

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the job started, until its end; 0 for a queued job."""
        if self.started is None:
            return 0.0
        return (self.ended or time.time()) - self.started

    def left_s(self, now_s: float) -> tuple[float, float, float] | None:
        """Return the remaining seconds of a running sweep, and their range.

        None before anything was timed. The estimate counts down while points are evaluated, and
        stops if a point takes longer than estimated.
        """
        p = self.progress
        if p is None or p.eta_s is None:
            return None
        waited_s = max(0.0, now_s - self.progressed) if self.progressed is not None else 0.0
        left = p.total - p.done
        to_come = max(0, left - p.workers) / left if left > 0 else 0.0
        low_s, high_s = p.eta_range_s or (p.eta_s, p.eta_s)
        expected_s, least_s, most_s = (
            max(s - waited_s, to_come * s) for s in (p.eta_s, low_s, high_s)
        )
        return expected_s, least_s, most_s

    @property
    def is_evaluation(self) -> bool:
        """Return True if the job's result is an `Evaluation`."""
        return self.kind == "single" and self.task == "evaluate"

    @property
    def is_background(self) -> bool:
        """True if the job needs no backend and runs beside others."""
        return self.kind == "single" and self.task in BACKGROUND_TASKS

    @property
    def is_over(self) -> bool:
        """Return True if the job has ended, in whatever state."""
        return self.state in ENDED

    @classmethod
    def queued(cls, event: Mapping[str, Any]) -> Self:
        """Return the status of a job after the event that queues it.

        Older events have no `task`: a single job's kind was its task.
        """
        name = str(event.get("task") or event.get("kind", "evaluate"))
        is_single = name in TASKS
        return cls(
            job_id=str(event["job"]),
            state="queued",
            request=event.get("request") or {},
            submitted=float(event.get("t", 0.0)),
            kind="single" if is_single else cast(JobKind, name),  # `serve` refuses unknown kinds
            task=cast(Task, name) if is_single else "evaluate",
            journal=str(event.get("journal", "")),
            cluster=str(event.get("cluster", "")),
        )

    def after(self, event: Mapping[str, Any]) -> JobStatus:
        """Return the state after an event. The first end counts: a result after a cancel is
        dropped."""
        kind, when = event.get("event"), float(event.get("t", 0.0))
        if self.is_over:
            return self
        if kind == "started":  # a sweep may be started again after its worker died
            return replace(self, state="running", started=self.started or when)
        if kind == "stage":
            return replace(self, stage=str(event.get("stage", "")))
        if kind == "part":
            return replace(self, part=event.get("result"))
        if kind == "progress":
            progress = decode(JobProgress, event["progress"])
            return replace(self, progress=progress, progressed=when)
        if kind == "finished":
            return replace(
                self,
                state="done",
                ended=when,
                part=None,
                result=event.get("result"),
                end=str(event.get("end", "")),
                final=tuple(event.get("final", ())),
            )
        if kind in ("failed", "crashed", "cancelled"):
            state: JobState = kind
            error, log = str(event.get("error", "")), str(event.get("log", ""))
            return replace(self, state=state, ended=when, error=error, log=log)
        return self
