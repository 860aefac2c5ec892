"""The winner map of a sweep marks cells with a shared first place."""

from __future__ import annotations

import pandas as pd
from words import says

from app.shared.palette import LIGHT
from app.sweep.charts import winner_map


def test_a_tied_cell_is_marked_and_names_the_other_variant() -> None:
    cell = {
        **{"batch": 1, "num_heads": 1, "winner": "v01", "runner_up": "v02", "margin": 1.5},
        **{"label": "v01", "median_us": 10.0, "origin": "predicted", "point": "a", "problem": "p"},
    }
    frame = pd.DataFrame(
        [{**cell, "seqlen": 64, "tied_with": "v02"}, {**cell, "seqlen": 128, "tied_with": ""}]
    )
    points = winner_map(frame, {"v01": "#123456"}, LIGHT).data[1]
    tied, alone = points.text
    assert tied.startswith("<b>v01 =</b>")
    assert alone.startswith("<b>v01</b>")
    assert says(points.hovertext[0], "tie_with_br", "v02")
    assert "tie" not in points.hovertext[1]
