"""Printing JSON objects and tables, without characters that control a terminal.

Text of files, kernels and compilers may contain control characters. Therefore all output passes
through a stream that writes invisible characters as `^M` or `^[`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from engine.base.table import Table, as_text
from kernels.characters import visible


class _EscapingStream:
    """A text stream that escapes control characters (`visible`) and writes to another stream; other
    attributes are that stream's."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def shown_output() -> Iterator[None]:
    """Make standard output and standard error show every character inside this context."""
    before = sys.stdout, sys.stderr
    shown = cast(TextIO, _EscapingStream(sys.stdout)), cast(TextIO, _EscapingStream(sys.stderr))
    sys.stdout, sys.stderr = shown
    try:
        yield
    finally:
        # After a write error, another stream is installed.
        if sys.stdout is shown[0]:
            sys.stdout = before[0]
        if sys.stderr is shown[1]:
            sys.stderr = before[1]


def print_json(value: Any) -> None:
    """Print one JSON value. NaN and infinity become null, because JSON has neither."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(value, inf_nan_mode="null")
    json.dump(plain, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_figures(title: str, rows: Iterable[tuple[str, object]]) -> None:
    """Print a table of named figures."""
    print_table(Table(title, ("figure", "value"), tuple(rows)))


def print_table(table: Table) -> None:
    """Print a table fitted to the terminal, with right-aligned numbers, and its remark. Skip an
    empty table."""
    if table.rows:
        if len(table.rows) <= _MAX_FITTED:
            _draw(table)
        else:
            print(as_text(table))
    if table.remark:
        print(table.remark)


_MAX_FITTED = 500  # rows; fitting a thousand to the terminal takes half a second


def _draw(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    title = visible(table.title)
    drawn = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, figures in zip(table.columns, table.numeric, strict=True):
        # In a narrow terminal, cells are wrapped, not cut.
        drawn.add_column(visible(name), justify="right" if figures else "left", overflow="fold")
    for row in table.texts:
        drawn.add_row(*map(visible, row))
    # In a pipe, lines are not wrapped, so that grep and diff work on them.
    width = None if sys.stdout.isatty() else 240
    file = unfiltered(sys.stdout)
    Console(highlight=False, markup=False, emoji=False, width=width, file=file).print(drawn)


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream under one of `shown_output`, on which escape sequences for styles work."""
    return stream.stream if isinstance(stream, _EscapingStream) else stream
