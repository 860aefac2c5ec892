"""The samples of a latency stream: one file that the worker appends to and any number of tabs read.

A reader holds nothing but the offset it has read up to, so tabs come and go as they like. Each read
touches a file beside the stream, so that a stream that is not read any more ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from engine.devices.nvml import GpuState
from engine.records import journal

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
    journal.append(path, {"event": "stream", "version": VERSION, "kind": kind, "device": device})


def append_samples(path: Path, samples: Iterable[LatencySample]) -> None:
    """Add samples in one write, so that a reader sees a round as a whole.

    Raises:
        StoreError: the disk is full or the folder cannot be written.
    """
    if rows := [astuple(sample) for sample in samples]:
        journal.append(path, {"event": "samples", "rows": rows})


def read_samples(path: Path, after: int = 0) -> StreamPart:
    """The samples behind byte `after`, 0 for all. A stream that is not there (yet) is empty."""
    events, offset = journal.read_from(path, after)
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
