"""Properties of all charts: every colour scale has values; two variants have two colours."""

from __future__ import annotations

import pytest

from app.shared.chart_style import log_ticks
from app.shared.palette import color_of, colors_of
from kernels.ladder import LADDER


@pytest.mark.parametrize(
    ("low", "high"),
    [(70.7, 98.3), (23.6, 37.4), (2.01, 9.99), (8.65, 13.7), (85, 86), (110, 2680), (1, 5000)],
)
def test_an_axis_has_at_least_two_tick_values_and_only_a_few(low, high):
    ticks = log_ticks(low, high)
    assert ticks == sorted(ticks)
    assert 2 <= sum(low <= tick <= high for tick in ticks) <= 12


def test_the_axis_of_a_single_value_surrounds_it():
    ticks = log_ticks(10, 10)
    assert min(ticks) < 10 < max(ticks)


def test_variants_of_one_chart_have_different_colours():
    ids = [variant.id for variant in LADDER]
    same = next(v for v in ids[1:] if color_of(v) == color_of(ids[0]))
    colors = colors_of([same, ids[0]])
    assert colors[ids[0]] == color_of(ids[0])
    assert colors[same] != colors[ids[0]]
