"""Statistics of raw samples: distribution-free, because launch times are skewed and clustered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.schema import Stored

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


# Decide which of two kernels is faster: pure statistics, no device.
#
# Ratios are candidate / incumbent: below 1 the candidate is faster. The difference is looked at as
# a log-ratio, so that "2 % faster" and "2 % slower" are the same distance from zero.


Times: TypeAlias = Sequence[float] | npt.NDArray[np.float64]

CONFIDENCE = 0.95
# Differences below this share are irrelevant, however well they are measured.
MIN_DIFFERENCE = 0.005
# Identical kernels measured one after another, not in shuffled rounds, differ by 1 to 3 %.
RUN_TO_RUN_FLOOR = 0.03
# Of the placement floor. A placement does not change during a run, so unlike noise it is not
# averaged away by more rounds, and chance decides once a run.
PLACEMENT_CONFIDENCE = 0.98
# Times that differ by a smaller share are the same tick of the timer.
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
    pairs: int  # rounds in which both were measured; the smaller sample where they are not paired
    reason: str

    @property
    def speedup(self) -> float:
        """Incumbent time / candidate time."""
        return 1 / self.ratio


def decide(
    log_ratio_low: float, log_ratio_high: float, aa_floor: float, *, log_ratio: float
) -> Verdict:
    """The rule.

    FASTER or SLOWER when the interval excludes 0 and the difference exceeds max(0.5 %, A/A floor);
    SAME when the interval lies within ±0.5 %; else UNDECIDED.

    Args:
        log_ratio_low: lower end of the 95 % interval of ln(candidate / incumbent).
        log_ratio_high: its upper end.
        aa_floor: |ln ratio| that two runs of the same kernel show.
        log_ratio: the median itself.
    """
    smallest = math.log1p(MIN_DIFFERENCE)
    if (log_ratio_low > 0 or log_ratio_high < 0) and abs(log_ratio) > max(smallest, aa_floor):
        return Verdict.SLOWER if log_ratio > 0 else Verdict.FASTER
    if -smallest <= log_ratio_low and log_ratio_high <= smallest:
        return Verdict.SAME
    return Verdict.UNDECIDED


def aa_floor(first_us: Times, second_us: Times) -> float:
    """How far two runs of one kernel may seem apart: |ln ratio|, the far end of its 95 % interval.

    The far end and not the median: with few rounds even the floor is known only roughly. Infinite
    when there are too few pairs to say so much.

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
    """How far the placement of buffers alone may set two identical kernels apart: |ln ratio|.

    A t interval whose units are placements: what a round's subjects have in common (the clock) is
    taken out, each placement of a subject gives one median, and the medians' scatter within
    subjects is pooled. Noise that is left in the medians widens it as it should.

    Args:
        log_times: ln time by (subject, round), NaN where there is none.
        placements: of the same shape.
        sides: in how many placements each of the two that are compared ran.

    Returns:
        `RUN_TO_RUN_FLOOR` where some subject has a single placement, as kernels in one place each
        cannot be told from their places.
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

    # Taking out the rounds' means takes one subject's worth of freedom with it.
    freedom = sum(len(each) - 1 for each in medians) * (subjects - 1) / subjects
    variance = sum(float(np.var(each)) * len(each) for each in medians) / freedom
    quantile = float(t.ppf((1 + PLACEMENT_CONFIDENCE) / 2, freedom))
    return quantile * math.sqrt(variance * sum(1 / side for side in sides))


def timer_step(*times_us: Times) -> float:
    """The timer's step as a share of the times: the smallest difference that occurs.

    Infinite where all times of one are equal, as a step of any size could do that. Without a coarse
    timer the noise itself leaves differences far below what a verdict is about.
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
        a_us: the incumbent's time in every round, NaN where there is none.
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
    Medicine 27:1693). It knows the noise within the runs only; what differs between runs (clocks,
    memory placement) is `floor`, a |ln ratio|.

    Args:
        samples: how many the smaller side has, for the sentence; 0 when unknown.
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
