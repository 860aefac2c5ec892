"""Estimates: the prior knows what is dear, the first points say how fast this machine is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from search_data import SMALL, Landscape, bowl, point

from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest, runs_on_gpu
from engine.search.space import Space, SweepOptions
from engine.search.sweep import SweepJournal, SweepSpec, run, run_sweep
from engine.search.sweep.estimate import Estimator, prior_s

LARGE = replace(SMALL, seqlen=4096)


@pytest.fixture(autouse=True)
def nothing_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps of other tests keep what they took where an estimator looks for it."""
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))


def in_all_s(request: EvaluationRequest, on_gpu: bool) -> float:
    return sum(prior_s(request, on_gpu).values())


def test_the_prior_knows_what_costs_time() -> None:
    small, large = point("v05").request, point("v05", LARGE).request
    assert prior_s(large, on_gpu=False)["check"] > 5 * prior_s(small, on_gpu=False)["check"]
    assert in_all_s(replace(small, check=True), on_gpu=False) > in_all_s(small, on_gpu=False)
    assert in_all_s(replace(small, effort="full"), on_gpu=True) > in_all_s(small, on_gpu=True)
    not_executed = replace(large, execute=False)
    assert in_all_s(not_executed, on_gpu=False) < in_all_s(small, on_gpu=False)


def test_finished_points_say_how_fast_this_machine_is() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8)] + [point("v05", LARGE)]
    estimator = Estimator(points, on_gpu=False)
    before = estimator.left().expected_s
    assert before == pytest.approx(sum(in_all_s(p.request, False) for p in points))
    assert not estimator.is_measured
    for p in points[:4]:  # a machine three times slower than the prior thinks
        estimator.finish(p, 3 * in_all_s(p.request, False))
    assert estimator.is_measured
    assert estimator.points_left == 1
    assert estimator.left().expected_s == pytest.approx(3 * in_all_s(points[4].request, False))


def test_the_next_sweep_knows_what_this_one_took() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8)]
    first = Estimator(points, on_gpu=False)
    guess = first.left().expected_s
    for p in points[:3]:
        first.finish(p, 5 * in_all_s(p.request, False))
    first.learn()
    assert Estimator(points, on_gpu=False).left().expected_s == pytest.approx(5 * guess)
    assert (
        Estimator(points, on_gpu=True).left().expected_s < 5 * guess
    )  # another kind knows nothing of it


def test_one_odd_point_does_not_spoil_it() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8, 16)]
    estimator = Estimator(points, on_gpu=False)
    for p, factor in zip(points[:4], (50.0, 1.0, 1.0, 1.0), strict=True):
        estimator.finish(p, factor * in_all_s(p.request, False))
    assert estimator.left().expected_s == pytest.approx(in_all_s(points[4].request, False))


def test_excluded_points_take_no_time() -> None:
    assert Estimator([point("v05", num_splits=3)], on_gpu=False).left().expected_s == 0.0


def test_what_is_not_executed_or_for_the_cpu_is_not_on_a_gpu() -> None:
    request = point("v05").request
    assert not runs_on_gpu(replace(request, backend="cpu"))
    assert not runs_on_gpu(replace(request, execute=False))


class Clock:
    """A made-up one, which only work moves on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


def test_a_sweep_says_how_long_it_takes_once_its_first_points_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulation takes ten times what the default says, compiling a tenth, a check as long."""
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    clock, landscape = Clock(), Landscape(bowl)
    monkeypatch.setattr(run, "time", clock)
    told = []

    def evaluate(request: EvaluationRequest) -> EvaluationOutcome:
        prior = prior_s(request, on_gpu=False)
        uneven = 1 + 0.2 * (len(landscape.asked) % 3 - 1)
        spent = {"compile": 0.1 * prior["compile"], "simulate": 10 * uneven * prior["simulate"]}
        clock.now_s += prior["check"] + sum(spent.values())
        return replace(landscape(request), spent_s=spent)

    spec = SweepSpec(Space(("v05",), (SMALL, LARGE), {"block_n": (64,)}), SweepOptions(gpu="L4"))
    guess = Estimator(spec.space.points(spec.options), on_gpu=False).left()
    begin_s = clock.now_s
    run_sweep(
        spec,
        evaluate,
        SweepJournal(tmp_path / "s.jsonl"),
        lambda progress: told.append((clock.now_s, progress)),
    )
    took_s = clock.now_s - begin_s
    assert guess.expected_s < took_s / 2  # of what it could not know
    asked = [(now_s, p) for now_s, p in told if p.eta_s is not None and 4 <= p.done < p.total]
    for now_s, progress in asked:
        left_s = clock.now_s - now_s
        assert progress.eta_s == pytest.approx(left_s, rel=0.25)
        low_s, high_s = progress.eta_range_s
        assert low_s < progress.eta_s < high_s
    within = sum(p.eta_range_s[0] <= clock.now_s - t <= p.eta_range_s[1] for t, p in asked)
    assert within >= 0.9 * len(asked) > 0
    later = Estimator(spec.space.points(spec.options), on_gpu=False).left()
    assert later.expected_s == pytest.approx(took_s, rel=0.15)


def test_the_range_narrows_as_points_end() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8, 16, 32)]
    estimator = Estimator(points, on_gpu=False)

    def width() -> float:
        left = estimator.left()
        return left.high_s / left.low_s

    before = width()
    assert before > 4
    for p in points[:4]:
        estimator.finish(p, in_all_s(p.request, False))
    assert width() < before / 3
