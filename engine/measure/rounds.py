"""The samples of one interleaved run, laid out by rounds: which count, and what they say together.

A round measures every candidate once and the incumbent twice. Ratios are taken within rounds, where
clock, temperature and neighbours were the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.devices.nvml import GpuState
from engine.evaluation import LatencyKind
from engine.measure.verdict import (
    CONFIDENCE,
    MIN_SAMPLES,
    Comparison,
    MedianInterval,
    aa_floor,
    median_interval,
    paired_verdict,
    placement_floor,
    undecided,
)

FloatArray: TypeAlias = npt.NDArray[np.float64]

MIN_CLOCK_SHARE = 0.95  # of the median SM clock of the same candidate's samples
MAX_DROPPED_SHARE = 0.20  # above it the run is THROTTLED
# A power cap is how a GPU works under load; these are protection and break the measurement.
PROTECTIVE_SLOWDOWNS = frozenset(
    {
        "hardware slowdown",
        "software thermal slowdown",
        "hardware thermal slowdown",
        "hardware power brake",
    }
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One raw sample with the state of the GPU right after it."""

    candidate: str
    kind: LatencyKind
    round: int
    twin: bool  # the incumbent's second run of the round
    time_us: float
    at_s: float  # on the device's clock
    state: GpuState
    placement: int = 0  # which of the candidate's buffers and graphs


def drop_reasons(samples: Sequence[Sample]) -> list[str]:
    """Why each sample does not count; an empty string where it does.

    A clock is low beside the same candidate's others: one that draws more power runs at a lower
    clock than its neighbours all the time, and that is part of what it costs.
    """
    clocks = _median_clocks(samples)
    return [_drop_reason(s.state, clocks.get((s.candidate, s.kind), 0.0)) for s in samples]


def _median_clocks(samples: Sequence[Sample]) -> dict[tuple[str, LatencyKind], float]:
    clocks: dict[tuple[str, LatencyKind], list[int]] = {}
    for s in samples:
        if s.state.sm_clock_mhz is not None:
            clocks.setdefault((s.candidate, s.kind), []).append(s.state.sm_clock_mhz)
    return {key: median(values) for key, values in clocks.items()}


def _drop_reason(state: GpuState, usual_mhz: float) -> str:
    for name in state.throttle_reasons:
        if name in PROTECTIVE_SLOWDOWNS:
            return name
    clock = state.sm_clock_mhz
    if clock is not None and clock < MIN_CLOCK_SHARE * usual_mhz:
        return f"SM clock under {MIN_CLOCK_SHARE:.0%} of its median"
    return ""


class RoundTable:
    """Times by (candidate, kind, round); NaN where a sample was dropped or is missing."""

    def __init__(
        self,
        samples: Sequence[Sample],
        incumbent: str,
        candidates: Sequence[str],
        kinds: Sequence[LatencyKind],
    ) -> None:
        self.incumbent = incumbent
        self.dropped = drop_reasons(samples)
        self.throttled = _throttled(self.dropped)
        self._clocks_mhz = _median_clocks(
            [s for s, why in zip(samples, self.dropped, strict=True) if not why]
        )
        rounds = max((s.round for s in samples), default=-1) + 1
        # One row per candidate, and a last one for the incumbent's second run.
        names = dict.fromkeys((incumbent, *candidates))
        self._row = {name: i for i, name in enumerate(names)}
        self._kind = {kind: i for i, kind in enumerate(kinds)}
        self._times = np.full((len(names) + 1, len(kinds), rounds), np.nan)
        self._all = self._times.copy()
        self._placements = np.zeros((len(names) + 1, rounds), dtype=np.int64)
        for sample, reason in zip(samples, self.dropped, strict=True):
            row = len(names) if sample.twin else self._row[sample.candidate]
            at = row, self._kind[sample.kind], sample.round
            self._all[at] = sample.time_us
            self._placements[row, sample.round] = sample.placement
            if not reason:
                self._times[at] = sample.time_us
        self._floors = {kind: aa_floor(*self._incumbent_rows(kind)) for kind in kinds}

    def floor(self, kind: LatencyKind) -> float:
        """|ln ratio| that the incumbent shows against itself."""
        return self._floors[kind]

    def times_us(self, candidate: str, kind: LatencyKind) -> FloatArray:
        """The samples that count (of both runs for the incumbent), in order of rounds.

        Where dropping left too few for an interval, all of them: a number from a throttled GPU,
        which `throttled` says, is worth more than none.
        """
        for source in (self._times, self._all):
            times = source[self._rows(candidate), self._kind[kind]].T.ravel()
            times = times[~np.isnan(times)]
            if times.size >= MIN_SAMPLES:
                break
        return times

    def interval(self, candidate: str, kind: LatencyKind) -> MedianInterval | None:
        """Median and 95 % interval in µs; None when there is no sample."""
        times = self.times_us(candidate, kind)
        return median_interval(times.tolist()) if times.size else None

    def compare(
        self, candidate: str, against: str, kind: LatencyKind, confidence: float = CONFIDENCE
    ) -> Comparison:
        """Is `candidate` faster than `against`?"""
        floor = max(self._floors[kind], self._placement_floor(candidate, against, kind))
        a, b = self._by_round(against, kind), self._by_round(candidate, kind)
        if self.throttled:
            pairs = int((~np.isnan(a * b)).sum())
            return undecided(floor, pairs, f"No verdict on a throttled GPU: {self.throttled}")
        comparison = paired_verdict(a, b, floor, confidence)
        clocks = [self._clocks_mhz.get((name, kind)) for name in (candidate, against)]
        if None in clocks:
            return comparison
        beside = " beside ".join(f"{clock:,.0f} MHz" for clock in clocks)
        return replace(comparison, reason=f"{comparison.reason} Median SM clock: {beside}.")

    def _placement_floor(self, candidate: str, against: str, kind: LatencyKind) -> float:
        """|ln ratio| that the placements of two identical kernels would rarely exceed."""
        rows = {*self._rows(candidate), *self._rows(against), *self._rows(self.incumbent)}
        times = self._times[sorted(rows), self._kind[kind]]
        sides = [len(np.unique(self._placements[self._rows(n)])) for n in (candidate, against)]
        return placement_floor(np.log(times), self._placements[sorted(rows)], sides)

    def _incumbent_rows(self, kind: LatencyKind) -> tuple[FloatArray, FloatArray]:
        first, second = self._times[self._rows(self.incumbent), self._kind[kind]]
        return first, second

    def _rows(self, candidate: str) -> list[int]:
        row = self._row[candidate]
        return [row, len(self._row)] if candidate == self.incumbent else [row]

    def _by_round(self, candidate: str, kind: LatencyKind) -> FloatArray:
        """One time per round: of the incumbent its first and its second run in turn.

        The turn changes when all placements of the first had theirs.

        The mean of both would be less noisy, but skewed samples (outliers are slow, never fast)
        move it further than a candidate's single run, and that looks like a difference. Always the
        first would tie the ratio to the floor, which is second / first.
        """
        times = self._times[self._rows(candidate), self._kind[kind]]
        if len(times) == 1:
            return np.asarray(times[0])
        turn = len(np.unique(self._placements[self._row[candidate]]))
        second_first = np.arange(times.shape[1]) // max(turn, 1) % 2 == 1
        chosen = np.where(second_first, times[1], times[0])
        other = np.where(second_first, times[0], times[1])
        return np.asarray(np.where(np.isnan(chosen), other, chosen))


def _throttled(dropped: Sequence[str]) -> str:
    """One sentence when too much was dropped, else empty."""
    reasons = Counter(filter(None, dropped))
    count = reasons.total()
    if count <= MAX_DROPPED_SHARE * len(dropped):
        return ""
    main, _ = reasons.most_common(1)[0]
    return (
        f"{count / len(dropped):.0%} of the samples had to be dropped, most for this reason: "
        f"{main}. Let the GPU cool down, check its power limit, or stop what else runs on it."
    )
