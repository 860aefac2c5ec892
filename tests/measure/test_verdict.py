"""The rule for FASTER, SLOWER, SAME and UNDECIDED, and its intervals."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from words import raises, says

from engine.measure.statistics import (
    MIN_DIFFERENCE,
    RUN_TO_RUN_FLOOR,
    Comparison,
    Verdict,
    aa_floor,
    decide,
    interval_verdict,
    median_interval,
    paired_verdict,
)

FLOOR = math.log1p(0.008)


@pytest.mark.parametrize(
    ("low", "middle", "high", "verdict"),
    [
        (-0.030, -0.020, -0.010, Verdict.FASTER),
        (0.010, 0.020, 0.030, Verdict.SLOWER),
        (-0.004, 0.000, 0.004, Verdict.SAME),
        (0.001, 0.002, 0.003, Verdict.SAME),  # significant, but too small to matter
        (-0.010, 0.000, 0.010, Verdict.UNDECIDED),  # interval too wide
        (-0.020, -0.009, 0.001, Verdict.UNDECIDED),  # includes 0
        (0.0055, 0.006, 0.0065, Verdict.UNDECIDED),  # significant, but within the A/A floor
        (0.004, 0.0045, 0.006, Verdict.UNDECIDED),  # excludes 0, not above 0.5 %
    ],
)
def test_the_verdict_follows_interval_and_floor(
    low: float, middle: float, high: float, verdict: Verdict
) -> None:
    assert decide(low, high, FLOOR, log_ratio=middle) is verdict


def test_without_a_floor_half_a_percent_is_the_threshold() -> None:
    just_under, just_over = math.log1p(MIN_DIFFERENCE) - 1e-6, math.log1p(MIN_DIFFERENCE) + 1e-6
    assert decide(0.004, 0.006, 0.0, log_ratio=just_under) is Verdict.UNDECIDED
    assert decide(0.004, 0.006, 0.0, log_ratio=just_over) is Verdict.SLOWER


ends = st.floats(-0.1, 0.1)


@given(st.tuples(ends, ends, ends), st.floats(0, 0.05))
def test_swapping_the_two_sides_reverses_the_verdict(
    three: tuple[float, float, float], floor: float
) -> None:
    low, middle, high = sorted(three)
    there = decide(low, high, floor, log_ratio=middle)
    back = decide(-high, -low, floor, log_ratio=-middle)
    turned = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    assert back is turned.get(there, there)


@given(st.tuples(ends, ends, ends), st.floats(0, 0.05), st.floats(0, 0.05))
def test_a_higher_floor_never_decides_more(
    three: tuple[float, float, float], floor: float, more: float
) -> None:
    low, middle, high = sorted(three)
    decided = {Verdict.FASTER, Verdict.SLOWER}
    if decide(low, high, floor + more, log_ratio=middle) in decided:
        assert decide(low, high, floor, log_ratio=middle) in decided


def noisy(seed: int, rounds: int, ratio: float, noise: float = 0.01) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return 10.0 * ratio * np.exp(noise * rng.standard_normal(rounds))


def unpaired(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], **floor: float) -> Comparison:
    """Return the interval of two runs that were measured one after the other."""
    return interval_verdict(median_interval(a), median_interval(b), **floor)


def test_a_clear_difference_is_found_with_its_size() -> None:
    found = paired_verdict(noisy(1, 60, 1.0), noisy(2, 60, 0.9), FLOOR)
    assert found.verdict is Verdict.FASTER
    assert found.low < 0.9 < found.high
    assert found.speedup == pytest.approx(1 / 0.9, rel=0.01)
    assert found.pairs == 60
    assert "faster" in found.reason
    assert "60 rounds" in found.reason


def test_paired_ratios_cancel_clock_changes() -> None:
    swing = 1 + 0.3 * np.sin(np.arange(60))  # ±30 % from round to round, the same for both
    found = paired_verdict(noisy(1, 60, 1.0) * swing, noisy(2, 60, 0.97) * swing, FLOOR)
    assert found.verdict is Verdict.FASTER
    assert unpaired(noisy(1, 60, 1.0) * swing, noisy(2, 60, 0.97) * swing).verdict is (
        Verdict.UNDECIDED
    )


def test_a_dropped_sample_excludes_its_pair() -> None:
    a, b = noisy(1, 40, 1.0), noisy(2, 40, 0.9)
    a[:5] = np.nan
    b[3:10] = np.nan
    assert paired_verdict(a, b, FLOOR).pairs == 30
    full = paired_verdict(a[10:], b[10:], FLOOR)
    assert paired_verdict(a, b, FLOOR).ratio == full.ratio


def test_too_few_pairs_are_no_evidence() -> None:
    found = paired_verdict([10.0] * 5, [5.0] * 5, 0.0)
    assert found.verdict is Verdict.UNDECIDED
    assert says(found.reason, "too_few_rounds", "5")
    assert aa_floor([10.0] * 5, [10.0] * 5) == math.inf


def test_without_a_known_noise_floor_there_is_no_faster_and_a_reason() -> None:
    found = paired_verdict(noisy(1, 60, 1.0), noisy(2, 60, 0.9), math.inf)
    assert found.verdict is Verdict.UNDECIDED
    assert says(found.reason, "measured_often_enough")


def test_unequal_numbers_of_rounds_are_refused() -> None:
    with raises(ValueError, "same_rounds_paired"):
        paired_verdict([1.0] * 30, [1.0] * 29, 0.0)


def test_the_noise_floor_is_the_larger_end_of_the_aa_interval() -> None:
    steady, off = noisy(1, 200, 1.0, noise=1e-4), noisy(2, 200, 1.004, noise=1e-4)
    assert aa_floor(steady, off) == pytest.approx(math.log(1.004), rel=0.02)
    assert aa_floor(off, steady) == pytest.approx(aa_floor(steady, off))
    few, many = (aa_floor(noisy(1, n, 1.0), noisy(2, n, 1.0)) for n in (10, 1000))
    assert many < few


def test_separate_runs_need_more_than_the_difference_between_runs() -> None:
    a = noisy(1, 200, 1.0, noise=0.002)
    assert unpaired(a, noisy(2, 200, 0.98, noise=0.002)).verdict is Verdict.UNDECIDED
    found = unpaired(a, noisy(2, 200, 0.95, noise=0.002))
    assert found.verdict is Verdict.FASTER
    assert found.floor == pytest.approx(RUN_TO_RUN_FLOOR)
    assert found.low < 0.95 < found.high
    assert unpaired(a, noisy(2, 200, 0.98, noise=0.002), floor=0.0).verdict is (Verdict.FASTER)


def test_the_unpaired_interval_covers_the_true_ratio() -> None:
    covered = 0
    for seed in range(400):
        found = unpaired(
            noisy(2 * seed, 40, 1.0), noisy(2 * seed + 1, 70, 1.013, noise=0.03), floor=0.0
        )
        covered += found.low <= 1.013 <= found.high
    assert 0.94 <= covered / 400 <= 0.995
