"""The GitHub Action's steps and the pre-commit hook, run in a fresh clone of a made-up repository.

The environment is that of a runner, and Attune is the version under test instead of an installed
one: `.ci/run` and the action's first step install it the same way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from engine.versions.figures import GateVerdict
from tests.gate.repositories import ENVIRONMENT, ONE_PROBLEM, commit, edit, git, repository

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / ".github/actions/attune-gate/action.yml").read_text())
HOOK = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a runner after its first step."""
    place = tmp_path / "runner" / "attune" / "bin"
    place.mkdir(parents=True)
    command = place / "attune"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m engine "$@"\n')
    command.chmod(0o755)
    of_tests = {k: v for k, v in os.environ.items() if k.startswith("ATTUNE_")}
    return {
        **os.environ,
        **of_tests,
        **{k: v for k, v in ENVIRONMENT.items() if k.startswith("GIT")},
        "PATH": os.pathsep.join([str(place), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(tmp_path / "runner"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """Return a repository with an own kernel."""
    folder = repository(tmp_path / "origin", "v08", settings=ONE_PROBLEM)
    source = next((folder / "kernels").glob("v08*.cu"))
    shutil.move(source, source.with_name("my_attention.cu"))
    commit(folder, "A kernel of its own")
    return folder


def step(name: str, runner: dict[str, str], where: Path, **env: str) -> tuple[int, str]:
    """Run one step as a runner does: bash with `-e` and pipefail."""
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]],
        cwd=where,
        env=runner | env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_action_needs_only_pip() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert not any("uses" in each for each in STEPS.values())
    for each in STEPS.values():  # untrusted names reach the shell only in variables
        assert "${{" not in each["run"]
        subprocess.run(["bash", "-n", "-c", each["run"]], check=True)
    assert ACTION["inputs"]["run"]["default"] == "false"


def test_the_hook_runs_for_files_of_kernels() -> None:
    import re

    for name in ("kernels/a.cu", "b.cuh", "x/c.attune.toml", "attune-gate.toml"):
        assert re.search(HOOK["files"], name)
    assert not re.search(HOOK["files"], "README.md")


def test_a_revision_that_is_not_there_ends_with_2(
    runner: dict[str, str], origin: Path, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    code, _ = step("Judge", runner, clone, BASE="0" * 40, EXECUTE="false")
    assert code != 0  # git reports an unknown commit


@pytest.mark.parametrize("known", ["", "77"])
def test_the_comment_is_written_once_and_then_replaced(
    runner: dict[str, str], tmp_path: Path, known: str
) -> None:
    calls = tmp_path / "calls"
    asked = tmp_path / "runner" / "attune" / "bin" / "gh"  # as on GitHub's runners
    asked.write_text(f'#!/bin/sh\necho "$@" >> {calls}\ncase "$*" in *--jq*) echo {known};; esac\n')
    asked.chmod(0o755)
    report = tmp_path / "report.md"
    report.write_text("<!-- attune gate -->\n")
    given = {"GITHUB_REPOSITORY": "o/r", "NUMBER": "5", "REPORT": str(report), "GH_TOKEN": "t"}
    code, out = step("Comment", runner, tmp_path, **given)
    assert code == 0, out
    last = calls.read_text().splitlines()[-1]
    wanted = "-X PATCH repos/o/r/issues/comments/77" if known else "repos/o/r/issues/5/comments"
    assert wanted in last
    assert f"body=@{report}" in last
    asked.write_text("#!/bin/sh\nexit 1\n")  # a token without write permission
    code, out = step("Comment", runner, tmp_path, **given)
    assert (code, "::warning::" in out) == (0, True)


@pytest.mark.slow
def test_the_actions_steps_in_a_fresh_clone(
    runner: dict[str, str], origin: Path, tmp_path: Path
) -> None:
    base = git(origin, "rev-parse", "HEAD").strip()
    edit(
        origin / "kernels" / "my_attention.cu",
        ("ROW_STRIDE = HEAD_DIM + VECTOR", "ROW_STRIDE = HEAD_DIM"),
    )
    commit(origin, "No padding")
    clone = tmp_path / "clone"  # like actions/checkout: a single commit
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", str(clone))
    git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
    code, out = step("Judge", runner, clone, BASE=base, EXECUTE="false")
    assert code == 0, out
    outputs = dict(line.split("=", 1) for line in Path(runner["GITHUB_OUTPUT"]).read_text().split())
    assert outputs["exit-code"] == "1"
    summary = Path(runner["GITHUB_STEP_SUMMARY"]).read_text()
    assert Path(outputs["report"]).read_text() == summary
    assert summary.startswith("<!-- attune gate -->")
    assert "my_attention" in summary
    assert GateVerdict.COUNTED_WORSE in summary
    assert step("Verdict", runner, clone, CODE="1", STRICT="false")[0] == 1
    assert step("Verdict", runner, clone, CODE="0", STRICT="false")[0] == 0
    assert step("Verdict", runner, clone, CODE="3", STRICT="true")[0] == 3
    code, out = step("Verdict", runner, clone, CODE="3", STRICT="false")
    assert code == 0
    assert "::warning::" in out


@pytest.mark.exhaustive
def test_the_hook_stops_a_commit_that_is_worse(
    runner: dict[str, str], origin: Path, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    local = {k: v for k, v in HOOK.items() if k != "additional_dependencies"}
    config = {"repos": [{"repo": "local", "hooks": [local | {"language": "system"}]}]}
    (clone / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    environment = runner | {"PRE_COMMIT_HOME": str(tmp_path / "pre-commit")}

    def hook() -> subprocess.CompletedProcess[str]:
        git(clone, "add", "-A")
        return subprocess.run(
            [sys.executable, "-m", "pre_commit", "run"],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert "no files to check" in hook().stdout
    kernel = clone / "kernels" / "my_attention.cu"
    edit(kernel, ("once for all tiles.", "once for all of the tiles."))
    done = hook()
    assert done.returncode == 0, done.stdout + done.stderr
    edit(kernel, ("unroll 4", "unroll 1"))
    done = hook()
    assert done.returncode == 1
    assert GateVerdict.SIMULATED_SLOWER in done.stdout
