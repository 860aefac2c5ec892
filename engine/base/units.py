"""Format figures for the command line, pages and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_TIME_UNITS = (("s", 1e6), ("ms", 1e3), ("µs", 1.0))
_COUNT_UNITS = (("", 1), (" thousand", 10**3), (" million", 10**6), (" billion", 10**9))


def format_bytes(size_bytes: int) -> str:
    """Return bytes in binary units with three digits: `0 B`, `1,000 B`, `40 KiB`, `1.5 GiB`."""
    size, unit = float(size_bytes), _BYTE_UNITS[0]
    for larger in _BYTE_UNITS[1:]:
        # 1,023.6 KiB would be rounded to 1,024 KiB, so it is shown in the next unit.
        if abs(size) < 1023.5:
            break
        size, unit = size / 1024, larger
    return f"{_short(size)} {unit}"


def time_unit(time_us: float) -> tuple[str, float]:
    """Return the unit in which a time in µs is displayed, and the unit's length in µs."""
    large_enough = ((unit, us) for unit, us in _TIME_UNITS if abs(time_us) >= 0.9995 * us)
    return next(large_enough, _TIME_UNITS[-1])


def format_us(time_us: float) -> str:
    """Return a time in µs with three digits and its unit: `0.85 µs`, `12.3 µs`, `1.07 ms`, `2.5
    s`."""
    unit, scale = time_unit(time_us)
    return f"{_short(time_us / scale)} {unit}"


def format_count(count: float) -> str:
    """Return a count: all digits up to 99,999 (`12,345`), then rounded (`1.23 million`)."""
    if abs(count) < 100_000:
        return f"{count:,.0f}"
    word, scale = next(
        (w, s) for w, s in reversed(_COUNT_UNITS) if abs(count) >= 0.9995 * s or s == 1
    )
    return f"{_short(count / scale)}{word}"


def format_usd(dollars: float) -> str:
    """Return dollars, small sums with three digits: `$1,234`, `$12.30`, `$0.0042`. Only 0 is
    `$0.00`."""
    size = abs(dollars)
    if size >= 1000:
        text = f"{size:,.0f}"
    elif size >= 1 or size == 0:
        text = f"{size:,.2f}"
    else:
        text = _short(size)
    return f"{'-' if dollars < 0 else ''}${text}"


_DAY_S = 86_400.0
_YEAR_S = 365.25 * _DAY_S


def format_duration(seconds: float) -> str:
    """Return a duration in seconds with its unit: `120 ms`, `45 s`, `12 min`, `3.5 h`, `9 days`."""
    if 0 < seconds < 0.95:
        return f"{max(1.0, 1000 * seconds):.0f} ms"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * _DAY_S:
        return f"{seconds / 3600:.1f} h"
    if seconds < 2 * _YEAR_S:
        return f"{seconds / _DAY_S:.0f} days"
    return f"{seconds / _YEAR_S:,.0f} years"


def format_durations(low_s: float, high_s: float) -> str:
    """Return a range of durations in seconds: `20 s to 3 min`; one duration if both ends look the
    same."""
    low, high = format_duration(low_s), format_duration(high_s)
    return low if low == high else f"{low} to {high}"


def format_thread_fill(share: float) -> str:
    """Return a launch's threads over a GPU's thread capacity: `37%`, `0.3%`, `2.9× the slots`."""
    if share > 1:
        return f"{share:.2g}× the slots"
    return f"{share:.0%}" if share >= 0.1 or not share else f"{100 * share:.2g}%"


def format_speedup(speedup: float) -> str:
    """Return a speed-up in words: `1.31× faster`, `45× slower`, `as fast` if within half a per
    cent."""
    if abs(speedup - 1) < 0.005:
        return "as fast"
    if speedup > 1:
        return f"{_short(speedup)}× faster"
    return f"{_short(1 / speedup)}× slower"


def format_speedup_over(speedup: float, other: str) -> str:
    """Return a speed-up over another kernel: `45× slower than SDPA`, `as fast as v05`."""
    words = format_speedup(speedup)
    return f"{words} {'as' if words == 'as fast' else 'than'} {other}"


def _short(value: float) -> str:
    """Return three significant digits without trailing zeros or exponents; no decimals from 100
    on."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def line_ranges(lines: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return (first, last) of each run of consecutive line numbers, ascending."""
    ranges: list[tuple[int, int]] = []
    for line in sorted(lines):
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    return tuple(ranges)
