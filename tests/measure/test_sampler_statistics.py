"""Rates of false verdicts and of detected 2 % differences, on simulated GPUs with known times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_gpu import ROUGH, SimulatedConditions, verdict_counts

from engine.measure.statistics import Verdict

PLAIN = SimulatedConditions(noise=0.01)


def false_share(comparisons: int, conditions: SimulatedConditions) -> float:
    counts = verdict_counts(comparisons, 1.0, conditions)
    return (counts[Verdict.FASTER] + counts[Verdict.SLOWER]) / comparisons


def found_share(comparisons: int, conditions: SimulatedConditions) -> float:
    half = comparisons // 2
    slower = verdict_counts(half, 1.02, conditions)[Verdict.SLOWER]
    faster = verdict_counts(half, 1 / 1.02, conditions, seed=half)[Verdict.FASTER]
    return (slower + faster) / (2 * half)


@pytest.mark.slow
@pytest.mark.parametrize("conditions", [ROUGH], ids=["rough"])
def test_false_verdicts_of_a_few_comparisons(conditions: SimulatedConditions) -> None:
    # At a rate of 0.5 %, more than 4 wrong ones of 100 occur by chance once in 10,000 runs.
    assert false_share(100, conditions) <= 0.04
    assert found_share(100, conditions) >= 0.93


@pytest.mark.exhaustive
@pytest.mark.parametrize("conditions", [PLAIN, ROUGH], ids=["plain", "rough"])
def test_false_verdicts_of_a_thousand_comparisons(conditions: SimulatedConditions) -> None:
    false, found = false_share(1000, conditions), found_share(1000, conditions)
    print(f"false FASTER/SLOWER {false:.1%} of 1,000 A/A; true 2 % found {found:.1%} of 1,000")
    assert false <= 0.02
    assert found >= 0.95


@pytest.mark.exhaustive
def test_more_noise_does_not_make_more_false_verdicts() -> None:
    # Many interim checks and a run that ends by its time limit: the hardest case for the rule.
    assert false_share(75, replace(ROUGH, noise=0.05)) <= 0.04


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.003, pytest.param(0.01, marks=pytest.mark.exhaustive)])
def test_buffer_placement_gives_no_false_verdicts(noise: float) -> None:
    """With a single placement, used by both runs of an A/A pair, a quarter of all verdicts on
    identical kernels were false at an offset of 0.3 %."""
    placed = replace(ROUGH, noise=noise, placement=0.005)
    assert false_share(100, placed) <= 0.04
    assert found_share(60, replace(ROUGH, noise=noise, placement=0.001)) >= 0.9


@pytest.mark.exhaustive
@pytest.mark.parametrize("offset", [0.003, 0.005, 0.01])
def test_buffer_placement_in_many_comparisons(offset: float) -> None:
    false = false_share(500, replace(PLAIN, placement=offset))
    print(f"false FASTER/SLOWER {false:.1%} of 500 A/A at an offset of {offset:.1%}")
    assert false <= 0.02


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01, 0.03])
@pytest.mark.parametrize("ratio", [1.0, 1.01])
def test_a_coarse_timer_gives_no_verdict(noise: float, ratio: float) -> None:
    """Ticks of 0.5 µs for 10 µs: times in the same tick do not count as equal."""
    conditions = SimulatedConditions(noise=noise, timer_step_us=0.5)
    assert verdict_counts(20, ratio, conditions) == {Verdict.UNDECIDED: 20}


def test_a_coarse_timer_detects_a_large_difference() -> None:
    conditions = SimulatedConditions(noise=0.03, timer_step_us=0.5)
    assert verdict_counts(10, 1.5, conditions) == {Verdict.SLOWER: 10}
