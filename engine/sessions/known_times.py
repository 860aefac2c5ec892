"""Measured and recorded times in shipped and own snapshots and in working sessions.

Predictions are scored against them (`score`): the last prediction before a time was known counts.
Predictions made later, or of another source than was timed, are listed but do not count.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.base import files
from engine.base.errors import AttuneError, SnapshotError
from engine.base.schema import decode
from engine.base.table import Table
from engine.base.units import format_us
from engine.history.history import History, Prediction
from engine.history.known_time import KnownTime, name_of, predicted_name, times_of
from engine.sessions.session import Session, working_folder
from engine.sessions.store import (
    INDEX_LAYOUT,
    CachedTimes,
    SnapshotInfo,
    Store,
    default_store,
    packed,
    unpacked,
)

# A snapshot may have more kernels and problems than its summary lists.
_SUMMARY_DEVICES = 8
_SUMMARY_VARIANTS = 64
_SUMMARY_PROBLEMS = 200
_MIN_INTERVAL_S = 1.0  # between two listings of the folders
_SHARE = 0.05  # maximum share of time for listing
_KNOWN_ORIGINS = (b'"measured"', b'"recorded"')  # origins of stored times
_MAX_CACHE_BYTES = 256 << 20


def open_history(most_s: float | None = None) -> History:
    """Return a history with all times known on this machine.

    Times of sessions are left out if they cannot be read or the machine can only measure.

    Args:
        most_s: as `KnownTimes` has it.
    """
    try:
        return History(KnownTimes(most_s=most_s))
    except (ImportError, AttuneError):
        return History()


class _CachedSession(CachedTimes):
    """Cached times of an open session, up to an offset in its journal."""

    layout: str
    journal: str
    offset: int
    jobs: Annotated[tuple[str, ...], Field(strict=False)]


class _Query(NamedTuple):
    """A query for times; empty fields match all."""

    device: str = ""
    problem: Problem | None = None
    name: str = ""

    def matches(self, t: KnownTime) -> bool:
        return (
            (not self.device or t.device == self.device)
            and (self.problem is None or t.problem == self.problem)
            and (not self.name or t.name == self.name)
        )

    def may_be_in(self, info: SnapshotInfo) -> bool:
        """True if a snapshot may hold such times, judged by its summary."""
        s = info.summary
        if s is None or s.origins in ((), ("predicted",)):
            return False
        if self.device and self.device not in s.devices and len(s.devices) < _SUMMARY_DEVICES:
            return False
        if self.name and self.name not in s.variants and len(s.variants) < _SUMMARY_VARIANTS:
            return False
        if self.problem is None or len(s.problems) >= _SUMMARY_PROBLEMS:
            return True
        return self.problem.label() in s.problems


@dataclass(slots=True)
class _QueryResult:
    """The times of one query read so far, by file."""

    files: dict[str, str] = field(default_factory=dict)  # files read: name → key
    times: dict[str, tuple[KnownTime, ...]] = field(default_factory=dict)
    of_launch: Counter[object] = field(default_factory=Counter)
    listing: int = -1  # the listing of the parts below
    joined: tuple[KnownTime, ...] = ()
    unread: int = 0

    def take(self, info: SnapshotInfo, times: Iterable[KnownTime], most: int) -> None:
        """Add the times of a file, with at most `most` times per launch in total."""
        self.files[info.name] = info.key
        taken = []
        for t in times:
            launch = (t.name, t.device, t.problem, *sorted(t.config.items()), t.latency.kind)
            launch = (*launch, t.latency.origin, t.source_sha256, t.series)
            self.of_launch[launch] += 1
            if self.of_launch[launch] <= most:
                taken.append(t)
        if taken:
            self.times[info.name] = tuple(taken)


class KnownTimes:
    """The times of a store and of open sessions; each file is read once.

    The store's index has the times of its files; a file that changed is read again. Queries list
    the folders again at most about once a second. Of one launch (kernel, source, config, problem,
    GPU), the 32 newest files count. Calls from several threads are safe. An unreadable file has no
    times.

    Args:
        most_s: seconds that a listing may spend reading files that are not in the index, and that
            queries may spend fetching times between two listings, newest files first, and the same
            again for queries of one problem. Later queries continue, and `unread` is the number of
            remaining files. None: read all at once.
        at_once: files whose times are fetched together.
        cache_from_bytes: times of a journal are cached once this many bytes are new.
        most_of_a_launch: times of one kernel, config, problem and GPU, the newest files first.
    """

    def __init__(
        self,
        store: Store | None = None,
        working: Path | None = None,
        most_s: float | None = None,
        at_once: int = 64,
        most_of_a_launch: int = 32,
        cache_from_bytes: int = 4 << 20,
    ) -> None:
        self._cache_from_bytes = cache_from_bytes
        self._at_once, self._most_of_a_launch = at_once, most_of_a_launch
        self._store = store or default_store()
        self._working = working or working_folder()
        self._most_s = most_s
        self._left_s = dict.fromkeys((True, False), 0.0)  # key: the query names a problem
        self._infos: list[SnapshotInfo] = []
        self._num_unlisted = 0  # files that the last listing had no time to read
        self._listing = 0  # counts the listings with changes
        self._answers: dict[_Query, _QueryResult] = {}
        self._sessions: dict[Path, _OfSession] = {}
        self._lock = threading.Lock()
        self._next_look = 0.0

    @property
    def unread(self) -> int:
        """Return the number of snapshots that the last queries have not read yet."""
        of_queries = max((answer.unread for answer in self._answers.values()), default=0)
        return self._num_unlisted + of_queries

    def refresh(self) -> None:
        """Read immediately what was saved, removed or run since the last listing."""
        with self._lock:
            begin = time.monotonic()
            try:
                infos = self._store.list(self._most_s)
            except AttuneError:
                infos = []
            # A file that was removed and saved again under the same name is another file.
            if {(i.name, i.key) for i in self._infos} - {(i.name, i.key) for i in infos}:
                self._answers.clear()
            if infos != self._infos:
                self._infos = infos
                self._listing += 1
                self._num_unlisted = sum(not i.is_read for i in infos)
            paths = sorted(self._working.glob("*.jsonl"))
            self._sessions = {p: s for p, s in self._sessions.items() if p in paths}
            for path in paths:
                self._refresh_session(path)
            took = time.monotonic() - begin
            pause = _MIN_INTERVAL_S if self._num_unlisted else took / _SHARE
            self._next_look = begin + max(_MIN_INTERVAL_S, pause)
            self._left_s = dict.fromkeys(self._left_s, self._most_s or 0.0)

    def all(self) -> tuple[KnownTime, ...]:
        """Return all times."""
        return self._times(_Query())

    def on(
        self, device: str, problem: Problem | None = None, name: str = ""
    ) -> tuple[KnownTime, ...]:
        """Return the times of one GPU, optionally of one problem or kernel name."""
        return self._times(_Query(device, problem, name))

    def at(self, problem: Problem, device: str) -> tuple[KnownTime, ...]:
        """Return the times of one problem on one GPU: kernels and PyTorch's attention."""
        return self.on(device, problem)

    def _times(self, asked: _Query) -> tuple[KnownTime, ...]:
        if time.monotonic() > self._next_look:
            self.refresh()
        with self._lock:
            answer = self._answers.setdefault(asked, _QueryResult())
            if answer.unread or answer.listing != self._listing:
                infos = [info for info in self._infos if asked.may_be_in(info)]
                unread = [info for info in infos if info.name not in answer.files]
                answer.unread = self._read(asked, answer, unread)
                cached = (answer.times.get(info.name, ()) for info in infos)
                answer.joined = tuple(chain.from_iterable(cached))
                answer.listing = self._listing
            of_sessions = chain.from_iterable(self._sessions.values())
            return (*answer.joined, *filter(asked.matches, of_sessions))

    def _read(self, asked: _Query, answer: _QueryResult, infos: Sequence[SnapshotInfo]) -> int:
        """Add the times of these files to the answer; return how many files there was no time
        for."""
        for done in range(0, len(infos), self._at_once):
            begin = time.monotonic()
            if self._most_s is not None and self._left_s[asked.problem is not None] <= 0:
                return len(infos) - done
            for info, times in self._store.times(infos[done : done + self._at_once]):
                answer.take(info, filter(asked.matches, times), self._most_of_a_launch)
            self._left_s[asked.problem is not None] -= time.monotonic() - begin
        return 0

    def _refresh_session(self, path: Path) -> None:
        try:
            self._sessions.setdefault(path, _OfSession(path, self._cache_from_bytes)).refresh()
        except AttuneError:
            self._sessions.pop(path, None)


class _OfSession:
    """The times of an open session, read incrementally from its journal.

    Times of a long journal are cached in the cache folder with the offset up to which it was read.
    """

    def __init__(self, path: Path, cache_from_bytes: int) -> None:
        self._path = path
        self._cache_from_bytes = cache_from_bytes
        self._session: Session | None = None
        self._offset = self._cached_to = 0  # bytes of the journal
        self._jobs: set[str] = set()
        self._times: tuple[KnownTime, ...] = ()
        self._read_cache()

    def __iter__(self) -> Iterator[KnownTime]:
        title = (self._session.title if self._session else "") or "Untitled session"
        return (t if t.session == title else replace(t, session=title) for t in self._times)

    def refresh(self) -> None:
        """Read new lines. Raises StoreError if the journal cannot be read."""
        if self._session is None:
            self._session = Session(self._path)
        else:
            self._session.refresh()
        lines, self._offset = files.read_lines(self._path, self._offset)
        # Most of a line is not its times, and a line with only a prediction has none.
        taken = [line for line in lines if any(origin in line for origin in _KNOWN_ORIGINS)]
        self._times += times_of(filter(None, map(self._evaluation, taken)), session="")
        if self._offset - self._cached_to > self._cache_from_bytes:
            self._write_cache()

    def _evaluation(self, line: bytes) -> Evaluation | None:
        try:
            event = files.parse_event(line) or {}
            job = event.get("job", "")
            if event.get("kind") != "evaluation" or job in self._jobs:
                return None
            evaluation = decode(Evaluation, event["evaluation"])
        except (SnapshotError, LookupError, TypeError, ValueError):
            return None
        self._jobs |= {job} - {""}
        return evaluation

    @property
    def _cache_path(self) -> Path:
        return files.cache_root() / "times" / f"{self._path.stem}.json"

    def _write_cache(self) -> None:
        whole = _CachedSession(
            layout=INDEX_LAYOUT,
            journal=str(self._path),
            offset=self._offset,
            jobs=tuple(self._jobs),
            times=self._times,
        )
        self._cached_to = self._offset
        with suppress(OSError, AttuneError, ValueError):  # the index cannot store NaN
            files.make_folder(self._cache_path.parent)
            files.write(self._cache_path, packed(whole).encode(), durable=False)

    def _read_cache(self) -> None:
        try:
            cached = unpacked(
                _CachedSession, files.read(self._cache_path, _MAX_CACHE_BYTES).decode()
            )
            size = self._path.stat().st_size
        except (OSError, AttuneError, ValueError):
            return
        if cached is None or (cached.layout, cached.journal) != (INDEX_LAYOUT, str(self._path)):
            return
        if cached.offset <= size:  # otherwise it is another journal of that name
            self._offset = self._cached_to = cached.offset
            self._jobs, self._times = set(cached.jobs), cached.times


@dataclass(frozen=True, slots=True)
class Score:
    """A prediction and a known time of the same variant, config, problem and GPU."""

    prediction: Prediction
    time: KnownTime

    @property
    def ratio(self) -> float:
        """Return predicted / measured."""
        return self.prediction.latency.median_us / self.time.latency.median_us

    @property
    def is_inside(self) -> bool:
        """True if the prediction's 90 % interval contains the time."""
        latency = self.prediction.latency
        return latency.low_us <= self.time.latency.median_us <= latency.high_us

    @property
    def is_same_source(self) -> bool:
        """Return True if the predicted source was also the timed one."""
        sha256 = self.time.source_sha256
        return bool(sha256) and sha256 == self.prediction.source_sha256

    @property
    def kernel(self) -> str:
        """Return the name of the predicted kernel."""
        return predicted_name(self.prediction.variant, self.prediction.source_sha256)

    @property
    def timed_kernel(self) -> str:
        """Return the name of the timed kernel, which is not the variant's for another source."""
        return name_of(self.time)

    @property
    def came_first(self) -> bool:
        """True if the prediction was made before the time was known."""
        return self.prediction.when <= self.time.when

    @property
    def counts(self) -> bool:
        """Return True if the score says how good predictions are."""
        return self.is_same_source and self.came_first

    @property
    def remark(self) -> str:
        """Return why the score does not count; empty if it does."""
        if not self.is_same_source:
            return "another source" if self.time.source_sha256 else "source not recorded"
        return "" if self.came_first else "predicted afterwards"


@dataclass(frozen=True, slots=True)
class Ledger:
    """All scores, newest prediction first, and the number of predictions without a time."""

    scores: tuple[Score, ...]
    waiting: int

    @property
    def counted(self) -> tuple[Score, ...]:
        """Return the scores that count."""
        return tuple(score for score in self.scores if score.counts)

    @property
    def reason(self) -> str:
        """Return one sentence that sums up the scores that count."""
        counted = self.counted
        wait = "prediction has" if self.waiting == 1 else "predictions have"
        waiting = f"{self.waiting:,} {wait} no measured or recorded time yet."
        if not counted:
            return f"No prediction was measured yet. {waiting}"
        inside = sum(score.is_inside for score in counted)
        errors = [abs(score.ratio - 1) for score in counted]
        return (
            f"{inside} of {len(counted)} times lie inside the 90 % interval of their prediction; "
            f"the median error is {statistics.median(errors):.0%}, the worst {max(errors):.0%}. "
            f"{waiting}"
        )


def score(predicted: Sequence[Prediction], times: Iterable[KnownTime]) -> Ledger:
    """Return the scores of all predictions with a known time.

    A time is scored once: by the last earlier prediction of its source, else by the first
    prediction with the best match of source.
    """
    of_key: dict[object, list[Prediction]] = {}
    for prediction in predicted:
        of_key.setdefault(prediction.key, []).append(prediction)
    scores, used = [], set()
    for taken in times:
        if taken.is_sdpa or taken.latency.kind != "device_warm":
            continue
        key = (taken.name, tuple(sorted(taken.config.items())), taken.problem, taken.device)
        candidates = [Score(prediction, taken) for prediction in of_key.get(key, ())]
        if candidates:
            used.add(key)
            scores.append(max(candidates, key=_fitness))
    ordered = sorted(scores, key=lambda s: s.prediction.when, reverse=True)
    return Ledger(tuple(ordered), sum(key not in used for key in of_key))


def ledger_table(ledger: Ledger) -> Table:
    """Return the scores as a table."""
    return Table.of(
        "Predictions and later times",
        (
            {
                "predicted, UTC": s.prediction.when[:16].replace("T", " "),
                "kernel": " ".join(
                    [s.kernel, *(f"{k}={v}" for k, v in s.prediction.config.items())]
                ),
                "problem": s.prediction.problem.label(),
                "GPU": s.prediction.device,
                "predicted": format_us(s.prediction.latency.median_us),
                "90 % interval": f"{format_us(s.prediction.latency.low_us)} to "
                f"{format_us(s.prediction.latency.high_us)}",
                "time": f"{format_us(s.time.latency.median_us)} {s.time.latency.origin}",
                "timed kernel": s.timed_kernel,
                "predicted / time": f"{s.ratio:.3g}" if s.is_same_source else None,
                "inside": ("yes" if s.is_inside else "no") if s.is_same_source else None,
                "not counted, because": s.remark or None,
                "session": s.time.session,
            }
            for s in ledger.scores
        ),
        ledger.reason,
    )


def _fitness(scored: Score) -> tuple[bool, bool, str]:
    return scored.is_same_source, scored.came_first, scored.prediction.when
