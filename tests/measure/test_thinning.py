"""Thinning for charts: extremes are kept, and drawn points do not move while data are added."""

from __future__ import annotations

import numpy as np
import pytest

from engine.jobs.latency_series import Thinned, spans


def series(size: int, period_s: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(size).lognormal(3.0, 0.1, size)
    return np.arange(size) * period_s, values


def test_a_short_series_is_drawn_whole() -> None:
    at_s, values = series(300)
    assert Thinned().update(at_s[:0], values[:0]).tolist() == []
    # Slices of 1/16 s hold six or seven samples here; with one each, nothing is left out.
    apart_s, few = series(20, period_s=0.1)
    assert Thinned().update(apart_s, few).tolist() == list(range(20))
    assert 3 <= Thinned().update(at_s, values).size < 300


@pytest.mark.parametrize("size", [2_000, 50_000])
def test_thinning_keeps_the_extremes(size: int) -> None:
    at_s, values = series(size)
    values[size // 3], values[size // 2] = 500.0, 0.01
    thinned = Thinned(max_slices=100)
    drawn = thinned.update(at_s, values)
    assert drawn.size <= 300
    assert np.all(np.diff(drawn) > 0)
    assert {size // 3, size // 2} <= set(drawn.tolist())
    # The lowest and the highest of every slice.
    slices = (at_s / thinned.width_s).astype(int)
    for i in range(slices[-1] + 1):
        own = np.flatnonzero(slices == i)
        here = np.intersect1d(own, drawn)
        assert values[here].min() == values[own].min()
        assert values[here].max() == values[own].max()


def test_incremental_thinning_equals_thinning_at_once() -> None:
    at_s, values = series(20_000)
    grown = Thinned(max_slices=64)
    for end in np.random.default_rng(0).integers(1, 20_000, 200).cumsum().clip(max=20_000):
        drawn = grown.update(at_s[:end], values[:end])
    assert drawn.tolist() == Thinned(max_slices=64).update(at_s, values).tolist()


def test_drawn_points_are_stable_until_slices_double() -> None:
    at_s, values = series(5_000)
    thinned = Thinned(max_slices=100)
    before = set(thinned.update(at_s[:1_000], values[:1_000]).tolist())
    width_s, open_from = thinned.width_s, int(at_s[999] / thinned.width_s)
    after = set(thinned.update(at_s[:1_100], values[:1_100]).tolist())
    assert thinned.width_s == width_s
    assert {i for i in before - after if at_s[i] / width_s < open_from} == set()


def test_spans_last_until_the_next_sample_and_close_short_gaps() -> None:
    at_s = np.arange(8, dtype=float)
    on = np.array([0, 1, 1, 0, 0, 0, 0, 1], dtype=bool)
    assert spans(on, at_s, least_s=0.5) == [(1.0, 3.0), (7.0, 7.5)]
    assert spans(on, at_s, least_s=10.0) == [(1.0, 17.0)]
    assert spans(~on, at_s, least_s=0.5) == [(0.0, 1.0), (3.0, 7.0)]
    assert spans(np.zeros(8, dtype=bool), at_s, least_s=0.5) == []
    assert spans(np.ones(1, dtype=bool), at_s[:1], least_s=0.5) == [(0.0, 0.5)]
