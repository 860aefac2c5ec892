"""Budgets, renewing them in a commit, and the history of a kernel over commits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from words import raises, says

from engine.attention.problem import Problem
from engine.cli import main
from engine.gate.accept import _edited
from engine.gate.settings import Budget, SettingsError, exceeded, read_settings
from engine.versions.figures import GateVerdict
from tests.gate.repositories import ENVIRONMENT, ONE_PROBLEM, commit, edit, git, kernel_file
from tests.gate.repositories import repository as made
from tests.gate.test_verdicts import FIGURES

BUDGET = (
    "\n[[budget]]  # what the product needs\n"
    'kernel = "v08"\ngpu = "L4"\nproblem = "B1 H2 S128"\n'
    "simulated_us = 90  # µs\nregisters = 50\nspill_bytes = 0\n"
)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ENVIRONMENT:
        if name.startswith("GIT"):
            monkeypatch.setenv(name, ENVIRONMENT[name])
    folder = made(tmp_path / "r", "v08", settings=ONE_PROBLEM + BUDGET)
    monkeypatch.chdir(folder)
    return folder


def budget(**limits: float) -> Budget:
    return Budget("v08", "L4", Problem(1, 2, 128, 64), limits)


def test_only_exceeded_budgets_are_reported() -> None:
    assert exceeded(budget(registers=100, simulated_us=50.0, spill_bytes=0), FIGURES) == ()
    (found,) = exceeded(budget(registers=99, simulated_us=50.0), FIGURES)
    assert found.verdict is GateVerdict.OVER_BUDGET
    assert found.is_regression
    assert says(found.what, "its_budget_is", "100", "99")


def test_numbers_are_replaced_in_place() -> None:
    text = ONE_PROBLEM + BUDGET + BUDGET.replace("50", "70") + "\n[thresholds]\nregisters = 0.5\n"
    edited = _edited(text, {1: {"registers": 96, "simulated_us": 6.1, "spill_bytes": 0}})
    assert edited == text.replace("registers = 70", "registers = 96").replace(
        "simulated_us = 90", "simulated_us = 6.1"
    ).replace("simulated_us = 6.1", "simulated_us = 90", 1)


def test_a_budget_inside_another_table_is_refused() -> None:
    with raises(SettingsError, "budgets_layout"):
        _edited("budget = [{registers = 3}]\n", {0: {"registers": 4}})


def test_a_budget_of_a_removed_kernel(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repo, "rm", "-q", f"kernels/{kernel_file(repo, 'v08').name}")
    assert main(["gate", "HEAD", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)["verdicts"]
    assert {each["verdict"] for each in found} == {"REMOVED", GateVerdict.NOT_JUDGED}
    assert any(says(each["what"], "budget_without_kernel") for each in found)
    assert main(["gate", "--accept"]) == 2
    assert says(capsys.readouterr().err, "budget_without_kernel")


@pytest.mark.parametrize(
    "arguments",
    [["--history", "v09"], ["--history", "v08", "--last", "0"], ["--accept", "--kernel", "v09"]],
)
def test_a_kernel_that_is_not_there(
    repo: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gate", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert repo.is_dir()


@pytest.mark.slow
def test_budgets_are_checked_renewed_and_then_met(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(kernel_file(repo, "v08"), ("once for all tiles.", "once for all of the tiles."))
    assert main(["gate", "HEAD", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["verdicts"]
    assert [(f["verdict"], f["what"].split()[0]) for f in found if f["regression"]] == [
        (GateVerdict.OVER_BUDGET, "registers")
    ]
    assert main(["gate", "--accept"]) == 0
    assert says(capsys.readouterr().out, "registers_per_thread", "50 →")
    message = git(repo, "log", "-1", "--format=%B", "--name-only")
    assert says(message.splitlines()[0], "budgets_renewed")
    assert says(message, "registers_per_thread", "50 →")
    assert message.split()[-1] == "attune-gate.toml"  # and not the edited kernel
    assert "# what the product needs" in (repo / "attune-gate.toml").read_text()
    assert read_settings(repo).budgets[0].limits["simulated_us"] < 90
    assert main(["gate", "HEAD", "--json"]) == 0
    assert main(["gate", "--accept"]) == 0
    assert says(capsys.readouterr().out.splitlines()[-1], "every_budget_is")


@pytest.mark.exhaustive
def test_a_history_shows_where_it_became_slower(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = kernel_file(repo, "v08")
    edit(source, ("once for all tiles.", "once for all of the tiles."))
    commit(repo, "A comment")
    edit(source, ("unroll 4", "unroll 1"))
    slow = commit(repo, "One load at a time")
    (repo / "README").write_text("Kernels.\n")
    commit(repo, "Not of the kernel")
    capsys.readouterr()
    assert main(["gate", "--history", "v08", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["commits"]
    assert [s["subject"] for s in steps] == ["Kernels", "A comment", "One load at a time"]
    assert [[v["verdict"] for v in s["verdicts"]][:1] for s in steps[:2]] == [
        [],
        [GateVerdict.SAME_CODE],
    ]
    assert steps[2]["commit"] == slow
    assert GateVerdict.SIMULATED_SLOWER in {v["verdict"] for v in steps[2]["verdicts"]}
    assert "-#pragma unroll 4" in steps[2]["diff"]
    assert steps[0]["diff"] is None
