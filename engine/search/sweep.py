"""Runs the evaluations of a sweep one by one: journal first, then progress; resumable at any point.

What evaluates comes in as a function: the pipeline in this process, a worker, a cluster, a test's
stand-in. Failures are rows with reasons; nothing is dropped.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from engine.errors import AttuneError
from engine.evaluate import EvaluationRequest
from engine.evaluation import Evaluation, Status
from engine.problem import Problem
from engine.search.estimate import Estimator
from engine.search.rows import SweepRow, skipped_row
from engine.search.space import SweepPoint
from engine.search.strategies import Strategy, make_strategy
from engine.search.sweep_journal import SweepJournal, SweepSpec

Evaluate: TypeAlias = Callable[[EvaluationRequest], Evaluation]
SweepEnd: TypeAlias = Literal["finished", "budget", "cancelled"]

# What a resumed sweep does again: it came to no result, and may now.
RETRIED = frozenset({Status.CANCELLED, Status.THROTTLED})
_RATE_WINDOW = 20  # evaluations


@dataclass(frozen=True, slots=True)
class Progress:
    """How a sweep stands."""

    done: int  # rows there are, those of an earlier run and skipped ones included
    total: int  # that there will be, as far as budget and strategy let one know
    passed: int
    skipped: int  # excluded by constraints
    failed: int  # everything else
    resumed: int  # taken over from an earlier run
    elapsed_s: float  # of this run
    per_minute: float | None  # recent rate; None before the first evaluation
    eta_s: float | None
    best: Mapping[Problem, SweepRow]  # fastest so far by problem; by prediction where not measured
    last: SweepRow | None


def run_sweep(
    spec: SweepSpec,
    evaluate: Evaluate,
    sweep_journal: SweepJournal,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_gpu: bool = False,
) -> SweepEnd:
    """Run a sweep, or go on with the one whose rows the journal holds.

    Args:
        evaluate: runs one evaluation; an exception from it becomes a row as well.
        on_progress: called after every row.
        should_stop: asked before every evaluation; what is done stays.
        on_gpu: whether evaluations measure on a GPU, for the estimate alone.

    Raises:
        StoreError: the journal cannot be written, or another process runs this sweep.
        ToolMissing: the strategy needs a package that is not installed.
    """
    points = spec.space.points(spec.options)
    with sweep_journal.claim():
        sweep_journal.poll()
        sweep_journal.begin(spec)
        run = _Sweep(spec, points, evaluate, sweep_journal, on_progress, should_stop, on_gpu)
        state = run.run()
        sweep_journal.end(state)
        return state


class _Sweep:
    def __init__(
        self,
        spec: SweepSpec,
        points: Sequence[SweepPoint],
        evaluate: Evaluate,
        sweep_journal: SweepJournal,
        on_progress: Callable[[Progress], None] | None,
        should_stop: Callable[[], bool],
        on_gpu: bool,
    ) -> None:
        self.evaluate = evaluate
        self.journal = sweep_journal
        self.on_progress = on_progress or (lambda _: None)
        self.should_stop = should_stop
        self.budget = spec.budget
        self.strategy: Strategy = make_strategy(spec.strategy, points, spec.seed)
        self.excluded = [p for p in points if p.why_not is not None]
        # Those that still may be evaluated; of a limited search nobody knows which they will be.
        self.open = {p.id: p for p in points if p.why_not is None}
        ids = {p.id for p in points}
        self.before = {
            i: row
            for i, row in sweep_journal.rows.items()
            if i in ids and row.status not in RETRIED
        }
        most = len(self.open)
        if self.budget.evaluations is not None:
            most = min(most, self.budget.evaluations)
        self.total = most + len(self.excluded)
        self.estimator = Estimator(on_gpu)
        self.start = time.monotonic()
        self.durations: list[float] = []
        self.rows: dict[str, SweepRow] = {}
        self.best: dict[Problem, SweepRow] = {}
        self.counts = {"passed": 0, "skipped": 0, "failed": 0}
        self.resumed = 0

    def run(self) -> SweepEnd:
        for point in self.excluded:
            row = self.before.get(point.id)
            if row is None:
                row = skipped_row(point, datetime.now(UTC).isoformat(timespec="seconds"))
                self.journal.add(point, row)
            else:
                self.resumed += 1
            self._count(row)
        self._tell()
        evaluated = 0
        while (point := self.strategy.ask()) is not None:
            if self.budget.evaluations is not None and evaluated >= self.budget.evaluations:
                return "budget"
            row = self.before.get(point.id)
            if row is not None:
                self.resumed += 1
                if row.elapsed_s > 0:
                    self.estimator.learn(point.request, row.elapsed_s)
            elif self.should_stop():
                return "cancelled"
            elif self._is_late():
                return "budget"
            else:
                row = self._evaluate(point)
            evaluated += 1
            self.open.pop(point.id, None)
            self._count(row)
            self.strategy.tell(point, row.median_us)
            self._tell(row)
        return "finished"

    def _is_late(self) -> bool:
        limit = self.budget.seconds
        return limit is not None and time.monotonic() - self.start >= limit

    def _evaluate(self, point: SweepPoint) -> SweepRow:
        began = time.monotonic()
        evaluation = self._outcome(point.request)
        elapsed_s = time.monotonic() - began
        row = SweepRow.make(point, evaluation, elapsed_s)
        self.journal.add(point, row)
        self.estimator.learn(point.request, elapsed_s)
        self.durations.append(elapsed_s)
        return row

    def _outcome(self, request: EvaluationRequest) -> Evaluation:
        """The evaluation, or a row that says why there is none: one bad point ends no sweep."""
        try:
            return self.evaluate(request)
        except AttuneError as error:
            status, reason, log = Status.LAUNCH_ERROR, str(error), ""
        except Exception as error:
            status, log = Status.CRASHED, traceback.format_exc()
            reason = f"Attune itself failed ({type(error).__name__}: {error}); see the log."
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

    def _count(self, row: SweepRow) -> None:
        self.rows[row.point] = row
        time_us, best = row.median_us, self.best.get(row.problem)
        if row.status is Status.PASSED or time_us is not None:
            self.counts["passed"] += 1
        else:
            self.counts["skipped" if row.status is Status.SKIPPED else "failed"] += 1
        if time_us is not None and (best is None or time_us < (best.median_us or time_us + 1)):
            self.best[row.problem] = row

    def _tell(self, last: SweepRow | None = None) -> None:
        recent = self.durations[-_RATE_WINDOW:]
        done = len(self.rows)
        eta_s: float | None = None
        if self.estimator.is_measured and self.open:
            # A limited search leaves some points out; the mean stands for those it takes.
            share = max(self.total - done, 0) / len(self.open)
            eta_s = self.estimator.seconds(self.open.values()) * share
            if self.budget.seconds is not None:
                left_s = self.budget.seconds - (time.monotonic() - self.start)
                eta_s = max(0.0, min(eta_s, left_s))
        self.on_progress(
            Progress(
                done=done,
                total=self.total,
                **self.counts,
                resumed=self.resumed,
                elapsed_s=time.monotonic() - self.start,
                per_minute=60 * len(recent) / sum(recent) if recent and sum(recent) else None,
                eta_s=eta_s,
                best=dict(self.best),
                last=last,
            )
        )
