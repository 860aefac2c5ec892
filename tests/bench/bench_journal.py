"""Processor time of a page with a journal of 10,000 evaluations.

`python tests/bench/bench_journal.py [NUMBER]`

First the time to open it (as at the start of a server), then of one update: the worker adds an
evaluation, and the page reads the state, all rows, and their table.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from engine.attention.evaluation import BaselineTiming, Evaluation
from engine.attention.problem import Problem
from engine.base import files
from engine.base.schema import encode
from engine.jobs.layout import RunDir
from engine.jobs.manager import JobManager
from engine.measure.sampler import sampled_latency
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest
from engine.search.ranking import SweepRow
from engine.search.results import sweep_frame
from engine.search.space import Space, SweepOptions, SweepPoint, point_id
from engine.search.sweep.journal import SweepJournal, SweepSpec

EVALUATIONS = int(sys.argv[1]) if sys.argv[1:] else 10_000
UPDATES = 20
GOAL_MS = 300.0


def realistic() -> tuple[EvaluationRequest, Evaluation]:
    """Return an evaluation as on a GPU machine: three kinds of 60 samples, four baselines."""
    request = EvaluationRequest("v01", Problem(1, 1, 64, 64), gpu="L4", backend="cpu")
    found = evaluate(request).evaluation
    samples = tuple(5.0 + 0.001 * i for i in range(60))
    warm, cold, end = (
        sampled_latency(samples, kind, "made up for this benchmark")
        for kind in ("device_warm", "device_cold", "end_to_end")
    )
    baselines = tuple(
        BaselineTiming(name, warm, other_latencies=(cold, end))
        for name in ("flash", "cudnn", "efficient", "math")
    )
    return request, replace(found, latency=warm, other_latencies=(cold, end), baselines=baselines)


def timed_ms(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1000


def report(what: str, values_ms: list[float], *, goal: bool = False) -> None:
    worst = f", worst {max(values_ms):.1f} ms" if len(values_ms) > 1 else ""
    judged = f"  (goal {GOAL_MS:.0f} ms)" if goal else ""
    print(f"{what:<58} {median(values_ms):9.1f} ms{worst}{judged}", flush=True)


def single_evaluations(root: Path, request: EvaluationRequest, evaluation: Evaluation) -> None:
    """Time single evaluations, the jobs of the Tune page."""
    run = RunDir(root / "server0")
    run.create()
    result = encode(evaluation)

    def add(i: int) -> None:
        job = f"{i:020d}-0-0"
        queued = {"job": job, "event": "queued", "t": 0.0, "kind": "evaluate"}
        files.append_event(run.journal, {**queued, "request": encode(request)})
        files.append_event(run.journal, {"job": job, "event": "started", "t": 0.0, "pid": 1})
        files.append_event(
            run.journal, {"job": job, "event": "finished", "t": 0.0, "result": result}
        )

    add(0)
    line = run.journal.read_bytes()
    with run.journal.open("wb") as file:
        for i in range(EVALUATIONS):
            file.write(line.replace(b"00000000000000000000-0-0", f"{i:020d}-0-0".encode()))
    print(f"{EVALUATIONS:,} single evaluations, {run.journal.stat().st_size >> 20} MiB")
    # As in a running server, which does not rotate the journal.
    RunDir.tidy, tidy = (lambda *_: None), RunDir.tidy  # type: ignore[method-assign]
    start = time.process_time()
    manager = JobManager(root)
    report("  server starts", [(time.process_time() - start) * 1000])
    RunDir.tidy = tidy  # type: ignore[method-assign]
    payload = encode(request)
    updates = []
    for i in range(UPDATES):
        add(EVALUATIONS + i)
        updates.append(timed_ms(lambda: [job for job in manager.jobs() if job.request == payload]))
    report("  update: every run of one request", updates, goal=True)
    manager.close()


def sweep(root: Path, request: EvaluationRequest, evaluation: Evaluation) -> None:
    """Time the rows of a sweep."""
    manager = JobManager(root)
    spec = SweepSpec(Space(("v01",), (request.problem,)), SweepOptions(gpu="L4"))
    job = "sweep"
    path = manager._run.sweep_journal(job)
    queued = {"job": job, "event": "queued", "t": 0.0, "kind": "sweep", "request": encode(spec)}
    files.append_event(manager._run.journal, {**queued, "journal": job})
    book = SweepJournal(path)
    book.begin(spec)

    def point(i: int) -> SweepPoint:
        each = replace(request, problem=Problem(1 + i % 100, 1 + i // 100, 64, 64))
        return SweepPoint(point_id(each), each)

    def add(i: int) -> None:
        p = point(i)
        book.add(p, SweepRow.make(p, replace(evaluation, problem=p.request.problem), 0.5))

    adding = timed_ms(lambda: [add(i) for i in range(EVALUATIONS)])
    print(f"{EVALUATIONS:,} rows of a sweep, {path.stat().st_size >> 20} MiB")
    report("  all of them added", [adding])
    report("  first look at its rows", [timed_ms(lambda: manager.rows(job))])
    rows, frames = [], []
    for i in range(UPDATES):
        add(EVALUATIONS + i)
        rows.append(timed_ms(lambda: manager.rows(job)))
        frames.append(timed_ms(lambda: sweep_frame(manager.rows(job))))
    report("  update: its rows", rows, goal=True)
    report("  update: its rows as a table", frames, goal=True)
    manager.close()


def main() -> None:
    request, evaluation = realistic()
    for bench in (single_evaluations, sweep):
        with tempfile.TemporaryDirectory() as folder:
            bench(Path(folder), request, evaluation)


if __name__ == "__main__":
    main()
