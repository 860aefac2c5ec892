"""Thin a growing series of samples for a chart without losing extremes."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from math import ceil
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base import files
from engine.devices.nvml import GpuState
from engine.measure.sampler import MIN_CLOCK_SHARE, PROTECTIVE_SLOWDOWNS
from engine.measure.statistics import MIN_SAMPLES, MedianInterval, median_interval

FloatArray: TypeAlias = npt.NDArray[np.float64]
IndexArray: TypeAlias = npt.NDArray[np.intp]

_FIRST_WIDTH_S = 1 / 16


class Thinned:
    """Of every slice of time the lowest, the middle and the highest sample.

    Slices lie at fixed places, and their width only ever doubles: what is drawn stays where it is
    while data grow, instead of flickering. Each update looks at the new samples alone, but for the
    few updates in which the width doubles.
    """

    def __init__(self, max_slices: int = 500) -> None:
        self.width_s = _FIRST_WIDTH_S
        self._max_slices = max_slices
        self._closed: IndexArray = np.empty(0, dtype=np.intp)  # of slices that are complete
        self._open = 0  # the first sample of the slice that still grows

    def update(self, at_s: FloatArray, values: FloatArray) -> IndexArray:
        """Indices to draw, ascending; at most three per slice.

        Args:
            at_s: the time of every sample so far, ascending from 0.
            values: as many; in the next call both have grown at their end.
        """
        if at_s.size == 0:
            return self._closed
        while at_s[-1] >= self._max_slices * self.width_s:
            self.width_s *= 2
            self._closed, self._open = self._closed[:0], 0
        start = self._open
        slices = (at_s[start:] / self.width_s).astype(np.intp)
        order = np.lexsort((values[start:], slices))
        first = np.flatnonzero(np.diff(slices, prepend=-1))
        last = np.append(first[1:], slices.size) - 1
        picked = order[np.concatenate([first, last, (first + last) // 2])]
        drawn = np.union1d(self._closed, picked + start)
        self._open = start + int(first[-1])
        self._closed = drawn[drawn < self._open]
        return drawn


def spans(on: npt.NDArray[np.bool_], at_s: FloatArray, least_s: float) -> list[tuple[float, float]]:
    """From when to when `on` holds, as (start, end) in seconds.

    A span lasts until the next sample in which it no longer holds, and at least `least_s`; gaps
    shorter than that are closed.
    """
    edges = np.diff(on.astype(np.int8), prepend=0, append=0)
    starts = at_s[np.flatnonzero(edges == 1)]
    if starts.size == 0:
        return []
    ends = at_s[np.minimum(np.flatnonzero(edges == -1), at_s.size - 1)]
    ends = np.maximum(ends, starts + least_s)
    apart = starts[1:] - ends[:-1] >= least_s
    first, last = np.append(True, apart), np.append(apart, True)
    return list(zip(starts[first].tolist(), ends[last].tolist(), strict=True))


# The samples of a latency stream: one file that the worker appends to and any number of tabs read.
#
# A reader holds nothing but the offset it has read up to, so tabs come and go as they like. Each
# read touches a file beside the stream, so that a stream that is not read any more ends.


VERSION = 1
# A stream ends when it has not been read for this long. Browsers let the pages of hidden tabs ask
# once a minute, which is often enough.
UNSEEN_S = 150.0
# Sooner when another long job waits for its turn: a closed tab must not hold it up.
UNSEEN_IN_THE_WAY_S = 10.0
MAX_SAMPLES = 500_000  # of one stream: hours, and still quick to look at
# "cpu_execution" is the wall time of running the kernel on the host: no GPU's latency, whatever
# the target is.
StreamKind: TypeAlias = Literal["device_warm", "cpu_execution"]


@dataclass(frozen=True, slots=True)
class LatencySample:
    """One sample; what is not known (on the CPU backend: everything about a GPU) is None."""

    at: float  # Unix time
    time_us: float
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, at: float, time_us: float, state: GpuState) -> LatencySample:
        known = (state.sm_clock_mhz, state.power_w, state.temperature_c)
        return cls(at, time_us, *known, state.throttle_reasons)


@dataclass(frozen=True, slots=True)
class StreamPart:
    """What a stream holds behind some offset.

    `after` is the offset to go on from; it stays valid for as long as the stream exists.
    """

    kind: StreamKind | None  # None when this part begins behind the stream's head
    device: str  # what the samples were taken on, likewise
    samples: tuple[LatencySample, ...]
    after: int


def begin_stream(path: Path, kind: StreamKind, device: str) -> None:
    """Write the head: what the samples will be."""
    files.append_event(
        path, {"event": "stream", "version": VERSION, "kind": kind, "device": device}
    )


def append_samples(path: Path, samples: Iterable[LatencySample]) -> None:
    """Add samples in one write, so that a reader sees a round as a whole.

    Raises:
        StoreError: the disk is full or the folder cannot be written.
    """
    if rows := [astuple(sample) for sample in samples]:
        files.append_event(path, {"event": "samples", "rows": rows})


def read_samples(path: Path, after: int = 0) -> StreamPart:
    """The samples behind byte `after`, 0 for all. A stream that is not there (yet) is empty."""
    events, offset = files.read_events(path, after)
    kind: StreamKind | None = None
    device = ""
    samples: list[LatencySample] = []
    for event in events:
        if event.get("event") == "stream" and event.get("version") == VERSION:
            kind, device = event["kind"], str(event["device"])
        elif event.get("event") == "samples":
            samples += [
                LatencySample(at, us, mhz, watts, celsius, tuple(reasons))
                for at, us, mhz, watts, celsius, reasons in event["rows"]
            ]
    return StreamPart(kind, device, tuple(samples), offset)


def mark_seen(path: Path) -> None:
    """Note that this stream is read now, whether it has begun or not. Failing does no harm."""
    with suppress(OSError):
        _seen(path).touch(mode=0o600)


def is_unseen(path: Path, since: float, limit_s: float = UNSEEN_S) -> bool:
    """Whether the stream was not read for `limit_s`. `since` (Unix time) counts as a read."""
    with suppress(OSError):
        since = _seen(path).stat().st_mtime
    return time.time() - since > limit_s


def _seen(path: Path) -> Path:
    return path.with_suffix(".seen")


# A latency stream so far: median with interval, spread, and what a chart draws.
#
# The samples are kept as columns that grow, and every figure is brought up to date from the new
# ones where that can be: an update of a stream of an hour costs milliseconds.


# The median so far is drawn where the samples have grown by this much since the last point: each
# interval costs a sort of all samples before it.
_HISTORY_GROWTH = 1.1
_SPREAD = (0.05, 0.95)
# Samples further from the spread than this many times its width are far out: an interrupt in one
# sample would press all others of a chart into one line.
_FAR = 3.0

_ROW = np.dtype(
    [
        ("at", np.float64),  # Unix time
        ("time_us", np.float64),
        ("sm_clock_mhz", np.float64),  # NaN where it is not known, as in the next two
        ("power_w", np.float64),
        ("temperature_c", np.float64),
        ("reasons", np.uint64),  # bit i: the stream's reason i holds
    ]
)


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """The figures of a stream so far; times in µs. Dropped samples count in none but `samples`."""

    samples: int
    dropped: int
    median: MedianInterval
    low_us: float  # 5 % of the samples are faster
    high_us: float  # 5 % are slower
    lasted_s: float  # from the first sample to the last
    usual_us: tuple[float, float]  # where all samples lie but those far out
    far_out: int
    slowest_us: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity over time, thinned for drawing."""

    at_s: FloatArray  # since the first sample
    values: FloatArray


@dataclass(frozen=True, slots=True)
class History:
    """The median so far and its interval, as they were known at some moments."""

    at_s: FloatArray
    median_us: FloatArray
    low_us: FloatArray
    high_us: FloatArray


@dataclass(frozen=True, slots=True)
class Span:
    """For how long a reason slowed the GPU."""

    reason: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StreamView:
    """Everything a page shows of a stream. What a GPU's driver does not say is None."""

    kind: StreamKind | None  # None: nothing has been measured yet
    device: str
    summary: StreamSummary | None = None
    times: Curve | None = None  # µs
    dropped: npt.NDArray[np.bool_] | None = None  # of `times`: does not count
    history: History | None = None
    clock: Curve | None = None  # MHz
    power: Curve | None = None  # W
    spans: tuple[Span, ...] = ()

    @property
    def has_gpu_state(self) -> bool:
        return self.clock is not None or self.power is not None or bool(self.spans)


class LatencySeries:
    """All samples of one stream. Not thread-safe."""

    def __init__(self) -> None:
        self.after = 0  # where to read on
        self.kind: StreamKind | None = None
        self.device = ""
        self.size = 0
        self._rows = np.empty(1024, dtype=_ROW)
        self._reasons: list[str] = []
        self._history: list[tuple[float, MedianInterval]] = []
        self._next_moment = MIN_SAMPLES
        self._thinned = {name: Thinned() for name in ("time_us", "sm_clock_mhz", "power_w")}
        self._view: StreamView | None = None
        self._csv: str | None = None

    def extend(self, part: StreamPart) -> None:
        """Add the part of the stream behind `after`."""
        self.after = part.after
        if part.kind is not None:
            self.kind, self.device = part.kind, part.device
            self._view = self._csv = None
        if not part.samples:
            return
        self._view = self._csv = None
        before, self.size = self.size, self.size + len(part.samples)
        if self.size > self._rows.size:
            grown = np.empty(2 * self.size, dtype=_ROW)
            grown[:before] = self._rows[:before]
            self._rows = grown
        self._rows[before : self.size] = [self._row(sample) for sample in part.samples]
        # A clock that is set back must not let time run backwards in a chart.
        at = self._rows["at"][max(before - 1, 0) : self.size]
        np.maximum.accumulate(at, out=at)
        while self._next_moment <= self.size:
            n = self._next_moment
            self._history.append((float(self._at_s[n - 1]), self._interval(n)))
            self._next_moment = ceil(n * _HISTORY_GROWTH)

    def view(self) -> StreamView:
        """The stream as it is now; the same object until there is more."""
        if self._view is None:
            self._view = self._look()
        return self._view

    def csv(self) -> str:
        """The raw samples as a table; the column of times says what kind of time it is."""
        if self._csv is None:
            self._csv = self._table()
        return self._csv

    @property
    def _at_s(self) -> FloatArray:
        at = self._rows["at"][: self.size]
        since: FloatArray = at - at[0]
        return since

    def _row(self, sample: LatencySample) -> tuple[float, ...]:
        state = (sample.sm_clock_mhz, sample.power_w, sample.temperature_c)
        known = (np.nan if x is None else x for x in state)
        return (sample.at, sample.time_us, *known, self._bits(sample.throttle_reasons))

    def _bits(self, reasons: tuple[str, ...]) -> int:
        for name in reasons:
            if name not in self._reasons:
                self._reasons.append(name)
        return sum(1 << self._reasons.index(name) for name in set(reasons))

    def _names(self, bits: int) -> Iterator[str]:
        return (name for i, name in enumerate(self._reasons) if bits >> i & 1)

    def _mask(self, name: str) -> npt.NDArray[np.bool_]:
        """Where a reason held."""
        bit = np.uint64(1 << self._reasons.index(name))
        held: npt.NDArray[np.bool_] = (self._rows["reasons"][: self.size] & bit) != 0
        return held

    def _dropped(self, size: int) -> npt.NDArray[np.bool_]:
        """Which of the first samples do not count, by the rule of every measurement here."""
        dropped = np.zeros(size, dtype=np.bool_)
        for name in PROTECTIVE_SLOWDOWNS.intersection(self._reasons):
            dropped |= self._mask(name)[:size]
        clocks = self._rows["sm_clock_mhz"][:size]
        known = clocks[~np.isnan(clocks)]
        if known.size:
            dropped |= clocks < MIN_CLOCK_SHARE * np.median(known)
        return dropped

    def _counted(self, size: int) -> FloatArray:
        """Times that count; all of them where dropping would leave too few for an interval."""
        times: FloatArray = self._rows["time_us"][:size]
        counted = times[~self._dropped(size)]
        return counted if counted.size >= MIN_SAMPLES else times

    def _interval(self, size: int) -> MedianInterval:
        return median_interval(self._counted(size))

    def _look(self) -> StreamView:
        if self.size == 0:
            return StreamView(self.kind, self.device)
        at_s = self._at_s
        dropped = self._dropped(self.size)
        counted = np.sort(self._counted(self.size))
        interval = median_interval(counted)
        low_us, high_us = np.quantile(counted, _SPREAD).tolist()
        every = self._rows["time_us"][: self.size]
        near = _near(every)
        times, drawn = self._curve("time_us", at_s)
        moments = [*self._history, (float(at_s[-1]), interval)]
        return StreamView(
            kind=self.kind,
            device=self.device,
            summary=StreamSummary(
                samples=self.size,
                dropped=int(dropped.sum()),
                median=interval,
                low_us=low_us,
                high_us=high_us,
                lasted_s=float(at_s[-1]),
                usual_us=(float(near.min()), float(near.max())),
                far_out=every.size - near.size,
                slowest_us=float(every.max()),
            ),
            times=times,
            dropped=dropped[drawn],
            history=History(
                np.array([at for at, _ in moments]),
                np.array([interval.median for _, interval in moments]),
                np.array([interval.low for _, interval in moments]),
                np.array([interval.high for _, interval in moments]),
            ),
            clock=self._known("sm_clock_mhz", at_s),
            power=self._known("power_w", at_s),
            spans=tuple(
                Span(name, start, end)
                for name in self._reasons
                for start, end in spans(self._mask(name), at_s, self._thinned["time_us"].width_s)
            ),
        )

    def _table(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        state = ("sm_clock_mhz", "power_w", "temperature_c")
        writer.writerow(("time_utc", f"{self.kind or 'time'}_us", *state, "throttle_reasons"))
        rows = self._rows[: self.size]
        when = np.datetime_as_string((rows["at"] * 1e3).astype("datetime64[ms]"), timezone="UTC")
        known = [["" if np.isnan(x) else f"{x:g}" for x in rows[name].tolist()] for name in state]
        reasons = ["; ".join(self._names(bits)) for bits in rows["reasons"].tolist()]
        writer.writerows(zip(when.tolist(), rows["time_us"].tolist(), *known, reasons, strict=True))
        return out.getvalue()

    def _curve(self, name: str, at_s: FloatArray) -> tuple[Curve, npt.NDArray[np.intp]]:
        values = self._rows[name][: self.size]
        drawn = self._thinned[name].update(at_s, values)
        return Curve(at_s[drawn], values[drawn]), drawn

    def _known(self, name: str, at_s: FloatArray) -> Curve | None:
        """None where the whole stream says nothing about it."""
        if np.isnan(self._rows[name][: self.size]).all():
            return None
        return self._curve(name, at_s)[0]


def _near(times_us: FloatArray) -> FloatArray:
    """The samples that are not far out."""
    low, high = np.quantile(times_us, _SPREAD)
    far = _FAR * (high - low)
    near: FloatArray = times_us[(times_us >= low - far) & (times_us <= high + far)]
    return near
