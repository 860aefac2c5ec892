"""Statistics of raw samples: distribution-free, because launch times are skewed and clustered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.schema import Stored

# With fewer samples not even [minimum, maximum] covers the median with 95 %: 2 · 0.5⁶ < 0.05.
MIN_SAMPLES = 6


@dataclass(frozen=True, slots=True)
class MedianInterval(Stored):
    """A median and its confidence interval, in the samples' unit; low ≤ median ≤ high."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval's width as a share of the median (0.005 is ±0.5 %)."""
        return (self.high - self.low) / 2 / self.median


def median_interval(
    samples: Sequence[float] | npt.NDArray[np.float64], confidence: float = 0.95
) -> MedianInterval:
    """Median and exact binomial interval from order statistics (Conover, 1999, §3.2).

    The interval's ends are samples; it covers the true median with at least `confidence` whatever
    the distribution. With too few samples for that it is [minimum, maximum].

    Raises:
        ValueError: no samples, or one that is not finite and positive, as times and ratios are.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("a median needs at least one sample")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError("samples must be finite and positive")
    from scipy.stats import binom

    ordered = np.sort(values)
    # P(fewer than `rank` of n samples lie below the median) ≤ (1 − confidence) / 2, at each end.
    rank = max(1, int(binom.ppf((1 - confidence) / 2, values.size, 0.5)))
    return MedianInterval(float(np.median(values)), float(ordered[rank - 1]), float(ordered[-rank]))
