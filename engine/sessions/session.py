"""The working session, written to disk first.

The journal is the only source of its state. Every change is one JSON line, and the state follows
from all lines, so a killed server loses nothing and all tabs of a session see the same. Saving
creates a snapshot.
"""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from engine.attention.evaluation import Evaluation
from engine.base import files
from engine.base.errors import CompileError, InvalidKernel, SnapshotError, StoreError, UnknownName
from engine.base.files import MAX_SOURCE, data_folder
from engine.base.schema import (
    MAX_NOTES,
    MAX_SENTENCE,
    Notes,
    Sentence,
    clean_line,
    clean_lines,
    decode,
    encode,
)
from engine.devices.environment import collect_environment
from engine.sessions.goal import GoalStatus, TimelineRow, goal_status, timeline_rows
from engine.sessions.snapshot import (
    AS_TUPLE,
    Attachment,
    Decision,
    Environment,
    Goal,
    Phase,
    Record,
    ShortLine,
    Snapshot,
    Source,
    Spent,
    StoredErrorMap,
    TimelineEntry,
)
from engine.sessions.store import Store, default_store

if TYPE_CHECKING:
    from engine.correctness import ErrorMap
    from engine.pipeline.evaluation_run import EvaluationOutcome

Outcome = Literal["tried", "kept", "dropped"]


class About(Record):
    """The user's description of a session. A change contains the changed fields."""

    title: ShortLine = ""
    hypothesis: Sentence = ""
    notes: Notes = ""
    target: Goal | None = None
    spent: Spent | None = None
    decision: Decision | None = None
    phases: Annotated[tuple[Phase, ...], *AS_TUPLE] = ()


_CLEAN: dict[str, Callable[[str], str]] = {
    "title": partial(clean_line, limit=120),
    "hypothesis": partial(clean_lines, limit=MAX_SENTENCE),
    "notes": partial(clean_lines, limit=MAX_NOTES),
}


# The journal entry of `Session.add`: an evaluation and its job.
_ARRIVAL = re.compile(rb'\{"kind":"evaluation","key":"\w*","job":"([\w.-]*)","evaluation":')


class Session:
    """A working session. Methods that write raise `StoreError` on write errors.

    The description and the expected jobs are read at once. Evaluations and the timeline are read on
    first access, because 20,000 take seconds.
    """

    def __init__(self, path: Path) -> None:
        """Open the session with the journal `path`; see `start_session` and `resume_session`."""
        self.path = path
        self._known_to = 0  # bytes of the journal read for the description
        self._read_to = 0  # bytes read for evaluations and timeline
        self.id = ""
        self.created = ""
        self.title = ""
        self.hypothesis = ""
        self.notes = ""
        self.target: Goal | None = None
        self.spent: Spent | None = None
        self.decision: Decision | None = None
        self.phases: tuple[Phase, ...] = ()
        self.num_evaluations = 0  # including damaged ones until they are read
        self.damaged_lines = 0  # among the lines read
        self.saved_as = ""  # the name of the last snapshot
        self.is_unsaved = False  # changed since then
        self._environment: dict[str, Any] = {}
        self._evaluations: list[Evaluation] = []
        self._maps: list[StoredErrorMap] = []
        self._sources: dict[tuple[str, str], Source] = {}
        self._timeline: list[TimelineEntry] = []
        self._written: set[tuple[str, str]] = set()  # sources written by this object
        self._expected: dict[str, None] = {}
        self._arrived: set[str] = set()  # jobs
        self._jobs: set[str] = set()  # of the evaluations read so far
        self.refresh()

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Return the evaluations in the order in which they were added, with their original
        origins."""
        self._read()
        return tuple(self._evaluations)

    @property
    def error_maps(self) -> tuple[StoredErrorMap, ...]:
        """Return the error maps of the evaluations."""
        self._read()
        return tuple(self._maps)

    @property
    def expected(self) -> tuple[str, ...]:
        """Return jobs of this session whose evaluations have not been added yet."""
        return tuple(self._expected)

    def expect(self, job_id: str) -> None:
        """Register a job before it runs, so that its evaluation is found after a crash."""
        self._append("expect", job=job_id)

    def forget(self, job_id: str) -> None:
        """Remove a job that ended without an evaluation."""
        self._append("forget", job=job_id)

    def add(
        self, evaluation: Evaluation, *, maps: Iterable[ErrorMap] = (), job_id: str = ""
    ) -> None:
        """Add an evaluation, its error maps and its kernel's source.

        The evaluation of a job is added only once, also if several tabs add it.
        """
        if job_id in self._arrived:
            return
        sources = [s for s in sources_of(evaluation) if (s.name, s.sha256) not in self._written]
        self._append(
            "evaluation",
            key=uuid.uuid4().hex,
            job=job_id,
            evaluation=encode(evaluation),
            maps=[make_error_map(0, error_map).model_dump(mode="json") for error_map in maps],
            sources=[source.model_dump(mode="json") for source in sources],
        )
        self._written |= {(source.name, source.sha256) for source in sources}

    def edit(self, **changes: Any) -> None:
        """Change these fields of `About`. Texts are cleaned and shortened."""
        for name, clean in _CLEAN.items():
            if name in changes:
                changes[name] = clean(changes[name])
        about = About(**changes)
        self._append("edit", **about.model_dump(mode="json", include=about.model_fields_set))

    def note(self, what: str) -> None:
        """Add a timeline entry: an idea, a dead end, a decision."""
        self._append("note", when=now(), what=clean_lines(what, MAX_SENTENCE))

    def mark(self, entry: int, outcome: Outcome) -> None:
        """Set the outcome of timeline entry number `entry`."""
        self._append("mark", entry=entry, outcome=outcome)

    def status(self) -> GoalStatus | None:
        """Return the status of the session's target; None without a target."""
        return goal_status(self.target, self.evaluations, self.title) if self.target else None

    def timeline(self) -> list[TimelineRow]:
        """Return the timeline with gains, in the order of its entries."""
        self._read()
        return timeline_rows(self._timeline, self._evaluations, self.title)

    def to_snapshot(self) -> Snapshot:
        """Return a snapshot of the session so far. Raises SnapshotError if it is too large for a
        file."""
        self._read()
        left_out = f"{self.damaged_lines} damaged lines of its journal were left out."
        log = [missing_sources(self._evaluations, self._sources.values())]
        about = {name: getattr(self, name) for name in About.model_fields}
        about["title"] = self.title or _default_title(self._evaluations)
        return make_snapshot(
            self._evaluations,
            id=self.id,
            created=self.created,
            environment=self._environment,
            error_maps=self._maps,
            sources=self._sources.values(),
            timeline=self._timeline,
            log="\n".join(filter(None, [left_out if self.damaged_lines else "", *log])),
            **about,
        )

    def save(self, store: Store | None = None) -> str:
        """Save a snapshot and return its name. The session stays open."""
        name = (store or default_store()).save(self.to_snapshot())
        self._append("saved", name=name)
        return name

    def discard(self) -> None:
        """Delete the journal. Saved snapshots are kept."""
        with files.explain_os_error(f"{self.path} cannot be deleted"):
            self.path.unlink(missing_ok=True)

    def refresh(self) -> None:
        """Read lines that this or another process has added to the journal."""
        lines, self._known_to = files.read_lines(self.path, self._known_to)
        for line in lines:
            arrival = _ARRIVAL.match(line) if line.endswith(b"]}") else None
            if arrival is not None:
                self._arrive(arrival[1].decode())
            else:
                self._take(line, self._apply)

    def _read(self) -> None:
        """Read evaluations and timeline up to the end of the journal."""
        lines, self._read_to = files.read_lines(self.path, self._read_to)
        with files.collector_paused():
            for line in lines:
                self._take(line, self._apply_content)

    def _take(self, line: bytes, apply: Callable[[dict[str, Any]], None]) -> None:
        event = files.parse_event(line)
        try:
            if event is not None:
                apply(event)
        except (SnapshotError, LookupError, TypeError, ValueError):
            self.damaged_lines += 1

    def _append(self, kind: str, **fields: Any) -> None:
        try:
            files.append_event(self.path, {"kind": kind, **fields})
        except StoreError as error:
            why = getattr(error.__cause__, "strerror", None) or "the disk refused"
            raise StoreError(
                f"The session cannot be stored in {self.path.parent} ({why}): free some disk space "
                "or make the folder writable.",
                code="session_not_kept",
            ) from None
        self.refresh()

    def _apply(self, event: dict[str, Any]) -> None:
        match event.get("kind"):
            case "start":
                self.id, self.created = event["id"], event["created"]
                self._environment = event["environment"]
            case "edit":
                fields = {name: value for name, value in event.items() if name != "kind"}
                about = decode(About, fields, name="The edit")
                for name in about.model_fields_set:
                    setattr(self, name, getattr(about, name))
            case "evaluation" if "evaluation" in event:
                self._arrive(event.get("job", ""))
            case "expect":
                if event["job"] not in self._arrived:
                    self._expected[event["job"]] = None
            case "forget":
                self._expected.pop(event["job"], None)
            case "saved":
                self.saved_as = event["name"]
        if event.get("kind") not in ("expect", "forget"):
            self.is_unsaved = event.get("kind") not in ("start", "saved")

    def _arrive(self, job_id: str) -> None:
        self.is_unsaved = True
        if job_id in self._arrived:  # another tab was first
            return
        self.num_evaluations += 1
        if job_id:
            self._arrived.add(job_id)
            self._expected.pop(job_id, None)

    def _apply_content(self, event: dict[str, Any]) -> None:
        match event.get("kind"):
            case "evaluation":
                self._apply_evaluation(event)
            case "note":
                self._timeline.append(TimelineEntry(when=event["when"], what=event["what"]))
            case "mark":
                entry = dict(self._timeline[event["entry"]]) | {"outcome": event["outcome"]}
                self._timeline[event["entry"]] = TimelineEntry(**entry)

    def _apply_evaluation(self, event: dict[str, Any]) -> None:
        job_id = event.get("job", "")
        if job_id in self._jobs:  # another tab was first
            return
        evaluation = decode(Evaluation, event["evaluation"], name="The evaluation")
        index = len(self._evaluations)
        maps = [
            decode(StoredErrorMap, raw | {"evaluation": index}, name="The error map")
            for raw in event["maps"]
        ]
        sources = [decode(Source, raw, name="The source") for raw in event["sources"]]
        if job_id:
            self._jobs.add(job_id)
        self._evaluations.append(evaluation)
        self._maps += maps
        self._sources |= {(s.name, s.sha256): s for s in sources}
        self._timeline.append(
            TimelineEntry(
                when=evaluation.when or self.created,
                evaluation=index,
            )
        )


def working_folder() -> Path:
    """Return the folder of the journals of working sessions."""
    return data_folder() / "working"


def start_session(title: str = "", *, folder: Path | None = None) -> Session:
    """Start a session with a journal in `folder` (by default the user's data folder)."""
    folder = folder or working_folder()
    with files.explain_os_error(f"The folder {folder} for sessions cannot be created"):
        files.make_folder(folder)
    session_id = uuid.uuid4().hex
    return begin_session(folder / f"{session_id}.jsonl", session_id=session_id, title=title)


def begin_session(path: Path, *, title: str = "", session_id: str = "") -> Session:
    """Start a session with the new or empty file at `path` as its journal."""
    session = Session(path)
    session._append(
        "start",
        id=session_id or uuid.uuid4().hex,
        created=now(),
        environment=collect_environment(),
    )
    session.edit(title=title)
    return session


def resume_session(session_id: str, *, folder: Path | None = None) -> Session:
    """Return the session with this id.

    Raises:
        StoreError: there is no such journal.
    """
    path = (folder or working_folder()) / f"{session_id}.jsonl"
    if not session_id.isalnum() or not path.is_file():
        raise StoreError(
            "There is no such working session: it was discarded, or never started.",
            code="no_working_session",
        )
    return Session(path)


def working_sessions(*, folder: Path | None = None) -> list[str]:
    """Return ids of sessions that can be resumed, last changed first."""
    paths = sorted(
        (folder or working_folder()).glob("*.jsonl"), key=lambda p: p.stat().st_mtime, reverse=True
    )
    return [path.stem for path in paths]


def sources_of(evaluation: Evaluation) -> list[Source]:
    """Return the kernel source of an evaluation and its headers if they have not changed since.

    A description file beside the source is included.
    """
    from engine.attention.config import find_variant
    from engine.model.kernel import variant_sources
    from kernels.source_text import read_sidecar, sidecar_of
    from kernels.toml_block import KernelDescriptionError

    try:
        variant = find_variant(evaluation.variant)
        kernel = variant_sources(variant)
        sidecar = read_sidecar(variant.source)
        if kernel.source_sha256 != evaluation.source_sha256:
            return []  # the source was edited after the evaluation
        return [
            make_source(kernel.name, kernel.text, evaluation.flags),
            *(make_source(name, text) for name, text in kernel.headers),
            *([make_source(sidecar_of(variant.source).name, sidecar)] if sidecar else []),
        ]
    except (UnknownName, InvalidKernel, KernelDescriptionError, CompileError, SnapshotError):
        return []


def save_outcome(outcome: EvaluationOutcome, *, store: Store | None = None) -> str:
    """Save one evaluation as a snapshot, and return its name."""
    evaluation = outcome.evaluation
    snapshot = make_snapshot(
        [evaluation],
        title=_default_title([evaluation]),
        environment=collect_environment(),
        error_maps=[make_error_map(0, error_map) for error_map in outcome.maps],
        sources=sources_of(evaluation),
    )
    return (store or default_store()).save(snapshot)


def _default_title(evaluations: list[Evaluation]) -> str:
    """Return a title that describes the content."""
    if not evaluations:
        return UNTITLED
    variants = list(dict.fromkeys(e.variant for e in evaluations))
    problems = list(dict.fromkeys(e.problem.label() for e in evaluations))
    first = variants[0] if len(variants) == 1 else f"{len(variants)} variants"
    second = problems[0] if len(problems) == 1 else f"{len(problems)} problems"
    return f"{first} on {second}"


MAP_SIDE = 64  # cells per side of a stored error map
UNTITLED = "Untitled session"


def now() -> str:
    """Return the current time, UTC, ISO 8601, with microseconds, which order snapshots saved in
    the same second."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def make_snapshot(
    evaluations: Sequence[Evaluation],
    *,
    environment: Mapping[str, Any] | Environment,
    title: str = "",
    hypothesis: str = "",
    notes: str = "",
    provenance: str = "",
    created: str | None = None,
    updated: str | None = None,
    id: str | None = None,  # noqa: A002  (the field's name)
    **fields: Any,
) -> Snapshot:
    """Return a snapshot of `evaluations`. Texts are cleaned and shortened to the limits of a file.

    Args:
        created, updated: now by default.
        fields: further fields of `Snapshot`.

    Raises:
        SnapshotError: a limit of files is exceeded, such as the number of evaluations.
    """
    present = now()
    raw = {
        "id": id or uuid.uuid4().hex,
        "title": clean_line(title, 120) or UNTITLED,
        "hypothesis": clean_lines(hypothesis, MAX_SENTENCE),
        "notes": clean_lines(notes, MAX_NOTES),
        "created": created or present,
        "updated": updated or present,
        "provenance": clean_lines(provenance, MAX_SENTENCE),
        "environment": environment,
        "evaluations": [encode(evaluation) for evaluation in evaluations],
        **fields,
    }
    return decode(Snapshot, raw, name="This session")


def make_attachment(name: str, text: str) -> Attachment:
    """Return a file with its hash. Raises SnapshotError if it cannot be stored."""
    return decode(Attachment, _hashed(name, text), name="The attachment")


def make_source(name: str, text: str, flags: Iterable[str] = ()) -> Source:
    """Return a source with its hash and unchanged `text`. Raises SnapshotError if it cannot be
    stored."""
    kept = text if len(text) <= MAX_SOURCE else clean_lines(text, MAX_SOURCE)
    raw = _hashed(name, kept) | {"flags": [clean_line(flag) for flag in flags]}
    return decode(Source, raw, name="The source")


def _hashed(name: str, text: str) -> dict[str, Any]:
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return {"name": clean_line(name, 120), "text": text, "sha256": sha256}


def missing_sources(evaluations: Iterable[Evaluation], sources: Iterable[Source]) -> str:
    """Return one sentence per line on kernels whose sources a snapshot lacks; empty if none."""
    stored = {source.sha256 for source in sources}
    missing = {
        (e.variant, e.source_sha256)
        for e in evaluations
        if e.source_sha256 and e.source_sha256 not in stored
    }
    return "\n".join(
        f"The source of {variant} (SHA-256 {sha[:12]}…) is missing: it changed on disk before it "
        "was stored."
        for variant, sha in sorted(missing)
    )


def make_error_map(evaluation: int, error_map: ErrorMap) -> StoredErrorMap:
    """Return `error_map`, pooled by block maximum to at most `MAP_SIDE` cells per side.

    `evaluation` is the index of its evaluation. Values are rounded to four digits.
    """
    from engine.correctness.output_error import pool

    pooled, down, across = pool(error_map.values, MAP_SIDE)
    raw = {
        "evaluation": evaluation,
        "name": error_map.name,
        "row_axis": error_map.row_axis,
        "column_axis": error_map.column_axis,
        "rows": pooled.shape[0],
        "columns": pooled.shape[1],
        "rows_per_cell": error_map.rows_per_cell * down,
        "columns_per_cell": error_map.columns_per_cell * across,
        "values": [
            float(f"{x:.4g}") if math.isfinite(x) else None for x in pooled.ravel().tolist()
        ],
    }
    return decode(StoredErrorMap, raw, name="The error map")
