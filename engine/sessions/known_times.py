"""Measured and recorded times in shipped and own snapshots and in working sessions.

Predictions are scored against them (`score`): the last one before a time was known counts. One that
was made afterwards, or of another source than was timed, is listed and not counted.
"""

from __future__ import annotations

import base64
import statistics
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

from pydantic import Field

from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.base import files
from engine.base.errors import AttuneError, SnapshotError
from engine.base.schema import decode
from engine.base.table import Table
from engine.base.units import format_us
from engine.history.history import History, Prediction
from engine.history.known_time import KnownTime, times_of
from engine.sessions.session import Session, working_folder
from engine.sessions.snapshot import SCHEMA_VERSION, Record
from engine.sessions.store import SnapshotInfo, Store, default_store

# More kernels and problems than a snapshot's summary lists may be in it all the same.
_SUMMARY_DEVICES = 8
_SUMMARY_VARIANTS = 64
_SUMMARY_PROBLEMS = 200
_LEAST_S = 1.0  # between two looks at the folders
_SHARE = 0.05  # of the time that looking may take
_LAYOUT = f"schema {SCHEMA_VERSION}, times 1"
_TAKEN = (b'"measured"', b'"recorded"')  # origins that a time is kept of
_MOST_KEPT_BYTES = 256 << 20


def open_history(most_s: float | None = None) -> History:
    """The history of all times known on this machine.

    Times of sessions are left out if they cannot be read or the machine can only measure.

    Args:
        most_s: as `KnownTimes` has it.
    """
    try:
        return History(KnownTimes(most_s=most_s))
    except (ImportError, AttuneError):
        return History()


class _Kept(Record):
    """What the index keeps of one file."""

    times: Annotated[tuple[KnownTime, ...], Field(strict=False)]


class _KeptSession(_Kept):
    """What is kept of a session that is being worked on: its times up to a byte of its journal."""

    layout: str
    journal: str
    offset: int
    jobs: Annotated[tuple[str, ...], Field(strict=False)]


_AnyKept = TypeVar("_AnyKept", bound=_Kept)


class _Asked(NamedTuple):
    """Which times are asked for; what is empty is not asked after."""

    device: str = ""
    problem: Problem | None = None
    name: str = ""

    def holds(self, t: KnownTime) -> bool:
        return (
            (not self.device or t.device == self.device)
            and (self.problem is None or t.problem == self.problem)
            and (not self.name or t.name == self.name)
        )

    def may_be_in(self, info: SnapshotInfo) -> bool:
        """Whether a snapshot may hold such times, by its summary."""
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
class _Answer:
    """The times of one question, file by file, as far as they are read."""

    files: dict[str, str] = field(default_factory=dict)  # what is read: name → key
    times: dict[str, tuple[KnownTime, ...]] = field(default_factory=dict)
    of_launch: Counter[object] = field(default_factory=Counter)
    listing: int = -1  # of which the parts below are
    joined: tuple[KnownTime, ...] = ()
    unread: int = 0

    def take(self, info: SnapshotInfo, times: Iterable[KnownTime], most: int) -> None:
        """Add the times of a file, of each launch at most so many in all."""
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
    """The times of a store and of the open sessions; each file is opened once.

    What is read of a snapshot is kept in an index beside the list of the store and is read again
    where the file is another. The folders are looked at again about once a second, when times are
    asked for. Of one launch (kernel, source, config, problem, GPU) the 32 newest files count. Calls
    from several threads are safe. A file that cannot be read has no times.

    Args:
        most_s: seconds that answers may take to read files between two looks, the newest files
            first, and again as many for those of one problem; the next ones go on, and `unread`
            says what is left. None: all is read at once.
        at_once: files whose times are fetched and kept together.
        keep_from_bytes: of a journal; its times are written down once so much of it is new.
        most_of_a_launch: times of one kernel, config, problem and GPU, the newest files first.
    """

    def __init__(
        self,
        store: Store | None = None,
        working: Path | None = None,
        most_s: float | None = None,
        at_once: int = 64,
        most_of_a_launch: int = 32,
        keep_from_bytes: int = 4 << 20,
    ) -> None:
        self._keep_from_bytes = keep_from_bytes
        self._at_once, self._most_of_a_launch = at_once, most_of_a_launch
        self._store = store or default_store()
        self._working = working or working_folder()
        self._most_s = most_s
        self._left_s = dict.fromkeys((True, False), 0.0)  # by whether a problem is asked after
        self._infos: list[SnapshotInfo] = []
        self._listing = 0  # counts the looks that found other files
        self._answers: dict[_Asked, _Answer] = {}
        self._sessions: dict[Path, _OfSession] = {}
        self._lock = threading.Lock()
        self._next_look = 0.0

    @property
    def unread(self) -> int:
        """Snapshots whose times the last answers did not hold yet."""
        return max((answer.unread for answer in self._answers.values()), default=0)

    def refresh(self) -> None:
        """Read immediately what was saved, removed or run since."""
        with self._lock:
            begin = time.monotonic()
            try:
                infos = self._store.list()
            except AttuneError:
                infos = []
            # Removed and saved again under one name is another file.
            if {(i.name, i.key) for i in self._infos} - {(i.name, i.key) for i in infos}:
                self._answers.clear()
            if infos != self._infos:
                self._infos = infos
                self._listing += 1
            paths = sorted(self._working.glob("*.jsonl"))
            self._sessions = {p: s for p, s in self._sessions.items() if p in paths}
            for path in paths:
                self._refresh_session(path)
            took = time.monotonic() - begin
            self._next_look = begin + max(_LEAST_S, took / _SHARE)
            self._left_s = dict.fromkeys(self._left_s, self._most_s or 0.0)

    def all(self) -> tuple[KnownTime, ...]:
        """Every time there is."""
        return self._times(_Asked())

    def on(
        self, device: str, problem: Problem | None = None, name: str = ""
    ) -> tuple[KnownTime, ...]:
        """The times of one GPU; of one problem, or of a kernel of this name, where it is given."""
        return self._times(_Asked(device, problem, name))

    def at(self, problem: Problem, device: str) -> tuple[KnownTime, ...]:
        """The times of one problem on one GPU, kernels and PyTorch's attention."""
        return self.on(device, problem)

    def _times(self, asked: _Asked) -> tuple[KnownTime, ...]:
        if time.monotonic() > self._next_look:
            self.refresh()
        with self._lock:
            answer = self._answers.setdefault(asked, _Answer())
            if answer.unread or answer.listing != self._listing:
                infos = [info for info in self._infos if asked.may_be_in(info)]
                unread = [info for info in infos if info.name not in answer.files]
                answer.unread = self._read(asked, answer, unread)
                kept = (answer.times.get(info.name, ()) for info in infos)
                answer.joined = tuple(chain.from_iterable(kept))
                answer.listing = self._listing
            of_sessions = chain.from_iterable(self._sessions.values())
            return (*answer.joined, *filter(asked.holds, of_sessions))

    def _read(self, asked: _Asked, answer: _Answer, infos: Sequence[SnapshotInfo]) -> int:
        """Take the times of these files into the answer; how many there was no time for."""
        for done in range(0, len(infos), self._at_once):
            begin = time.monotonic()
            if self._most_s is not None and self._left_s[asked.problem is not None] <= 0:
                return len(infos) - done
            for info, times in self._of_files(infos[done : done + self._at_once]):
                answer.take(info, filter(asked.holds, times), self._most_of_a_launch)
            self._left_s[asked.problem is not None] -= time.monotonic() - begin
        return 0

    def _of_files(
        self, infos: Sequence[SnapshotInfo]
    ) -> Iterator[tuple[SnapshotInfo, tuple[KnownTime, ...]]]:
        for shipped in (False, True):
            index = self._store.index(_LAYOUT, shipped=shipped)
            mine = [info for info in infos if info.shipped == shipped]
            kept = index.of([info.name for info in mine]) if mine else {}
            fresh: dict[tuple[str, str], str] = {}
            for info in mine:
                times = _from_index(kept.get((info.name, info.key)))
                if times is None:
                    try:
                        times = self._opened(info)
                        fresh[info.name, info.key] = _for_index(times)
                    except SnapshotError:  # the content is at fault
                        times = ()
                        fresh[info.name, info.key] = _for_index(times)
                    except (AttuneError, ValueError):  # the disk; a form that no index keeps
                        times = times or ()
                yield info, times
            if fresh:
                index.update(fresh)

    def _opened(self, info: SnapshotInfo) -> tuple[KnownTime, ...]:
        snapshot = self._store.open(info.name)
        return times_of(
            snapshot.opened(),
            session=info.title,
            file=info.name,
            shipped=info.shipped,
            since=snapshot.created,
        )

    def _refresh_session(self, path: Path) -> None:
        try:
            self._sessions.setdefault(path, _OfSession(path, self._keep_from_bytes)).refresh()
        except AttuneError:
            self._sessions.pop(path, None)


class _OfSession:
    """The times of a session that is being worked on, read from where its journal was last read to.

    Of a long journal they are kept in the cache folder, with how much of it they are of.
    """

    def __init__(self, path: Path, keep_from_bytes: int) -> None:
        self._path = path
        self._keep_from_bytes = keep_from_bytes
        self._session: Session | None = None
        self._offset = self._kept_to = 0  # bytes of the journal
        self._jobs: set[str] = set()
        self._times: tuple[KnownTime, ...] = ()
        self._open_kept()

    def __iter__(self) -> Iterator[KnownTime]:
        title = (self._session.title if self._session else "") or "Untitled session"
        return (t if t.session == title else replace(t, session=title) for t in self._times)

    def refresh(self) -> None:
        """Raises StoreError where the journal cannot be read."""
        if self._session is None:
            self._session = Session(self._path)
        else:
            self._session.refresh()
        lines, self._offset = files.read_lines(self._path, self._offset)
        # Most of a line is not of its times, and a predicted one has none.
        taken = [line for line in lines if any(origin in line for origin in _TAKEN)]
        self._times += times_of(filter(None, map(self._evaluation, taken)), session="")
        if self._offset - self._kept_to > self._keep_from_bytes:
            self._keep()

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
    def _kept(self) -> Path:
        return files.cache_root() / "times" / f"{self._path.stem}.json"

    def _keep(self) -> None:
        whole = _KeptSession(
            layout=_LAYOUT,
            journal=str(self._path),
            offset=self._offset,
            jobs=tuple(self._jobs),
            times=self._times,
        )
        self._kept_to = self._offset
        with suppress(OSError, AttuneError, ValueError):  # NaN is a value that no index keeps
            files.make_folder(self._kept.parent)
            files.write(self._kept, _packed(whole).encode(), durable=False)

    def _open_kept(self) -> None:
        try:
            kept = _unpacked(_KeptSession, files.read(self._kept, _MOST_KEPT_BYTES).decode())
            size = self._path.stat().st_size
        except (OSError, AttuneError, ValueError):
            return
        if kept is None or (kept.layout, kept.journal) != (_LAYOUT, str(self._path)):
            return
        if kept.offset <= size:  # else it is another journal of that name
            self._offset = self._kept_to = kept.offset
            self._jobs, self._times = set(kept.jobs), kept.times


def _for_index(times: tuple[KnownTime, ...]) -> str:
    return _packed(_Kept(times=times))


def _from_index(text: str | None) -> tuple[KnownTime, ...] | None:
    kept = _unpacked(_Kept, text) if text is not None else None
    return kept.times if kept is not None else None


def _packed(kept: _Kept) -> str:
    """Packed: the times of one file repeat themselves, and an index of 10,000 is 300 MB."""
    return base64.b85encode(zlib.compress(kept.model_dump_json().encode(), 1)).decode()


def _unpacked(kind: type[_AnyKept], text: str) -> _AnyKept | None:
    try:
        return kind.model_validate_json(zlib.decompress(base64.b85decode(text)))
    except (ValueError, zlib.error):  # a ValidationError is a ValueError
        return None


@dataclass(frozen=True, slots=True)
class Score:
    """A prediction beside a time that was taken of the same variant, config, problem and GPU."""

    prediction: Prediction
    time: KnownTime

    @property
    def ratio(self) -> float:
        """Predicted / measured."""
        return self.prediction.latency.median_us / self.time.latency.median_us

    @property
    def is_inside(self) -> bool:
        """Whether the prediction's 90 % interval holds the time."""
        latency = self.prediction.latency
        return latency.low_us <= self.time.latency.median_us <= latency.high_us

    @property
    def is_same_source(self) -> bool:
        sha256 = self.time.source_sha256
        return bool(sha256) and sha256 == self.prediction.source_sha256

    @property
    def came_first(self) -> bool:
        """Whether it was predicted before the time was known."""
        return self.prediction.when <= self.time.when

    @property
    def counts(self) -> bool:
        return self.is_same_source and self.came_first

    @property
    def remark(self) -> str:
        """Why it does not count; empty where it does."""
        if not self.is_same_source:
            return "another source" if self.time.source_sha256 else "source not recorded"
        return "" if self.came_first else "predicted afterwards"


@dataclass(frozen=True, slots=True)
class Ledger:
    """All scores, the newest prediction first, and how many predictions wait for a time."""

    scores: tuple[Score, ...]
    waiting: int

    @property
    def counted(self) -> tuple[Score, ...]:
        return tuple(score for score in self.scores if score.counts)

    @property
    def reason(self) -> str:
        """What the scores that count come to, in a sentence."""
        counted = self.counted
        wait = "prediction waits" if self.waiting == 1 else "predictions wait"
        waiting = f"{self.waiting:,} {wait} for a time."
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
    """Every prediction of which a time is known, beside it.

    A time is scored once: by the last prediction of its source before it, else by the one that fits
    best by source and then is the first.
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
    """The scores as people read them."""
    return Table.of(
        "Predictions and later times",
        (
            {
                "predicted, UTC": s.prediction.when[:16].replace("T", " "),
                "kernel": " ".join(
                    [s.prediction.variant, *(f"{k}={v}" for k, v in s.prediction.config.items())]
                ),
                "problem": s.prediction.problem.label(),
                "GPU": s.prediction.device,
                "predicted": format_us(s.prediction.latency.median_us),
                "90 % interval": f"{format_us(s.prediction.latency.low_us)} to "
                f"{format_us(s.prediction.latency.high_us)}",
                "time": f"{format_us(s.time.latency.median_us)} {s.time.latency.origin}",
                "predicted / time": f"{s.ratio:.3g}",
                "inside": "yes" if s.is_inside else "no",
                "not counted, because": s.remark or None,
                "session": s.time.session,
            }
            for s in ledger.scores
        ),
        ledger.reason,
    )


def _fitness(scored: Score) -> tuple[bool, bool, str]:
    return scored.is_same_source, scored.came_first, scored.prediction.when
