"""Snapshot ↔ bytes: JSON, gzipped or not. Reading trusts nothing and is bounded everywhere.

Limits: the file, what a gzip expands to, the number of values, nesting, fields per object, and all
that `engine.records.snapshot` says. Every failure is a `SnapshotError` of one sentence that names
the file and the place. Nothing read here is executed, fetched or used as a path.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from engine.errors import SnapshotError
from engine.records.encoding import decode
from engine.records.explain import file_label, place_of
from engine.records.journal import collector_paused
from engine.records.snapshot import (
    FORMAT,
    SCHEMA_VERSION,
    SINCE_VERSION_3,
    Snapshot,
    Summary,
    summarise,
    version_of,
)

MAX_BYTES = 32 << 20  # of the file, and of the JSON text in it
MAX_VALUES = 2_000_000  # commas, opening brackets, lines: a bound on what the parser allocates
MAX_FIELDS = 256  # of one object
HEAD_BYTES = 16_384  # holds format, schema_version and summary

GZIP_MAGIC = b"\x1f\x8b"

# schema_version → the step to the next one, on the parsed JSON object. Version 1 is the first.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    # Each only adds a field that may be left out.
    1: lambda raw: raw,
    2: lambda raw: raw,
}

_HEAD = re.compile(rb'\{"format":"%b","schema_version":(\d{1,9}),"summary":' % FORMAT.encode())


class _Duplicate(ValueError):
    pass


class _TooManyFields(ValueError):
    pass


def dumps(snapshot: Snapshot, *, compress: bool = True) -> bytes:
    """The bytes of a snapshot file (gzip of JSON, or JSON). Equal snapshots give equal bytes.

    Raises:
        SnapshotError: it is larger than what `loads` accepts.
    """
    absent = {name for name in SINCE_VERSION_3 if not getattr(snapshot, name)}
    head = {
        "format": FORMAT,
        "schema_version": version_of(snapshot),
        "summary": summarise(snapshot).model_dump(mode="json", exclude=absent),
    }
    opening = json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1]
    text = (opening + "," + snapshot.model_dump_json(exclude=absent)[1:]).encode()
    if len(text) > MAX_BYTES or _values_at_most(text) > MAX_VALUES:
        raise SnapshotError(
            f"This session is too large for one snapshot ({len(text) / 2**20:.0f} MiB of at most "
            f"{MAX_BYTES >> 20}, up to {_values_at_most(text):,} values of at most "
            f"{MAX_VALUES:,}): save it in parts or keep fewer samples."
        )
    return gzip.compress(text, compresslevel=5, mtime=0) if compress else text


def loads(data: bytes, *, name: str) -> Snapshot:
    """Read and validate a snapshot file's bytes. `name` is the file's name, for the message.

    Raises:
        SnapshotError: damaged, foreign, too large, or of an unknown version.
    """
    label = file_label(name)
    text = _text(data, label)
    with collector_paused():
        raw = _known_version(_parse(text, label), label)
        decode(Summary, raw.pop("summary", None), name=label, at="summary")
        return decode(Snapshot, raw, name=label)


def read_summary(head: bytes) -> Summary | None:
    """The summary in a file's first bytes (`HEAD_BYTES` of them are enough).

    None when it does not stand there, as in a file some other tool has rewritten: read it all then.
    """
    if head[:2] == GZIP_MAGIC:
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
        except zlib.error:
            return None
    match = _HEAD.match(head)
    if match is None or not 1 <= int(match[1]) <= SCHEMA_VERSION:
        return None
    text = head[match.end() : HEAD_BYTES].decode("utf-8", errors="ignore")
    try:
        raw, _ = json.JSONDecoder(object_pairs_hook=_fields).raw_decode(text)
        return Summary.model_validate(raw)
    except (ValueError, RecursionError):
        return None


def parse_json(data: bytes, *, name: str) -> Any:
    """Bounded, strict JSON from untrusted bytes (plain or gzip), for the importers.

    Raises:
        SnapshotError: too large, not JSON, or with a field given twice.
    """
    label = file_label(name)
    with collector_paused():
        return _parse(_text(data, label), label, max_fields=MAX_VALUES)


def text_of(data: bytes, *, name: str) -> str:
    """Bounded UTF-8 text from untrusted bytes (plain or gzip), for the importers."""
    label = file_label(name)
    text = _text(data, label)
    _check_values(text, label)
    return _decode(text, label)


def _text(data: bytes, label: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise SnapshotError(
            f"{label} is too large: {len(data):,} bytes, and at most {MAX_BYTES:,} are read."
        )
    if data[:2] != GZIP_MAGIC:
        return data
    gunzip = zlib.decompressobj(wbits=31)
    try:
        text = gunzip.decompress(data, MAX_BYTES + 1)
    except zlib.error:
        raise SnapshotError(
            f"{label} is damaged: its gzip data cannot be expanded; get the file again."
        ) from None
    if len(text) > MAX_BYTES:
        raise SnapshotError(
            f"{label} expands to more than {MAX_BYTES:,} bytes, which is more than is read."
        )
    if not gunzip.eof:
        raise SnapshotError(f"{label} is cut short: its gzip data has no end; get the file again.")
    if gunzip.unused_data:
        raise SnapshotError(f"{label} has other data after its gzip data, which is not accepted.")
    return text


def _decode(text: bytes, label: str) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SnapshotError(
            f"{label} is not UTF-8 text (byte {error.start:,}): it is damaged or not a snapshot."
        ) from None


def _values_at_most(text: bytes) -> int:
    """A bound on the number of values in JSON, or of cells in CSV, that costs no parsing."""
    return 1 + sum(text.count(mark) for mark in (b",", b"[", b"{", b"\n"))


def _check_values(text: bytes, label: str) -> None:
    if _values_at_most(text) > MAX_VALUES:
        raise SnapshotError(f"{label} holds more values than the {MAX_VALUES:,} that are read.")


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
        raise SnapshotError(f"{label} is empty.")
    _check_values(text, label)
    # NaN and 1e999 pass here and are refused by the schema, which can say where they stand.
    hook = partial(_fields, max_fields=max_fields)
    try:
        return json.JSONDecoder(object_pairs_hook=hook).decode(_decode(text, label))
    except json.JSONDecodeError as error:
        message = (
            f"{label} is not valid JSON at line {error.lineno:,}, column {error.colno:,}: it is "
            "cut short, damaged or not a snapshot."
        )
    except _Duplicate as error:
        message = f"{label} gives the field {place_of((str(error),))} twice in one object."
    except _TooManyFields:
        message = f"{label} has an object with more than {MAX_FIELDS} fields."
    except RecursionError:
        message = f"{label} is nested too deeply to be a snapshot."
    except ValueError:  # a whole number of thousands of digits
        message = f"{label} has a number that is too long to be read."
    raise SnapshotError(message)


def _known_version(parsed: Any, label: str) -> dict[str, Any]:
    raw: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    if raw.pop("format", None) != FORMAT:
        raise SnapshotError(
            f"{label} is not an Attune snapshot: measurements from other tools come in by import."
        )
    version = raw.pop("schema_version", None)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise SnapshotError(f"{label}: schema_version must be a whole number from 1.")
    if version > SCHEMA_VERSION:
        raise SnapshotError(
            f"{label} was written by a newer Attune (its schema version is above "
            f"{SCHEMA_VERSION}, the newest known here): update Attune to open it."
        )
    for step in range(version, SCHEMA_VERSION):
        raw = MIGRATIONS[step](raw)
    return raw
