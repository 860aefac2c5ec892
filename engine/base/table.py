"""Tables and bar charts of results, for the command line, reports and the app."""

from __future__ import annotations

import csv
import html
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self

from engine.base import files
from engine.base.errors import InvalidProblem, ToolMissing
from kernels.characters import visible

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


NONE = "–"  # an unknown or missing value

# A number and at most a few words: "1,024", "12.5 µs", "2× over flash". Not a date, a hash, or a
# sentence that begins with a number.
_FIGURE = re.compile(r"–$|[-+−]?\d[\d,.]*(e[-+]?\d+)?(?![\w.:-]).{0,24}$")

# Maximum rows of a result that `print` shows.
_SHOWN_ROWS = 25
_LONGEST_CELL = 64

# Text that a spreadsheet interprets as a formula, with half- or full-width characters, with or
# without leading blanks.
_FORMULA = re.compile(r"[\s\u200b\ufeff]*[=+\-@＝＋－＠]")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under column names. None is shown as a dash, a float with four digits."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    remark: str = ""

    @classmethod
    def of(cls, title: str, records: Iterable[Mapping[str, object]], remark: str = "") -> Self:
        """Return a table of records that all have the same fields; without records, it has no
        columns."""
        rows = list(records)
        columns = tuple(rows[0]) if rows else ()
        return cls(title, columns, tuple(tuple(row.values()) for row in rows), remark)

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """Return the rows as text."""
        return tuple(zip(*self.text_columns, strict=True))

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:
        """Return the columns as text, without their names."""
        return tuple(tuple(map(cell_text, column)) for column in zip(*self.rows, strict=True))

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Return the numeric columns, which are right-aligned."""
        if not self.rows:
            return (False,) * len(self.columns)
        return tuple(map(is_numeric, self.text_columns))

    def frame(self, *, dashes: bool = True) -> pd.DataFrame:
        """Return a DataFrame. Numbers stay numbers, but a column with a dash is text.

        Args:
            dashes: show None as a dash. If False, its cell is empty and a column of numbers stays
                numeric, so that it can be sorted.
        """
        import pandas as pd

        if not dashes:
            return pd.DataFrame(list(self.rows), columns=list(self.columns))
        has_gap = [any(row[i] is None for row in self.rows) for i in range(len(self.columns))]
        rows = [
            [cell_text(value) if gap else value for value, gap in zip(row, has_gap, strict=True)]
            for row in self.rows
        ]
        return pd.DataFrame(rows, columns=list(self.columns))

    def html(self) -> str:
        """Return the table as HTML with right-aligned figures and escaped texts."""
        aligned = ["right" if numeric else "left" for numeric in self.numeric]
        rows = [("th", self.columns), *(("td", row) for row in self.texts)]
        lines = [f"<caption>{_escaped(self.title)}</caption>"]
        for tag, row in rows:
            cells = zip(aligned, row, strict=True)
            shown = (f'<{tag} style="text-align:{a}">{_escaped(x)}</{tag}>' for a, x in cells)
            lines.append(f"<tr>{''.join(shown)}</tr>")
        remark = f"<p>{_escaped(self.remark)}</p>" if self.remark else ""
        return f"<table>{''.join(lines)}</table>{remark}"


def as_text(table: Table, longest_cell: int | None = None) -> str:
    """Return the table as text with its title and right-aligned figures; lines are not wrapped.

    Args:
        longest_cell: maximum characters of a cell, with an ellipsis if shortened; None: no limit.
    """
    columns = []
    for name, texts in zip(table.columns, table.text_columns, strict=True):
        shown = [visible(text).replace("\n", " ") for text in (name, *texts)]
        if longest_cell is not None:
            shown = [x if len(x) <= longest_cell else f"{x[: longest_cell - 1]}…" for x in shown]
        width = max(map(len, shown))
        set_to = str.rjust if is_numeric(texts) else str.ljust
        columns.append([set_to(text, width) for text in shown])
    rows = [f" {'   '.join(row)}".rstrip() for row in zip(*columns, strict=True)]
    rule = " " + "─" * (sum(len(column[0]) + 3 for column in columns) - 2)
    return "\n".join([visible(table.title), rows[0], rule, *rows[1:]])


def _escaped(text: str) -> str:
    return html.escape(visible(text))


@dataclass(frozen=True, slots=True)
class Bars:
    """Data of a bar chart: (value, low end, high end) by name; all three are equal without an
    interval."""

    title: str
    unit: str  # of the axis, with the values' origin: "µs, predicted"
    values: Mapping[str, tuple[float, float, float]]

    def figure(self) -> Figure:
        """Return a Plotly figure, with the first value at the top."""
        from plotly.graph_objects import Figure

        figure = Figure()
        values = self.values.values()
        figure.add_bar(
            x=[value for value, _, _ in values],
            y=list(self.values),
            error_x={
                "type": "data",
                "array": [high - value for value, _, high in values],
                "arrayminus": [value - low for value, low, _ in values],
            },
            orientation="h",
        )
        figure.update_xaxes(title=self.unit)
        figure.update_yaxes(autorange="reversed")
        return figure.update_layout(title=self.title)


class Tabular:
    """Base of results that are displayed as tables, also in notebooks, and can be saved."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return `brief`, shortened to its first rows."""
        table = self.brief()
        if not table.rows:
            return f"{table.title} {table.remark}".strip()
        text = as_text(replace(table, rows=table.rows[:_SHOWN_ROWS]), _LONGEST_CELL)
        more = len(table.rows) - _SHOWN_ROWS
        lines = [text, f" … {more:,} more rows"] if more > 0 else [text]
        return "\n".join([*lines, table.remark] if table.remark else lines)

    def brief(self) -> Table:
        """Return what `print` shows."""
        return next(iter(self.tables()), Table(type(self).__name__, (), (), "Nothing in it."))

    def tables(self) -> tuple[Table, ...]:
        """Return the result as tables, the most important first."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """Return the figures as a numeric DataFrame."""
        return self.tables()[0].frame()

    def bars(self) -> Bars:
        """Return the data that `plot` shows."""
        raise NotImplementedError

    def plot(self) -> Figure:
        """Return a Plotly figure of the result as bars with intervals."""
        return self.bars().figure()

    def to_markdown(self) -> str:
        """Return the tables in Markdown, with their titles and remarks."""
        parts = (f"**{t.title}**\n\n{as_markdown(t)}\n\n{t.remark}" for t in self.tables())
        return "\n\n".join(part.rstrip() for part in parts) + "\n"

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())

    def save(self, path: Path | str) -> Path:
        """Write `to_frame` as `.csv`, `.parquet` or `.json`, or the tables as `.md`.

        Raises:
            InvalidProblem: another file extension.
            ToolMissing: Parquet without PyArrow.
            UnknownName, StoreError: the file cannot be written.
        """
        path = Path(path)
        data = _written(self, path.suffix)
        with files.explain_os_error(f"{path} cannot be written", "name another file", named=True):
            files.write(path, data)
        return path


def _written(result: Tabular, suffix: str) -> bytes:
    if suffix == ".csv":
        return csv_text(result.to_frame()).encode()
    if suffix == ".md":
        return result.to_markdown().encode()
    if suffix == ".json":
        return f"{result.to_frame().to_json(orient='records', indent=1)}\n".encode()
    if suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ToolMissing(
                "Parquet needs PyArrow: pip install pyarrow, or write .csv or .json."
            ) from None
        return bytes(result.to_frame().to_parquet(index=False))
    raise InvalidProblem(
        f"Tables are written as .csv, .parquet, .md or .json, not as {suffix!r}.",
        code="table_format",
    )


def cell_text(value: object) -> str:
    """Return a value, formatted for tables."""
    if isinstance(value, str):
        return str(value)
    if value is None:
        return NONE
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def is_numeric(column: Iterable[str]) -> bool:
    """True if all texts are numbers."""
    return all(map(_FIGURE.match, column))


def as_markdown(table: Table) -> str:
    """Return the table in Markdown, with right-aligned figures and no newline at the end."""
    rules = ["---:" if numeric else "---" for numeric in table.numeric]
    lines = [table.columns, rules, *table.texts]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV; texts that spreadsheets would interpret as formulas get a quote."""
    safe = frame.map(_no_formula).rename(columns=_no_formula)
    return safe.to_csv(index=False, lineterminator="\n")


def _no_formula(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # an unquoted one would begin a new row
    return f"'{text}" if text[:1] == "\t" or _FORMULA.match(text) else text


# CSV tables with a header, read row by row; errors name the line.


@dataclass(frozen=True, slots=True)
class CsvTable:
    """The header and rows of a CSV text. Rows are parsed one by one; cells are stripped of white
    space."""

    header_line: int  # 0: there is no header
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, Mapping[str, str]]]  # (line, cell of each column)


def read_csv(text: str, name: str) -> CsvTable:
    """Parse CSV text. Lines that start with # and rows without text are skipped.

    Args:
        name: name of the text in error messages.

    Raises:
        InvalidProblem: invalid CSV, two columns with the same name, or (while rows are read) a row
            with more or fewer cells than the header.
    """
    lines = _lines(text.removeprefix("\ufeff"), name)
    header_line, columns = next(lines, (0, ()))
    doubled = [c for c, count in Counter(columns).items() if count > 1]
    if doubled and any(columns):
        column = doubled[0][:40]
        raise InvalidProblem(
            f"{name}, line {header_line} has the column {column!r} twice.", code="csv_column_twice"
        )
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
                "columns.",
                code="csv_cells",
            )
        yield line, dict(zip(columns, cells, strict=True))


def _lines(text: str, name: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (line, cells) of rows that are neither empty nor comments. A quoted cell may span
    lines."""
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
            raise InvalidProblem(
                f"{name}, line {line_number} is not valid CSV: {error}.", code="csv_invalid"
            ) from None
        number += reader.line_num
        yield number, cells
