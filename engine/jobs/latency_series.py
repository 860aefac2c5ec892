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
    """Keeps the lowest, the middle and the highest sample of every slice of time.

    Slices have fixed places and their width only doubles, so drawn points do not flicker while data
    grow. An update processes only new samples, except when the width doubles.
    """

    def __init__(self, max_slices: int = 500) -> None:
        self.width_s = _FIRST_WIDTH_S
        self._max_slices = max_slices
        self._closed: IndexArray = np.empty(0, dtype=np.intp)  # of complete slices
        self._open = 0  # first sample of the incomplete slice

    def update(self, at_s: FloatArray, values: FloatArray) -> IndexArray:
        """Return indices to draw, ascending; at most three per slice.

        Args:
            at_s: the time of every sample so far, ascending from 0.
            values: same length; both only grow at their ends between calls.
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
    """Return the (start, end) in seconds of spans in which `on` holds.

    A span lasts until the first sample in which it no longer holds, and at least `least_s`; shorter
    gaps are closed.
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


# The samples of a latency stream: a file that the worker appends to and any number of tabs read.
#
# A reader only stores its offset, so tabs may come and go. Each read touches a file beside the
# stream, so that a stream without readers ends.


VERSION = 1
# A stream ends if it was not read for this long. Browsers let hidden tabs poll once a minute, which
# is often enough.
UNSEEN_S = 150.0
# Earlier if another long job waits, so that a closed tab does not delay it.
UNSEEN_IN_THE_WAY_S = 10.0
MAX_SAMPLES = 500_000  # of one stream: hours of samples, still quick to process
# "cpu_execution" is the wall time of running the kernel on the host, not a GPU's latency.
StreamKind: TypeAlias = Literal["device_warm", "cpu_execution"]


@dataclass(frozen=True, slots=True)
class LatencySample:
    """One sample; unknown values are None (on the CPU backend: everything about a GPU)."""

    at: float  # Unix time
    time_us: float
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, at: float, time_us: float, state: GpuState) -> LatencySample:
        """Return a sample with the GPU's state. `at` is a Unix time, `time_us` the sample."""
        known = (state.sm_clock_mhz, state.power_w, state.temperature_c)
        return cls(at, time_us, *known, state.throttle_reasons)


@dataclass(frozen=True, slots=True)
class StreamPart:
    """The part of a stream after an offset.

    `after` is the offset of the next read; it stays valid as long as the stream exists.
    """

    kind: StreamKind | None  # None if this part begins after the stream's head
    device: str  # the measured device, likewise
    samples: tuple[LatencySample, ...]
    after: int


def begin_stream(path: Path, kind: StreamKind, device: str) -> None:
    """Write the stream's head: kind of time and device."""
    files.append_event(
        path, {"event": "stream", "version": VERSION, "kind": kind, "device": device}
    )


def append_samples(path: Path, samples: Iterable[LatencySample]) -> None:
    """Append samples in one write, so that readers see complete rounds.

    Raises:
        StoreError: the disk is full or the folder cannot be written.
    """
    if rows := [astuple(sample) for sample in samples]:
        files.append_event(path, {"event": "samples", "rows": rows})


def read_samples(path: Path, after: int = 0) -> StreamPart:
    """Return the samples after byte `after`; 0 for all. A missing stream is empty."""
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
    """Record that this stream is being read, also before it starts. Errors are ignored."""
    with suppress(OSError):
        _seen(path).touch(mode=0o600)


def is_unseen(path: Path, since: float, limit_s: float = UNSEEN_S) -> bool:
    """True if the stream was not read for `limit_s`. `since` (Unix time) counts as a read."""
    with suppress(OSError):
        since = _seen(path).stat().st_mtime
    return time.time() - since > limit_s


def _seen(path: Path) -> Path:
    return path.with_suffix(".seen")


# Statistics of a latency stream: median with interval, spread, and chart data.
#
# Samples are stored in growing columns, and figures are updated incrementally where possible, so an
# update of an hour's stream takes milliseconds.


# The curve of the median gets a point when the number of samples has grown by this factor, because
# each interval sorts all earlier samples.
_HISTORY_GROWTH = 1.1
_SPREAD = (0.05, 0.95)
# Samples further from the spread than this many times its width are outliers and outside the
# chart's range, which a single interrupt would otherwise enlarge.
_FAR = 3.0

_ROW = np.dtype(
    [
        ("at", np.float64),  # Unix time
        ("time_us", np.float64),
        ("sm_clock_mhz", np.float64),  # NaN if unknown, as in the next two
        ("power_w", np.float64),
        ("temperature_c", np.float64),
        ("reasons", np.uint64),  # bit i: the stream's reason i holds
    ]
)


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """The figures of a stream so far; times in µs. Dropped samples only count in `samples`."""

    samples: int
    dropped: int
    median: MedianInterval
    low_us: float  # 5 % of the samples are faster
    high_us: float  # 5 % are slower
    lasted_s: float  # from the first sample to the last
    usual_us: tuple[float, float]  # range of all samples without outliers
    far_out: int
    slowest_us: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity over time, thinned for drawing."""

    at_s: FloatArray  # since the first sample
    values: FloatArray


@dataclass(frozen=True, slots=True)
class History:
    """The median and its interval over time."""

    at_s: FloatArray
    median_us: FloatArray
    low_us: FloatArray
    high_us: FloatArray


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time in which a reason slowed the GPU."""

    reason: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StreamView:
    """What a page shows of a stream. Values that the driver does not report are None."""

    kind: StreamKind | None  # None: nothing has been measured yet
    device: str
    summary: StreamSummary | None = None
    times: Curve | None = None  # µs
    dropped: npt.NDArray[np.bool_] | None = None  # True for dropped samples of `times`
    history: History | None = None
    clock: Curve | None = None  # MHz
    power: Curve | None = None  # W
    spans: tuple[Span, ...] = ()

    @property
    def has_gpu_state(self) -> bool:
        """Return True if clock, power or throttling is known."""
        return self.clock is not None or self.power is not None or bool(self.spans)


class LatencySeries:
    """All samples of one stream. Not thread-safe."""

    def __init__(self) -> None:
        self.after = 0  # offset of the next read
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
        """Add the part of the stream after `after`."""
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
        # Time in a chart must not run backwards if the clock is set back.
        at = self._rows["at"][max(before - 1, 0) : self.size]
        np.maximum.accumulate(at, out=at)
        while self._next_moment <= self.size:
            n = self._next_moment
            self._history.append((float(self._at_s[n - 1]), self._interval(n)))
            self._next_moment = ceil(n * _HISTORY_GROWTH)

    def view(self) -> StreamView:
        """Return the view of the stream; the same object until samples are added."""
        if self._view is None:
            self._view = self._look()
        return self._view

    def csv(self) -> str:
        """Return the raw samples as CSV; the name of the time column says the kind of time."""
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
        """Return where a reason held."""
        bit = np.uint64(1 << self._reasons.index(name))
        held: npt.NDArray[np.bool_] = (self._rows["reasons"][: self.size] & bit) != 0
        return held

    def _dropped(self, size: int) -> npt.NDArray[np.bool_]:
        """Return which of the first samples are dropped, by the rule of all measurements."""
        dropped = np.zeros(size, dtype=np.bool_)
        for name in PROTECTIVE_SLOWDOWNS.intersection(self._reasons):
            dropped |= self._mask(name)[:size]
        clocks = self._rows["sm_clock_mhz"][:size]
        known = clocks[~np.isnan(clocks)]
        if known.size:
            dropped |= clocks < MIN_CLOCK_SHARE * np.median(known)
        return dropped

    def _counted(self, size: int) -> FloatArray:
        """Return the valid times; all times if too few for an interval would remain."""
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
        """Return a curve; None if the whole stream has no such values."""
        if np.isnan(self._rows[name][: self.size]).all():
            return None
        return self._curve(name, at_s)[0]


def _near(times_us: FloatArray) -> FloatArray:
    """Return which samples are not outliers."""
    low, high = np.quantile(times_us, _SPREAD)
    far = _FAR * (high - low)
    near: FloatArray = times_us[(times_us >= low - far) & (times_us <= high + far)]
    return near
