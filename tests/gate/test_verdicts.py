"""Rules for the gate's verdicts from the figures before and after a change."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from words import raises

from engine.versions.figures import (
    Answer,
    Figures,
    GateVerdict,
    NeighbourPair,
    Thresholds,
    compare_answers,
    compare_figures,
    default_threshold,
    neighbour_pairs,
    simulated_finding,
    threshold_of,
)

FIGURES = Figures(
    registers=100,
    spill_bytes=0,
    smem_bytes=1024,
    ctas_per_sm=3,
    code_bytes=8000,
    instructions=1000,
    conflicts=0,
    wavefronts=500,
    sectors=4000,
    local_sectors=0,
    simulated_us=50.0,
)
RULES = Thresholds(simulated=0.14)


def verdicts(**changed: float) -> list[tuple[str, bool]]:
    after = replace(FIGURES, **changed)
    return [(str(f.verdict), f.is_regression) for f in compare_figures(FIGURES, after, RULES)]


@pytest.mark.parametrize(
    "changed",
    [
        {"spill_bytes": 4},
        {"local_sectors": 1},
        {"conflicts": 6, "wavefronts": 506},
        {"sectors": 4041},
        {"instructions": 1021},
        {"ctas_per_sm": 2},
    ],
)
def test_each_count_that_is_worse_is_a_regression(changed: dict[str, float]) -> None:
    assert verdicts(**changed) == [(GateVerdict.COUNTED_WORSE, True)]


@pytest.mark.parametrize(
    "changed",
    [
        {"conflicts": 5, "wavefronts": 505},
        {"sectors": 4040},
        {"instructions": 1020},
        {"registers": 120},
        {"code_bytes": 16000},
        {"simulated_us": 56.9},
        {"simulated_us": 44.0},
    ],
)
def test_a_change_within_its_threshold_has_no_verdict(changed: dict[str, float]) -> None:
    assert verdicts(**changed) == []


def test_a_lower_count_is_an_improvement() -> None:
    assert verdicts(instructions=900, ctas_per_sm=4) == [(GateVerdict.COUNTED_BETTER, False)] * 2


def test_higher_counts_of_a_faster_kernel_are_no_regression_but_spills_are() -> None:
    assert verdicts(instructions=1500, simulated_us=30.0) == [
        (GateVerdict.SIMULATED_FASTER, False),
        (GateVerdict.COUNTED_WORSE, False),
    ]
    assert (GateVerdict.COUNTED_WORSE, True) in verdicts(spill_bytes=8, simulated_us=30.0)


def test_a_slower_kernel_is_a_regression_despite_savings() -> None:
    assert (GateVerdict.SIMULATED_SLOWER, True) in verdicts(instructions=500, simulated_us=60.0)


def test_the_threshold_is_symmetric() -> None:
    slower = simulated_finding(10.0, 11.41, 0.14)
    faster = simulated_finding(11.41, 10.0, 0.14)
    assert slower is not None
    assert faster is not None
    assert slower.verdict is GateVerdict.SIMULATED_SLOWER
    assert faster.verdict is GateVerdict.SIMULATED_FASTER
    assert simulated_finding(10.0, 11.39, 0.14) is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Answer("a", FIGURES), Answer("a", FIGURES), GateVerdict.SAME_CODE),
        (Answer("a", FIGURES), Answer("b", FIGURES), "UNDECIDED"),
        (Answer("a", FIGURES), Answer(fault="No."), "BROKEN"),
        (Answer("a", FIGURES), Answer(fault="No.", refused=True), "BROKEN"),
        (Answer(fault="No."), Answer("b", FIGURES), "FIXED"),
        (Answer("a", FIGURES), Answer(obstacle="No tool."), GateVerdict.NOT_JUDGED),
    ],
)
def test_statuses_of_both_sides(before: Answer, after: Answer, expected: str) -> None:
    assert [str(f.verdict) for f in compare_answers(before, after, RULES)] == [expected]


def test_a_problem_that_neither_side_supports_has_no_row() -> None:
    refused = Answer(fault="No.", refused=True)
    assert compare_answers(refused, refused, RULES) == ()


def test_a_kernel_that_is_not_simulated_is_judged_by_its_counts() -> None:
    plain = replace(FIGURES, simulated_us=None)
    worse = replace(plain, instructions=2000)
    before = Answer("a", plain, obstacle="Not simulated.")
    found = compare_answers(before, Answer("b", worse, obstacle="Not simulated."), RULES)
    assert [str(f.verdict) for f in found] == [GateVerdict.COUNTED_WORSE]
    found = compare_answers(before, Answer("b", plain, obstacle="Not simulated."), RULES)
    assert [str(f.verdict) for f in found] == [GateVerdict.NOT_JUDGED]


def pair(simulated: float, measured: float, chosen_on: bool = False) -> NeighbourPair:
    return NeighbourPair("g", "a", "b", measured, simulated, chosen_on)


def test_the_threshold_exceeds_every_difference_with_a_wrong_sign() -> None:
    pairs = [pair(1.02, 0.99), pair(0.9, 0.95), pair(1.2, 1.3), pair(0.95, 1.05)]
    found = threshold_of(pairs)
    assert found.share == pytest.approx(1 / 0.9 - 1)
    assert (found.pairs, found.wrong) == (2, 0)
    assert found.error_bound == pytest.approx(1 - math.sqrt(0.05))


def test_pairs_that_were_used_for_fitting_do_not_count() -> None:
    assert threshold_of([pair(1.2, 0.9, chosen_on=True), pair(1.1, 1.1)]).share < 0.11


def test_without_a_larger_correct_pair_there_is_no_threshold() -> None:
    with raises(ValueError, "pairs_all_nearer"):
        threshold_of([pair(1.5, 0.9)])


def test_the_recorded_pairs_give_the_threshold_that_is_used() -> None:
    counted = [p for p in neighbour_pairs() if not p.chosen_on]
    assert len(counted) >= 20
    share = default_threshold().share
    far = [p for p in counted if math.expm1(p.apart) >= share - 1e-9]
    assert all(p.is_right for p in far)
    assert len(far) == default_threshold().pairs
    assert not all(p.is_right for p in counted if p not in far)
    assert str(len(far)) in str(default_threshold())
