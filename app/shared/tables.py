"""Tables: one way to draw a DataFrame, and to download it as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from engine.base.table import csv_text

_ROW_PX = 31


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
        # Half a row more shows that there are others.
        is_short = len(frame) <= rows
        options["height"] = "content" if is_short else int(_ROW_PX * (rows + 1.5))
    return st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        placeholder=options.pop("placeholder", ""),
        column_config={**config, **(columns or {})},
        **options,
    )


def csv(frame: pd.DataFrame) -> bytes:
    """The bytes of a table as a CSV file that no spreadsheet executes anything of."""
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
    """A button that downloads a file. A callable makes the file's content when it is pressed."""
    st.download_button(
        label,
        data,
        file_name=file_name,
        mime=mime,
        key=key,
        on_click="ignore",
        **{"icon": ":material/download:", "type": "tertiary", **options},
    )
