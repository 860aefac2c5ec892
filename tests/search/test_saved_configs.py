"""Which configs of a sweep are saved as tuned, and the messages about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from words import says

from engine.attention.config import load_tuned
from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.search.autotune import configs_to_save, problem_results, save_configs
from engine.search.ranking import SweepRow
from engine.search.space import Space, SweepOptions

# Two problems of one class and one of another.
PROBLEMS = (Problem(1, 1, 100, 64), Problem(1, 1, 128, 64), Problem(1, 1, 512, 64))
TIMES = {(100, 32): 10.0, (100, 64): 11.0, (128, 32): 30.0, (128, 64): 20.0}


@pytest.fixture(autouse=True)
def _own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))


def rows() -> list[SweepRow]:
    found = []
    for point in Space(("v01",), PROBLEMS).points(SweepOptions(gpu="L4", execute=False)):
        request = point.request
        us = TIMES.get((request.problem.seqlen, request.config["block_n"]), 5.0)
        evaluation = Evaluation(
            status=Status.SKIPPED,
            reason="Not executed.",
            variant="v01",
            problem=request.problem,
            config=dict(request.config),
            device="L4",
            when="2026-01-01T00:00:00+00:00",
            latency=Latency("predicted", us, us, us, "made up"),
        )
        found.append(SweepRow.make(point, evaluation, 0.1))
    return found


def test_of_each_class_the_config_that_is_best_over_its_problems_is_saved() -> None:
    made = rows()
    small, large = sorted(
        configs_to_save(problem_results(made), made, "exhaustive"), key=lambda e: e.problem_class
    )[::-1]
    assert small.problem_class == "D64 fp16 S65-128 BH1"
    # 64 is a little slower at 100 and much faster at 128, which is the problem named.
    assert (small.config, small.median_us) == ({"block_n": 64}, 20.0)
    assert small.problem == PROBLEMS[1].label()
    assert small.evaluations == 2
    assert large.problem == PROBLEMS[2].label()


def test_each_saved_or_refused_config_gets_a_message() -> None:
    made = rows()
    first, second = configs_to_save(problem_results(made), made, "random")
    (said,) = save_configs([replace(first, origin="measured")])
    assert says(said, "kept_for", "v01 on L4", str(first.problem_class), "block_n")
    refused, saved = save_configs([first, second])
    assert says(refused, "what_is_kept", "v01 on L4", "predicted")
    assert says(saved, "kept_for")
    assert len(load_tuned()) == 2
