"""Estimated duration of a sweep: from default costs, then from the pace of its first points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from search_data import SMALL, Landscape, bowl, point

from engine.history import History
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest, runs_on_gpu
from engine.search.space import Space, SweepOptions, SweepPoint
from engine.search.sweep import SweepJournal, SweepSpec, run_sweep
from engine.search.sweep.estimate import Estimator, prior_s, work_ahead

LARGE = replace(SMALL, seqlen=4096)


@pytest.fixture(autouse=True)
def nothing_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the paces that sweeps of other tests have stored."""
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))


def made(
    points: Iterable[SweepPoint],
    ahead: Mapping[str, float] | None = None,
    *,
    on_gpu: bool = False,
    load: float = 1.0,
    is_built: bool = True,
) -> Estimator:
    return Estimator(points, on_gpu, ahead, load=lambda: load, is_built=lambda: is_built)


def in_all_s(request: EvaluationRequest, on_gpu: bool) -> float:
    return sum(prior_s(request, on_gpu).values())


def test_default_costs_follow_the_work_of_a_point() -> None:
    small, large = point("v05").request, point("v05", LARGE).request
    assert prior_s(large, on_gpu=False)["check"] > 5 * prior_s(small, on_gpu=False)["check"]
    assert in_all_s(replace(small, check=True), on_gpu=False) > in_all_s(small, on_gpu=False)
    assert in_all_s(replace(small, effort="full"), on_gpu=True) > in_all_s(small, on_gpu=True)
    not_executed = replace(large, execute=False)
    assert in_all_s(not_executed, on_gpu=False) < in_all_s(small, on_gpu=False)


def test_finished_points_calibrate_the_speed_of_the_machine() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8)] + [point("v05", LARGE)]
    estimator = made(points)
    before = estimator.left().expected_s
    assert before == pytest.approx(sum(in_all_s(p.request, False) for p in points))
    assert not estimator.is_measured
    for p in points[:4]:  # a machine three times slower than the default costs
        estimator.finish(p, 3 * in_all_s(p.request, False))
    assert estimator.is_measured
    assert estimator.points_left == 1
    assert estimator.left().expected_s == pytest.approx(3 * in_all_s(points[4].request, False))


def test_the_next_sweep_uses_the_pace_of_this_one() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8)]
    first = made(points)
    guess = first.left().expected_s
    for p in points[:3]:
        first.finish(p, 5 * in_all_s(p.request, False))
    first.learn()
    assert made(points).left().expected_s == pytest.approx(5 * guess)
    assert (
        made(points, on_gpu=True).left().expected_s < 5 * guess
    )  # a sweep of another kind has no pace yet


def test_one_outlier_does_not_change_the_estimate() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8, 16)]
    estimator = made(points)
    for p, factor in zip(points[:4], (50.0, 1.0, 1.0, 1.0), strict=True):
        estimator.finish(p, factor * in_all_s(p.request, False))
    assert estimator.left().expected_s == pytest.approx(in_all_s(points[4].request, False))


def test_excluded_points_take_no_time() -> None:
    assert made([point("v05", num_splits=3)]).left().expected_s == 0.0


def test_points_that_need_no_gpu_are_not_counted_for_it() -> None:
    request = point("v05").request
    assert not runs_on_gpu(replace(request, backend="cpu"))
    assert not runs_on_gpu(replace(request, execute=False))


class Clock:
    """A made-up clock that only work advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_estimate_is_accurate_after_the_first_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulating takes ten times the default cost, compiling a tenth, a check the default; a kernel
    that was simulated on the problem before is found in the cache."""
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    clock, landscape = Clock(), Landscape(bowl)
    told = []
    kernels: set[tuple[tuple[str, int], ...]] = set()

    def evaluate(request: EvaluationRequest) -> EvaluationOutcome:
        prior = prior_s(request, on_gpu=False)
        uneven = 1 + 0.2 * (len(landscape.asked) % 3 - 1)
        is_new = tuple(request.config.items()) not in kernels
        kernels.add(tuple(request.config.items()))
        spent = {
            "compile": 0.1 * prior["compile"],
            "simulate": is_new * 10 * uneven * prior["simulate"],
        }
        clock.now_s += prior["check"] + sum(spent.values())
        return replace(landscape(request), spent_s=spent)

    spec = SweepSpec(Space(("v05",), (SMALL, LARGE), {"block_n": (64,)}), SweepOptions(gpu="L4"))
    points = spec.space.points(spec.options)
    guess = made(points).left()
    begin_s = clock.now_s
    run_sweep(
        spec,
        evaluate,
        SweepJournal(tmp_path / "s.jsonl"),
        lambda progress: told.append((clock.now_s, progress)),
        clock=clock,
        estimator=made(points, work_ahead(points, History())),
    )
    took_s = clock.now_s - begin_s
    assert guess.expected_s < took_s / 2  # without knowledge of the real costs
    asked = [(now_s, p) for now_s, p in told if p.eta_s is not None and 4 <= p.done < p.total]
    for now_s, progress in asked:
        left_s = clock.now_s - now_s
        assert progress.eta_s == pytest.approx(left_s, rel=0.25)
        low_s, high_s = progress.eta_range_s
        assert low_s < progress.eta_s < high_s
    within = sum(p.eta_range_s[0] <= clock.now_s - t <= p.eta_range_s[1] for t, p in asked)
    assert within >= 0.9 * len(asked) > 0
    later = made(points, work_ahead(points, History())).left()
    assert later.expected_s == pytest.approx(took_s, rel=0.15)


def test_the_range_narrows_as_points_end() -> None:
    points = [point("v05", num_splits=s) for s in (1, 2, 4, 8, 16, 32)]
    estimator = made(points)

    def width() -> float:
        left = estimator.left()
        return left.high_s / left.low_s

    before = width()
    assert before == pytest.approx(4)
    for p in points[:4]:
        estimator.finish(p, in_all_s(p.request, False))
    assert width() < before / 2


SPLITS = [point("v05", num_splits=s) for s in (1, 2, 4, 8, 16)] + [
    point("v05", LARGE, num_splits=s) for s in (1, 2, 4)
]


def spent(request: EvaluationRequest, simulate: float) -> tuple[float, dict[str, float]]:
    """Return seconds in total and by stage: the default costs, with simulation × `simulate`."""
    prior = prior_s(request, on_gpu=False)
    of_stages = {"compile": prior["compile"], "simulate": simulate * prior["simulate"]}
    return prior["check"] + sum(of_stages.values()), of_stages


def test_cached_simulations_do_not_predict_new_ones() -> None:
    """Cached simulations say nothing about the cost of new ones (2 to 6 s took minutes)."""
    for simulate in (1.0, 0.0):
        sweep = made(SPLITS)
        for p in SPLITS:
            sweep.finish(p, *spent(p.request, simulate))
        sweep.learn()
    kernels = SPLITS[:5]
    took_s = sum(spent(p.request, 1.0)[0] for p in kernels)
    left = made(kernels, {"compile": 1.0, "simulate": 1.0}).left()
    assert left.low_s < took_s < left.high_s
    assert left.expected_s == pytest.approx(took_s, rel=0.1)
    known = made(kernels, {"compile": 0.0, "simulate": 0.0}).left()
    assert known.low_s < sum(prior_s(p.request, False)["check"] for p in kernels) < known.high_s
    assert known.expected_s < left.expected_s - 10


def test_remaining_work_is_looked_up() -> None:
    history = History()
    of_one = SPLITS[:5]
    assert work_ahead(of_one, history) == {"compile": 1.0, "simulate": 1.0}
    on_no_gpu = [replace(p, request=replace(p.request, gpu=None)) for p in of_one]
    if not runs_on_gpu(on_no_gpu[0].request):
        assert work_ahead(on_no_gpu, history) == {"compile": 0.0, "simulate": 0.0}
    # All problems of a kernel share its compiled code and its simulation.
    lengths = [point("v05", replace(SMALL, seqlen=s)) for s in (128, 256, 512, 1024)]
    assert work_ahead(lengths, history) == {"compile": 0.25, "simulate": 0.25}
    assert work_ahead([], history) == {"compile": 0.0, "simulate": 0.0}


def test_points_that_were_simulated_before_do_not_rule_out_others() -> None:
    sweep = made(SPLITS)
    for p in SPLITS[:4]:
        sweep.finish(p, *spent(p.request, 0.0))
    rest_s = [sum(spent(p.request, s)[0] for p in SPLITS[4:]) for s in (0.0, 1.0)]
    left = sweep.left()
    assert rest_s[0] < left.expected_s < rest_s[1]
    assert left.low_s < rest_s[0] * 1.2
    assert left.high_s > (rest_s[0] + rest_s[1]) / 2


def test_the_first_estimate_under_load_is_useful() -> None:
    """The first range is narrow enough to use (it was 55 s to 47 min)."""
    left = made(SPLITS, load=4.0).left()
    assert left.high_s / left.low_s < 8
    middle_s = sum(in_all_s(p.request, on_gpu=False) for p in SPLITS) * 4
    for off in (0.5, 2.0):  # a machine or load of half and of twice the default
        assert left.low_s < off * middle_s < left.high_s


def test_a_new_machine_builds_the_simulator_first() -> None:
    ahead = {"compile": 1.0, "simulate": 1.0}
    usual = made(SPLITS, ahead).left()
    sweep = made(SPLITS, ahead, is_built=False)
    more_s = sweep.left().expected_s - usual.expected_s
    assert 10 < more_s < 60
    assert sweep.left().low_s < usual.expected_s + more_s < sweep.left().high_s
    for p in SPLITS[:3]:  # built meanwhile
        sweep.finish(p, in_all_s(p.request, on_gpu=False))
    assert sweep.left().expected_s < usual.expected_s


def test_under_load_an_estimate_grows_and_widens() -> None:
    idle = made(SPLITS)
    for p in SPLITS[:4]:
        idle.finish(p, *spent(p.request, 1.0))
    idle.learn()
    before = made(SPLITS).left()
    under_load = made(SPLITS, load=4.0)
    left = under_load.left()
    assert left.expected_s == pytest.approx(4 * before.expected_s)
    assert left.high_s / left.low_s > 1.5 * before.high_s / before.low_s
    for p in SPLITS[:4]:  # four times as slow, as expected from the load
        took_s, stages = spent(p.request, 1.0)
        under_load.finish(p, 4 * took_s, {stage: 4 * s for stage, s in stages.items()})
    assert under_load.left().expected_s == pytest.approx(4 * idle.left().expected_s)


def test_first_points_of_each_kernel_do_not_predict_later_ones() -> None:
    """Points of the first problem compile and simulate; points of others find that cached."""
    problems = [replace(SMALL, batch=b) for b in range(1, 9)]
    points = [point("v05", p, num_splits=s) for p in problems for s in (1, 2, 4, 8)]
    sweep = made(points, work_ahead(points, History()))

    def took(p: SweepPoint, n: int) -> tuple[float, dict[str, float]]:
        return spent(p.request, 1.0 if n < 4 else 0.0)

    in_all = [took(p, n)[0] for n, p in enumerate(points)]
    left = sweep.left()
    assert left.low_s < sum(in_all) < left.high_s
    for n, p in enumerate(points[:4]):
        sweep.finish(p, *took(p, n))
    left = sweep.left()
    assert left.expected_s < 2 * sum(in_all[4:])  # not as if all had to be simulated
    assert left.low_s < sum(in_all[4:]) < left.high_s


def test_a_rate_that_changes_while_it_runs_is_followed() -> None:
    many = [
        point("v05", replace(SMALL, batch=b), num_splits=s) for b in range(1, 16) for s in (1, 2)
    ]
    sweep = made(many)
    for n, p in enumerate(many[:25]):
        slower = 1.0 if n < 15 else 4.0
        sweep.finish(p, slower * in_all_s(p.request, on_gpu=False))
    rest_s = 4.0 * sum(in_all_s(p.request, on_gpu=False) for p in many[25:])
    left = sweep.left()
    assert left.low_s < rest_s < left.high_s
    assert left.expected_s > 0.6 * rest_s


def test_the_range_before_a_sweep_is_as_wide_as_earlier_ones_were_off() -> None:
    def width_after(factors: tuple[float, ...]) -> float:
        for factor in factors:
            sweep = made(SPLITS)
            for p in SPLITS[:4]:
                sweep.finish(p, factor * in_all_s(p.request, on_gpu=False))
            sweep.learn()
        left = made(SPLITS).left()
        return left.high_s / left.low_s

    steady = width_after((1.0, 1.0, 1.0, 1.0))
    assert steady < 2
    assert width_after((3.0, 1.0, 3.0, 1.0)) > 2 * steady
