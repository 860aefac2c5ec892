"""Final round: slow candidates are dropped early, the best five are measured, equals tie."""

from __future__ import annotations

from collections import Counter

import pytest
from search_data import SimulatedCandidates
from simulated_gpu import SimulatedConditions, SimulatedDevice, Throttle
from words import raises, says

from engine.measure.sampler import SamplerSettings
from engine.search.autotune import FINALISTS, race
from engine.search.ranking import ties

WARM = SamplerSettings(kinds=("device_warm",))
FIELD = {f"c{i:02}": 10.0 * (1 + 0.04 * i) for i in range(24)}


class Counting(SimulatedDevice):
    """Counts the samples of each candidate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.taken: Counter[str] = Counter()

    def time_once(self, candidate: str, kind, placement: int = 0) -> float:  # type: ignore[no-untyped-def]
        self.taken[candidate] += 1
        return super().time_once(candidate, kind, placement)


@pytest.mark.slow
def test_the_fastest_candidate_wins_in_any_order() -> None:
    for seed in range(5):
        names = sorted(FIELD, key=lambda n: (int(n[1:]) * 7 + seed) % 24)
        device = SimulatedDevice(FIELD, SimulatedConditions(noise=0.01), seed)
        result = race(SimulatedCandidates(device, names), WARM)
        assert result.places[0].point == "c00"
        assert [p.place for p in result.places] == [1, 2, 3, 4, 5]
        assert {p.point for p in result.places} == {f"c0{i}" for i in range(5)}
        assert set(result.left_in_heat) == set(FIELD) - {p.point for p in result.places}


def test_slow_candidates_take_few_rounds() -> None:
    device = Counting(FIELD, SimulatedConditions(noise=0.01), 3)
    result = race(SimulatedCandidates(device, sorted(FIELD, reverse=True)), WARM)
    assert result.left_in_heat["c23"] == 1
    finalist, loser = device.taken["c01"], device.taken["c22"]
    assert loser < finalist / 3


def test_equal_candidates_share_the_first_place() -> None:
    true_us = {"a": 10.0, "b": 10.0, "c": 11.0}
    device = SimulatedDevice(true_us, SimulatedConditions(noise=0.004), 2)
    result = race(SimulatedCandidates(device, "cba"), WARM)
    assert {p.point: p.place for p in result.places} == {"a": 1, "b": 1, "c": 3}
    assert ties(result.places) == {1}


def test_possibly_best_candidates_are_not_dropped_early() -> None:
    """With all candidates within noise none is dropped before the last heat."""
    true_us = {f"c{i}": 10.0 for i in range(12)}
    device = SimulatedDevice(true_us, SimulatedConditions(noise=0.05), 1)
    result = race(SimulatedCandidates(device, list(true_us)), WARM)
    assert len(result.places) == FINALISTS
    assert min(result.left_in_heat.values()) >= 2
    assert Counter(result.left_in_heat.values())[3] >= 5


def test_few_candidates_need_no_elimination_rounds() -> None:
    device = SimulatedDevice({"a": 10.0, "b": 12.0}, SimulatedConditions(noise=0.004))
    result = race(SimulatedCandidates(device, ["b", "a", "b"]), WARM)
    assert result.left_in_heat == {}
    assert [p.point for p in result.places] == ["a", "b"]
    alone = race(SimulatedCandidates(device, ["a"]), WARM)
    assert [p.place for p in alone.places] == [1]
    assert ties(alone.places) == frozenset()
    with raises(ValueError, "race_without_candidate"):
        race(SimulatedCandidates(device, []), WARM)


def test_on_a_throttled_gpu_all_tie_with_a_note() -> None:
    hot = SimulatedConditions(noise=0.004, throttles=(Throttle(0.0, 1e9, 0.5),))
    settings = SamplerSettings(kinds=("device_warm",), max_s=1.0)
    result = race(SimulatedCandidates(SimulatedDevice({"a": 10.0, "b": 20.0}, hot), "ab"), settings)
    assert says(result.throttled, "hardware_thermal_slowdown")
    assert [p.place for p in result.places] == [1, 1]


def test_a_final_round_can_be_stopped() -> None:
    device = SimulatedDevice(FIELD, SimulatedConditions(noise=0.01))
    result = race(
        SimulatedCandidates(device, list(FIELD)),
        WARM,
        should_stop=lambda: device.samples_taken > 300,
    )
    assert result.final.stop == "cancelled"


def test_failed_candidates_have_no_place() -> None:
    device = SimulatedDevice(FIELD, SimulatedConditions(noise=0.01))
    result = race(SimulatedCandidates(device, list(FIELD), failing=["c00", "c03"]), WARM)
    assert [p.point for p in result.places[:3]] == ["c01", "c02", "c04"]
    assert result.left_in_heat["c00"] == 1
    alone = SimulatedCandidates(device, ["c00"], failing=["c00"])
    assert race(alone, WARM).places == ()
