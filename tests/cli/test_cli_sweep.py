"""The command `attune sweep`."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from words import raises, says

from engine.attention.config import load_tuned
from engine.attention.evaluation import Evaluation
from engine.base.errors import (
    ClusterError,
    InvalidProblem,
    Status,
    StoreError,
    ToolMissing,
    UnknownName,
)
from engine.cli import main, parser
from engine.cli.sweep import Reporter
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest
from engine.search.sweep.journal import Progress

SMALL_SWEEP = ["v01", "v05", "--seqlen", "32", "--head-dim", "32", "--gpu", "L4"]
SMALL_SWEEP += ["--tunable", "num_splits=1,3", "--defaults-only"]


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))


def run(*argv: str) -> int:
    args = parser(only="sweep").parse_args(["sweep", *argv])
    code: int = args.run(args)
    return code


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = run(*argv, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_the_whole_pipeline_over_a_small_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep that compiles for the L4 and executes on the CPU."""
    journal = tmp_path / "sweep.jsonl"
    code, out = run_json(
        capsys, *SMALL_SWEEP, "--backend", "cpu", "--journal", str(journal), "--keep"
    )
    assert code == 0, out["rows"]
    assert out["state"] == "finished"
    assert (out["done"], out["passed"], out["skipped"], out["failed"]) == (3, 2, 1, 0)
    by_variant = {(r["variant"], r["status"]): r for r in out["rows"]}
    one, five = by_variant["v01", "PASSED"], by_variant["v05", "PASSED"]
    for row in (one, five):
        assert row["origin"] == "predicted"
        assert 0 < row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["max_abs_err"] <= row["tolerance"]
        assert row["cpu_execution_ms"] > 0
        assert row["registers_per_thread"] > 0
    assert "num_splits=3" in by_variant["v05", "SKIPPED"]["reason"]
    (best,) = out["best"]
    assert best["origin"] == "predicted"
    assert says(best["reason"], "predicted_tie")
    assert best["places"][0]["median_us"] == min(one["median_us"], five["median_us"])
    kept = load_tuned()
    assert {k.variant for k in kept} == {"v01", "v05"}
    assert all(k.origin == "predicted" and k.gpu == "L4" for k in kept)

    code, again = run_json(capsys, "--resume", str(journal))
    assert code == 0
    assert again["resumed"] == 3
    assert again["rows"] == out["rows"]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[EvaluationRequest]:
    """Replace evaluations by made-up ones without a time, of which num_splits=4 is INCORRECT; a
    length of 13 is interrupted as by Ctrl-C."""
    asked: list[EvaluationRequest] = []

    def evaluate(_: Evaluator, request: EvaluationRequest, **__: bool) -> EvaluationOutcome:
        asked.append(request)
        if request.problem.seqlen == 13:
            raise KeyboardInterrupt
        wrong = request.config.get("num_splits") == 4
        return EvaluationOutcome(
            Evaluation(
                status=Status.INCORRECT if wrong else Status.SKIPPED,
                reason="Wrong in 12 elements." if wrong else "Not executed.",
                variant=request.variant,
                problem=request.problem,
                config=dict(request.config),
                device=request.gpu or "unknown",
                when="2026-01-01T00:00:00+00:00",
            )
        )

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    return asked


def test_options_become_requests(
    tmp_path: Path, made_up: list[EvaluationRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["v05", "--batch", "1,2", "--heads", "4", "--seqlen", "64:256:x2", "--head-dim", "64"]
    argv += ["--causal", "both", "--dtype", "fp16,bf16", "--defaults-only"]
    argv += ["--tunable", "num_splits=1,2", "--gpu", "l4", "--no-execute", "--seed", "7"]
    run(*argv, "--journal", str(tmp_path / "s.jsonl"), "--timeout", "9", "--csv")
    assert len(made_up) == 2 * 3 * 2 * 2 * 2
    first = made_up[0]
    assert (first.gpu, first.execute, first.seed, first.timeout_s) == ("L4", False, 7, 9.0)
    assert {r.problem.seqlen for r in made_up} == {64, 128, 256}
    assert {r.problem.num_heads for r in made_up} == {4}
    assert {(r.problem.causal, r.problem.dtype) for r in made_up} == {
        (c, d) for c in (False, True) for d in ("float16", "bfloat16")
    }
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(lines) == len(made_up)
    assert {line["config.num_splits"] for line in lines} == {"1", "2"}


def test_presets_replace_or_extend_the_axes(
    tmp_path: Path, made_up: list[EvaluationRequest]
) -> None:
    base = ["v01", "--defaults-only", "--gpu", "L4", "--no-execute", "--preset", "l4-s64"]
    run(*base, "--preset", "l4-s128", "--journal", str(tmp_path / "a.jsonl"))
    assert [r.problem.seqlen for r in made_up] == [64, 128]
    made_up.clear()
    run(*base, "--seqlen", "64,96", "--journal", str(tmp_path / "b.jsonl"))
    assert [r.problem.seqlen for r in made_up] == [64, 96]


@pytest.mark.usefixtures("made_up")
def test_failures_are_shown_and_end_in_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["v05", "--tunable", "num_splits=2,4", "--defaults-only", "--gpu", "L4"]
    assert run(*argv, "--journal", str(tmp_path / "s.jsonl")) == 1
    shown = capsys.readouterr()
    assert "INCORRECT" in shown.out
    assert "Wrong in 12 elements." in shown.out
    assert "1 failed" in shown.out
    assert str(tmp_path / "s.jsonl") in shown.err
    assert says(shown.err, "to_evaluate_and", "2 points, 2")


def test_a_line_of_progress_counts_the_workers_of_a_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for workers in (1, 2):
        counts = {"done": 1, "total": 4, "passed": 1, "skipped": 0, "failed": 0, "resumed": 0}
        pace: dict[str, Any] = {"elapsed_s": 1.0, "per_minute": 60.0, "eta_s": 3.0}
        with Reporter(quiet=False) as reporter:
            reporter(Progress(**counts, **pace, workers=workers, best={}, last=None))
    one, two = capsys.readouterr().err.splitlines()
    assert one.startswith("1/4 · 60/min · ")
    assert says(one, "time_left", "3 s")
    assert not says(one, "progress_workers")
    assert says(two, "progress_workers", "2")


def test_a_search_keeps_to_its_budget(tmp_path: Path, made_up: list[EvaluationRequest]) -> None:
    argv = ["v05", "--gpu", "L4", "--strategy", "random", "--budget-evaluations", "5"]
    run(*argv, "--journal", str(tmp_path / "s.jsonl"), "--json")
    assert len(made_up) == 5


def test_a_dry_run_counts_estimates_and_runs_nothing(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    made_up: list[EvaluationRequest],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Made-up evaluations take no time, and sweeps store their speed in the shared cache.
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    argv = ["v01", "v02", "--head-dim", "4,64", "--gpu", "L4", "--dry-run"]
    code, plan = run_json(capsys, *argv, "--journal", str(tmp_path / "s.jsonl"))
    assert code == 0
    assert (plan["points"], plan["runnable"], plan["excluded"]) == (16, 10, 6)
    assert plan["estimate_s"] > 0
    assert any("head_dim 4" in reason for reason in plan["excluded_because"])
    assert made_up == []
    assert list(tmp_path.iterdir()) == []
    assert run(*argv) == 0
    assert says(capsys.readouterr().out, "to_evaluate_and", "16", "points", "10", "6")


@pytest.mark.usefixtures("made_up")
def test_an_interrupted_sweep_says_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "s.jsonl"
    assert run("v01", "--gpu", "L4", "--seqlen", "13", "--journal", str(journal)) == 130
    assert f"sweep --resume {journal}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "error", "code", "fact"),
    [
        (["v5"], UnknownName, "unknown_variant", "v05"),
        (["v01", "--gpu", "L44"], UnknownName, "gpu_unknown", "L4"),
        (["v05", "--tunable", "splits=1"], UnknownName, "tunable_of_no_variant", "num_splits"),
        (["v05", "--tunable", "num_splits=3,5"], InvalidProblem, "tunable_not_offered", "=3"),
        (["v05", "--tunable", "num_splits"], InvalidProblem, "tunable_values_form", "'num_splits'"),
        (["v05", "--tunable", "num_splits=x"], InvalidProblem, "values_form", "'x'"),
        (["v05", "--seqlen", ","], InvalidProblem, "values_form", "not ','"),
        (["v05", "--seqlen", "64:"], InvalidProblem, "values_form", "not '64:'"),
        (["v01", "--seqlen", "0"], InvalidProblem, "size_too_small", "seqlen"),
        (["v01", "--dtype", "fp8"], InvalidProblem, "dtype_of_option", "bf16"),
        (["v01", "--preset", "gpt9"], UnknownName, "unknown_preset", "gpt2"),
        (["--resume", "missing.jsonl"], UnknownName, "journal_missing", "missing.jsonl"),
        (["v01", "--dask", "gpu-box"], InvalidProblem, "scheduler_address", "gpu-box"),
        (["v01", "--dask", "", "--dry-run"], InvalidProblem, "scheduler_address", "''"),
    ],
)
def test_invalid_options_give_one_sentence_errors(
    argv: list[str], error: type[Exception], code: str, fact: str
) -> None:
    with raises(error, code, fact):
        run(*argv)


@pytest.mark.usefixtures("made_up")
def test_resume_refuses_other_axes_and_no_journal_is_overwritten(tmp_path: Path) -> None:
    journal = str(tmp_path / "s.jsonl")
    run("v01", "--gpu", "L4", "--journal", journal, "--json")
    with raises(InvalidProblem, "resume_with_choice", "--seqlen"):
        run("--resume", journal, "--seqlen", "64")
    with raises(InvalidProblem, "resume_with_choice"):
        run("v01", "--resume", journal)
    with raises(InvalidProblem, "journal_exists"):
        run("v01", "--gpu", "L4", "--journal", journal)


@pytest.mark.usefixtures("made_up")
def test_a_journal_that_cannot_be_written_gives_a_one_sentence_error(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/null")):
        with raises(InvalidProblem, "journal_no_regular_file"):
            run("v01", "--gpu", "L4", "--journal", str(path))
    (tmp_path / "file").write_text("")
    with raises(UnknownName, "file_failed", "--journal"):
        run("v01", "--gpu", "L4", "--journal", str(tmp_path / "file" / "s.jsonl"))


def test_unreadable_tuned_configs_are_reported_before_the_sweep(
    tmp_path: Path, made_up: list[EvaluationRequest]
) -> None:
    (tmp_path / "tuned.json").write_text("[")
    with raises(StoreError, "tuned_file_foreign"):
        run("v01", "--gpu", "L4", "--keep", "--journal", str(tmp_path / "s.jsonl"))
    assert made_up == []


def test_a_dry_run_needs_no_cluster(
    tmp_path: Path, made_up: list[EvaluationRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["v01", "--gpu", "L4", "--dry-run", "--dask", "nowhere.invalid:8786"]
    code, plan = run_json(capsys, *argv, "--journal", str(tmp_path / "s.jsonl"))
    assert (code, plan["points"], made_up) == (0, 2, [])


def test_missing_distributed_gives_a_one_sentence_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    journal = tmp_path / "s.jsonl"
    with raises(ToolMissing, "distributed_missing"):
        run("v01", "--gpu", "L4", "--dask", "127.0.0.1:8786", "--journal", str(journal))
    assert not journal.exists()


def test_a_lost_cluster_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: object) -> None:
        raise ClusterError("The Dask scheduler is gone.")

    monkeypatch.setattr("engine.search.cluster.executor.connect", lost)
    journal = tmp_path / "s.jsonl"
    journal.touch()
    argv = ["v01", "--gpu", "L4", "--dask", "127.0.0.1:8786", "--journal", str(journal)]
    assert main(["sweep", *argv]) == 1
    shown = capsys.readouterr().err
    assert "error: The Dask scheduler is gone." in shown
    assert f"sweep --resume {journal} --dask 127.0.0.1:8786" in shown


@pytest.mark.parametrize(
    "argv", [["--budget-evaluations", "0"], ["--budget-seconds", "-1"], ["--strategy", "magic"]]
)
def test_bad_usage_is_exit_code_2(argv: list[str]) -> None:
    assert main(["sweep", "v01", *argv]) == 2


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    journal = tmp_path / "nope" / "x.jsonl"
    with raises(UnknownName, "file_failed", "x.jsonl"):
        run(*SMALL_SWEEP, "--backend", "cpu", "--journal", str(journal))
    assert not journal.parent.exists()
