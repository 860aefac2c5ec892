"""Measured points from CSV files, with errors that name the line, and stored files for links.

Columns: `batch, num_heads, seqlen, head_dim, kernel_ms`; optional: `ctas`, `sdpa_ms`, `series`,
`causal`, `dtype`, `seqlen_kv`, `num_heads_kv`. Lines that start with # are comments.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.attention.problem import Problem
from engine.base import files
from engine.base.errors import InvalidProblem, StoreError
from engine.base.files import data_folder
from engine.base.table import CsvTable, read_csv
from kernels.variant import DTYPES

MAX_ROWS = 10_000
MAX_CHARS = 4_000_000
REQUIRED = ("batch", "num_heads", "seqlen", "head_dim", "kernel_ms")
OPTIONAL = ("ctas", "sdpa_ms", "series", "causal", "dtype", "seqlen_kv", "num_heads_kv")
# A template with an example line.
TEMPLATE = f"""{",".join((*REQUIRED, *OPTIONAL))}
# One line per measured launch, in milliseconds; optional values may be empty:
# 1,8,128,64,0.543,16,0.026,my series,false,float16,,
"""
_LONGEST_MS = 3_600_000.0
_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured launch."""

    problem: Problem
    measured_us: float
    ctas: int | None = None  # from the file; checked against the variant's launch plan
    sdpa_us: float | None = None
    series: str = ""
    line: int | None = None  # in the file

    @property
    def place(self) -> str:
        """Return `line 7`, or the problem's label if there is no file."""
        return self.problem.label() if self.line is None else f"line {self.line}"


def write_measurements(points: Iterable[Measurement]) -> str:
    """Return CSV text that `parse_measurements` reads."""
    import pandas as pd

    from engine.base.table import csv_text

    rows = [
        {
            "batch": p.problem.batch,
            "num_heads": p.problem.num_heads,
            "seqlen": p.problem.seqlen,
            "head_dim": p.problem.head_dim,
            "kernel_ms": p.measured_us / 1e3,
            "ctas": p.ctas,
            "sdpa_ms": None if p.sdpa_us is None else p.sdpa_us / 1e3,
            "series": p.series,
            "causal": p.problem.causal,
            "dtype": p.problem.dtype,
            "seqlen_kv": p.problem.seqlen_kv,
            "num_heads_kv": p.problem.num_heads_kv,
        }
        for p in points
    ]
    return csv_text(pd.DataFrame(rows, dtype=object))  # keeps whole numbers in columns with gaps


def read_measurements(path: str | Path) -> tuple[Measurement, ...]:
    """Read a CSV file.

    Raises:
        UnknownName: the file does not exist.
        InvalidProblem: it is not text, or `parse_measurements` rejects it.
    """
    return parse_measurements(read_table(path), str(path))


def read_table(path: str | Path) -> str:
    """Return the text of a CSV file. Raises as `read_measurements`."""
    path = Path(path)
    try:
        # A character has at most four bytes; one more byte shows that the file is too long.
        with files.explain_os_error(f"{path} cannot be read", "name another file", named=True):
            text = files.read(path, 4 * MAX_CHARS + 1).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidProblem(
            f"{path} is not UTF-8 text: save it as CSV.", code="csv_not_utf8"
        ) from None
    return text


def parse_measurements(text: str, name: str = "the CSV") -> tuple[Measurement, ...]:
    """Parse CSV text.

    Args:
        name: name in error messages.

    Raises:
        InvalidProblem: wrong columns, units or values, with the line and the column.
    """
    if len(text) > MAX_CHARS:
        raise InvalidProblem(
            f"{name} is longer than {MAX_CHARS:,} characters.", code="csv_too_long"
        )
    table = read_csv(text, name)
    _check_columns(table, name)
    points = []
    for line, row in table.rows:
        points.append(ProblemRow(name, line, row).measurement())
        if len(points) > MAX_ROWS:
            raise InvalidProblem(
                f"{name} has more than {MAX_ROWS:,} rows.", code="csv_too_many_rows"
            )
    if not points:
        raise InvalidProblem(
            f"{name} has a header and no rows: add measured points.", code="csv_no_rows"
        )
    return tuple(points)


def _check_columns(table: CsvTable, name: str) -> None:
    columns, line = table.columns, table.header_line
    wanted = ", ".join(REQUIRED)
    if not columns:
        raise InvalidProblem(
            f"{name} is empty: it needs a header with the columns {wanted}.", code="csv_empty"
        )
    if len(columns) == 1 and ";" in columns[0]:
        raise InvalidProblem(
            f"{name}, line {line} is separated by semicolons: use commas.", code="csv_semicolons"
        )
    missing = [c for c in REQUIRED if c not in columns]
    if "kernel_ms" in missing:
        other = next((c for c in columns if c.startswith(("kernel_", "time"))), None)
        if other is not None:
            raise InvalidProblem(
                f"{name}, line {line} has the column {other!r}: times belong in the column "
                "kernel_ms, in milliseconds.",
                code="csv_time_column",
            )
    if missing:
        raise InvalidProblem(
            f"{name}, line {line} lacks the column {missing[0]!r}: it needs {wanted}, and may have "
            f"{', '.join(OPTIONAL)}.",
            code="csv_column_missing",
        )


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """The cells of one line; errors name line and column."""

    name: str
    line: int
    cells: Mapping[str, str]

    def measurement(self) -> Measurement:
        """Return the measured launch; times are converted to µs."""
        sdpa = self.cells.get("sdpa_ms")
        return Measurement(
            problem=self.problem(),
            measured_us=1e3 * self._milliseconds("kernel_ms"),
            ctas=self._whole("ctas") if self.cells.get("ctas") else None,
            sdpa_us=1e3 * self._milliseconds("sdpa_ms") if sdpa else None,
            series=self.cells.get("series", ""),
            line=self.line,
        )

    def problem(self, **rest: Any) -> Problem:
        """Return the problem; missing cells are taken from `rest`."""
        shape = dict(rest)
        wanted = {"batch", "num_heads", "seqlen", "head_dim"} - set(rest)
        for name in ("batch", "num_heads", "seqlen", "head_dim", "seqlen_kv", "num_heads_kv"):
            if name in wanted or self.cells.get(name):
                shape[name] = self._whole(name)
        if causal := self.cells.get("causal"):
            if causal.lower() not in _BOOLEANS:
                raise self._wrong("causal", "is neither true nor false", code="csv_not_boolean")
            shape["causal"] = _BOOLEANS[causal.lower()]
        if dtype := self.cells.get("dtype"):
            shape["dtype"] = DTYPES.get(dtype, dtype)
        try:
            return Problem(**shape)
        except InvalidProblem as error:
            raise InvalidProblem(
                f"{self.name}, line {self.line}: {error}", code=error.code
            ) from None

    def positive(self, column: str) -> float:
        """Return a finite number above 0."""
        try:
            value = float(self.cells[column])
        except ValueError:
            raise self._wrong(column, "is not a number", code="csv_not_number") from None
        if not (math.isfinite(value) and value > 0):
            raise self._wrong(column, "is not a number above 0", code="csv_not_positive")
        return value

    def _wrong(self, column: str, why: str, code: str) -> InvalidProblem:
        shown = self.cells[column][:40]
        return InvalidProblem(
            f"{self.name}, line {self.line}, column {column}: {shown!r} {why}.", code=code
        )

    def _whole(self, column: str) -> int:
        cell = self.cells[column]
        if not cell.isascii() or not cell.isdigit() or len(cell) > 15:
            raise self._wrong(
                column, "is not a whole number of at least 1", code="csv_not_whole_number"
            )
        if int(cell) < 1:
            raise self._wrong(column, "must be at least 1", code="csv_below_one")
        return int(cell)

    def _milliseconds(self, column: str) -> float:
        try:
            value = float(self.cells[column])
        except ValueError:
            raise self._wrong(
                column, "is not a number: write milliseconds, without a unit", code="csv_not_a_time"
            ) from None
        if not math.isfinite(value):
            raise self._wrong(column, "is not a finite time", code="csv_not_finite")
        if value <= 0:
            raise self._wrong(column, "is not a time above zero", code="csv_time_not_positive")
        if value > _LONGEST_MS:
            raise self._wrong(
                column, "is more than an hour: write milliseconds", code="csv_time_over_an_hour"
            )
        return value


# Uploaded tables of measurements, stored so that a link can name them.
#
# A file's name is a hash of its content: equal tables share a file, and a link always shows the
# same table.

MAX_BYTES = 16_000_000
_MAX_FILES = 200
_NAME = re.compile(r"[0-9a-f]{16}")


def csv_folder() -> Path:
    """Return the folder of stored tables."""
    return data_folder() / "measurements"


def is_csv_name(text: str) -> bool:
    """Return True if the text may be the name of a stored table."""
    return _NAME.fullmatch(text) is not None


def store_csv(data: bytes, most_files: int = _MAX_FILES) -> str:
    """Store a table and return its name.

    Args:
        most_files: maximum number of stored files; the oldest are removed.

    Raises:
        StoreError: it is too large, or the folder cannot be written.
    """
    if len(data) > MAX_BYTES:
        raise StoreError(
            f"A table of more than {MAX_BYTES:,} bytes is not stored: shorten it.",
            code="csv_too_large",
        )
    name = hashlib.sha256(data).hexdigest()[:16]
    folder = csv_folder()
    path = folder / f"{name}.csv"
    if path.is_file():
        return name
    with files.explain_os_error(
        f"The table cannot be stored in {folder}", "a link to it will not work"
    ):
        files.make_folder(folder)
        files.write(path, data)
    _remove_oldest(folder, most_files)
    return name


def stored_csv(name: str) -> bytes:
    """Return the table with this name.

    Raises:
        StoreError: there is none on this machine.
    """
    try:
        if is_csv_name(name):
            return files.read(csv_folder() / f"{name}.csv", MAX_BYTES)
    except OSError:
        pass
    raise StoreError(
        f"The link names a CSV file, {name[:16]!r}, that is not stored on this machine: upload it.",
        code="csv_not_kept",
    )


def _remove_oldest(folder: Path, most_files: int) -> None:
    with contextlib.suppress(OSError):
        by_age = sorted(folder.glob("*.csv"), key=lambda path: path.stat().st_mtime)
        for path in by_age[:-most_files]:
            path.unlink()
