"""The median with its confidence interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, quantile_test

from engine.measure.statistics import MIN_SAMPLES, median_interval

times = st.floats(1e-3, 1e9)


@given(samples=st.lists(times, min_size=1, max_size=80))
def test_the_interval_contains_the_median_and_ends_at_samples(samples: list[float]) -> None:
    found = median_interval(samples)
    assert found.median == np.median(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.low in samples
    assert found.high in samples


@given(samples=st.lists(times, min_size=1, max_size=40), seed=st.integers(0, 99))
def test_the_order_of_samples_does_not_matter(samples: list[float], seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(samples)
    assert median_interval(shuffled) == median_interval(samples)


@given(samples=st.lists(times, min_size=MIN_SAMPLES, max_size=120))
def test_scipy_finds_the_same_interval(samples: list[float]) -> None:
    expected = quantile_test(samples, q=1.0, p=0.5).confidence_interval(0.95)
    found = median_interval(samples)
    assert (found.low, found.high) == (expected.low, expected.high)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.98])
def test_the_ends_are_the_binomial_quantiles(confidence: float) -> None:
    for count in (*range(1, 300), 1_000, 99_999, 100_000):
        found = median_interval(np.arange(1.0, count + 1), confidence)
        rank = max(1.0, binom.ppf((1 - confidence) / 2, count, 0.5))
        assert (found.low, found.high) == (rank, count + 1 - rank)


@given(samples=st.lists(times, min_size=MIN_SAMPLES, max_size=60))
def test_more_confidence_is_a_wider_interval(samples: list[float]) -> None:
    narrow, wide = median_interval(samples, 0.8), median_interval(samples, 0.99)
    assert wide.low <= narrow.low
    assert narrow.high <= wide.high


@pytest.mark.parametrize("count", [MIN_SAMPLES, 30, 61])
def test_the_interval_covers_the_median_of_a_skewed_distribution(count: int) -> None:
    rng = np.random.default_rng(7)
    draws = 1.0 + rng.exponential(size=(2000, count))
    true_median = 1.0 + math.log(2)
    covered = sum(m.low <= true_median <= m.high for m in map(median_interval, draws))
    # Coverage at least 95 %, within three standard errors of 2,000 draws, and not much more.
    assert covered / 2000 > 0.95 - 3 * math.sqrt(0.05 * 0.95 / 2000)
    assert covered / 2000 < 0.99


def test_too_few_samples_give_their_whole_range() -> None:
    found = median_interval([3.0, 1.0, 2.0])
    assert (found.low, found.median, found.high) == (1.0, 2.0, 3.0)
    assert found.half_width == 0.5


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [1.0, math.inf], [1.0, 0.0], [-1.0]])
def test_invalid_times_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError):
        median_interval(samples)
