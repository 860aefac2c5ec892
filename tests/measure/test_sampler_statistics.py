"""How often the sampler is wrong and how often it sees 2 %: on simulated GPUs with known truth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_gpu import ROUGH, SimulatedConditions, verdict_counts

from engine.measure.verdict import Verdict

PLAIN = SimulatedConditions(noise=0.01)


def false_share(comparisons: int, conditions: SimulatedConditions) -> float:
    counts = verdict_counts(comparisons, 1.0, conditions)
    return (counts[Verdict.FASTER] + counts[Verdict.SLOWER]) / comparisons


def found_share(comparisons: int, conditions: SimulatedConditions) -> float:
    half = comparisons // 2
    slower = verdict_counts(half, 1.02, conditions)[Verdict.SLOWER]
    faster = verdict_counts(half, 1 / 1.02, conditions, seed=half)[Verdict.FASTER]
    return (slower + faster) / (2 * half)


@pytest.mark.parametrize("conditions", [PLAIN, ROUGH], ids=["plain", "rough"])
def test_a_few_comparisons(conditions: SimulatedConditions) -> None:
    # Of 100 at a rate of 0.5 %, more than 4 wrong ones come by chance once in 10,000 runs.
    assert false_share(100, conditions) <= 0.04
    assert found_share(100, conditions) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("conditions", [PLAIN, ROUGH], ids=["plain", "rough"])
def test_a_thousand_comparisons(conditions: SimulatedConditions) -> None:
    false, found = false_share(1000, conditions), found_share(1000, conditions)
    print(f"false FASTER/SLOWER {false:.1%} of 1,000 A/A; true 2 % found {found:.1%} of 1,000")
    assert false <= 0.02
    assert found >= 0.95


@pytest.mark.slow
@pytest.mark.slow
def test_more_noise_does_not_make_more_false_verdicts() -> None:
    # Many looks and a run that ends by the clock: the hardest case for the rule.
    assert false_share(150, replace(ROUGH, noise=0.05)) <= 0.04
