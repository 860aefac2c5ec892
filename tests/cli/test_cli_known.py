"""Known times of sessions decide what `auto` resolves to, in every command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sessions_data import evaluation_maker, make_latency

from engine.attention.config import find_variant
from engine.attention.problem import Problem
from engine.cli import main
from engine.cuda_source.sources import read_sources
from engine.pipeline.bench import BenchResult
from engine.pipeline.evaluate import Evaluator
from engine.sessions.session import make_snapshot
from engine.sessions.store import SETTING, default_store

PROBLEM = Problem(1, 1, 128, 64)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Save a session in which the present v01 took 0.5 µs on an L4."""
    monkeypatch.setenv(SETTING, str(tmp_path / "store"))
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))
    evaluation = replace(
        evaluation_maker(),
        variant="v01",
        config={"block_n": 64},
        problem=PROBLEM,
        device="L4",
        latency=make_latency(0.5, 30),
        source_sha256=read_sources(find_variant("v01").source).source_sha256,
    )
    default_store().save(make_snapshot([evaluation], environment={}, title="Faster than any"))


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("command", ["auto", "occupancy auto", "profile auto", "sweep auto"])
def test_auto_chooses_the_kernel_with_a_measured_time(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = " --dry-run" if command.startswith("sweep") else ""
    assert main(f"{command} --gpu L4{more}".split()) == 0
    shown = capsys.readouterr()
    first = (shown.err or shown.out).removeprefix("auto takes ")
    assert first.startswith("v01 "), shown


@pytest.mark.usefixtures("timed")
def test_figures_of_auto_name_its_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sass", "auto", "--gpu", "L4"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("v01"), shown[:200]


@pytest.mark.usefixtures("timed")
def test_bench_uses_the_known_times(
    monkeypatch: pytest.MonkeyPatch, set_local_gpu: Callable[..., None]
) -> None:
    seen = []

    def bench(problem: Problem, _: object, evaluator: Evaluator, *__: object) -> BenchResult:
        seen.append([t.name for t in evaluator.history.at(PROBLEM, "L4")])
        return BenchResult(problem, "L4", (), None, (), (), "", "")

    set_local_gpu()
    monkeypatch.setattr("engine.pipeline.bench.bench", bench)
    assert main(["bench", "--preset", "small", "--variant", "auto", "--json"]) == 0
    assert seen
    assert {name for names in seen for name in names if not name.startswith("sdpa")} == {"v01"}
