"""Tables: which columns are numbers; no text in CSV acts as a spreadsheet formula."""

from __future__ import annotations

from io import StringIO

import pandas as pd
import pytest

from engine.base.table import Table, csv_text


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1+1", "@SUM(A1)", "  =1", "\t=1", "\tx", "\r=1", "\u00a0=1", "＝1", " ＠A"],
)
def test_a_formula_is_set_off_in_cells_and_headers(text: str) -> None:
    frame = pd.read_csv(StringIO(csv_text(pd.DataFrame({text: [text]}))))
    safe = "'" + text.replace("\r", " ")
    assert (frame.columns[0], frame.iat[0, 0]) == (safe, safe)


def test_plain_numbers_and_words_are_unchanged() -> None:
    frame = pd.DataFrame({"speed-up": [-1.5], "n": [3], "what": ["a=b"], "why": [None]})
    assert csv_text(frame) == "speed-up,n,what,why\n-1.5,3,a=b,\n"


def test_text_that_begins_with_a_number_is_not_numeric() -> None:
    row = {
        **{"time": "12.5 µs", "speed-up": "2× over flash", "day": "2026-11-23"},
        **{"reason": "2 CTAs of 8 warps fit on an SM, limited by registers."},
    }
    assert Table.of("", [row]).numeric == (True, True, False, False)


def test_missing_values_are_dashes_or_keep_a_numeric_column() -> None:
    table = Table.of("Times", [{"us": 1.5, "SMs": 58}, {"us": None, "SMs": 132}])
    assert table.frame()["us"].tolist() == ["1.5", "–"]
    numbers = table.frame(dashes=False)
    assert (numbers["us"].sum(), numbers["us"].isna().sum(), numbers["SMs"].sum()) == (1.5, 1, 190)
