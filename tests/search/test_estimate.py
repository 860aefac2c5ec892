"""Estimates: the prior knows what is dear, the first points say how fast this machine is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from search_data import SMALL, point

from engine.pipeline.request import runs_on_gpu
from engine.search.sweep.estimate import Estimator, prior_s

LARGE = replace(SMALL, seqlen=4096)


def test_the_prior_knows_what_costs_time() -> None:
    small, large = point("v05").request, point("v05", LARGE).request
    assert prior_s(large, on_gpu=False) > 5 * prior_s(small, on_gpu=False)
    assert prior_s(replace(small, check=True), on_gpu=False) > prior_s(small, on_gpu=False)
    assert prior_s(replace(small, effort="full"), on_gpu=True) > prior_s(small, on_gpu=True)
    not_executed = replace(large, execute=False)
    assert prior_s(not_executed, on_gpu=False) < prior_s(small, on_gpu=False)


def test_finished_points_say_how_fast_this_machine_is() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8)] + [point("v05", LARGE)]
    estimator = Estimator(points, on_gpu=False)
    before = estimator.left_s()
    assert before == pytest.approx(sum(prior_s(p.request, False) for p in points))
    assert not estimator.is_measured
    for p in points[:4]:  # a machine three times slower than the prior thinks
        estimator.finish(p, 3 * prior_s(p.request, False))
    assert estimator.is_measured
    assert estimator.points_left == 1
    assert estimator.left_s() == pytest.approx(3 * prior_s(points[4].request, False))


def test_the_next_sweep_knows_what_this_one_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8)]
    first = Estimator(points, on_gpu=False)
    guess = first.left_s()
    for p in points[:3]:
        first.finish(p, 5 * prior_s(p.request, False))
    first.learn()
    assert Estimator(points, on_gpu=False).left_s() == pytest.approx(5 * guess)
    assert Estimator(points, on_gpu=True).left_s() < 5 * guess  # another kind knows nothing of it


def test_one_odd_point_does_not_spoil_it() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8, 16)]
    estimator = Estimator(points, on_gpu=False)
    for p, factor in zip(points[:4], (50.0, 1.0, 1.0, 1.0), strict=True):
        estimator.finish(p, factor * prior_s(p.request, False))
    assert estimator.left_s() == pytest.approx(prior_s(points[4].request, False))


def test_excluded_points_take_no_time() -> None:
    assert Estimator([point("v05", num_splits=3)], on_gpu=False).left_s() == 0.0


def test_what_is_not_executed_or_for_the_cpu_is_not_on_a_gpu() -> None:
    request = point("v05").request
    assert not runs_on_gpu(replace(request, backend="cpu"))
    assert not runs_on_gpu(replace(request, execute=False))
