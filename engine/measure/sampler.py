"""The sampler: rounds that interleave every candidate and the incumbent twice.

Kernels differ by 1 to 3 %, and identical kernels measured one after another appear to differ as
much. Therefore each round runs every candidate once in shuffled order, and the incumbent's second
run shows the smallest difference that this machine can resolve. The placement of buffers in memory
changes times by some tenths of a percent, so all candidates rotate through several placements, and
the second run has its own. `TimedDevice` is the interface to a GPU, or to a simulated one in tests.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.evaluation import Latency, LatencyKind, Origin
from engine.devices.nvml import GpuState
from engine.measure.statistics import (
    CONFIDENCE,
    MIN_SAMPLES,
    Comparison,
    MedianInterval,
    Verdict,
    aa_floor,
    median_interval,
    paired_verdict,
    placement_floor,
    undecided,
)

# The samples of one interleaved run by rounds: which are valid, and the statistics.
#
# A round measures every candidate once and the incumbent twice. Ratios are taken within rounds,
# where clock, temperature and neighbours were the same.

FloatArray: TypeAlias = npt.NDArray[np.float64]

MIN_CLOCK_SHARE = 0.95  # of the median SM clock of the same candidate's samples
MAX_DROPPED_SHARE = 0.20  # above it the run is THROTTLED
# A power cap is normal under load; these reasons are protective and invalidate the measurement.
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
    """Return why each sample is dropped; an empty string if it is valid.

    The clock is compared with the median clock of the same candidate only: a kernel that draws more
    power always runs at a lower clock than others, and this is part of its cost.
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
    """Times by candidate, kind and round; NaN where a sample was dropped or is missing."""

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
        """Return |ln ratio| between the incumbent's two runs: the noise floor."""
        return self._floors[kind]

    def times_us(self, candidate: str, kind: LatencyKind) -> FloatArray:
        """Return the valid samples (of both runs for the incumbent), in order of rounds.

        Return all samples if too few for an interval are valid; `throttled` then reports a
        throttled GPU.
        """
        for source in (self._times, self._all):
            times = source[self._rows(candidate), self._kind[kind]].T.ravel()
            times = times[~np.isnan(times)]
            if times.size >= MIN_SAMPLES:
                break
        return times

    def interval(self, candidate: str, kind: LatencyKind) -> MedianInterval | None:
        """Return the median and its 95 % interval in µs; None without a sample."""
        times = self.times_us(candidate, kind)
        return median_interval(times.tolist()) if times.size else None

    def compare(
        self, candidate: str, against: str, kind: LatencyKind, confidence: float = CONFIDENCE
    ) -> Comparison:
        """Compare `candidate` with `against`."""
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
        """Return the |ln ratio| that the placements of two identical kernels rarely exceed."""
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
        """Return one time per round; for the incumbent, of its first and its second run
        alternately.

        They alternate each time when all placements of the first run have been used.

        The mean of both runs would be less noisy, but outliers are always slow, so it is biased
        relative to a candidate's single run. Using only the first run would correlate the ratio
        with the floor, which is second / first.
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
    """Return one sentence if too many samples were dropped, else an empty text."""
    reasons = Counter(filter(None, dropped))
    count = reasons.total()
    if count <= MAX_DROPPED_SHARE * len(dropped):
        return ""
    main, _ = reasons.most_common(1)[0]
    return (
        f"{count / len(dropped):.0%} of the samples had to be dropped, most for this reason: "
        f"{main}. Let the GPU cool down, check its power limit, or stop what else runs on it."
    )


Mode: TypeAlias = Literal["burst", "sustained"]
StopReason: TypeAlias = Literal["precise", "decided", "time", "rounds", "cancelled"]

# The SM clock is steady if it stays within this share over the preceding window.
_STEADY_SHARE = 0.01
_STEADY_WINDOW_S: Mapping[Mode, float] = {"burst": 0.25, "sustained": 3.0}
_STEADY_TEMPERATURE_C = 1  # maximum change over the window; sustained mode only
_WARM_UP_CAP_S: Mapping[Mode, float] = {"burst": 2.0, "sustained": 30.0}
# In burst mode, the GPU rests after each round for as long as the round took, up to this: heat does
# not build up, and the clock does not fall to idle.
_MAX_REST_S = 0.02
# Repeated tests eventually find a difference by chance. Therefore each test comes later than the
# previous one by this factor, and a pair can end the run early only if it is decided with this
# confidence.
_LOOK_GROWTH = 1.25
_LOOK_CONFIDENCE = 0.998


class TimedDevice(Protocol):
    """Interface between a device and the sampler. `candidate` is a name that the device knows."""

    def placements(self, candidate: str) -> int:
        """Return how many placements (own buffers, graphs and copies) a candidate has.

        The incumbent's first half serves its first runs, the second half its second runs.
        """
        ...

    def time_once(self, candidate: str, kind: LatencyKind, placement: int = 0) -> float:
        """Take one sample: the µs of one launch (or of one call, end to end)."""
        ...

    def state(self) -> GpuState:
        """Return clocks, power, temperature and throttling at this moment. Called after every
        sample."""
        ...

    def now_s(self) -> float:
        """Return a monotonic clock, in seconds."""
        ...

    def rest(self, seconds: float) -> None:
        """Leave the device idle."""
        ...


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """How to measure. The stopping rule applies to the first of `kinds`."""

    mode: Mode = "burst"  # "sustained": back to back, as on a loaded server
    kinds: tuple[LatencyKind, ...] = ("device_warm", "device_cold")
    min_rounds: int = 30
    max_half_width: float = 0.005  # of the 95 % interval of every median, as a share
    max_s: float = 15.0
    max_rounds: int | None = None  # for a quick result; None: only the other stopping rules
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.kinds or self.min_rounds < 1 or self.max_s <= 0:
            raise ValueError(f"not a measurement: {self}")


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The result of the warm-up: whether the device reached a steady state, and how long it
    took."""

    seconds: float
    steady: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SamplingRun:
    """One sampling run: every raw sample, why it stopped, and the verdicts."""

    settings: SamplerSettings
    incumbent: str
    candidates: tuple[str, ...]  # without the incumbent
    samples: tuple[Sample, ...]  # in the order in which they were taken
    rounds: int
    warm_up: WarmUp
    elapsed_s: float  # without the warm-up
    stop: StopReason
    stop_reason: str
    table: RoundTable

    @property
    def throttled(self) -> str:
        """Return why the run is THROTTLED, in one sentence; empty if it is not."""
        return self.table.throttled

    def latency(self, candidate: str, kind: LatencyKind) -> Latency | None:
        """Return the median, 95 % interval and samples; None without any sample."""
        times = self.table.times_us(candidate, kind)
        if times.size == 0:
            return None
        how = (
            f"{times.size} samples in {self.rounds} interleaved rounds, {self.settings.mode}; "
            f"{self.stop_reason}"
        )
        return sampled_latency(tuple(times.tolist()), kind, how)

    def comparison(self, candidate: str, kind: LatencyKind | None = None) -> Comparison:
        """Compare the candidate with the incumbent; the first kind by default."""
        return self.table.compare(candidate, self.incumbent, kind or self.settings.kinds[0])


def sampled_latency(
    samples_us: tuple[float, ...], kind: LatencyKind, how: str, origin: Origin = "measured"
) -> Latency:
    """Return the median and 95 % interval of samples. `how` says how they were taken."""
    interval = median_interval(samples_us)
    return Latency(
        origin=origin,
        median_us=interval.median,
        low_us=interval.low,
        high_us=interval.high,
        reason=how,
        kind=kind,
        samples_us=samples_us,
    )


def run_rounds(
    device: TimedDevice,
    incumbent: str,
    candidates: Sequence[str] = (),
    settings: SamplerSettings | None = None,
    on_round: Callable[[Sequence[Sample]], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> SamplingRun:
    """Measure the candidates (baselines are candidates too) beside the incumbent.

    Args:
        on_round: called with the samples of every finished round.
        should_stop: called before every sample; True ends the run, which keeps its samples so far.

    Returns:
        The run. It stops when every median is known to ±0.5 %, when all pairs are decided, or when
        the time is up; `stop_reason` says which. A run on a throttled GPU is marked as such and
        keeps its samples.
    """
    others = tuple(dict.fromkeys(c for c in candidates if c != incumbent))
    settings, on_round = settings or SamplerSettings(), on_round or (lambda _: None)
    return _Run(device, incumbent, others, settings, on_round, should_stop).run()


@dataclass
class _Run:
    device: TimedDevice
    incumbent: str
    candidates: tuple[str, ...]
    settings: SamplerSettings
    on_round: Callable[[Sequence[Sample]], None]
    should_stop: Callable[[], bool]
    samples: list[Sample] = field(default_factory=list)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.settings.seed)
        # (candidate, is it the incumbent's second run)
        once = [(name, False) for name in (self.incumbent, *self.candidates)]
        self.slots = [*once, (self.incumbent, True)]

    def run(self) -> SamplingRun:
        warm_up = self._warm_up()
        start = self.device.now_s()
        stop, why = self._sample(start)
        return SamplingRun(
            settings=self.settings,
            incumbent=self.incumbent,
            candidates=self.candidates,
            samples=tuple(self.samples),
            rounds=self.rounds,
            warm_up=warm_up,
            elapsed_s=self.device.now_s() - start,
            stop=stop,
            stop_reason=why,
            table=self._table(),
        )

    def _sample(self, start: float) -> tuple[StopReason, str]:
        """Take rounds until a stopping rule applies; return the rule and its sentence."""
        settings = self.settings
        next_look = settings.min_rounds
        while True:
            began = self.device.now_s()
            if not self._round():
                return "cancelled", f"cancelled after {self.rounds} rounds"
            now = self.device.now_s()
            if self.rounds >= next_look:
                next_look = math.ceil(self.rounds * _LOOK_GROWTH)
                enough = self._enough()
                if enough is not None:
                    return enough
            if now - start >= settings.max_s:
                return "time", f"stopped after {settings.max_s:g} s"
            if settings.max_rounds is not None and self.rounds >= settings.max_rounds:
                return "rounds", f"stopped after the {self.rounds} rounds asked for"
            if settings.mode == "burst":
                self.device.rest(min(now - began, _MAX_REST_S))
                # The first launch after a rest is slower than all others, so its time is discarded.
                self.device.time_once(self.incumbent, settings.kinds[0])

    def _round(self) -> bool:
        """Measure every candidate once, in shuffled order. Return False if the round was
        interrupted."""
        before = len(self.samples)
        for slot in self.rng.permutation(len(self.slots)):
            candidate, twin = self.slots[slot]
            for kind in self.settings.kinds:
                if self.should_stop():
                    return False
                placement = self._placement(candidate, twin=twin)
                time_us = self.device.time_once(candidate, kind, placement)
                self.samples.append(
                    Sample(
                        candidate=candidate,
                        kind=kind,
                        round=self.rounds,
                        twin=twin,
                        time_us=time_us,
                        at_s=self.device.now_s(),
                        state=self.device.state(),
                        placement=placement,
                    )
                )
        self.rounds += 1
        self.on_round(self.samples[before:])
        return True

    def _placement(self, candidate: str, *, twin: bool) -> int:
        """Return the candidate's next placement."""
        count = self.device.placements(candidate)
        if candidate != self.incumbent or count == 1:
            return self.rounds % count
        half = count // 2
        return self.rounds % half + (half if twin else 0)

    def _table(self) -> RoundTable:
        return RoundTable(self.samples, self.incumbent, self.candidates, self.settings.kinds)

    def _enough(self) -> tuple[StopReason, str] | None:
        """Return the stopping rule that applies now, or None."""
        table, kind = self._table(), self.settings.kinds[0]
        verdicts = [
            table.compare(c, self.incumbent, kind, _LOOK_CONFIDENCE).verdict
            for c in self.candidates
        ]
        if verdicts and Verdict.UNDECIDED not in verdicts:
            return "decided", "every pair is decided"
        intervals = [table.interval(c, kind) for c in (self.incumbent, *self.candidates)]
        widest = max(math.inf if i is None else i.half_width for i in intervals)
        if widest <= self.settings.max_half_width:
            return "precise", f"every median is known to ±{widest:.2%}"
        return None

    def _warm_up(self) -> WarmUp:
        """Run all candidates in turn until the SM clock is steady or the time limit is reached."""
        mode, kind = self.settings.mode, self.settings.kinds[0]
        window_s, cap_s = _STEADY_WINDOW_S[mode], _WARM_UP_CAP_S[mode]
        readings: deque[tuple[float, GpuState]] = deque()
        start = now = self.device.now_s()
        # A candidate's first launch also loads it.
        for candidate in (self.incumbent, *self.candidates):
            for placement in range(self.device.placements(candidate)):
                for each in self.settings.kinds:
                    self.device.time_once(candidate, each, placement)
        turn = 0
        while (now := self.device.now_s()) - start < cap_s and not self.should_stop():
            self.device.time_once(self.slots[turn % len(self.slots)][0], kind)
            turn += 1
            readings.append((self.device.now_s(), self.device.state()))
            while readings[-1][0] - readings[0][0] > window_s:
                readings.popleft()
            full = readings[-1][0] - start >= window_s
            if full and _is_steady([state for _, state in readings], mode):
                seconds = self.device.now_s() - start
                return WarmUp(seconds, True, f"The clock was steady after {seconds:.2g} s.")
        return WarmUp(now - start, False, f"The clock was not steady after {now - start:.2g} s.")


def _is_steady(states: Sequence[GpuState], mode: Mode) -> bool:
    """Return True if the clock (in sustained mode also the temperature) stayed constant. Unknown
    values count as constant."""
    clocks = [s.sm_clock_mhz for s in states if s.sm_clock_mhz is not None]
    if clocks and max(clocks) - min(clocks) > _STEADY_SHARE * max(clocks):
        return False
    temperatures = [s.temperature_c for s in states if s.temperature_c is not None]
    spread = max(temperatures) - min(temperatures) if temperatures else 0
    return mode == "burst" or spread <= _STEADY_TEMPERATURE_C
