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


def test_winner_names_runner_up_and_ratio() -> None:
    [bar] = winner_map(frame({}), LIGHT).data
    assert list(bar.x) == [1.5]
    (text,) = bar.text
    assert says(text, "times_faster", "1.5×", "v02")
    assert bar.marker.color == (variant_color(0),)
    assert "10 µs recorded" in bar.hovertext[0]
    assert "1.4× to 1.6×" in bar.hovertext[0]


def test_ratio_to_sdpa_is_shown() -> None:
    [bar] = winner_map(frame({"sdpa": "flash", "speedup_over_sdpa": 0.5}), LIGHT).data
    (text,) = bar.text
    assert says(text, "times_faster", "1.5×", "v02")
    assert says(text, "times_slower", "2×", "SDPA flash")


def test_ties_are_hatched_and_single_variants_are_noted() -> None:
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


def test_names_are_escaped_and_long_charts_truncated() -> None:
    evil = "<img src=x onerror=alert(1)>"
    figure = winner_map(frame(*[{"winner": evil, "device": evil}] * (MAX_ROWS + 5)), LIGHT)
    assert len(figure.data[0].y) == MAX_ROWS
    assert "<img" not in figure.to_json().replace("\\u003c", "<")
