"""A table of measurements: CSV, or a JSON list of flat objects. One row is one measured time.

Sizes may have their common names (B, batch, num_heads, S, seqlen …). Columns of times end with the
unit: `kernel_ms`, `median_us`. `sdpa_ms`, `flash_us` … are baselines of the row's problem; with a
column `backend`, every row's `device_us` (and `eager_us`, end to end) is the time of that PyTorch
backend. Columns not known here are kept as notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from engine.attention.evaluation import BaselineTiming, Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, SnapshotError
from engine.base.schema import file_label
from engine.base.table import read_csv
from engine.sessions.importers.common import (
    FileLocation,
    ImportOptions,
    check_count,
    field_kind,
    note,
    problem_from,
    recorded,
    recorded_evaluation,
    recorded_session,
    time_us,
    whole_number,
)
from engine.sessions.snapshot import Snapshot

SDPA = "sdpa"  # the variant of rows with only PyTorch's attention

_TIME = re.compile(r"(?P<what>[a-z0-9_]+?)_(?P<unit>s|ms|us|ns)")
_KERNEL_TIMES = {"kernel", "latency", "median", "time", "device", "gpu", "duration"}
_END_TO_END = {"eager", "end_to_end", "call", "wall"}
_BASELINES = {"sdpa", "flash", "cudnn", "efficient", "math", "default"}
_TUNABLES = {"block_m", "block_n", "num_warps", "num_stages", "num_splits"}
_NAMES = {"variant": "variant", "kernel": "variant", "device": "device", "gpu": "device"}

Row = tuple[FileLocation, Mapping[str, Any]]


def from_csv(text: str, options: ImportOptions, *, name: str) -> Snapshot:
    """Return a session from a CSV file's text; lines before the header that start with # become
    notes.

    Raises:
        SnapshotError: a wrong value is named by line and column.
    """
    comments = takewhile(lambda line: line.startswith("#"), map(str.strip, text.splitlines()))
    remarks = "\n".join(line.removeprefix("#").strip() for line in comments)
    rows = _csv_rows(text, name)
    return _session(rows, options, name=name, kind="a CSV table", file_notes=remarks.strip())


def is_rows(parsed: Any) -> bool:
    """True if this JSON value can be a table."""
    return isinstance(parsed, list)


def from_rows(parsed: Any, options: ImportOptions, *, name: str) -> Snapshot:
    """Return a session from a JSON list of flat objects, one per row."""
    rows = []
    for index, row in enumerate(parsed):
        check_count(index + 1, name)
        if not isinstance(row, dict) or any(isinstance(v, (dict, list)) for v in row.values()):
            raise SnapshotError(
                f"{file_label(name)} is not a list of flat objects, one per row.",
                code="import_rows_form",
            )
        rows.append((FileLocation(name, f"row {index + 1}"), row))
    return _session(iter(rows), options, name=name, kind="a JSON table")


def _csv_rows(text: str, name: str) -> Iterator[Row]:
    try:
        table = read_csv(text, file_label(name))
        if not any(table.columns):
            FileLocation(name, f"line {max(table.header_line, 1)}").reject(
                " has no column names", code="import_columns_unnamed"
            )
        for line, row in table.rows:
            yield FileLocation(name, f"line {line}"), row
    except InvalidProblem as error:
        raise SnapshotError(str(error), code=error.code) from None


@dataclass
class _Parsed:
    """One row, by the meaning of its columns."""

    problem: dict[str, Any]
    names: dict[str, str]
    config: dict[str, int]
    kernel: Latency | None
    end_to_end: Latency | None
    baselines: list[BaselineTiming]
    backend: str
    notes: list[str]


@dataclass
class _Timings:
    """Rows of one problem and device with times of PyTorch's backends."""

    problem: Problem
    device: str
    baselines: list[BaselineTiming] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _session(
    rows: Iterator[Row], options: ImportOptions, *, name: str, kind: str, file_notes: str = ""
) -> Snapshot:
    evaluations: list[Evaluation] = []
    timings: dict[tuple[Problem, str], _Timings] = {}
    for location, row in rows:
        check_count(len(evaluations) + len(timings), name)
        parsed = _parse(row, location)
        problem = problem_from(parsed.problem, options, location)
        device = parsed.names.get("device") or options.device
        if parsed.backend:
            if parsed.kernel is None:
                location.reject(
                    f" has no time for the backend {parsed.backend}", code="import_backend_time"
                )
            others = (parsed.end_to_end,) if parsed.end_to_end else ()
            timing = BaselineTiming(parsed.backend, parsed.kernel, other_latencies=others)
            group = timings.setdefault((problem, device), _Timings(problem, device))
            group.baselines.append(timing)
            group.notes += [f"{parsed.backend} {text}" for text in parsed.notes]
            continue
        if parsed.kernel is None and not parsed.baselines:
            location.reject(
                " has no time: name a column like kernel_ms, median_us or sdpa_us",
                code="import_time_missing",
            )
        if parsed.kernel is None:
            variant = SDPA
        else:
            variant = parsed.names.get("variant") or options.variant
            if not variant:
                location.reject(
                    " does not say which variant it timed: give it for the whole file",
                    code="import_variant_missing",
                )
        evaluations.append(
            recorded_evaluation(
                problem,
                variant=variant,
                device=device,
                config={**options.config, **parsed.config} if variant != SDPA else {},
                latency=parsed.kernel,
                others=(parsed.end_to_end,) if parsed.end_to_end else (),
                baselines=parsed.baselines,
                notes=parsed.notes,
            )
        )
    evaluations += [
        recorded_evaluation(
            group.problem,
            variant=SDPA,
            device=group.device,
            config={},
            baselines=group.baselines,
            notes=group.notes,
            reason="Recorded elsewhere: PyTorch's own attention, to compare kernels with.",
        )
        for group in timings.values()
    ]
    check_count(len(evaluations), name)
    return recorded_session(evaluations, options, name=name, kind=kind, file_notes=file_notes)


def _parse(row: Mapping[str, Any], location: FileLocation) -> _Parsed:
    backend = str(row.get("backend") or "")[:40]
    parsed = _Parsed({}, {}, {}, None, None, [], backend, [])
    for column, value in row.items():
        if value is None or value == "" or column == "backend":
            continue
        key = column.strip().lower()
        kind = field_kind(key)
        timed = _TIME.fullmatch(key)
        if kind is not None:
            parsed.problem[kind] = value
        elif key in _NAMES:
            parsed.names[_NAMES[key]] = str(value)
        elif key in _TUNABLES:
            parsed.config[key] = whole_number(value, location, key)
        elif timed and _take_time(parsed, timed["what"], timed["unit"], value, location):
            pass
        else:
            parsed.notes.append(note(column, value))
    return parsed


def _take_time(parsed: _Parsed, what: str, unit: str, value: Any, location: FileLocation) -> bool:
    """Store a time in its field; return False if the column is unknown."""
    if what not in _KERNEL_TIMES | _END_TO_END | _BASELINES:
        return False
    us = time_us(value, unit, location, f"column {what}_{unit}")
    reason = f"the file's {what}_{unit}; how it was timed is not said in the table"
    if what in _KERNEL_TIMES:
        if parsed.kernel is not None:
            location.reject(" has two columns with the kernel's time", code="import_two_times")
        parsed.kernel = recorded((us,), reason)
    elif what in _END_TO_END:
        parsed.end_to_end = recorded((us,), reason, kind="end_to_end")
    else:
        parsed.baselines.append(BaselineTiming(what, recorded((us,), reason)))
    return True
