"""Snapshot schema: the content of a file, with limits on everything.

The file is one JSON object: `format` and `schema_version`, then the fields of `Snapshot`. No part
of it is derived from others. What a list of sessions shows, `Summary`, is computed from the content
when a file is saved or first listed, and cached by `engine.sessions.store`.

Version 2 adds `seqlen_kv` to problems; version 3 `num_heads_kv`, `idle_ctas` to occupancies,
`warnings` to verdicts, `place` to findings, `attachments`, `spent`, `decision` and `phases`;
version 4 the statuses RACE and OUT_OF_BOUNDS; version 5 a problem's features (`window`, `softcap`,
`alibi`, `sinks`, `seqlens`, `direction`) and causal problems with S ≠ KV; version 6 `counts`, what
the machine code of an evaluation executes; version 7 `kv_dtype` of problems and `fp8_err` of
verdicts; version 8 `lse` of problems. Version 9 removes fields that follow from others
(`Stored.derived`): `resources` and `occupancy` beside the passes, sums, shares, `limiter`,
`within_fixed_bound`; version 10 the text of the timeline's evaluations, and `problems`, those of
the evaluations; version 11 `summary`, which no version reads from a file any more. Old journals,
which have no version, have derived fields, too, so every class ignores its own; no other migration
is needed between versions.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from engine.attention.evaluation import Evaluation, Origin
from engine.attention.problem import Problem
from engine.base.errors import SnapshotError, Status
from engine.base.files import collector_paused
from engine.base.schema import (
    MAX_ERROR,
    Count,
    Line,
    Log,
    Notes,
    NotNegative,
    Sentence,
    Sha256,
    SourceText,
    Time,
    TimeOrEmpty,
    decode,
    file_label,
    place_of,
)
from engine.history.known_time import timed_device

FORMAT = "attune-snapshot"
SCHEMA_VERSION = 11

MAX_EVALUATIONS = 10_000
MAX_MAP_SIDE = 256

Id: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
MapValue: TypeAlias = Annotated[float, Field(ge=-1, le=MAX_ERROR)]
ShortLine: TypeAlias = Annotated[Line, Field(max_length=120)]

AS_TUPLE = (Field(strict=False), FailFast())  # JSON has lists


class Record(BaseModel):
    """Base of classes that exist only in files: no unknown fields, no conversions, finite
    numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Gpu(Record):
    """One GPU as NVML reports it, with current and maximum clocks."""

    name: Line | None = None
    compute_capability: Line | None = None
    memory_bytes: Count | None = None
    sm_clock_mhz: Count | None = None
    max_sm_clock_mhz: Count | None = None
    memory_clock_mhz: Count | None = None
    max_memory_clock_mhz: Count | None = None
    power_limit_w: NotNegative | None = None


class Environment(Record):
    """The result of `engine.devices.environment.collect_environment()`; None for unknown values."""

    collected: TimeOrEmpty = ""
    gpus: Annotated[tuple[Gpu, ...], Field(max_length=64), *AS_TUPLE] = ()
    driver: Line | None = None
    cuda_driver: Line | None = None
    cuda_runtime: Line | None = None
    nvrtc: Line | None = None
    cupy: Line | None = None
    torch: Line | None = None
    cudnn: Line | None = None
    numpy: Line | None = None
    attune: Line | None = None
    python: Line | None = None
    os: Line | None = None
    cpu: Line | None = None
    cpu_count: Count | None = None
    commit: Line | None = None
    dirty: bool | None = None


class Goal(Record):
    """The target of a session, from which its status is computed.

    `speedup`: baseline time / kernel time ≥ value. `latency_us`: median ≤ value. `per_unit_gain`:
    time per (batch, head) at the smallest batch·num_heads divided by that at the best one ≥ value.
    Empty filters match all.
    """

    metric: Literal["speedup", "latency_us", "per_unit_gain"]
    value: float = Field(gt=0, le=1e12)
    baseline: ShortLine = ""  # "flash", "cudnn", …; empty: the fastest one of the evaluation
    variant: ShortLine = ""
    seqlen: Count | None = None
    head_dim: Count | None = None
    batch: Count | None = None
    num_heads: Count | None = None


class Spent(Record):
    """The cost of a session so far, and its budget; None if not given."""

    hours: NotNegative | None = None  # person-hours
    gpu_hours: NotNegative | None = None
    cost_usd: NotNegative | None = None
    budget_usd: NotNegative | None = None


Outcome: TypeAlias = Literal["kept", "dropped", "next"]  # outcome of a change in a session


class Decision(Record):
    """The decision on a session or a phase, and why."""

    outcome: Outcome
    why: Sentence = ""


class Phase(Record):
    """A part of the session with its own target."""

    name: ShortLine
    target: Goal | None = None
    decision: Decision | None = None


class Attachment(Record):
    """A file attached to the session, for example the table of a batch recommendation. Only
    data."""

    name: ShortLine  # "batch_v01_L4.csv"
    text: SourceText
    sha256: Sha256  # of the text in UTF-8

    @model_validator(mode="after")
    def _hash(self) -> Self:
        if hashlib.sha256(self.text.encode()).hexdigest() != self.sha256:
            raise ValueError("sha256 is not that of the text: one of the two was changed")
        return self


class Source(Attachment):
    """A kernel's source text as compiled, with its flags. Opening a snapshot never runs it."""

    flags: Annotated[tuple[Line, ...], Field(max_length=128), *AS_TUPLE] = ()


class StoredErrorMap(Record):
    """Largest |error| pooled by block maximum, row-major.

    null where the output was NaN or infinite, −1 where nothing was compared.
    """

    evaluation: Count  # index into `evaluations`
    name: ShortLine  # "query_tile_by_key_tile"
    row_axis: ShortLine
    column_axis: ShortLine
    rows: Annotated[int, Field(ge=1, le=MAX_MAP_SIDE)]
    columns: Annotated[int, Field(ge=1, le=MAX_MAP_SIDE)]
    rows_per_cell: Annotated[int, Field(ge=1)] = 1
    columns_per_cell: Annotated[int, Field(ge=1)] = 1
    values: Annotated[tuple[MapValue | None, ...], Field(max_length=MAX_MAP_SIDE**2), *AS_TUPLE]

    @model_validator(mode="after")
    def _shape(self) -> StoredErrorMap:
        if len(self.values) != self.rows * self.columns:
            raise ValueError(
                f"values has {len(self.values)} entries, not rows · columns = "
                f"{self.rows * self.columns}"
            )
        return self


class TimelineEntry(Record):
    """One timeline entry: a note, or an evaluation, whose text and gain are computed when it is
    read."""

    when: Time
    evaluation: Count | None = None  # index into `evaluations`
    what: Sentence = ""  # of a note
    outcome: Literal["tried", "kept", "dropped"] = "tried"

    @field_validator("what")
    @classmethod
    def _of_a_note(cls, what: str, read: ValidationInfo) -> str:
        """Drop the text of an evaluation, which files before version 10 have."""
        return "" if read.data.get("evaluation") is not None else what


class Snapshot(Record):
    """A saved session. `evaluations` are as stored; `opened()` returns them as shown."""

    id: Id
    title: ShortLine
    hypothesis: Sentence = ""
    target: Goal | None = None
    notes: Notes = ""
    created: Time
    updated: Time
    provenance: Sentence = ""  # where recorded figures come from
    environment: Environment
    evaluations: Annotated[tuple[Evaluation, ...], Field(max_length=MAX_EVALUATIONS), *AS_TUPLE]
    error_maps: Annotated[
        tuple[StoredErrorMap, ...], Field(max_length=MAX_EVALUATIONS), *AS_TUPLE
    ] = ()
    sources: Annotated[tuple[Source, ...], Field(max_length=1_000), *AS_TUPLE] = ()
    timeline: Annotated[tuple[TimelineEntry, ...], Field(max_length=20_000), *AS_TUPLE] = ()
    log: Log = ""  # of an import: what was left out, and why
    attachments: Annotated[tuple[Attachment, ...], Field(max_length=100), *AS_TUPLE] = ()
    spent: Spent | None = None
    decision: Decision | None = None
    phases: Annotated[tuple[Phase, ...], Field(max_length=100), *AS_TUPLE] = ()

    @model_validator(mode="after")
    def _references(self) -> Snapshot:
        known = len(self.evaluations)
        named = [(f"error_maps[{i}]", x.evaluation) for i, x in enumerate(self.error_maps)]
        tried = [(f"timeline[{i}]", x.evaluation) for i, x in enumerate(self.timeline)]
        for place, index in (*named, *tried):
            if index is not None and index >= known:
                raise ValueError(
                    f"{place}.evaluation is {index}, and there are {known} evaluations"
                )
        return self

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the evaluations' problems, each once."""
        return tuple(dict.fromkeys(e.problem for e in self.evaluations))

    def opened(self) -> tuple[Evaluation, ...]:
        """Return the evaluations with origin "measured" changed to "recorded"."""
        return tuple(evaluation.as_recorded() for evaluation in self.evaluations)


class Summary(Record):
    """What a list shows of a snapshot, computed from its fields."""

    id: Id
    title: ShortLine
    created: Time
    updated: Time
    hypothesis: Annotated[Line, Field(max_length=200)]
    notes: Annotated[Line, Field(max_length=200)]
    devices: Annotated[tuple[ShortLine, ...], Field(max_length=8), *AS_TUPLE]
    variants: Annotated[tuple[ShortLine, ...], Field(max_length=64), *AS_TUPLE]
    problems: Annotated[tuple[Line, ...], Field(max_length=200), *AS_TUPLE]
    num_problems: Count
    num_evaluations: Count
    num_passed: Count
    origins: Annotated[tuple[Origin, ...], *AS_TUPLE]
    spent: Spent | None = None
    decision: Decision | None = None


def summarise(snapshot: Snapshot) -> Summary:
    """Return the summary of a snapshot."""
    evaluations = snapshot.evaluations
    latencies = [e.latency for e in evaluations]
    latencies += [b.latency for e in evaluations for b in e.baselines]
    origins = {latency.origin for latency in latencies if latency is not None}
    problems = _distinct(p.label() for p in snapshot.problems)
    return Summary(
        id=snapshot.id,
        title=snapshot.title,
        created=snapshot.created,
        updated=snapshot.updated,
        hypothesis=_first_line(snapshot.hypothesis),
        notes=_first_line(snapshot.notes),
        devices=_distinct(timed_device(e)[:120] for e in evaluations)[:8],
        variants=_distinct(e.variant[:120] for e in evaluations)[:64],
        problems=problems[:200],
        num_problems=len(problems),
        num_evaluations=len(evaluations),
        num_passed=sum(e.status is Status.PASSED for e in evaluations),
        origins=tuple(o for o in get_args(Origin) if o in origins),
        spent=snapshot.spent,
        decision=snapshot.decision,
    )


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))


def _first_line(text: str) -> str:
    return " ".join(text.split())[:200]


# Conversion between snapshots and bytes: JSON, gzipped or not. Input is untrusted and bounded.
#
# Limits: size of the file and of its gzip expansion, number of values, nesting, fields per object,
# and the schema's limits. Every failure is a `SnapshotError` with one sentence that names file and
# place. Nothing read here is executed, fetched or used as a path.


MAX_BYTES = 32 << 20  # of the file, and of the JSON text in it
MAX_VALUES = 2_000_000  # commas, opening brackets and lines: bounds the parser's allocations
MAX_FIELDS = 256  # of one object

GZIP_MAGIC = b"\x1f\x8b"


class _Duplicate(ValueError):
    pass


class _TooManyFields(ValueError):
    pass


def dumps(snapshot: Snapshot, *, compress: bool = True) -> bytes:
    """Return the bytes of a snapshot file (JSON, gzipped or not). Equal snapshots give equal bytes.

    Raises:
        SnapshotError: it is larger than `loads` accepts.
    """
    head = f'{{"format":"{FORMAT}","schema_version":{SCHEMA_VERSION},'
    text = (head + snapshot.model_dump_json()[1:]).encode()
    if len(text) > MAX_BYTES or _values_at_most(text) > MAX_VALUES:
        raise SnapshotError(
            f"This session is too large for one snapshot ({len(text) / 2**20:.0f} MiB of at most "
            f"{MAX_BYTES >> 20}, up to {_values_at_most(text):,} values of at most "
            f"{MAX_VALUES:,}): save it in parts or keep fewer samples.",
            code="session_too_large",
        )
    return gzip.compress(text, compresslevel=5, mtime=0) if compress else text


def loads(data: bytes, *, name: str) -> Snapshot:
    """Read and validate a snapshot file's bytes. `name` is the file's name for error messages.

    Raises:
        SnapshotError: the file is damaged, not a snapshot, too large, or of an unknown version.
    """
    label = file_label(name)
    text = _text(data, label)
    with collector_paused():
        raw = _known_version(_parse(text, label), label)
        raw.pop("summary", None)  # in files before version 11
        raw.pop("problems", None)  # in files before version 10
        return decode(Snapshot, raw, name=label)


def parse_json(data: bytes, *, name: str) -> Any:
    """Parse bounded, strict JSON from untrusted bytes (plain or gzip), for the importers.

    Raises:
        SnapshotError: too large, not JSON, or with duplicate fields.
    """
    label = file_label(name)
    with collector_paused():
        return _parse(_text(data, label), label, max_fields=MAX_VALUES)


def text_of(data: bytes, *, name: str) -> str:
    """Decode bounded UTF-8 text from untrusted bytes (plain or gzip), for the importers."""
    label = file_label(name)
    text = _text(data, label)
    _check_values(text, label)
    return _decode(text, label)


def _text(data: bytes, label: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise SnapshotError(
            f"{label} is too large: {len(data):,} bytes, and at most {MAX_BYTES:,} are read.",
            code="snapshot_too_large",
        )
    if data[:2] != GZIP_MAGIC:
        return data
    gunzip = zlib.decompressobj(wbits=31)
    try:
        text = gunzip.decompress(data, MAX_BYTES + 1)
    except zlib.error:
        raise SnapshotError(
            f"{label} is damaged: its gzip data cannot be expanded; get the file again.",
            code="snapshot_gzip",
        ) from None
    if len(text) > MAX_BYTES:
        raise SnapshotError(
            f"{label} expands to more than {MAX_BYTES:,} bytes, which is more than the limit.",
            code="snapshot_expands_too_far",
        )
    if not gunzip.eof:
        raise SnapshotError(
            f"{label} is cut short: its gzip data has no end; get the file again.",
            code="snapshot_cut_short",
        )
    if gunzip.unused_data:
        raise SnapshotError(
            f"{label} has other data after its gzip data, which is not accepted.",
            code="snapshot_data_behind",
        )
    return text


def _decode(text: bytes, label: str) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SnapshotError(
            f"{label} is not UTF-8 text (byte {error.start:,}): it is damaged or not a snapshot.",
            code="snapshot_no_utf8",
        ) from None


def _values_at_most(text: bytes) -> int:
    """Return an upper bound of the number of values in JSON, or cells in CSV, without parsing."""
    return 1 + sum(text.count(mark) for mark in (b",", b"[", b"{", b"\n"))


def _check_values(text: bytes, label: str) -> None:
    if _values_at_most(text) > MAX_VALUES:
        raise SnapshotError(
            f"{label} holds more values than the {MAX_VALUES:,} that are read.",
            code="snapshot_many_values",
        )


def _fields(pairs: list[tuple[str, Any]], max_fields: int = MAX_FIELDS) -> dict[str, Any]:
    if len(pairs) > max_fields:
        raise _TooManyFields
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Duplicate(key)
            seen.add(key)
    return fields


def _parse(text: bytes, label: str, *, max_fields: int = MAX_FIELDS) -> Any:
    if not text.strip():
        raise SnapshotError(f"{label} is empty.", code="snapshot_empty")
    _check_values(text, label)
    # NaN and 1e999 pass here; the schema refuses them and names their place.
    hook = partial(_fields, max_fields=max_fields)
    try:
        return json.JSONDecoder(object_pairs_hook=hook).decode(_decode(text, label))
    except json.JSONDecodeError as error:
        raise SnapshotError(
            f"{label} is not valid JSON at line {error.lineno:,}, column {error.colno:,}: it is "
            "cut short, damaged or not a snapshot.",
            code="snapshot_no_json",
        ) from None
    except _Duplicate as error:
        raise SnapshotError(
            f"{label} gives the field {place_of((str(error),))} twice in one object.",
            code="snapshot_field_twice",
        ) from None
    except _TooManyFields:
        raise SnapshotError(
            f"{label} has an object with more than {MAX_FIELDS} fields.",
            code="snapshot_many_fields",
        ) from None
    except RecursionError:
        raise SnapshotError(
            f"{label} is nested too deeply to be a snapshot.", code="snapshot_deep"
        ) from None
    except ValueError:  # an integer with thousands of digits
        raise SnapshotError(
            f"{label} has a number that is too long to be read.", code="snapshot_long_number"
        ) from None


def _known_version(parsed: Any, label: str) -> dict[str, Any]:
    raw: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    if raw.pop("format", None) != FORMAT:
        raise SnapshotError(
            f"{label} is not an Attune snapshot: measurements from other tools must be imported.",
            code="no_snapshot",
        )
    version = raw.pop("schema_version", None)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise SnapshotError(
            f"{label}: schema_version must be a whole number of at least 1.",
            code="schema_version_form",
        )
    if version > SCHEMA_VERSION:
        raise SnapshotError(
            f"{label} was written by a newer Attune (its schema version is above "
            f"{SCHEMA_VERSION}, the newest known here): update Attune to open it.",
            code="newer_schema",
        )
    return raw
