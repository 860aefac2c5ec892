"""The history of a kernel: its figures at each commit that touched it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, unknown
from engine.base.schema import Stored
from engine.base.table import Table
from engine.gate.running import Work, do_work
from engine.gate.settings import read_settings
from engine.gate.trees import (
    Found,
    NoTree,
    Tree,
    commits_of,
    find_kernels,
    last_commit,
    open_tree,
    source_diff,
    working_tree,
)
from engine.versions.figures import Answer, Finding, compare_answers, figure_text
from engine.versions.workers import Failed, Workers

if TYPE_CHECKING:
    import pandas as pd

MAX_COMMITS = 500
_MAX_DIFF = 100_000  # characters


@dataclass(frozen=True, slots=True)
class Step(Stored):
    """One commit, and its effect on the kernel."""

    commit: str
    day: str
    subject: str
    answer: Answer
    findings: tuple[Finding, ...]  # against the commit before; none for the first
    # Of the kernel and its headers, relative to the previous commit; empty for the first.
    diff: str = ""

    @property
    def is_worse(self) -> bool:
        """Return True if the commit made the kernel worse."""
        return any(f.is_regression for f in self.findings)


@dataclass(frozen=True, slots=True)
class KernelHistory(Stored):
    """A kernel's commits, oldest first, on one problem and GPU."""

    kernel: str
    problem: Problem
    gpu: str
    steps: tuple[Step, ...]


def history_of(
    tree: Tree,
    kernel: str,
    last: int,
    *,
    gpu: str | None = None,
    problem: Problem | None = None,
    processes: int = 0,
    on_done: Callable[[str], None] | None = None,
) -> KernelHistory:
    """Return the last commits that touched a kernel of the working tree.

    Args:
        gpu, problem: by default the first in the settings.

    Raises:
        UnknownName: there is no such kernel.
        InvalidProblem: `last` is not a valid number of commits.
        NoTree: git fails.
    """
    if not 1 <= last <= MAX_COMMITS:
        raise InvalidProblem(f"--last is a number from 1 to {MAX_COMMITS}, not {last}.")
    settings = read_settings(tree.root)
    now = find_kernels(tree, settings.kernels)
    if kernel not in now:
        raise unknown("kernel", kernel, now)
    here = now[kernel]
    if here.variant is None:
        raise InvalidProblem(here.fault)
    asked, on = problem or settings.problems_of(here.variant)[0], gpu or settings.gpus[0]
    config = settings.config.get(kernel, {})
    commits = commits_of(tree.root, here.files, last)[::-1]
    with TemporaryDirectory(prefix="attune-history-") as folder:
        found: list[Found | None] = []
        for number, (commit, _, _) in enumerate(commits):
            then = open_tree(commit, tree.root, Path(folder, str(number)))
            found.append(find_kernels(then, settings.kernels).get(kernel))
        distinct = {f.digest: f for f in found if f is not None and f.variant is not None}
        works = [Work(kernel, None, f.path, on, (asked,), config) for f in distinct.values()]

        ended: list[Work] = []

        def tell(work: Work, _done: object) -> None:
            ended.append(work)
            if on_done is not None:
                on_done(f"{kernel}: version {len(ended)} of {len(works)}")

        workers = Workers(do_work, settings.seconds, settings.memory_gib, processes)
        done = dict(zip(distinct, workers.run(works, tell), strict=True))
    steps: list[Step] = []
    before: Answer | None = None
    for (commit, day, subject), version in zip(commits, found, strict=True):
        if version is None and not steps:
            continue  # before its first commit, or before it was renamed
        answer = _answer(version, done.get(version.digest) if version else None)
        findings: tuple[Finding, ...] = ()
        if before is not None:
            findings = compare_answers(before, answer, settings.thresholds)
        diff = source_diff(tree.root, commit, here.files)[:_MAX_DIFF] if before is not None else ""
        steps.append(Step(commit, day, subject, answer, findings, diff))
        before = answer if version is not None else None
    return KernelHistory(kernel, asked, on, tuple(steps))


def _answer(version: Found | None, done: object) -> Answer:
    if version is None:
        return Answer(fault="The kernel did not exist yet, or had another name.", refused=True)
    if version.variant is None:
        return Answer(fault=version.fault)
    if isinstance(done, Failed):
        return Answer(obstacle=done.sentence)
    answers = getattr(done, "answers", ())
    return answers[0][1] if answers else Answer(obstacle="It was not judged.")


def history_of_source(
    source: Path,
    last: int,
    *,
    gpu: str | None = None,
    problem: Problem | None = None,
    on_done: Callable[[str], None] | None = None,
) -> KernelHistory:
    """Return the history of the kernel in this file, as `history_of`, in the file's repository."""
    last_commit(source.parent)
    tree = working_tree(source.parent)
    kernels = find_kernels(tree, ())
    for name, found in kernels.items():
        if found.path.resolve() == source.resolve():
            return history_of(
                tree, name, last, gpu=gpu, problem=problem, processes=1, on_done=on_done
            )
    raise NoTree(f"{source.name} is not in git, or git ignores it: commit it first.")


def history_frame(history: KernelHistory) -> pd.DataFrame:
    """Return a row for each commit, oldest first.

    Columns: commit (7 digits), day, subject, simulated_us, registers, instructions (NaN: not
    known), is_worse, verdicts (a text).
    """
    import pandas as pd

    rows = [
        {
            "commit": step.commit[:7],
            "day": step.day,
            "subject": step.subject,
            **{
                name: getattr(step.answer.figures, name, None)
                for name in ("simulated_us", "registers", "instructions")
            },
            "is_worse": step.is_worse,
            "verdicts": ", ".join(dict.fromkeys(str(f.verdict) for f in step.findings)),
        }
        for step in history.steps
    ]
    return pd.DataFrame(rows).astype(
        {"simulated_us": float, "registers": float, "instructions": float}
    )


def history_table(history: KernelHistory) -> Table:
    """Return a row for each commit, newest first."""
    names = ("simulated_us", "registers", "spill_bytes", "instructions")
    rows = []
    for step in reversed(history.steps):
        figures = step.answer.figures
        cells = [figure_text(n, None if figures is None else getattr(figures, n)) for n in names]
        verdicts = dict.fromkeys(str(f.verdict) for f in step.findings)
        rows.append((step.commit[:7], step.day, step.subject[:60], ", ".join(verdicts), *cells))
    columns = (
        *("commit", "day", "subject", "against the one before"),
        *("simulated time", "registers", "spills, bytes", "warp instructions"),
    )
    title = f"{history.kernel} on {history.gpu}, {history.problem.label()}"
    remark = "Times are simulated, none is measured."
    return Table(title, columns, tuple(rows), remark)


def to_dict(history: KernelHistory) -> dict[str, object]:
    """Return plain data, oldest commit first."""
    return {
        "kernel": history.kernel,
        "problem": history.problem.label(),
        "gpu": history.gpu,
        "commits": [
            {
                "commit": step.commit,
                "day": step.day,
                "subject": step.subject,
                "figures": step.answer.figures.as_dict() if step.answer.figures else None,
                "why_none": step.answer.fault or step.answer.obstacle or None,
                "verdicts": [{"verdict": str(f.verdict), "what": f.what} for f in step.findings],
                "diff": step.diff if step.is_worse else None,
            }
            for step in history.steps
        ],
    }
