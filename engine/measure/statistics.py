"""Statistics of raw samples. They assume no distribution, because launch times are skewed and
clustered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.schema import Stored

# With fewer samples, not even [minimum, maximum] is a 95 % interval: 2 · 0.5⁶ < 0.05.
MIN_SAMPLES = 6


@dataclass(frozen=True, slots=True)
class MedianInterval(Stored):
    """A median and its confidence interval, in the samples' unit; low ≤ median ≤ high."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Return half the interval's width as a share of the median (0.005: ±0.5 %)."""
        return (self.high - self.low) / 2 / self.median


def median_interval(
    samples: Sequence[float] | npt.NDArray[np.float64], confidence: float = 0.95
) -> MedianInterval:
    """Return the median and its exact binomial interval from order statistics (Conover, 1999,
    §3.2).

    The interval's ends are samples. It covers the true median with at least `confidence`, for any
    distribution. With too few samples for that it is [minimum, maximum].

    Raises:
        ValueError: there are no samples, or one is not finite and positive.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("a median needs at least one sample")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError("samples must be finite and positive")
    from scipy.special import bdtr, bdtrik

    ordered, n = np.sort(values), values.size
    # P(fewer than `rank` of n samples are below the median) ≤ (1 − confidence) / 2, at each end:
    # the quantile of the binomial distribution.
    tail = (1 - confidence) / 2
    rank = math.ceil(bdtrik(tail, n, 0.5))
    if rank >= 1 and bdtr(rank - 1, n, 0.5) >= tail:
        rank -= 1
    rank = max(1, rank)
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return MedianInterval(float(median), float(ordered[rank - 1]), float(ordered[-rank]))


# Decide which of two kernels is faster.
# Ratios are candidate / incumbent: below 1, the candidate is faster. Differences are log-ratios, so
# that "2 % faster" and "2 % slower" are equally far from zero.


Times: TypeAlias = Sequence[float] | npt.NDArray[np.float64]

CONFIDENCE = 0.95
# Differences below this share are irrelevant, however precisely they are measured.
MIN_DIFFERENCE = 0.005
# Identical kernels measured one after another, not in shuffled rounds, differ by 1 to 3 %.
RUN_TO_RUN_FLOOR = 0.03
# Confidence of the placement floor. A placement does not change during a run, so unlike noise its
# effect does not average out over more rounds.
PLACEMENT_CONFIDENCE = 0.98
# Times that differ by a smaller share are the same reading of the timer.
_SAME_TICK = 1e-6


class Verdict(StrEnum):
    """The verdict on a candidate compared with an incumbent."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A verdict with its ratio and interval; the ratios are NaN if nothing could be compared."""

    verdict: Verdict
    ratio: float  # median of candidate time / incumbent time
    low: float  # 95 % confidence interval of the ratio
    high: float
    floor: float  # share by which identical kernels seem to differ here (0.008 is 0.8 %)
    pairs: int  # rounds in which both were measured; unpaired: the size of the smaller sample
    reason: str

    @property
    def speedup(self) -> float:
        """Return the incumbent's time / the candidate's."""
        return 1 / self.ratio


def decide(
    log_ratio_low: float, log_ratio_high: float, aa_floor: float, *, log_ratio: float
) -> Verdict:
    """Return the verdict on a log-ratio.

    FASTER or SLOWER if the interval excludes 0 and the difference exceeds max(0.5 %, A/A floor);
    SAME if the interval lies within ±0.5 %; else UNDECIDED.

    Args:
        log_ratio_low: lower end of the 95 % interval of ln(candidate / incumbent).
        log_ratio_high: its upper end.
        aa_floor: |ln ratio| between two runs of the same kernel.
        log_ratio: the median.
    """
    smallest = math.log1p(MIN_DIFFERENCE)
    if (log_ratio_low > 0 or log_ratio_high < 0) and abs(log_ratio) > max(smallest, aa_floor):
        return Verdict.SLOWER if log_ratio > 0 else Verdict.FASTER
    if -smallest <= log_ratio_low and log_ratio_high <= smallest:
        return Verdict.SAME
    return Verdict.UNDECIDED


def aa_floor(first_us: Times, second_us: Times) -> float:
    """Return how far two runs of one kernel may seem to differ: the far end of the 95 % interval of
    |ln ratio|.

    Not the median, because with few rounds the floor itself is uncertain. Infinite if there are too
    few pairs for an interval.

    Args:
        first_us: times of the incumbent by round, NaN where a sample was dropped.
        second_us: times of its second run in the same rounds.
    """
    ratios = _paired_ratios(first_us, second_us)
    if ratios.size < MIN_SAMPLES:
        return math.inf
    interval = median_interval(ratios)
    return max(abs(math.log(interval.low)), abs(math.log(interval.high)))


def placement_floor(
    log_times: npt.NDArray[np.float64],
    placements: npt.NDArray[np.int64],
    sides: Sequence[int],
) -> float:
    """Return how far the placement of buffers alone may make two identical kernels differ: |ln
    ratio|.

    A t interval over placements: each round's common effect (the clock) is subtracted, each
    placement of a subject gives one median, and the variance of medians within subjects is pooled.
    Remaining noise of the medians widens the interval accordingly.

    Args:
        log_times: ln time by (subject, round), NaN where there is none.
        placements: of the same shape.
        sides: number of placements of each of the two compared subjects.

    Returns:
        `RUN_TO_RUN_FLOOR` if a subject has a single placement, because then the effects of kernel
        and placement cannot be separated.
    """
    complete = ~np.isnan(log_times).any(axis=0)
    times, where = log_times[:, complete], placements[:, complete]
    subjects = len(times)
    medians = []
    for row, places in zip(times - times.mean(axis=0), where, strict=True):
        medians.append([float(np.median(row[places == each])) for each in np.unique(places)])
    fewest = min((len(each) for each in medians), default=0)
    if fewest < 2 or min(sides) < 2:
        return math.log1p(RUN_TO_RUN_FLOOR)
    from scipy.stats import t

    # Subtracting the rounds' means costs the degrees of freedom of one subject.
    freedom = sum(len(each) - 1 for each in medians) * (subjects - 1) / subjects
    variance = sum(float(np.var(each)) * len(each) for each in medians) / freedom
    quantile = float(t.ppf((1 + PLACEMENT_CONFIDENCE) / 2, freedom))
    return quantile * math.sqrt(variance * sum(1 / side for side in sides))


def timer_step(*times_us: Times) -> float:
    """Return the timer's step relative to the times: the smallest difference that occurs.

    Infinite if all times of a subject are equal, because the step is then unknown. With a fine
    timer, noise alone causes differences far below those that matter for a verdict.
    """
    steps = []
    for times in times_us:
        logs = np.unique(np.log(np.asarray(times, dtype=np.float64)))
        gaps = np.diff(logs)
        gaps = gaps[gaps > _SAME_TICK]
        if not gaps.size:
            return math.inf
        steps.append(float(gaps.min()))
    return max(steps)


def paired_verdict(
    a_us: Times, b_us: Times, floor: float, confidence: float = CONFIDENCE
) -> Comparison:
    """Compare candidate b with incumbent a, from rounds in which both ran.

    Args:
        a_us: the incumbent's time in every round; NaN if missing.
        b_us: the candidate's, likewise.
        floor: of the same rounds, from `aa_floor`.

    Raises:
        ValueError: the two have different numbers of rounds.
    """
    ratios = _paired_ratios(a_us, b_us)
    if ratios.size < MIN_SAMPLES:
        return undecided(
            floor,
            ratios.size,
            f"Only {ratios.size} rounds have both times; a 95 % interval needs {MIN_SAMPLES}.",
        )
    both = ~np.isnan(np.asarray(a_us) * np.asarray(b_us))
    step = timer_step(np.asarray(a_us)[both], np.asarray(b_us)[both])
    interval = median_interval(ratios, confidence)
    if step > MIN_DIFFERENCE and abs(math.log(interval.median)) <= 2 * step:
        size = f"{math.expm1(step):.1%} of the times" if math.isfinite(step) else "unknown"
        return replace(
            undecided(
                math.expm1(floor),
                ratios.size,
                f"The timer's step is {size}, too coarse to distinguish them.",
            ),
            ratio=interval.median,
            low=interval.low,
            high=interval.high,
        )
    return _compare(interval, floor, ratios.size, "rounds")


def interval_verdict(
    a: MedianInterval,
    b: MedianInterval,
    floor: float = math.log1p(RUN_TO_RUN_FLOOR),
    samples: int = 0,
) -> Comparison:
    """Compare b with a by the 95 % intervals of their medians.

    The interval of the ratio comes from those of both sides (Zou & Donner, 2008, Statistics in
    Medicine 27:1693). It includes only noise within the runs; differences between runs (clocks,
    memory placement) are given as `floor`, a |ln ratio|.

    Args:
        samples: size of the smaller sample, for the sentence; 0: unknown.
    """
    a_median, a_low, a_high = _logs(a)
    b_median, b_low, b_high = _logs(b)
    middle = b_median - a_median
    low = middle - math.hypot(b_median - b_low, a_high - a_median)
    high = middle + math.hypot(b_high - b_median, a_median - a_low)
    interval = MedianInterval(math.exp(middle), math.exp(low), math.exp(high))
    return _compare(interval, floor, samples, "samples")


def undecided(floor: float, pairs: int, reason: str) -> Comparison:
    """An UNDECIDED comparison, with the reason."""
    return Comparison(Verdict.UNDECIDED, math.nan, math.nan, math.nan, floor, pairs, reason)


def _compare(interval: MedianInterval, floor: float, pairs: int, unit: str) -> Comparison:
    median, low, high = _logs(interval)
    verdict = decide(low, high, floor, log_ratio=median)
    share = math.expm1(floor)
    span = f"{interval.low - 1:+.1%} to {interval.high - 1:+.1%}, 95 % interval"
    span += f" of {pairs} {unit}" if pairs else ""
    if verdict is Verdict.SAME:
        reason = f"The times differ by less than {MIN_DIFFERENCE:.1%} ({span})."
    elif verdict is not Verdict.UNDECIDED:
        reason = f"{abs(interval.median - 1):.1%} {verdict.lower()} ({span})."
    elif low <= 0 <= high:
        reason = f"The interval includes equal times ({span})."
    elif math.isinf(floor):
        reason = f"Run-to-run differences of identical kernels were measured too rarely ({span})."
    else:
        reason = (
            f"A difference of {interval.median - 1:+.1%} is within the run-to-run difference of "
            f"identical kernels here ({max(share, MIN_DIFFERENCE):.1%}; {span})."
        )
    return Comparison(verdict, interval.median, interval.low, interval.high, share, pairs, reason)


def _logs(interval: MedianInterval) -> tuple[float, float, float]:
    return math.log(interval.median), math.log(interval.low), math.log(interval.high)


def _paired_ratios(a_us: Times, b_us: Times) -> npt.NDArray[np.float64]:
    a, b = np.asarray(a_us, dtype=np.float64), np.asarray(b_us, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"paired times need the same rounds, not {a.size} and {b.size}")
    ratios = b / a
    return ratios[~np.isnan(ratios)]
