"""A sweep: rows, failures, budget, cancel, resume, progress, several at once."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from search_data import SMALL, Landscape, bowl
from words import raises

from engine.attention.evaluation import Execution, Latency, Origin
from engine.base.errors import Status, StoreError, ToolMissing, UnknownName
from engine.history.history import predictions
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest
from engine.search.space import Space, SweepOptions
from engine.search.strategies import STRATEGIES, StrategyName
from engine.search.sweep import Budget, Progress, SweepJournal, SweepSpec, run_sweep
from engine.search.sweep.estimate import Estimator

SPACE = Space(("v05",), (SMALL, replace(SMALL, seqlen=512)), {"block_n": (64,)})
SPEC = SweepSpec(SPACE, SweepOptions(gpu="L4"))
POINTS = 36


def sweep(
    path: Path, evaluate: Landscape, spec: SweepSpec = SPEC, **how: object
) -> tuple[str, SweepJournal, list[Progress]]:
    told: list[Progress] = []
    book = SweepJournal(path)
    how = {"expected_us": bowl} | how
    state = run_sweep(spec, evaluate, book, told.append, **how)  # type: ignore[arg-type]
    return state, book, told


def test_every_point_becomes_a_row_in_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    evaluate = Landscape(bowl)
    state, book, told = sweep(path, evaluate)
    assert state == "finished"
    assert len(evaluate.asked) == len(book.rows) == POINTS
    again = SweepJournal.open(path)
    assert again.spec == SPEC
    assert again.ended == "finished"
    assert again.rows == book.rows
    assert set(again.rows) == {p.id for p in SPACE.points(SPEC.options)}
    last = told[-1]
    assert (last.done, last.total, last.passed, last.failed) == (POINTS, POINTS, POINTS, 0)
    assert last.eta_s == 0.0
    assert {p: r.config["num_splits"] for (_, _, p), r in last.best.items()} == dict.fromkeys(
        SPACE.problems, 8
    )


def test_failures_and_constraints_are_rows_with_reasons(tmp_path: Path) -> None:
    def status(request: EvaluationRequest) -> Status:
        splits = request.config["num_splits"]
        return {1: Status.INCORRECT, 2: Status.COMPILE_ERROR}.get(splits, Status.PASSED)

    space = Space(("v05",), (SMALL,), {"num_splits": (1, 2, 3, 4)}, own_values=False)
    evaluate = Landscape(bowl, status)
    _, book, told = sweep(tmp_path / "s.jsonl", evaluate, replace(SPEC, space=space))
    by_splits = {r.config["num_splits"]: r for r in book.rows.values()}
    assert {k: r.status for k, r in by_splits.items()} == {
        1: Status.INCORRECT,
        2: Status.COMPILE_ERROR,
        3: Status.SKIPPED,
        4: Status.PASSED,
    }
    assert all(r.reason for k, r in by_splits.items() if k != 4)
    assert "num_splits=3" in by_splits[3].reason
    assert len(evaluate.asked) == 3  # points excluded by constraints are not evaluated
    assert (told[-1].passed, told[-1].failed, told[-1].skipped) == (1, 2, 1)


def test_an_exception_is_a_row_and_the_sweep_continues(tmp_path: Path) -> None:
    def evaluate(request: EvaluationRequest) -> EvaluationOutcome:
        if request.config["num_splits"] == 1:
            raise ToolMissing("No compiler: install one.")
        if request.config["num_splits"] == 2:
            raise ZeroDivisionError("oops")
        return Landscape(bowl)(request)

    book = SweepJournal(tmp_path / "s.jsonl")
    assert run_sweep(SPEC, evaluate, book) == "finished"
    rows = {r.config["num_splits"]: r for r in book.rows.values()}
    assert (rows[1].status, rows[1].reason) == (Status.LAUNCH_ERROR, "No compiler: install one.")
    assert rows[2].status is Status.CRASHED
    assert "ZeroDivisionError: oops" in rows[2].reason
    assert "Traceback" in str(rows[2].result["log"])
    assert len(book.rows) == POINTS


def test_cancel_keeps_what_is_done_and_resume_does_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    first = Landscape(bowl)
    state, book, _ = sweep(path, first, should_stop=lambda: len(first.asked) >= 10)
    assert state == book.ended == "cancelled"
    assert len(book.rows) == 10
    second = Landscape(bowl)
    state, book, told = sweep(path, second)
    assert state == "finished"
    assert len(second.asked) == POINTS - 10
    asked = {repr(r) for r in first.asked + second.asked}
    assert len(asked) == POINTS
    assert (told[-1].done, told[-1].resumed) == (POINTS, 10)
    third = Landscape(bowl)
    sweep(path, third)
    assert third.asked == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_search_resumes_where_it_was(tmp_path: Path, strategy: StrategyName) -> None:
    spec = replace(SPEC, strategy=strategy, budget=Budget(evaluations=20), seed=5)
    whole = Landscape(bowl)
    assert sweep(tmp_path / "whole.jsonl", whole, spec)[0] == "budget"
    assert len(whole.asked) == 20
    path = tmp_path / "parts.jsonl"
    first, second = Landscape(bowl), Landscape(bowl)
    sweep(path, first, spec, should_stop=lambda: len(first.asked) >= 8)
    assert sweep(path, second, spec)[0] == "budget"
    assert first.asked + second.asked == whole.asked


def test_temporary_failures_are_evaluated_again(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    hot = Landscape(
        bowl,
        lambda r: Status.THROTTLED if r.config["num_splits"] == 1 else Status.PASSED,
    )
    sweep(path, hot)
    cool = Landscape(bowl)
    _, book, told = sweep(path, cool)
    assert {r.config["num_splits"] for r in cool.asked} == {1}
    assert all(r.status is Status.PASSED for r in book.rows.values())
    assert told[-1].done == POINTS


def test_a_budget_of_seconds_ends_it(tmp_path: Path) -> None:
    def slow(request: EvaluationRequest) -> EvaluationOutcome:
        time.sleep(0.02)
        return Landscape(bowl)(request)

    book = SweepJournal(tmp_path / "s.jsonl")
    spec = replace(SPEC, budget=Budget(seconds=0.1))
    assert run_sweep(spec, slow, book) == "budget"
    assert 1 <= len(book.rows) < POINTS


def test_a_budget_larger_than_the_space_ends(tmp_path: Path) -> None:
    spec = replace(SPEC, budget=Budget(evaluations=POINTS))
    assert sweep(tmp_path / "a.jsonl", Landscape(bowl), spec)[0] == "finished"
    spec = replace(SPEC, budget=Budget(evaluations=POINTS + 5, seconds=1000.0))
    assert sweep(tmp_path / "b.jsonl", Landscape(bowl), spec)[0] == "finished"


def test_damaged_lines_of_a_journal_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    sweep(path, Landscape(bowl))
    lines = [x for x in path.read_text().split("\n") if x]
    evaluations = [i for i, x in enumerate(lines) if '"event":"evaluation"' in x]
    cut, foreign = evaluations[3], evaluations[7]
    lines[cut] = lines[cut][:200]
    lines[foreign] = '{"event":"evaluation","point":"x","result":{"status":"GOOD"},"elapsed_s":1}'
    path.write_text("\n".join(lines) + "\n")
    assert len(SweepJournal.open(path).rows) == POINTS - 2
    again = Landscape(bowl)
    sweep(path, again)
    assert len(again.asked) == 2


def test_files_that_are_no_journal_give_one_sentence(tmp_path: Path) -> None:
    with raises(UnknownName, "journal_missing"):
        SweepJournal.open(tmp_path / "missing.jsonl")
    other = tmp_path / "other.jsonl"
    other.write_text('{"event":"queued"}\nhello\n{"event":"sweep","version":99,"spec":{}}\n')
    with raises(UnknownName, "journal_foreign"):
        SweepJournal.open(other)
    SweepJournal(other).begin(SPEC)
    other.write_text(other.read_text().replace('"v05"', '"v77"'))
    with raises(UnknownName, "sweep_unreadable_here", "'v77'"):
        SweepJournal.open(other)


def test_two_processes_never_run_one_sweep(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with SweepJournal(path).claim(), raises(StoreError, "sweep_running"):
        sweep(path, Landscape(bowl))
    assert sweep(path, Landscape(bowl))[0] == "finished"


def test_a_folder_that_cannot_be_written_gives_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(StoreError, "file_failed", "ATTUNE_CACHE_DIR"):
        sweep(tmp_path / "file" / "s.jsonl", Landscape(bowl))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="/proc is Linux's")
def test_a_file_that_cannot_be_created_is_not_reported_as_a_running_sweep() -> None:
    with raises(StoreError, "file_failed", os.strerror(errno.ENOENT)):
        sweep(Path("/proc/s.jsonl"), Landscape(bowl))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_full_disk_gives_a_remedy() -> None:
    full = Path("/dev/full")
    with raises(StoreError, "file_failed", os.strerror(errno.ENOSPC), "ATTUNE_CACHE_DIR"):
        SweepJournal(full).begin(SPEC)
    with raises(StoreError, "file_failed", os.strerror(errno.ENOSPC), "name another file"):
        SweepJournal(full, "name another file").begin(SPEC)


def test_a_reader_follows_a_running_sweep(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    reader = SweepJournal(path)
    seen: list[int] = []
    book = SweepJournal(path)
    run_sweep(SPEC, Landscape(bowl), book, lambda _: seen.append(len(reader.poll())))
    assert sum(seen) == POINTS
    assert set(seen[1:]) == {0, 1}  # before and after each evaluation
    assert reader.rows == book.rows
    assert reader.poll() == []


def test_an_estimate_learns_from_the_first_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))  # without the paces of other sweeps
    now_s = 100.0

    def slow(request: EvaluationRequest) -> EvaluationOutcome:
        nonlocal now_s
        now_s += 0.01
        return Landscape(bowl)(request)

    told: list[Progress] = []
    run_sweep(
        SPEC,
        slow,
        SweepJournal(tmp_path / "s.jsonl"),
        told.append,
        clock=lambda: now_s,
        estimator=Estimator(SPEC.space.points(SPEC.options), on_gpu=False, load=lambda: 1.0),
    )
    assert told[0].eta_s is None
    later = next(each for each in told if each.done == 2 * POINTS // 3)
    left_s = 0.01 * (later.total - later.done)
    assert later.eta_s is not None
    assert left_s / 2 < later.eta_s < 2 * left_s
    assert later.per_minute == pytest.approx(6000)


def test_several_evaluations_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(4, timeout=20)

    def evaluate(request: EvaluationRequest) -> EvaluationOutcome:
        together.wait()  # passes only once four are running
        return Landscape(bowl)(request)

    book = SweepJournal(tmp_path / "s.jsonl")
    with ThreadPoolExecutor(4) as pool:
        state = run_sweep(SPEC, evaluate, book, executor=pool, in_flight=lambda: 4)
    assert state == "finished"
    assert len(book.rows) == POINTS


def test_where_a_row_was_measured_survives_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row keeps its GPU in the journal, and each GPU has its own best row so far."""
    gpus = {128: f"{platform.node()}:7", 512: f"{platform.node()}:8"}

    def evaluate(request: EvaluationRequest) -> EvaluationOutcome:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus[request.problem.seqlen][-1])
        on_gpu = Execution("cuda", "device", "device", 0, None)
        made = Landscape(bowl)(request).evaluation
        return EvaluationOutcome(replace(made, execution=on_gpu))

    path = tmp_path / "s.jsonl"
    told: list[Progress] = []
    run_sweep(SPEC, evaluate, SweepJournal(path), told.append)
    rows = SweepJournal.open(path).rows.values()
    assert {(r.problem.seqlen, r.measured_on) for r in rows} == set(gpus.items())
    assert {r.location.host for r in rows} == {platform.node()}
    assert {(device, gpu, p.seqlen) for device, gpu, p in told[-1].best} == {
        ("L4", gpus[128], 128),
        ("L4", gpus[512], 512),
    }


def test_a_measurement_is_better_than_any_prediction(tmp_path: Path) -> None:
    def evaluate(request: EvaluationRequest) -> EvaluationOutcome:
        measured = request.config["num_splits"] == 1
        origin: Origin = "measured" if measured else "predicted"
        return Landscape(lambda r: bowl(r) * (9 if measured else 1), origin=origin)(request)

    told: list[Progress] = []
    run_sweep(SPEC, evaluate, SweepJournal(tmp_path / "s.jsonl"), told.append)
    assert {r.origin for r in told[-1].best.values()} == {"measured"}
    assert {r.config["num_splits"] for r in told[-1].best.values()} == {1}


def test_two_gpus_evaluate_one_problem_each(tmp_path: Path) -> None:
    """An exhaustive sweep uses two GPUs at once, one problem on each."""
    asked = Landscape(bowl)
    run_sweep(SPEC, asked, SweepJournal(tmp_path / "s.jsonl"), problems_at_once=2)
    assert [r.problem.seqlen for r in asked.asked] == [128, 512] * (POINTS // 2)
    alone = Landscape(bowl)
    run_sweep(SPEC, alone, SweepJournal(tmp_path / "a.jsonl"))
    assert [r.problem.seqlen for r in alone.asked] == [128] * (POINTS // 2) + [512] * (POINTS // 2)
    assert sorted(map(repr, alone.asked)) == sorted(map(repr, asked.asked))


def test_points_not_started_at_the_time_limit_are_dropped(tmp_path: Path) -> None:
    began: list[EvaluationRequest] = []

    def slow(request: EvaluationRequest) -> EvaluationOutcome:
        began.append(request)
        time.sleep(0.05)
        return Landscape(bowl)(request)

    book = SweepJournal(tmp_path / "s.jsonl")
    spec = replace(SPEC, budget=Budget(seconds=0.2))
    with ThreadPoolExecutor(2) as pool:
        end = run_sweep(spec, slow, book, executor=pool, in_flight=lambda: POINTS)
    assert end == "budget"
    assert len(book.rows) == len(began) < POINTS


def test_a_broken_executor_is_a_crashed_row(tmp_path: Path) -> None:
    def evaluate(_: EvaluationRequest) -> EvaluationOutcome:
        raise BrokenExecutor("3 workers died.")

    book = SweepJournal(tmp_path / "s.jsonl")
    run_sweep(replace(SPEC, budget=Budget(evaluations=1)), evaluate, book)
    (row,) = book.rows.values()
    assert (row.status, row.reason) == (Status.CRASHED, "3 workers died.")


def test_predictions_of_all_workers_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path))  # without predictions of other tests

    def evaluate(request: EvaluationRequest) -> EvaluationOutcome:
        made = replace(Landscape(bowl)(request).evaluation, source_sha256="ab" * 32)
        return EvaluationOutcome(made, predicted=Latency("predicted", 5.0, 4.0, 6.0, "made up"))

    spec = replace(SPEC, budget=Budget(evaluations=3))
    with ThreadPoolExecutor(2) as elsewhere:
        run_sweep(spec, evaluate, SweepJournal(tmp_path / "s.jsonl"), executor=elsewhere)
    assert [p.latency.median_us for p in predictions()] == [5.0] * 3
    assert {p.variant for p in predictions()} == {"v05"}


def test_the_remaining_time_is_divided_among_workers(tmp_path: Path) -> None:
    told: dict[int, list[Progress]] = {1: [], 4: []}
    for workers, progress in told.items():
        clock = itertools.count()  # every reading advances it by a second
        book = SweepJournal(tmp_path / f"{workers}.jsonl")
        run_sweep(
            SPEC,
            Landscape(bowl),
            book,
            progress.append,
            workers=functools.partial(int, workers),
            clock=clock.__next__,
            # With a fixed load, as that of the machine may change between the two sweeps.
            estimator=Estimator(SPEC.space.points(SPEC.options), on_gpu=False, load=lambda: 1.0),
        )
        assert {p.workers for p in progress} == {workers}
    alone, together = (progress[POINTS // 2].eta_s for progress in told.values())
    assert alone is not None
    assert together == pytest.approx(alone / 4)


def test_expected_times_take_half_of_the_seconds_at_most(tmp_path: Path) -> None:
    """Simulating all points of a space may take minutes: the budget is not spent on that alone."""
    now = 0.0

    def expected(request: EvaluationRequest) -> float | None:
        nonlocal now
        now += 1.0
        return bowl(request)

    spec = replace(SPEC, strategy="simulated", budget=Budget(seconds=20.0))
    evaluate = Landscape(bowl)
    path = tmp_path / "s.jsonl"
    state, _, told = sweep(path, evaluate, spec, expected_us=expected, clock=lambda: now)
    assert (state, now) == ("finished", 10.0)
    assert len(evaluate.asked) == POINTS
    assert told[-1].elapsed_s == 10.0


def test_cancel_does_not_wait_for_running_points(tmp_path: Path) -> None:
    release, began = threading.Event(), threading.Event()
    asked_at = 0.0

    def stuck(request: EvaluationRequest) -> EvaluationOutcome:
        began.set()
        release.wait(20)
        return Landscape(bowl)(request)

    def should_stop() -> bool:
        nonlocal asked_at
        if began.is_set() and not asked_at:
            asked_at = time.monotonic()
        return began.is_set()

    book = SweepJournal(tmp_path / "s.jsonl")
    with ThreadPoolExecutor(2) as pool:
        state = run_sweep(
            SPEC,
            stuck,
            book,
            should_stop=should_stop,
            executor=pool,
            in_flight=lambda: 2,
        )
        felt_s = time.monotonic() - asked_at
        release.set()
    assert state == "cancelled"
    assert felt_s < 0.5
    assert book.rows == {}


KILLED = """
import sys, time
sys.path[:0] = {folders!r}
from pathlib import Path
from search_data import Landscape, bowl
from test_sweep import SPEC
from engine.search.sweep.run import run_sweep
from engine.search.sweep.journal import SweepJournal

def evaluate(request):
    time.sleep(0.01)
    return Landscape(bowl)(request)

run_sweep(SPEC, evaluate, SweepJournal(Path(sys.argv[1])))
"""


def test_nothing_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    code = KILLED.format(folders=[str(folder) for folder in Path(__file__).parents[:2]])
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    reader = SweepJournal(path)
    deadline = time.monotonic() + 60
    while len(reader.rows) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
        reader.poll()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    reader.poll()
    done = len(reader.rows)
    assert 5 <= done < POINTS
    rest = Landscape(bowl)
    state, book, _ = sweep(path, rest)
    assert state == "finished"
    assert len(rest.asked) == POINTS - done
    assert len(book.rows) == POINTS
