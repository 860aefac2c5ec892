"""Run the evaluations of a sweep: write the journal, then report progress; resumable at any point.

The evaluating function and its executor (this process, a pool, a cluster) are arguments. Failures
are rows with reasons.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, TypeAlias

from engine.attention.problem import Problem
from engine.base.errors import AttuneError, Status
from engine.history import History
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest, simulated_us
from engine.search.autotune import ProblemResult, problem_results, result_with_final
from engine.search.evaluation_process import EvaluationProcess, evaluate_point
from engine.search.ranking import SweepRow, by_problem, skipped_row, without_result
from engine.search.space import UNKNOWN_LOCATION, Location, SweepPoint, location_of
from engine.search.strategies import Expected, Strategy, make_strategy
from engine.search.sweep.estimate import Estimator, TimeLeft, work_ahead
from engine.search.sweep.journal import Progress, SweepJournal, SweepSpec, Tally

Evaluate: TypeAlias = Callable[[EvaluationRequest], EvaluationOutcome]
# With its duration in seconds and its location.
Timed: TypeAlias = tuple[EvaluationOutcome, float, Location]
SweepEnd: TypeAlias = Literal["finished", "budget", "cancelled"]

# Statuses that a resumed sweep evaluates again, because they had no result.
RETRIED = frozenset({Status.CANCELLED, Status.THROTTLED})
_RATE_WINDOW = 20  # rows
_POLL_S = 0.1


class InlineExecutor(Executor):
    """Runs calls immediately in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def run_sweep(
    spec: SweepSpec,
    evaluate: Evaluate,
    sweep_journal: SweepJournal,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    executor: Executor | None = None,
    in_flight: Callable[[], int] = lambda: 1,
    workers: Callable[[], int] = lambda: 1,
    problems_at_once: int = 1,
    on_gpu: bool = False,
    history: History | None = None,
    expected_us: Expected | None = None,
    clock: Callable[[], float] = time.monotonic,
    estimator: Estimator | None = None,
) -> SweepEnd:
    """Run a sweep, or continue the one in the journal.

    Args:
        evaluate: runs one evaluation; an exception becomes a row, too. Its predictions are recorded
            in this process.
        on_progress: called before every evaluation and after every row.
        should_stop: called before every evaluation and ten times a second while waiting; results
            are kept.
        executor: runs `evaluate` (a pool, `engine.search.cluster.executor`); None: in this thread.
        in_flight: returns how many evaluations to submit at once; called repeatedly.
        workers: number of parallel evaluations, for estimate and display.
        problems_at_once: number of problems that an exhaustive sweep evaluates in turns.
        on_gpu: evaluations measure on a GPU; only for the estimate.
        history: known times, and the recorder of predictions.
        expected_us: expected times for the strategy "simulated"; None: simulated times, for which
            kernels are compiled and simulated before the first evaluation, as many as half of the
            budget's seconds allow.
        clock: seconds, for progress and durations.
        estimator: estimates the remaining time; None creates one.

    Raises:
        StoreError: the journal cannot be written, or another process runs this sweep.
        ToolMissing: the strategy needs a package that is not installed.
    """
    history = history or History()
    expected = expected_us or partial(simulated_us, history=history)
    points = spec.space.points(spec.options)
    if spec.strategy == "exhaustive":
        points = _side_by_side(points, problems_at_once)
    with sweep_journal.claim():
        sweep_journal.poll()
        sweep_journal.begin(spec)
        began = clock()
        seconds = spec.budget.seconds

        def expected_in_time(request: EvaluationRequest) -> float | None:
            # In half of the seconds, so that points are evaluated in the others.
            is_late = seconds is not None and clock() - began >= seconds / 2
            return None if is_late or should_stop() else expected(request)

        strategy = make_strategy(spec.strategy, points, spec.seed, expected_in_time)
        report = on_progress or (lambda _: None)
        estimator = estimator or Estimator(points, on_gpu, work_ahead(points, history))
        run = _Sweep(
            spec, points, strategy, sweep_journal, report, workers, history, estimator, clock, began
        )
        pool = _Pool(evaluate, executor or InlineExecutor(), in_flight, clock)
        state = run.run(pool, should_stop)
        sweep_journal.end(state)
        return state


class _Pool:
    """The pending evaluations."""

    def __init__(
        self,
        evaluate: Evaluate,
        executor: Executor,
        capacity: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._evaluate = evaluate
        self._executor = executor
        self._capacity = capacity
        self._points: dict[Future[Timed], SweepPoint] = {}

    def __len__(self) -> int:
        return len(self._points)

    @property
    def has_room(self) -> bool:
        return len(self._points) < self._capacity()

    @property
    def points(self) -> list[SweepPoint]:
        return list(self._points.values())

    def start(self, point: SweepPoint) -> None:
        self._points[self._executor.submit(_timed, self._clock, self._evaluate, point.request)] = (
            point
        )

    def finished(self) -> list[tuple[SweepPoint, EvaluationOutcome, float, Location]]:
        """Return evaluations that have ended, after a short wait for the first."""
        done, _ = wait(self._points, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        return [(p := self._points.pop(f), *_outcome(p.request, f)) for f in done]

    def forget_waiting(self) -> None:
        """Cancel evaluations that have not started."""
        for future in [f for f in self._points if f.cancel()]:
            del self._points[future]

    def give_up(self) -> None:
        """Cancel pending evaluations; a resumed sweep repeats them."""
        for future in self._points:
            future.cancel()
        self._points.clear()


def _timed(clock: Callable[[], float], evaluate: Evaluate, request: EvaluationRequest) -> Timed:
    began = clock()
    # Keep the result small: it may be sent between machines.
    outcome = replace(evaluate(request), maps=())
    return outcome, clock() - began, location_of(outcome.evaluation)


def _outcome(request: EvaluationRequest, future: Future[Timed]) -> Timed:
    """Return the row of a point, or of its failure, so that no point ends the sweep."""
    try:
        return future.result()
    except AttuneError as error:
        status, reason, log = Status.LAUNCH_ERROR, str(error), ""
    except BrokenExecutor as error:
        status, reason, log = Status.CRASHED, str(error), ""
    except Exception as error:
        status, log = Status.CRASHED, traceback.format_exc()
        reason = f"Attune itself failed ({type(error).__name__}: {error}); see the log."
    failed = without_result(request, status, reason, log)
    return EvaluationOutcome(failed), 0.0, UNKNOWN_LOCATION


def _side_by_side(points: Sequence[SweepPoint], at_once: int) -> list[SweepPoint]:
    """Yield points of `at_once` problems in turns, then of the next problems."""
    groups: dict[Problem, list[SweepPoint]] = {}
    for point in points:
        groups.setdefault(point.request.problem, []).append(point)
    problems = list(groups.values())
    return [
        point
        for first in range(0, len(problems), at_once)
        for turn in zip_longest(*problems[first : first + at_once])
        for point in turn
        if point is not None
    ]


def _in_words(points: Sequence[SweepPoint]) -> str:
    """Return the last point as text, and the number of others."""
    request = points[-1].request
    config = "".join(f" {name}={value}" for name, value in request.config.items())
    more = f" and {len(points) - 1} more" * (len(points) > 1)
    return f"{request.variant}{config}, {request.problem.label()}{more}"


class _Sweep:
    """The bookkeeping of one run."""

    def __init__(
        self,
        spec: SweepSpec,
        points: Sequence[SweepPoint],
        strategy: Strategy,
        sweep_journal: SweepJournal,
        on_progress: Callable[[Progress], None],
        workers: Callable[[], int],
        history: History,
        estimator: Estimator,
        clock: Callable[[], float],
        began: float,  # by this clock
    ) -> None:
        self.clock = clock
        self.history = history
        self.budget = spec.budget
        self.strategy = strategy
        self.journal = sweep_journal
        self.on_progress = on_progress
        self.workers = workers
        self.excluded = [p for p in points if p.why_not is not None]
        ids = {p.id for p in points}
        rows = sweep_journal.rows.items()
        self.before = {i: r for i, r in rows if i in ids and r.status not in RETRIED}
        self.estimator = estimator
        limit = self.budget.evaluations
        runnable = self.estimator.points_left
        self.total = len(self.excluded) + (runnable if limit is None else min(runnable, limit))
        self.start = began
        self.ends: list[float] = [clock()]  # times at which rows of this run arrived
        self.asked = 0
        self.resumed = 0
        self.tally = Tally()
        self.under_way = ""

    def run(self, pool: _Pool, should_stop: Callable[[], bool]) -> SweepEnd:
        self._skip_excluded()
        self._report(None)
        while True:
            if should_stop():
                pool.give_up()
                return "cancelled"
            limited = self._is_spent()
            if self._is_late():
                pool.forget_waiting()
            point = self.strategy.ask() if pool.has_room and not limited else None
            if point is not None:
                self.asked += 1
                row = self.before.get(point.id)
                if row is None:
                    self.under_way = _in_words([*pool.points, point])
                    self._report(None)
                    pool.start(point)
                else:
                    self.resumed += 1
                    self._take(point, row, None)
            elif len(pool) == 0:
                self.estimator.learn()
                return "budget" if limited else "finished"
            # Submit more while there is capacity, then wait.
            if point is None or not pool.has_room:
                for done, outcome, elapsed_s, location in pool.finished():
                    row = SweepRow.make(done, outcome.evaluation, elapsed_s, location)
                    self.journal.add(done, row)
                    self.history.keep(outcome.evaluation, outcome.predicted)
                    self.ends.append(self.clock())
                    self._take(done, row, outcome.spent_s or None)

    def _is_spent(self) -> bool:
        evaluations = self.budget.evaluations
        if evaluations is not None and self.asked >= evaluations:
            return self.estimator.points_left > 0
        return self._is_late()

    def _is_late(self) -> bool:
        seconds = self.budget.seconds
        return seconds is not None and self.clock() - self.start >= seconds

    def _skip_excluded(self) -> None:
        for point in self.excluded:
            row = self.before.get(point.id)
            if row is None:
                row = skipped_row(point)
                self.journal.add(point, row)
            else:
                self.resumed += 1
            self.tally.add(row)

    def _take(self, point: SweepPoint, row: SweepRow, spent_s: Mapping[str, float] | None) -> None:
        self.estimator.finish(point, row.elapsed_s, spent_s)
        self.tally.add(row)
        self.strategy.tell(point, row.median_us)
        self._report(row)

    def _report(self, last: SweepRow | None) -> None:
        now = self.clock()
        recent = self.ends[-_RATE_WINDOW - 1 :]
        span_s = recent[-1] - recent[0]
        left = self._time_left(now)
        self.on_progress(
            Progress(
                done=self.tally.done,
                total=self.total,
                passed=self.tally.passed,
                skipped=self.tally.skipped,
                failed=self.tally.failed,
                resumed=self.resumed,
                elapsed_s=now - self.start,
                per_minute=60 * (len(recent) - 1) / span_s if span_s > 0 else None,
                eta_s=left.expected_s if left is not None else None,
                eta_range_s=(left.low_s, left.high_s) if left is not None else None,
                best=dict(self.tally.best),
                last=last,
                workers=self.workers(),
                under_way=self.under_way,
            )
        )

    def _time_left(self, now: float) -> TimeLeft | None:
        left = self.estimator.points_left
        if left == 0:
            return TimeLeft(0.0, 0.0, 0.0)
        if not self.estimator.is_measured:
            return None
        # A limited search skips points; it is estimated by the mean of all points.
        share = max(self.total - self.tally.done, 0) / left
        seconds = self.budget.seconds
        at_most_s = None if seconds is None else max(0.0, seconds - (now - self.start))
        return self.estimator.left().scaled(share / max(1, self.workers()), at_most_s)


def sweep_here(
    spec: SweepSpec,
    points: Sequence[SweepPoint],
    journal: SweepJournal,
    on_progress: Callable[[Progress], None],
    history: History,
    *,
    on_gpu: bool,
    open_history: Callable[[], History] = History,
) -> tuple[SweepEnd, list[ProblemResult]]:
    """Run or continue the sweep. On a GPU, then time the best points side by side.

    Args:
        open_history: as in `EvaluationProcess`, which evaluates on a GPU.

    Raises:
        As `run_sweep`.
    """
    if not on_gpu:  # the CPU backend already runs kernels in a separate process
        with Evaluator(history) as evaluator:
            evaluate = partial(evaluate_point, evaluator)
            end = run_sweep(spec, evaluate, journal, on_progress, history=history)
        return end, problem_results(rows_of(journal, points))

    with EvaluationProcess(open_history) as process:
        end = run_sweep(spec, process.evaluate, journal, on_progress, on_gpu=True, history=history)
        results = [
            result_with_final(device, group, partial(process.final, device, group))
            for (device, _), group in by_problem(rows_of(journal, points)).items()
        ]
    return end, [result for result in results if result is not None]


def rows_of(journal: SweepJournal, points: Sequence[SweepPoint]) -> list[SweepRow]:
    """Return the journal's rows of these points; it may have others."""
    ids = {p.id for p in points}
    return [row for row in journal.rows.values() if row.point in ids]
