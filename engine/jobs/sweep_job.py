"""A sweep in the worker process: progress for the page, and points that kill the worker.

The point under way is named in a file beside the sweep's journal. A worker that finds one there was
started after another had died of it, or with it: the point is tried once more, and after a second
death it is CRASHED and the sweep goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import MeasureError
from engine.evaluation import Evaluation, Status
from engine.jobs.ahead import CompileAhead
from engine.jobs.status import BestPoint, JobProgress
from engine.measure.statistics import MedianInterval
from engine.problem import Problem
from engine.request import EvaluationRequest
from engine.search.estimate import runs_on_gpu
from engine.search.gpu_final import gpu_entrants
from engine.search.ranking import Place, by_problem
from engine.search.rows import SweepRow
from engine.search.space import SweepPoint, point_id
from engine.search.sweep import Progress, run_sweep
from engine.search.sweep_journal import SweepJournal, SweepSpec
from engine.search.tune import TuneResult, tune_results

if TYPE_CHECKING:
    from engine.jobs.worker import Worker

MAX_DEATHS = 2  # of the worker, at one point
_PROGRESS_S = 0.25
_MAX_BEST = 20


def run_sweep_job(worker: Worker, job_id: str, payload: dict[str, Any]) -> None:
    """Run the sweep, or go on with it; its end is an event."""
    spec = SweepSpec.from_dict(payload["request"])
    sweep_journal = SweepJournal(worker.run.sweep_journal(payload["journal"]))
    sweep_journal.poll()
    points = spec.space.points(spec.options)
    on_gpu = bool(points) and runs_on_gpu(points[0].request)
    latest: Progress | None = None
    told_at = 0.0

    def tell(progress: Progress) -> None:
        nonlocal told_at, latest
        latest = progress
        if time.monotonic() - told_at >= _PROGRESS_S:
            told_at = time.monotonic()
            worker.event(job_id, "progress", progress=asdict(job_progress(progress)))

    with CompileAhead(
        _known_order(spec, points, sweep_journal), on_cpu=spec.options.execute and not on_gpu
    ) as ahead:
        evaluate = _Points(worker, worker.run.in_flight(payload["journal"]), ahead).evaluate

        def should_stop() -> bool:
            # Between two points: here nothing is under way.
            if worker.evaluator.lost is not None:
                ahead.close()
                worker.restart_if_lost()
            worker.serve_waiting_evaluations()
            return worker.is_cancelled(job_id)

        end = run_sweep(spec, evaluate, sweep_journal, tell, should_stop, on_gpu=on_gpu)
    if latest is not None:
        worker.event(job_id, "progress", progress=asdict(job_progress(latest)))
    if end == "cancelled":  # the manager has said so itself
        return
    final = _final(worker, job_id, list(sweep_journal.rows.values())) if on_gpu else []
    worker.event(job_id, "finished", end=end, final=[asdict(result) for result in final])


def _known_order(
    spec: SweepSpec, points: Sequence[SweepPoint], sweep_journal: SweepJournal
) -> list[EvaluationRequest]:
    """What will be evaluated, in order; empty where that depends on what is found."""
    if spec.strategy != "exhaustive":
        return []
    return [p.request for p in points if p.why_not is None and p.id not in sweep_journal.rows]


def _final(worker: Worker, job_id: str, rows: list[SweepRow]) -> list[TuneResult]:
    """The best of every problem, measured side by side."""

    def stage(sentence: str) -> None:
        worker.event(job_id, "stage", stage=sentence)

    opened = gpu_entrants(worker.evaluator, stage)
    found: list[TuneResult] = []
    for (_, problem), group in by_problem(rows).items():
        worker.serve_waiting_evaluations()
        if worker.is_cancelled(job_id):
            break
        stage(f"The final of {problem.label()}")
        try:
            found += tune_results(group, opened, should_stop=lambda: worker.is_cancelled(job_id))
        except MeasureError as error:
            stage(f"No final of {problem.label()}: {error}")
            if worker.evaluator.lost is not None:
                break
    return found


def final_from_dict(data: Mapping[str, Any]) -> TuneResult:
    """A result of a final as the journal holds it."""
    places = tuple(
        Place(**{**place, "interval": MedianInterval(**place["interval"])})
        for place in data["places"]
    )
    return TuneResult(**{**data, "problem": Problem(**data["problem"]), "places": places})


def job_progress(progress: Progress) -> JobProgress:
    """The part of a sweep's progress that a page shows while it runs."""
    best = [
        BestPoint(problem.label(), row.point, row.label(), row.median_us, str(row.origin))
        for problem, row in list(progress.best.items())[:_MAX_BEST]
        if row.median_us is not None
    ]
    return JobProgress(
        done=progress.done,
        total=progress.total,
        passed=progress.passed,
        skipped=progress.skipped,
        failed=progress.failed,
        resumed=progress.resumed,
        elapsed_s=progress.elapsed_s,
        per_minute=progress.per_minute,
        eta_s=progress.eta_s,
        best=tuple(best),
    )


class _Points:
    """Evaluates points and remembers on disk which one is under way."""

    def __init__(self, worker: Worker, marker: Path, ahead: CompileAhead) -> None:
        self._worker = worker
        self._ahead = ahead
        self._marker = marker
        self._fatal, self._deaths = _read_marker(marker)

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        self._ahead.next_point()
        point = point_id(request)
        deaths = self._deaths if point == self._fatal else 0
        if deaths >= MAX_DEATHS:
            return _crashed(request)
        _write_marker(self._marker, point, deaths + 1)
        try:
            return self._worker.evaluator.evaluate(request).evaluation
        finally:
            self._marker.unlink(missing_ok=True)


def _read_marker(marker: Path) -> tuple[str, int]:
    """(point, how often the worker has died during it)."""
    try:
        data = json.loads(marker.read_text())
        return str(data["point"]), int(data["deaths"])
    except (OSError, ValueError, KeyError):
        return "", 0


def _write_marker(marker: Path, point: str, deaths: int) -> None:
    partial = marker.with_suffix(".partial")
    partial.write_text(json.dumps({"point": point, "deaths": deaths}))
    partial.replace(marker)


def _crashed(request: EvaluationRequest) -> Evaluation:
    return Evaluation(
        status=Status.CRASHED,
        reason=f"The worker process died {MAX_DEATHS} times while it ran this point (a crash of "
        "the compiler or driver, or out of memory): run it alone to see the log.",
        variant=request.variant,
        problem=request.problem,
        config=dict(request.config),
        device=request.gpu or "unknown",
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )
