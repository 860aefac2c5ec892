"""A sweep on this machine, from its first evaluation to the places of each problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from engine.history import History
from engine.pipeline.evaluate import Evaluator
from engine.search.autotune import ProblemResult, problem_results, result_with_final
from engine.search.evaluation_process import EvaluationProcess, evaluate_point
from engine.search.ranking import SweepRow, by_problem
from engine.search.space import SweepPoint
from engine.search.sweep.journal import Progress, SweepJournal, SweepSpec
from engine.search.sweep.run import SweepEnd, run_sweep


def sweep_here(
    spec: SweepSpec,
    points: Sequence[SweepPoint],
    journal: SweepJournal,
    on_progress: Callable[[Progress], None],
    history: History,
    *,
    on_gpu: bool,
) -> tuple[SweepEnd, list[ProblemResult]]:
    """Run the sweep, or go on with it. On a GPU the best are then timed side by side.

    Raises:
        As `run_sweep`.
    """
    if not on_gpu:  # kernels on the CPU already run in a process of their own
        with Evaluator(history) as evaluator:
            evaluate = partial(evaluate_point, evaluator)
            end = run_sweep(spec, evaluate, journal, on_progress, history=history)
        return end, problem_results(rows_of(journal, points))

    with EvaluationProcess() as process:
        end = run_sweep(spec, process.evaluate, journal, on_progress, on_gpu=True, history=history)
        results = [
            result_with_final(device, group, partial(process.final, device, group))
            for (device, _), group in by_problem(rows_of(journal, points)).items()
        ]
    return end, [result for result in results if result is not None]


def rows_of(journal: SweepJournal, points: Sequence[SweepPoint]) -> list[SweepRow]:
    """What the journal holds of these points; it may hold others too."""
    ids = {p.id for p in points}
    return [row for row in journal.rows.values() if row.point in ids]
