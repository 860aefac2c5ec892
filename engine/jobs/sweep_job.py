"""A sweep in the worker process: progress, compiles ahead of time, points that kill the worker.

A marker file beside the sweep's journal names the point being evaluated. A worker that finds a
marker follows one that died during that point: the point is tried once more, and after a second
death it is CRASHED and the sweep continues. On a cluster, `engine.search.cluster.executor` handles
points that kill workers.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from engine.base import files
from engine.base.errors import AttuneError, Status, StoreError
from engine.base.schema import decode, encode
from engine.jobs.layout import JobProgress, JobStatus
from engine.jobs.supervisor import JobRunner
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest, runs_on_gpu
from engine.search.autotune import ProblemResult, gpu_candidates, problem_result, result_with_final
from engine.search.evaluation_process import evaluate_point
from engine.search.ranking import by_problem, without_result
from engine.search.space import SweepPoint, point_id
from engine.search.sweep.journal import Progress, SweepJournal, SweepSpec
from engine.search.sweep.run import SweepEnd, run_sweep
from engine.sessions.known_times import open_history

# Compiles the next points of a sweep while one is being measured.
#
# Compiles run in separate processes, so a crash of the compiler does not affect a measurement and
# no compiler thread delays CUDA calls. Results go to the cache on disk; a point that is not cached
# yet is compiled when it is evaluated.

_AHEAD = 4  # points per process that may be compiled ahead of time


class CompileAhead:
    """A context manager. Call `next_point` once per evaluation; it returns at once.

    Args:
        requests: in order of evaluation, as far as that is known.
        on_cpu: also compile host builds.
        processes: by default one less than the machine's cores, at least one.
    """

    def __init__(
        self, requests: Iterable[EvaluationRequest], *, on_cpu: bool, processes: int | None = None
    ) -> None:
        self._waiting = deque(requests)
        self._on_cpu = on_cpu
        self._processes = processes or max(1, (os.cpu_count() or 1) - 1)
        self._started: deque[Future[None]] = deque()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if len(self._waiting) > 1:
            # Not by fork: this process has threads and perhaps a CUDA context.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, context, _end_with_parent)
            self._fill()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel pending compiles. Safe to call twice."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def next_point(self) -> None:
        """Submit more compiles as another point is about to be evaluated."""
        if self._pool is not None and self._started:
            self._started.popleft()
            self._fill()

    def _fill(self) -> None:
        while (
            self._pool is not None
            and self._waiting
            and len(self._started) < _AHEAD * self._processes
        ):
            request = encode(self._waiting.popleft())
            try:
                self._started.append(self._pool.submit(_compile, request, self._on_cpu))
            except (BrokenProcessPool, RuntimeError):
                self.close()  # evaluations then compile by themselves


def _end_with_parent() -> None:
    """End this process with its parent, which pool processes otherwise outlive."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _compile(data: dict[str, Any], on_cpu: bool) -> None:
    """Compile one point into the cache. Errors are ignored, because the evaluation reports them."""
    from engine.attention.plan import make_plan
    from engine.cuda_on_host.build import build_kernels
    from engine.model.kernel import compile_plan
    from engine.pipeline.request import resolve

    request = decode(EvaluationRequest, data)
    try:
        target = resolve(request)
        plan = make_plan(target.variant, request.problem, target.config)
        if target.device is not None:
            compile_plan(plan, target.device.arch)
        if on_cpu and not plan.cubins:
            build_kernels(
                plan.source,
                plan.entries,
                plan.defines,
                request.check,
                target.arch,
                plan.include_folders,
                plan.cpp,
            )
    except AttuneError:
        return


MAX_DEATHS = 2  # of the worker, during one point
_PROGRESS_S = 0.25
_MAX_MARKER_BYTES = 4096


def run_sweep_job(runner: JobRunner, job: JobStatus, spec: SweepSpec) -> None:
    """Run or continue the sweep; write its end as an event."""
    job_id = job.job_id
    sweep_journal = SweepJournal(runner.run.sweep_journal(job.journal))
    sweep_journal.poll()
    reporter = _Reporter(runner, job_id)
    sweep = _Sweep(runner, job_id, spec, spec.space.points(spec.options), sweep_journal, reporter)
    if job.cluster and sweep.points:
        end, final = sweep.run_on_cluster(job.cluster)
    else:
        end, final = sweep.run_here(runner.run.in_flight(job.journal))
    reporter.finish()
    if end != "cancelled":  # the manager has written that event
        runner.event(job_id, "finished", end=end, final=[encode(result) for result in final])


class _Reporter:
    """Writes progress events, at most a few per second, and always the last one."""

    def __init__(self, runner: JobRunner, job_id: str) -> None:
        self._runner, self._job_id = runner, job_id
        self._lock = threading.Lock()
        self._latest: Progress | None = None
        self._written: Progress | None = None
        self._reported_at = 0.0
        self._timer: threading.Timer | None = None

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            # Report the first point at once: its end may be minutes away.
            begins = progress.under_way and (self._latest is None or not self._latest.under_way)
            self._latest = progress
            rest_s = _PROGRESS_S - (time.monotonic() - self._reported_at)
            if begins or rest_s <= 0:
                self._write()
            elif self._timer is None:  # the next progress may be minutes away, too
                self._timer = threading.Timer(rest_s, self._write_late)
                self._timer.daemon = True
                self._timer.start()

    def finish(self) -> None:
        """Write the latest progress."""
        with self._lock:
            self._write()

    def _write_late(self) -> None:
        with self._lock, suppress(StoreError):  # the next row reports a full disk
            self._timer = None
            self._write()

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._latest is None or self._latest is self._written:
            return
        self._reported_at, self._written = time.monotonic(), self._latest
        progress = JobProgress.of(self._latest, self._latest.best.values())
        self._runner.event(self._job_id, "progress", progress=encode(progress))


@dataclass(frozen=True, slots=True)
class _Sweep:
    """A sweep job: points, journal and progress."""

    runner: JobRunner
    job_id: str
    spec: SweepSpec
    points: list[SweepPoint]
    journal: SweepJournal
    reporter: _Reporter

    def run_here(self, marker: Path) -> tuple[SweepEnd, list[ProblemResult]]:
        """Evaluate in this process; `marker` is the file that names the current point."""
        runner, spec = self.runner, self.spec
        on_gpu = bool(self.points) and runs_on_gpu(self.points[0].request)
        with CompileAhead(self._known_order(), on_cpu=spec.options.execute and not on_gpu) as ahead:
            evaluate = _PointEvaluator(runner, marker, ahead).evaluate

            def should_stop() -> bool:
                # Between two points, when nothing is being evaluated.
                if runner.evaluator.gpu_error is not None:
                    ahead.close()
                    runner.restart_if_gpu_unusable()
                runner.serve_waiting_evaluations()
                return self._is_cancelled()

            end = run_sweep(
                spec,
                evaluate,
                self.journal,
                self.reporter,
                should_stop,
                on_gpu=on_gpu,
                history=runner.evaluator.history,
            )
        if end == "cancelled" or not on_gpu:
            return end, []
        return end, self._final()

    def run_on_cluster(self, address: str) -> tuple[SweepEnd, list[ProblemResult]]:
        """Evaluate on a cluster; this process only runs single evaluations of pages."""
        from engine.search.cluster.executor import connect, sweep_on

        def should_stop() -> bool:
            self.runner.serve_waiting_evaluations()
            self.runner.restart_if_gpu_unusable()
            return self._is_cancelled()

        self._stage(f"Looking for workers at {address}")
        rows = self.journal.rows.values()
        with connect(address, self.points[0].request, rows, self._stage) as cluster:
            return sweep_on(
                cluster,
                self.spec,
                self.journal,
                self.reporter,
                should_stop,
                self.runner.evaluator.history,
                open_history,
            )

    def _is_cancelled(self) -> bool:
        return self.runner.is_cancelled(self.job_id)

    def _stage(self, sentence: str) -> None:
        self.runner.event(self.job_id, "stage", stage=sentence)

    def _known_order(self) -> list[EvaluationRequest]:
        """Return the points in order of evaluation; empty if that depends on times."""
        if self.spec.strategy != "exhaustive":
            return []
        done = self.journal.rows
        return [p.request for p in self.points if p.why_not is None and p.id not in done]

    def _final(self) -> list[ProblemResult]:
        """Measure the best points of every problem side by side."""
        open_candidates = gpu_candidates(self.runner.evaluator, self._stage)
        results: list[ProblemResult] = []
        for (name, problem), group in by_problem(self.journal.rows.values()).items():
            self.runner.serve_waiting_evaluations()
            if self._is_cancelled():
                break
            self._stage(f"Timing the best of {problem.label()} side by side")
            final = partial(
                problem_result, name, group, open_candidates, should_stop=self._is_cancelled
            )
            result = result_with_final(name, group, final)
            if result is not None:
                results.append(result)
        return results


class _PointEvaluator:
    """Evaluates points, and records the current point on disk."""

    def __init__(self, runner: JobRunner, marker: Path, ahead: CompileAhead) -> None:
        self._runner = runner
        self._ahead = ahead
        self._marker = marker
        self._fatal, self._deaths = _read_marker(marker)

    def evaluate(self, request: EvaluationRequest) -> EvaluationOutcome:
        self._ahead.next_point()
        point = point_id(request)
        deaths = self._deaths if point == self._fatal else 0
        if deaths >= MAX_DEATHS:
            crashed = without_result(
                request,
                Status.CRASHED,
                f"The worker process died {MAX_DEATHS} times while it ran this point (a crash of "
                "the compiler or driver, or out of memory): run it alone to see the log.",
            )
            return EvaluationOutcome(crashed)
        _write_marker(self._marker, point, deaths + 1)
        try:
            return evaluate_point(self._runner.evaluator, request)
        finally:
            self._marker.unlink(missing_ok=True)


def _read_marker(marker: Path) -> tuple[str, int]:
    """Return (point, deaths of the worker during it)."""
    try:
        data = json.loads(files.read(marker, _MAX_MARKER_BYTES))
        return str(data["point"]), int(data["deaths"])
    except (OSError, ValueError, KeyError):
        return "", 0


def _write_marker(marker: Path, point: str, deaths: int) -> None:
    files.write(marker, json.dumps({"point": point, "deaths": deaths}).encode(), durable=False)
