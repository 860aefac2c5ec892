"""CSV tables with a header, read row by row; every complaint names its line."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from engine.errors import InvalidProblem


@dataclass(frozen=True, slots=True)
class CsvTable:
    """The header, and the rows behind it as they are read. Cells have no white space around."""

    header_line: int  # 0: there is no header
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, Mapping[str, str]]]  # (line, cell of each column)


def read_csv(text: str, name: str) -> CsvTable:
    """A table from CSV text. Lines that start with # and rows without any text are left out.

    Args:
        name: what to call the text in complaints.

    Raises:
        InvalidProblem: not valid CSV, two columns of one name, or (while the rows are read) a row
            that has more or fewer cells than the header.
    """
    lines = _lines(text.removeprefix("\ufeff"), name)
    header_line, columns = next(lines, (0, ()))
    doubled = [c for c, count in Counter(columns).items() if count > 1]
    if doubled and any(columns):
        column = doubled[0][:40]
        raise InvalidProblem(f"{name}, line {header_line} has the column {column!r} twice.")
    return CsvTable(header_line, columns, _rows(lines, columns, name))


def _rows(
    lines: Iterator[tuple[int, tuple[str, ...]]], columns: tuple[str, ...], name: str
) -> Iterator[tuple[int, Mapping[str, str]]]:
    for line, cells in lines:
        if not any(cells):
            continue
        if len(cells) != len(columns):
            raise InvalidProblem(
                f"{name}, line {line} has {len(cells)} cells and the header has {len(columns)} "
                "columns."
            )
        yield line, dict(zip(columns, cells, strict=True))


def _lines(text: str, name: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, cells) of what is neither empty nor a comment. A quoted cell may span lines."""
    source = io.StringIO(text, newline="")
    number = 0
    for line in source:
        if not line.strip() or line.lstrip().startswith("#"):
            number += 1
            continue
        reader = csv.reader(chain([line], source), strict=True)
        try:
            cells = tuple(cell.strip() for cell in next(reader))
        except csv.Error as error:
            line_number = number + reader.line_num
            raise InvalidProblem(f"{name}, line {line_number} is not valid CSV: {error}.") from None
        number += reader.line_num
        yield number, cells
