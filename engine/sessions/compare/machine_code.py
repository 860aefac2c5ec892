"""The machine code of compared kernels: counted and simulated again from the sources in snapshots.

By the gate's rules (`engine.gate.verdicts`). Sources are compiled in processes with limits, and
nothing of them is executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.base.errors import AttuneError
from engine.base.table import Table
from engine.evaluation import Evaluation
from engine.gate.figures import Answer, compiled_answer
from engine.gate.settings import Settings
from engine.gate.verdicts import Finding, GateVerdict, Thresholds, compare_answers
from engine.gate.workers import Failed, Workers
from engine.problem import Problem
from engine.sessions.compare.comparison import ComparedRow, SessionComparison
from engine.sessions.compare.winners import config_label, key_of
from engine.sessions.rerun import their_source
from engine.sessions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Counted:
    """One row's machine code, before and after."""

    row: ComparedRow
    before: Answer
    after: Answer
    findings: tuple[Finding, ...]

    @property
    def is_worse(self) -> bool:
        return any(f.is_regression for f in self.findings)


@dataclass(frozen=True, slots=True)
class _Side:
    path: Path | None
    config: Mapping[str, int]
    gpu: str
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class _Task:
    before: _Side
    after: _Side
    problem: Problem


def count_rows(
    comparison: SessionComparison, sessions: Mapping[str, Snapshot]
) -> tuple[Counted, ...]:
    """Every row with the verdicts on its machine code."""
    settings = Settings()
    with TemporaryDirectory(prefix="attune-compare-") as folder:
        tasks = [
            _Task(
                _side(sessions, folder, row.baseline_session, row.baseline_variant, row, True),
                _side(sessions, folder, row.session, row.variant, row, False),
                row.problem,
            )
            for row in comparison.rows
        ]
        workers = Workers(answers_of, settings.seconds, settings.memory_gib)
        results = workers.run(tasks)
    return tuple(
        _counted(row, done, settings.thresholds)
        for row, done in zip(comparison.rows, results, strict=True)
    )


def answers_of(task: _Task) -> tuple[Answer, Answer]:
    """In a process of its own."""
    before, after = _answer(task.before, task.problem), _answer(task.after, task.problem)
    return before, after


def _answer(side: _Side, problem: Problem) -> Answer:
    if side.path is None:
        return Answer(obstacle=side.obstacle)
    return compiled_answer(side.path, problem, side.gpu, side.config)[1]()


def _side(
    sessions: Mapping[str, Snapshot],
    folder: str,
    session: str,
    variant: str,
    row: ComparedRow,
    is_baseline: bool,
) -> _Side:
    config = row.baseline_config if is_baseline else row.config
    gpu = row.baseline_device if is_baseline else row.device
    key = (variant, tuple(sorted(config.items())), row.problem)
    found: Evaluation | None = next(
        (e for e in sessions[session].evaluations if key_of(e) == key and e.device == gpu), None
    )
    try:
        if found is None:
            return _Side(None, config, gpu, f"{session} does not hold {variant}.")
        place = Path(folder, f"{len(list(Path(folder).iterdir()))}")
        place.mkdir()
        return _Side(their_source(sessions[session], found, place), config, gpu)
    except AttuneError as error:
        return _Side(None, config, gpu, str(error))


def _counted(
    row: ComparedRow, done: tuple[Answer, Answer] | Failed, thresholds: Thresholds
) -> Counted:
    if isinstance(done, Failed):
        done = Answer(obstacle=done.sentence), Answer(obstacle=done.sentence)
    before, after = done
    findings = compare_answers(before, after, thresholds)
    if not row.same_kernel:  # another design may take more of what it is made of
        counted = GateVerdict.COUNTED_WORSE
        findings = tuple(
            replace(f, is_regression=False) if f.verdict is counted else f for f in findings
        )
    return Counted(row, before, after, findings)


def counted_table(rows: Sequence[Counted]) -> Table:
    """A row for each kernel and problem."""
    lines = []
    for each in rows:
        row, verdicts = each.row, dict.fromkeys(str(f.verdict) for f in each.findings)
        kernel = f"{row.variant} {config_label(row.config)}"
        what = "; ".join(f.what for f in each.findings)
        lines.append((row.problem.label(), row.device, kernel, ", ".join(verdicts), what))
    columns = ("problem", "GPU", "kernel", "verdict", "what")
    return Table("Machine code, counted and simulated from the sources", columns, tuple(lines))


def counted_dict(rows: Sequence[Counted]) -> list[dict[str, Any]]:
    """Plain data, as `verdicts` of the gate."""
    return [
        {
            "kernel": each.row.variant,
            "problem": each.row.problem.label(),
            "gpu": each.row.device,
            "verdict": str(found.verdict),
            "what": found.what,
            "regression": found.is_regression,
        }
        for each in rows
        for found in each.findings
    ]
