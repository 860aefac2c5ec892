"""The winner map as a figure: colours, ties, labels, and names that are not read as markup."""

from __future__ import annotations

import numpy as np
import pandas as pd
from words import says

from app.compare.charts import MAX_ROWS, winner_map
from app.shared.palette import LIGHT, variant_color


def frame(*rows: dict[str, object]) -> pd.DataFrame:
    base = {
        **{"problem": "B1 H1 S64 D64 fp16", "device": "L4", "winner": "v01", "tied": ""},
        **{"origin": "recorded", "median_us": 10.0, "runner_up": "v02"},
        **{"speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6},
        **{"sdpa": "", "speedup_over_sdpa": np.nan, "caveat": ""},
    }
    return pd.DataFrame([base | row for row in rows])


def test_a_winner_says_over_whom_and_by_how_much() -> None:
    [bar] = winner_map(frame({}), LIGHT).data
    assert list(bar.x) == [1.5]
    (text,) = bar.text
    assert says(text, "times_faster", "1.5×", "v02")
    assert bar.marker.color == (variant_color(0),)
    assert "10 µs recorded" in bar.hovertext[0]
    assert "1.4× to 1.6×" in bar.hovertext[0]


def test_how_it_stands_beside_sdpa_is_said() -> None:
    [bar] = winner_map(frame({"sdpa": "flash", "speedup_over_sdpa": 0.5}), LIGHT).data
    (text,) = bar.text
    assert says(text, "times_faster", "1.5×", "v02")
    assert says(text, "times_slower", "2×", "SDPA flash")


def test_a_tie_is_hatched_and_named_and_a_lone_variant_says_so() -> None:
    tie = {"tied": "v02", "runner_up": "", "speedup": np.nan}
    alone = {"runner_up": "", "speedup": np.nan}
    [bar] = winner_map(frame(tie, alone), LIGHT).data
    tied, lone = bar.text
    assert says(tied, "tied_with", "v01", "v02")
    assert says(lone, "only_one_timed", "v01")
    assert bar.marker.pattern.shape == ("/", "")
    assert list(bar.x) == [1.0, 1.0]


def test_the_same_problem_of_two_environments_is_two_bars() -> None:
    [bar] = winner_map(frame({}, {}), LIGHT).data
    assert len(set(bar.y)) == 2


def test_foreign_names_stay_text_and_many_rows_are_cut() -> None:
    evil = "<img src=x onerror=alert(1)>"
    figure = winner_map(frame(*[{"winner": evil, "device": evil}] * (MAX_ROWS + 5)), LIGHT)
    assert len(figure.data[0].y) == MAX_ROWS
    assert "<img" not in figure.to_json().replace("\\u003c", "<")
