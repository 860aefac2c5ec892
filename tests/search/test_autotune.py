"""From a search to a saved config: timed side by side on a GPU, else by predicted times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from search_data import SMALL, SimulatedCandidates, row
from simulated_gpu import SimulatedConditions, SimulatedDevice
from words import says

from engine.attention.config import problem_class
from engine.base.errors import Status
from engine.measure.sampler import SamplerSettings
from engine.search.autotune import RACERS, Candidates, problem_results, tuned_config
from engine.search.ranking import SweepRow

WARM = SamplerSettings(kinds=("device_warm",))


def test_the_final_round_is_measured_side_by_side_on_a_gpu() -> None:
    """The search's times are 2 % off and rank wrongly; the final round ranks correctly."""
    truth = {1: 10.0, 2: 10.0, 4: 10.3, 8: 12.0}
    seen = {1: 10.2, 2: 10.3, 4: 10.1, 8: 12.0}
    rows = [row("v05", t, config={"num_splits": s}) for s, t in seen.items()]
    true_us = {r.point: truth[r.config["num_splits"]] for r in rows}

    @contextmanager
    def opened(racers: Sequence[SweepRow]) -> Iterator[Candidates]:
        assert list(racers) == sorted(rows, key=lambda r: r.median_us or 0.0)
        device = SimulatedDevice(true_us, SimulatedConditions(noise=0.004), 5)
        yield SimulatedCandidates(device, [r.point for r in racers])

    (result,) = problem_results(rows, opened, WARM)
    by_point = {r.point: r.config["num_splits"] for r in rows}
    assert {by_point[w] for w in result.winners} == {1, 2}
    assert [p.place for p in result.places] == [1, 1, 3, 4]
    assert result.origin == "measured"
    assert says(result.reason, "measured_side_by_side")


def test_without_a_gpu_times_within_the_noise_are_tied() -> None:
    rows = [row("v05", t, config={"num_splits": s}) for s, t in ((1, 10.2), (2, 10.1), (4, 13.0))]
    (result,) = problem_results(rows)
    assert [p.place for p in result.places] == [1, 1, 3]
    assert says(result.reason, "one_after_another")


def test_predictions_are_never_measured_side_by_side_and_are_labelled() -> None:
    def opened(_: Sequence[SweepRow]) -> AbstractContextManager[Candidates]:
        raise AssertionError("nothing to measure")

    rows = [row("v05", 10.0 + s, config={"num_splits": s}, origin="predicted") for s in (1, 2)]
    (result,) = problem_results(rows, opened)
    assert result.origin == "predicted"
    assert says(result.reason, "predicted_tie")


def test_only_the_best_enter_the_final_round_and_all_have_a_place() -> None:
    many = [
        row("v05", 10.0 + i, config={"num_splits": s, "threads_per_row": t, "block_n": b})
        for i, (s, t, b) in enumerate(
            (s, t, b) for s in (1, 2, 4, 8, 16, 32) for t in (2, 4, 8) for b in (32, 64)
        )
    ]
    true_us = {r.point: r.median_us or 0.0 for r in many}

    failing = many[1].point

    @contextmanager
    def opened(racers: Sequence[SweepRow]) -> Iterator[Candidates]:
        assert len(racers) == RACERS
        device = SimulatedDevice(true_us, SimulatedConditions(noise=0.004))
        yield SimulatedCandidates(device, [r.point for r in racers], [failing])

    (result,) = problem_results(many, opened, WARM)
    assert sorted(p.point for p in result.places) == sorted(set(true_us) - {failing})
    assert [p.place for p in result.places] == list(range(1, len(many)))
    assert [p.point for p in result.places[:2]] == [many[0].point, many[2].point]


def test_a_saved_config_has_its_origin() -> None:
    rows = [
        row("v05", 10.0, config={"num_splits": 2}),
        row("v05", 12.0, config={"num_splits": 4}),
        row("v01", 50.0),
        row("v02", None, status=Status.CRASHED),
        row("v05", 1.0, replace(SMALL, seqlen=64)),
    ]
    result = problem_results(rows)[0]
    kept = tuned_config(result, rows, "random", "v05")
    assert kept is not None
    assert kept.config == rows[0].config
    assert (kept.gpu, kept.origin, kept.strategy, kept.evaluations) == (
        "L4",
        "measured",
        "random",
        2,
    )
    assert kept.problem_class == problem_class(SMALL)
    of_v01 = tuned_config(result, rows, "random", "v01")
    assert of_v01 is not None
    assert of_v01.median_us == 50.0
    assert tuned_config(result, rows, "random", "v02") is None


def test_each_of_two_gpus_of_one_model_has_a_winner() -> None:
    """Each GPU has its own winner, as times of different GPUs are never ranked together."""
    rows = [
        row("v05", t, config={"num_splits": s}, gpu=gpu)
        for gpu, s, t in (("GPU-a", 1, 6.0), ("GPU-a", 2, 5.0), ("GPU-b", 4, 8.0), ("GPU-b", 8, 9))
    ]
    asked: list[set[str]] = []

    @contextmanager
    def opened(racers: Sequence[SweepRow]) -> Iterator[Candidates]:
        asked.append({r.measured_on for r in racers})
        times = {r.point: r.median_us or 0.0 for r in racers}
        yield SimulatedCandidates(SimulatedDevice(times, SimulatedConditions()), list(times))

    for results in (problem_results(rows), problem_results(rows, opened, WARM)):
        assert [r.device for r in results] == ["L4 (GPU-a on node7)", "L4 (GPU-b on node7)"]
        assert [r.winners for r in results] == [(rows[1].point,), (rows[2].point,)]
        assert [len(r.places) for r in results] == [2, 2]
        kept = [tuned_config(r, rows, "random", "v05") for r in results]
        assert [(k.gpu, k.config["num_splits"], k.evaluations) for k in kept if k] == [
            ("L4", 2, 2),
            ("L4", 4, 2),
        ]
    assert asked == [{"GPU-a"}, {"GPU-b"}]


def test_where_nothing_has_a_time_there_is_no_best() -> None:
    assert problem_results([row("v05", None, status=Status.CRASHED)]) == []
