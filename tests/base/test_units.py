"""Formatting of numbers with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.units import (
    format_bytes,
    format_count,
    format_duration,
    format_thread_fill,
    format_us,
    format_usd,
)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1000, "1,000 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (40960, "40 KiB"),
        (232448, "227 KiB"),
        (1024 * 1024 - 1, "1 MiB"),
        (24 * 1024**3, "24 GiB"),
        (2**64, "16 EiB"),
    ],
)
def test_format_of_bytes(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.0, "0 µs"),
        (0.0004, "0.0004 µs"),
        (0.00001, "0.00001 µs"),
        (0.854, "0.854 µs"),
        (12.34, "12.3 µs"),
        (99.96, "100 µs"),
        (543.2, "543 µs"),
        (999.7, "1 ms"),
        (1073, "1.07 ms"),
        (2_500_000, "2.5 s"),
        (12_345_678_900, "12,346 s"),
    ],
)
def test_format_of_times(time_us: float, text: str) -> None:
    assert format_us(time_us) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (12345, "12,345"),
        (99_999, "99,999"),
        (100_000, "100 thousand"),
        (1_234_567, "1.23 million"),
        (999_900_000, "1 billion"),
        (10**12, "1,000 billion"),
    ],
)
def test_format_of_counts(count: float, text: str) -> None:
    assert format_count(count) == text


@given(st.integers(min_value=0, max_value=2**70))
def test_the_figure_is_the_size_to_three_digits(size_bytes: int) -> None:
    number, unit = format_bytes(size_bytes).split()
    scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    assert abs(float(number.replace(",", "")) * scale - size_bytes) <= 0.005 * size_bytes


def test_dollars_are_not_rounded_away() -> None:
    shown = [format_usd(x) for x in (0, 1234.5, 12.3, 0.75, 0.0042, 2.1852679e-05, -0.0185)]
    assert shown == ["$0.00", "$1,234", "$12.30", "$0.75", "$0.0042", "$0.0000219", "-$0.0185"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2e-5, "1 ms"),
        (0.12, "120 ms"),
        (0.99, "1 s"),
        (45, "45 s"),
        (720, "12 min"),
        (12_600, "3.5 h"),
        (2.9e6, "34 days"),
        (2.865e10, "908 years"),
    ],
)
def test_format_of_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0029, "0.29%"), (0.366, "37%"), (1.0, "100%"), (2.94, "2.9× the slots")]
)
def test_a_fill_above_one_is_not_a_percentage(share: float, text: str) -> None:
    assert format_thread_fill(share) == text
