"""Import Nsight Compute's CSV, details and raw page; compare its counters with Attune's estimates.

Profiled durations are not benchmark times: ncu flushes caches and fixes the clocks unless told
otherwise, and the reason of every latency says so.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine.attention.config import find_variant
from engine.attention.evaluation import Evaluation
from engine.base.errors import AttuneError, SnapshotError
from engine.base.schema import file_label
from engine.base.table import Table
from engine.base.units import format_bytes, format_us
from engine.history import History
from engine.history.known_time import kernel_name
from engine.model.kernel import Estimate, Kernel
from engine.model.launches import collect
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

# Nsight Compute's counters of imported launches, beside Attune's estimates.
#
# An import stores each counter as a note of its evaluation (`name: value unit`), which is parsed
# here. Estimates are for the present source of the recorded variant, which may be another source.

# Counters of `attune profile`, and of the details page.
DURATION = "gpu__time_duration.sum"
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2_BYTES = "lts__t_bytes.sum"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
REGISTERS = "launch__registers_per_thread"
WAVES = "launch__waves_per_multiprocessor"
METRICS = (
    DURATION,
    DRAM_READ,
    DRAM_WRITTEN,
    L2_BYTES,
    ACHIEVED,
    THEORETICAL,
    REGISTERS,
    WAVES,
)
_SAME = {
    ACHIEVED: "Achieved Occupancy",
    THEORETICAL: "Theoretical Occupancy",
    REGISTERS: "Registers Per Thread",
    WAVES: "Waves Per SM",
}
_NOTE = re.compile(r"(?P<name>[^:]{1,80}): (?P<value>[\d.,]+(?:e[-+]?\d+)?)(?: (?P<unit>\S+))?")
_BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
_BYTES |= {"KB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1.0}


@dataclass(frozen=True, slots=True)
class Counter:
    """One figure of Nsight Compute."""

    value: float
    unit: str

    @property
    def size_bytes(self) -> float | None:
        """Return the value in bytes; None if its unit is not one of bytes."""
        scale = _BYTES.get(self.unit)
        return None if scale is None else self.value * scale


def counters_of(evaluation: Evaluation) -> Mapping[str, Counter]:
    """Return the counters in an import's notes; empty for other evaluations."""
    latency = evaluation.latency
    if latency is None or not latency.reason.startswith("Nsight Compute"):
        return {}
    counters = {}
    for text in evaluation.notes:
        match = _NOTE.fullmatch(text)
        if match is not None:
            try:
                value = float(match["value"].replace(",", ""))
            except ValueError:
                continue
            counters[match["name"]] = Counter(value, match["unit"] or "")
    return counters


def counters_table(evaluations: Iterable[Evaluation], history: History, session: str = "") -> Table:
    """Return a row per figure, counted and estimated; no rows without imported counters.

    Args:
        session: its title, used in names of kernels whose source is not recorded.
    """
    records: list[dict[str, object]] = []
    for index, e in enumerate(evaluations):
        counters = counters_of(e)
        if counters:
            known, name = _estimate(e, history), kernel_name(e, session)
            records += [
                {"#": index, "variant": name, "problem": e.problem.label(), **row}
                for row in _rows(e, counters, known)
            ]
    return Table.of(
        "Nsight Compute beside the estimates",
        records,
        "Counted by Nsight Compute on the GPU, caches flushed and clocks fixed; estimated for this "
        "machine's source of the variant. Bytes from DRAM are estimated as every byte once.",
    )


def _estimate(e: Evaluation, history: History) -> Estimate | None:
    try:
        return history.estimate(Kernel.of(e.variant, e.device, e.config), e.problem)
    except AttuneError:
        return None


def _rows(
    e: Evaluation, counters: Mapping[str, Counter], known: Estimate | None
) -> Iterator[dict[str, object]]:
    def counter(metric: str) -> Counter | None:
        return counters.get(metric) or counters.get(_SAME.get(metric, ""))

    main = e.problem.main_of(known.passes) if known is not None else None
    if e.latency is not None:
        predicted = known.latency if known is not None else None
        yield _row(
            "duration",
            format_us(e.latency.median_us),
            format_us(predicted.median_us) if predicted is not None else None,
            f"predicted by {predicted.method}, warm" if predicted is not None else "",
        )
    occupancy = f"{main.occupancy.occupancy:.0%}" if main is not None else None
    for metric, figure in (
        (ACHIEVED, "achieved occupancy"),
        (THEORETICAL, "theoretical occupancy"),
    ):
        if (counted := counter(metric)) is not None:
            yield _row(figure, f"{counted.value:.0f}%", occupancy, "of a full SM")
    if (counted := counter(REGISTERS)) is not None:
        registers = main.resources.registers_per_thread if main is not None else None
        yield _row("registers per thread", f"{counted.value:.0f}", registers, "as compiled here")
    if (counted := counter(WAVES)) is not None:
        waves = main.occupancy.waves if main is not None else None
        yield _row("waves", f"{counted.value:.3g}", None if waves is None else f"{waves:.3g}", "")
    moved = [counter(metric) for metric in (DRAM_READ, DRAM_WRITTEN)]
    sizes = [c.size_bytes for c in moved if c is not None and c.size_bytes is not None]
    if sizes:
        once = None
        if known is not None:
            launches = collect(known.kernel, [e.problem])
            once = format_bytes(int(launches.device_bytes[0]))
        yield _row(
            "bytes from and to DRAM", format_bytes(round(sum(sizes))), once, "every byte once"
        )
    if (counted := counter(L2_BYTES)) is not None and counted.size_bytes is not None:
        yield _row("bytes through L2", format_bytes(round(counted.size_bytes)), None, "")


def _row(figure: str, counted: str, estimated: object, basis: str) -> dict[str, object]:
    return {"figure": figure, "counted": counted, "estimated": estimated, "estimate is": basis}


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
# The most important counters, listed first in the notes.
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
    """True if the text contains an ncu table."""
    return _header_at(text.splitlines()) is not None


def from_export(text: str, options: ImportOptions, *, name: str) -> Snapshot:
    """Return a session from an export's text. The problem comes from columns of the file (batch, S
    …) if there are any, else from the options, because ncu does not know it.

    Launches with the same kernel, grid and block are samples of one evaluation. If the options name
    a variant with several passes and the launches are its passes, one evaluation contains them all.

    Raises:
        SnapshotError: no ncu table, or a duration that cannot be read, named by its line.
    """
    lines = text.splitlines(keepends=True)
    start = _header_at(lines)
    if start is None:
        raise SnapshotError(
            f"{file_label(name)} holds no table of Nsight Compute.", code="ncu_table_missing"
        )
    groups: dict[tuple[str, ...], list[_Launch]] = {}
    for launch in _launches(lines[start:], name, start):
        key = tuple(launch.about.get(column, "") for column in _LAUNCH)
        groups.setdefault(key, []).append(launch)
    evaluations = [_evaluation(launches, options) for launches in _passes(groups, options)]
    return recorded_session(evaluations, options, name=name, kind="an Nsight Compute export")


def _passes(
    groups: Mapping[tuple[str, ...], list[_Launch]], options: ImportOptions
) -> list[list[_Launch]]:
    """Return the launches of each evaluation: by kernel, or all passes of the named variant."""
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
            f"{file_label(name)}: line {skipped + reader.line_num} is not valid CSV.",
            code="ncu_no_csv",
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
    """Return the sizes in columns of the file."""
    return {
        kind: value
        for column, value in launch.about.items()
        if isinstance(value, str) and (kind := field_kind(column)) is not None
    }


def _duration_us(launch: _Launch) -> float:
    metric = next((m for m in _DURATIONS if m in launch.metrics), None)
    if metric is None:
        launch.location.reject(
            " is of a launch without a duration: profile it with gpu__time_duration.sum",
            code="ncu_duration_missing",
        )
    value, unit = launch.metrics[metric]
    known = _UNITS.get(unit.strip())
    if known is None:
        launch.location.reject(
            f", {metric} has no unit of time that is known here", code="ncu_unit_unknown"
        )
    if known == "ns" and _DOT_THOUSANDS.fullmatch(value):
        launch.location.reject(
            f", {metric} seems to be written with a dot between thousands: export it with an "
            "English locale",
            code="ncu_dot_thousands",
        )
    return time_us(_without_commas(value), known, launch.location, metric)


def _without_commas(value: str) -> str:
    """Return `53,261,312` without its separators; any other text, as with a decimal comma,
    unchanged."""
    return value.replace(",", "") if _COMMA_THOUSANDS.fullmatch(value) else value
