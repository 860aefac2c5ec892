"""CSV that a spreadsheet opens: no text in it is a formula."""

from __future__ import annotations

from io import StringIO

import pandas as pd
import pytest

from engine.table import csv_text


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1+1", "@SUM(A1)", "  =1", "\t=1", "\tx", "\r=1", "\u00a0=1", "＝1", " ＠A"],
)
def test_a_formula_is_set_off_in_cells_and_headers(text: str) -> None:
    frame = pd.read_csv(StringIO(csv_text(pd.DataFrame({text: [text]}))))
    safe = "'" + text.replace("\r", " ")
    assert (frame.columns[0], frame.iat[0, 0]) == (safe, safe)


def test_figures_and_words_stay() -> None:
    frame = pd.DataFrame({"speed-up": [-1.5], "n": [3], "what": ["a=b"], "why": [None]})
    assert csv_text(frame) == "speed-up,n,what,why\n-1.5,3,a=b,\n"
