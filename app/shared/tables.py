"""Tables: draw a DataFrame, and download it as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import pandas as pd
import streamlit as st

from engine.base.table import csv_text
from engine.history.known_time import NOT_COMPARABLE

_ROW_PX = 31
# Height of a row of up to three lines: Streamlit wraps texts only above 4 rem, which are 56 pixels.
_LINES_PX = 58
_LARGE_LETTERS = 64  # that fit into one line of a column of width `large`
_LETTER_PX, _CELL_PX = 6, 24  # average width of a letter, and what a cell adds
_GREY = "color: gray"  # readable on both themes' backgrounds


def draw(
    frame: pd.DataFrame,
    *,
    rows: int | None = None,
    numbers: str = "",
    columns: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Draw a table as wide as its container, without its index.

    Args:
        rows: A table with more rows than this scrolls.
        numbers: The printf format of all columns of floats.
        columns: Streamlit's column configuration by name; it overrides `numbers`.
        options: Further arguments of `st.dataframe`.

    Returns:
        What `st.dataframe` returns.
    """
    config: dict[str, Any] = {}
    if numbers:
        column = st.column_config.NumberColumn(format=numbers)
        config = {name: column for name in frame.columns if frame[name].dtype.kind == "f"}
    if rows is not None:
        options["height"] = height_px(len(frame), rows, options.get("row_height"))
    return st.dataframe(
        styled(frame),
        hide_index=True,
        width="stretch",
        placeholder=options.pop("placeholder", ""),
        column_config={**config, **(columns or {})},
        **options,
    )


def text_px(texts: Iterable[str]) -> int:
    """Return the width of a column that shows texts in one line, as the table itself measures only
    the first rows."""
    return _LETTER_PX * max(map(len, texts), default=0) + _CELL_PX


def row_px(texts: Iterable[str], letters: int = _LARGE_LETTERS) -> int | None:
    """Return the row height that shows texts of a `large` column in up to three lines; None for one
    line.

    Args:
        letters: how many fit into a line of a column of another width.
    """
    return _LINES_PX if any(len(text) > letters for text in texts) else None


def height_px(count: int, rows: int, row_px: int | None = None) -> int | Literal["content"]:
    """Return the height of a table of `count` rows that scrolls beyond `rows`.

    Half a row more indicates further rows.
    """
    return "content" if count <= rows else int(_ROW_PX + (row_px or _ROW_PX) * (rows + 0.5))


def styled(frame: pd.DataFrame) -> Any:
    """Return the table with texts in place of missing figures in grey."""
    texts = frame.select_dtypes(["object", "string"])
    has = [c for c in texts if texts[c].map(_is_incomparable).any()]
    if not has:
        return frame
    return frame.style.map(lambda x: _GREY if _is_incomparable(x) else "", subset=has)


def _is_incomparable(value: object) -> bool:
    return isinstance(value, str) and value.endswith(NOT_COMPARABLE)


def csv(frame: pd.DataFrame) -> bytes:
    """Return a table as CSV bytes in which spreadsheets find no formulas to execute."""
    return csv_text(frame).encode()


def download(
    label: str,
    data: bytes | str | Callable[[], bytes],
    file_name: str,
    *,
    key: str,
    mime: str = "text/csv",
    **options: Any,
) -> None:
    """Draw a download button. A callable creates the file's content when the button is pressed."""
    st.download_button(
        label,
        data,
        file_name=file_name,
        mime=mime,
        key=key,
        on_click="ignore",
        **{"icon": ":material/download:", "type": "tertiary", **options},
    )
