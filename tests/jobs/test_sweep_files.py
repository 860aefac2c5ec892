"""Sweeps of the command line, read by other processes while they run."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.schema import encode
from engine.jobs.sweep_files import SweepFiles
from engine.search.ranking import SweepRow
from engine.search.space import Space, SweepOptions
from engine.search.sweep.journal import Budget, SweepJournal, SweepSpec

SPEC = SweepSpec(Space(("v01",), (Problem(1, 1, 64, 64),)), SweepOptions(gpu="L4"))


def add(book: SweepJournal, count: int) -> None:
    """Add the first `count` rows, with made-up predicted times."""
    for i, point in enumerate(SPEC.space.points(SPEC.options)[:count]):
        request = point.request
        evaluation = Evaluation(
            status=Status.SKIPPED,
            reason="Not executed.",
            variant=request.variant,
            problem=request.problem,
            config=dict(request.config),
            device="L4",
            when="2026-01-01T00:00:00+00:00",
            latency=Latency("predicted", 20.0 - i, 10.0, 30.0, "made up"),
        )
        book.add(point, SweepRow.make(point, evaluation, 0.1))


@pytest.fixture
def book(tmp_path: Path) -> SweepJournal:
    return SweepJournal(tmp_path / "one.jsonl")


def test_a_sweep_that_runs_is_followed_to_its_end(tmp_path: Path, book: SweepJournal) -> None:
    files = SweepFiles(tmp_path)
    assert files.listed() == []
    with book.claim():
        book.begin(SPEC)
        (job,) = files.listed()
        assert (job.kind, job.state, job.request) == ("sweep", "running", encode(SPEC))
        add(book, 1)
        seen = files.status(job.job_id)
        assert seen is not None
        assert seen.progress is not None
        assert (seen.progress.done, seen.progress.total) == (1, 2)
        add(book, 2)
        assert [r.median_us for r in files.rows(job.job_id)] == [20.0, 19.0]
        book.end("finished")
    seen = files.status(job.job_id)
    assert seen is not None
    assert seen.progress is not None
    assert (seen.state, seen.end, seen.progress.done) == ("done", "finished", 2)
    assert [b.median_us for b in seen.progress.best] == [19.0]
    assert files.path(job.job_id) == book.path


def test_a_sweep_of_a_killed_command_has_ended(tmp_path: Path, book: SweepJournal) -> None:
    book.begin(SPEC)
    add(book, 1)
    long_ago = time.time() - 60
    os.utime(book.path, (long_ago, long_ago))
    files = SweepFiles(tmp_path, probed_s=0.0)
    (job,) = files.listed()
    assert job.state == "cancelled"
    with book.claim():  # resumed, in a long evaluation
        assert files.listed()[0].state == "running"
    assert files.listed()[0].state == "cancelled"


def test_a_budget_is_the_total(tmp_path: Path, book: SweepJournal) -> None:
    book.begin(replace(SPEC, budget=Budget(evaluations=1)))
    add(book, 1)
    files = SweepFiles(tmp_path)
    seen = files.status(files.listed()[0].job_id)
    assert seen is not None
    assert seen.progress is not None
    assert (seen.progress.done, seen.progress.total) == (1, 1)


@pytest.mark.parametrize("content", ["", "\n", "no JSON\n", '{"event":"sweep"}\n', "[1]\n"])
def test_other_files_are_not_listed(tmp_path: Path, content: str) -> None:
    (tmp_path / "other.jsonl").write_text(content)
    files = SweepFiles(tmp_path)
    assert files.listed() == []
    assert files.status("cli-other") is None
    assert files.status("cli-../../etc/passwd") is None
    assert files.rows("cli-nowhere") == []
