"""A sweep's journal: its spec, then one line per evaluation; everything else is derived from
these."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from engine.attention.problem import Problem
from engine.base import files
from engine.base.errors import AttuneError, Status, StoreError, UnknownName
from engine.base.schema import Stored, decode, encode
from engine.search.ranking import SweepRow, comparable
from engine.search.space import Location, Space, SweepOptions, SweepPoint
from engine.search.strategies import StrategyName

VERSION = 1


@dataclass(frozen=True, slots=True)
class Budget(Stored):
    """Limits of a search; None: no limit."""

    evaluations: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SweepSpec(Stored):
    """The request of a sweep, from which a journal can be resumed."""

    space: Space
    options: SweepOptions = field(default_factory=SweepOptions)
    strategy: StrategyName = "exhaustive"
    budget: Budget = field(default_factory=Budget)
    seed: int = 0


class SweepJournal:
    """Reads a sweep's file incrementally and appends to it.

    `rows` has the latest row of every point, in the order in which points were first evaluated.
    `remedy` is the advice in the error if the file cannot be written.
    """

    def __init__(self, path: Path, remedy: str = files.CACHE_REMEDY) -> None:
        self.path = path
        self._remedy = remedy
        self._spec: SweepSpec | None = None
        self._mistake = ""  # unknown name in its head
        self.ended = ""  # how its last run ended; empty while it runs or after a crash
        self.rows: dict[str, SweepRow] = {}
        self._offset = 0

    @classmethod
    def open(cls, path: Path, remedy: str = files.CACHE_REMEDY) -> SweepJournal:
        """Open the journal of an existing sweep.

        Raises:
            UnknownName: there is no such file, it is not a sweep's journal, or it needs an unknown
                kernel.
        """
        if not path.is_file():
            raise UnknownName(
                f"There is no file {path}: name the journal that `sweep` printed.",
                code="journal_missing",
            )
        opened = cls(path, remedy)
        opened.poll()
        if opened._spec is None and opened._mistake:
            raise UnknownName(
                f"The sweep of {path} cannot be read here. {opened._mistake}",
                code="sweep_unreadable_here",
            )
        if opened._spec is None:
            raise UnknownName(
                f"{path} is not the journal of a sweep: name the journal that `sweep` printed.",
                code="journal_foreign",
            )
        return opened

    @property
    def spec(self) -> SweepSpec:
        """Return the sweep's spec after it was started.

        Raises:
            ValueError: it was not started.
        """
        if self._spec is None:
            raise ValueError("the sweep has not begun")
        return self._spec

    def poll(self) -> list[SweepRow]:
        """Return rows added since the last call, by any process."""
        events, self._offset = files.read_events(self.path, self._offset)
        new = [row for event in events if (row := self._take(event)) is not None]
        self.rows.update((row.point, row) for row in new)
        return new

    def _take(self, event: Mapping[str, Any]) -> SweepRow | None:
        kind = event.get("event")
        try:
            if kind == "sweep" and event["version"] == VERSION:
                self._mistake = ""
                self._spec = decode(SweepSpec, event["spec"])
                self.ended = ""
            elif kind == "end":
                self.ended = str(event["state"])
            elif kind == "evaluation":
                location = Location(**event.get("where", {}))
                return SweepRow.from_result(
                    event["point"], event["result"], event["elapsed_s"], location
                )
        except UnknownName as error:
            self._mistake = str(error)  # its own kernel was removed
            return None
        except (KeyError, TypeError, ValueError, AttuneError):
            # A damaged line or one of another version: the point counts as not evaluated.
            return None
        return None

    def begin(self, spec: SweepSpec) -> None:
        """Start or continue a sweep.

        Raises:
            StoreError: the file cannot be written.
        """
        self._spec, self.ended = spec, ""
        self._append({"event": "sweep", "version": VERSION, "t": time.time(), "spec": encode(spec)})

    def add(self, point: SweepPoint, row: SweepRow) -> None:
        """Write one finished evaluation."""
        self.rows[row.point] = row
        self._append(
            {
                "event": "evaluation",
                "t": time.time(),
                "point": point.id,
                "request": encode(point.request),
                "elapsed_s": row.elapsed_s,
                "where": asdict(row.location),
                "result": row.result,
            }
        )

    def end(self, state: str) -> None:
        """Write how this run ended. Raises StoreError as `begin`."""
        self.ended = state
        self._append({"event": "end", "t": time.time(), "state": state})

    def _append(self, event: Mapping[str, Any]) -> None:
        files.append_event(self.path, event, self._remedy)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Lock the file against other processes that would run the same sweep.

        Raises:
            UnknownName: the user named the file, and it cannot be created.
            StoreError: another process runs it, or the file cannot be written.
        """
        named = self._remedy != files.CACHE_REMEDY
        what = f"The journal {self.path} cannot be written"
        with files.explain_os_error(what, self._remedy, named=named):
            if not named:  # do not create a possibly mistyped folder
                files.make_folder(self.path.parent)
            lock = files.try_lock(self.path)
        if lock is None:
            raise StoreError(
                f"Another process runs the sweep in {self.path}: wait for it, or choose "
                "another file with --journal.",
                code="sweep_running",
            )
        try:
            yield
        finally:
            lock.release()


# Progress of a sweep: counts of its rows, and the fastest of each problem.


BestKey: TypeAlias = tuple[str, str, Problem]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCounts(Stored):
    """Figures of a sweep's progress."""

    done: int  # rows so far, including skipped ones and those of an earlier run
    total: int  # expected rows, as far as known from budget and strategy
    passed: int
    skipped: int  # excluded by constraints
    failed: int  # everything else
    resumed: int  # from an earlier run
    elapsed_s: float  # of this run
    per_minute: float | None  # recent rate; None before the first evaluation
    eta_s: float | None  # None if nothing was timed yet
    eta_range_s: tuple[float, float] | None = None  # its likely range
    workers: int = 1  # number of parallel evaluations
    under_way: str = ""  # points being evaluated: `v05 num_splits=4, B1 H8 S512 …`


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(SweepCounts):
    """The progress of a sweep, with rows."""

    # Fastest so far by GPU (model and individual GPU) and problem; measured before predicted.
    best: Mapping[BestKey, SweepRow]
    last: SweepRow | None


@dataclass(slots=True)
class Tally:
    """Counts rows and tracks the fastest of each GPU and problem."""

    passed: int = 0
    skipped: int = 0
    failed: int = 0
    best: dict[BestKey, SweepRow] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Return the number of counted rows."""
        return self.passed + self.skipped + self.failed

    def add(self, row: SweepRow) -> None:
        """Count a row, and keep it if it is the fastest of its GPU and problem."""
        time_us = row.median_us
        if row.status is Status.PASSED or time_us is not None:
            self.passed += 1
        elif row.status is Status.SKIPPED:
            self.skipped += 1
        else:
            self.failed += 1
        if time_us is not None:
            key = best_key(row)
            if key not in self.best or _is_better(row, self.best[key]):
                self.best[key] = row


def best_key(row: SweepRow) -> BestKey:
    """Return the key of a row in `Progress.best`."""
    return (row.device, row.measured_on, row.problem)


def _is_better(row: SweepRow, best: SweepRow) -> bool:
    """True if faster, or of a better origin: measured before recorded before predicted."""
    ranked = comparable([row, best])
    if len(ranked) < 2:
        return row in ranked
    return (row.median_us or 0.0) < (best.median_us or 0.0)
