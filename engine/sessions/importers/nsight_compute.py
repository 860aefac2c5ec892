"""Nsight Compute's CSV (`ncu --csv`): the details page (one metric per line) and the raw page (one
launch per line, units below the header), with whatever the profiled program printed before it.

Profiled durations are not benchmark times: ncu flushes caches and fixes the clocks unless told
otherwise, and the reason of every latency says so.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.base.errors import AttuneError, SnapshotError
from engine.evaluation import Evaluation
from engine.names import find_variant
from engine.schema import file_label
from engine.sessions.importers.common import (
    MAX_NOTES_PER_EVALUATION,
    FileLocation,
    ImportOptions,
    field_kind,
    note,
    problem_from,
    recorded,
    recorded_evaluation,
    recorded_session,
    time_us,
)
from engine.sessions.snapshot import Snapshot

_REASON = (
    "Nsight Compute's duration, profiled: caches flushed and clocks fixed unless it was told "
    "otherwise"
)
_DURATIONS = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_UNITS = {
    "s": "s",
    "second": "s",
    "sec": "s",
    "ms": "ms",
    "msecond": "ms",
    "us": "us",
    "usecond": "us",
    "µs": "us",
    "ns": "ns",
    "nsecond": "ns",
}
_COMMA_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
# A whole number of nanoseconds as ncu writes it in many European locales.
_DOT_THOUSANDS = re.compile(r"\d{1,3}(\.\d{3})+")
_LAUNCH = ("Kernel Name", "Block Size", "Grid Size")
# Shown first in the notes: what a person tunes by.
_FIRST = (
    "Registers Per Thread",
    "Static Shared Memory Per Block",
    "Dynamic Shared Memory Per Block",
    "Theoretical Occupancy",
    "Achieved Occupancy",
    "Waves Per SM",
)


@dataclass
class _Launch:
    location: FileLocation
    about: Mapping[str, str]
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → (value, unit)
    others: list[_Launch] = field(default_factory=list)  # the later passes of the same call


def is_export(text: str) -> bool:
    """Whether an ncu table begins somewhere in this text."""
    return _header_at(text.splitlines()) is not None


def from_export(text: str, options: ImportOptions, *, name: str) -> Snapshot:
    """A session from an export's text. The problem comes from columns of the file (batch, S …)
    where it has such, else from the options: ncu does not know it.

    Launches of the same kernel, grid and block are samples of one evaluation. Where the options
    name a variant of several passes and the launches are these, one evaluation takes them all.

    Raises:
        SnapshotError: no ncu table, or a duration that cannot be read, named by its line.
    """
    lines = text.splitlines(keepends=True)
    start = _header_at(lines)
    if start is None:
        raise SnapshotError(f"{file_label(name)} holds no table of Nsight Compute.")
    groups: dict[tuple[str, ...], list[_Launch]] = {}
    for launch in _launches(lines[start:], name, start):
        key = tuple(launch.about.get(column, "") for column in _LAUNCH)
        groups.setdefault(key, []).append(launch)
    evaluations = [_evaluation(launches, options) for launches in _passes(groups, options)]
    return recorded_session(evaluations, options, name=name, kind="an Nsight Compute export")


def _passes(
    groups: Mapping[tuple[str, ...], list[_Launch]], options: ImportOptions
) -> list[list[_Launch]]:
    """The launches of each evaluation: kernel by kernel, or all passes of the named variant."""
    try:
        entries = [launch.entry for launch in find_variant(options.variant).passes]
    except AttuneError:
        return list(groups.values())
    by_entry = {key[0].partition("(")[0].strip(): group for key, group in groups.items()}
    if len(entries) < 2 or sorted(by_entry) != sorted(entries) or len(by_entry) != len(groups):
        return list(groups.values())
    main = by_entry[entries[0]]
    for number, launch in enumerate(main):
        launch.others = [
            group[number] for entry in entries[1:] if number < len(group := by_entry[entry])
        ]
    return [[launch for launch in main if len(launch.others) == len(entries) - 1] or main]


def _header_at(lines: Sequence[str]) -> int | None:
    for index, line in enumerate(lines):
        cells = [cell.strip().strip('"') for cell in line.split(",")]
        if "Kernel Name" in cells and ("Metric Name" in cells or "ID" in cells):
            return index
    return None


def _launches(lines: list[str], name: str, skipped: int) -> list[_Launch]:
    reader = csv.DictReader(io.StringIO("".join(lines), newline=""), restkey="", restval="")
    launches: dict[str, _Launch] = {}
    units: Mapping[str, str] = {}
    try:
        for number, row in enumerate(reader):
            location = FileLocation(name, f"line {skipped + reader.line_num}")
            if not row.get("Kernel Name"):
                if number == 0:
                    units = row
                continue
            key = row.get("ID") or str(number)
            launch = launches.setdefault(key, _Launch(location, row))
            if "Metric Name" in row:
                if row["Metric Name"]:
                    figure = (row.get("Metric Value", ""), row.get("Metric Unit", ""))
                    launch.metrics.setdefault(row["Metric Name"], figure)
            else:
                launch.metrics |= {
                    column: (value, units.get(column, ""))
                    for column, value in row.items()
                    if isinstance(value, str) and ("__" in column or column == "Duration")
                }
    except csv.Error:
        raise SnapshotError(
            f"{file_label(name)}: line {skipped + reader.line_num} is not valid CSV."
        ) from None
    return list(launches.values())


def _evaluation(launches: Sequence[_Launch], options: ImportOptions) -> Evaluation:
    first = launches[0]
    samples = [sum(map(_duration_us, (launch, *launch.others))) for launch in launches]
    notes = [note(column, first.about[column]) for column in _LAUNCH if first.about.get(column)]
    notes.append(note("launches profiled", len(launches)))
    known = [metric for metric in _FIRST if metric in first.metrics]
    rest = [metric for metric in first.metrics if metric not in known + list(_DURATIONS)]
    for metric in [*known, *rest][: MAX_NOTES_PER_EVALUATION - len(notes)]:
        value, unit = first.metrics[metric]
        notes.append(note(metric, f"{value} {unit}".strip()))
    return recorded_evaluation(
        problem_from(_own_columns(first), options, first.location),
        variant=options.variant or first.about["Kernel Name"][:120],
        device=options.device,
        config=options.config,
        latency=recorded(samples, _REASON, kind="device_cold"),
        notes=notes,
    )


def _own_columns(launch: _Launch) -> dict[str, str]:
    """The problem as far as columns of the file say it."""
    return {
        kind: value
        for column, value in launch.about.items()
        if isinstance(value, str) and (kind := field_kind(column)) is not None
    }


def _duration_us(launch: _Launch) -> float:
    metric = next((m for m in _DURATIONS if m in launch.metrics), None)
    if metric is None:
        launch.location.reject(
            " is of a launch without a duration: profile it with gpu__time_duration.sum"
        )
    value, unit = launch.metrics[metric]
    known = _UNITS.get(unit.strip())
    if known is None:
        launch.location.reject(f", {metric} has no unit of time that is known here")
    if known == "ns" and _DOT_THOUSANDS.fullmatch(value):
        launch.location.reject(
            f", {metric} seems to be written with a dot between thousands: export it with an "
            "English locale"
        )
    return time_us(_without_commas(value), known, launch.location, metric)


def _without_commas(value: str) -> str:
    """`53,261,312` without its separators; anything else as it is, a decimal comma included."""
    return value.replace(",", "") if _COMMA_THOUSANDS.fullmatch(value) else value
