"""A machine that only measures: numpy, scipy, pandas, torch, CuPy and nvidia-ml-py, and no screen.

In these interpreters everything that the app and the sessions need cannot be imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCREEN = ["streamlit", "plotly", "pydantic", "platformdirs", "rich", "fsspec", "psutil"]
BLOCK = f"""
import sys
from importlib.abc import MetaPathFinder

class NotInstalled(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {SCREEN!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
PROBLEM = ["-S", "64", "-D", "64", "--gpu", "L4", "--backend", "cpu"]


def headless(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCK + code, *argv],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        check=False,
    )


def command(*argv: str) -> subprocess.CompletedProcess[str]:
    """The command line."""
    return headless("from engine.cli import main; sys.exit(main(sys.argv[1:]))", *argv)


def test_the_block_is_one() -> None:
    for name in SCREEN:
        assert "No module named" in headless(f"import {name}").stderr


@pytest.mark.parametrize(
    "module",
    [
        "engine.pipeline.evaluate",
        "engine.pipeline.preview",
        "engine.pipeline.bench",
        "engine.sessions.export",
        "engine.records.journal",
        "engine.jobs.latency_stream.samples",
        "engine.measure.side_by_side",
        "engine.measure.device_lock",
        "engine.measure.sampler",
        "engine.search.sweep.run",
        "engine.backends.cuda",
        "engine.backends.sdpa",
    ],
)
def test_it_imports(module: str) -> None:
    done = headless(f"import {module}")
    assert done.returncode == 0, done.stderr


def test_an_evaluation_runs_and_prints_a_plain_table() -> None:
    done = command("evaluate", "v01", *PROBLEM)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["figure", "value"] in lines
    assert ["variant", "v01"] in lines
    assert "not a GPU latency" in done.stdout


def test_a_sweep_runs_and_is_resumed(tmp_path: Path) -> None:
    book = tmp_path / "sweep.jsonl"
    done = command(
        "sweep", "v01", "v02", *PROBLEM, "--defaults-only", "--journal", str(book), "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["passed"]) == ("finished", 2)
    again = command("sweep", "--resume", str(book))
    assert again.returncode == 0, again.stderr
    assert "v02" in again.stdout


@pytest.mark.parametrize(
    "argv",
    [
        ["variants"],
        ["devices"],
        ["occupancy", "--gpu", "L4", "--threads", "256", "--registers", "96"],
        ["recommend-batch", "v01", "--gpu", "L4", "--seqlen", "128", "--head-dim", "64"],
    ],
)
def test_the_other_commands_print_plain_tables(argv: list[str]) -> None:
    done = command(*argv)
    assert done.returncode == 0, done.stderr
    assert "---" in done.stdout


def test_bench_says_why_it_cannot_or_measures() -> None:
    from engine.backends.cuda import why_not_cuda

    if why_not_cuda() is None:
        pytest.skip("this machine has a GPU: tests/backends/cuda measures on it")
    done = command("bench", "--against", "sdpa", "--preset", "small")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_what_needs_the_screen_says_so_in_a_sentence() -> None:
    done = command("evaluate", "v01", *PROBLEM, "--save")
    assert done.returncode == 1
    assert "PASSED" in done.stdout  # what was found out is shown all the same
    assert done.stderr.splitlines()[-1].startswith("error: This needs the package pydantic")
    assert "Traceback" not in done.stderr, done.stderr
