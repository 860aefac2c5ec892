"""Printing: one JSON object for machines, a table for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from engine.table import Table


def print_json(value: Any) -> None:
    """One JSON value on standard output. NaN and infinity become null: JSON has neither."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(value, inf_nan_mode="null")
    json.dump(plain, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_figures(title: str, rows: Iterable[tuple[str, object]]) -> None:
    """A table of named figures."""
    print_table(Table(title, ("figure", "value"), tuple(rows)))


def print_table(table: Table) -> None:
    """A table that fits the terminal, numbers right-aligned, and its remark; no empty table."""
    if table.rows:
        _draw(table)
    if table.remark:
        print(table.remark)


def _draw(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, is_numeric in zip(table.columns, table.numeric, strict=True):
        drawn.add_column(name, justify="right" if is_numeric else "left")
    for row in table.texts:
        drawn.add_row(*row)
    # A pipe has no width: lines stay whole there, so that grep and diff work on them.
    width = None if sys.stdout.isatty() else 240
    Console(highlight=False, markup=False, emoji=False, width=width).print(drawn)
