"""Intervals contain published times of other authors' kernels, including series left out."""

from __future__ import annotations

from engine.machine_code.timing.constants import MEASURED_ARCHS, RESIDUALS
from tests.bench.counted_sets import counted_points, inside_left_out, residuals, right_pairs

POINTS = counted_points()


def test_residuals_are_those_of_the_counted_points() -> None:
    assert dict(RESIDUALS) == residuals(POINTS)
    assert set(MEASURED_ARCHS) == {p.arch for p in POINTS}


def test_counted_points_cover_many_series() -> None:
    assert len(POINTS) >= 80
    assert len({p.series for p in POINTS}) >= 10


def test_nine_of_ten_points_of_a_series_left_out_lie_inside() -> None:
    assert 0.85 <= len(inside_left_out(POINTS)) / len(POINTS) <= 0.95


def test_the_faster_of_two_is_named() -> None:
    right, total = right_pairs(POINTS)
    assert total >= 300
    assert right >= 0.97 * total


def test_fitted_points_are_excluded_from_the_count() -> None:
    """Points of series used for fitting are simulated with constants fitted to the other series."""
    fitted = [p for p in POINTS if p.simulated_us != p.as_shipped_us]
    assert {p.arch for p in fitted} == {"sm_90", "sm_120"}
    assert sum(abs(p.error) for p in POINTS) / len(POINTS) < 0.09
    shipped = [abs(p.as_shipped_us / p.measured_us - 1) for p in POINTS]
    assert sum(shipped) / len(POINTS) < 0.09
