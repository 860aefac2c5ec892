"""Results of a sweep: winners, parallel coordinates, importance, occupancy, table, failures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd
import streamlit as st

from app.ui import state, sweep_charts, sweep_frames
from app.ui.palette import variant_color
from app.ui.share import csv
from app.ui.sweep_rows import Found
from app.ui.sweep_terms import TERMS
from app.ui.widgets import empty, origin_badge, plain_markdown, problem, theme
from engine.evaluation import Origin
from engine.search.ranking import ranking_origin
from engine.search.results import (
    occupancy_frame,
    parallel_coordinates,
    tunable_importance,
    winner_map,
)
from engine.search.rows import SweepRow
from engine.search.tune import TuneResult, tune_results
from engine.units import format_us
from kernels.ladder import LADDER

TABS = ("Winners", "Parallel coordinates", "Importance", "Occupancy", "Table", "Without a time")
T = TypeVar("T")
_EVERY = "all problems"
_PLAIN = {"displaylogo": False}
_COLORS: Mapping[str, str] = {v.id: variant_color(i) for i, v in enumerate(LADDER)}
_OUTLIERS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that the filters leave; what is drawn from them is made once."""

    found: Found
    problem: str | None  # None: all
    variants: tuple[str, ...]  # none: all

    def made(self, what: Hashable, make: Callable[[], T]) -> T:
        return self.found.made((what, self.problem, self.variants, theme()), make)

    @property
    def frame(self) -> pd.DataFrame:
        return self.made(
            "frame",
            lambda: sweep_frames.narrowed(self.found.frame, self.problem, self.variants),
        )

    @property
    def timed(self) -> pd.DataFrame:
        return self.made("timed", lambda: self.frame.dropna(subset=["median_us"]))

    @property
    def rows(self) -> list[SweepRow]:
        # The frame's index is the place among the rows.
        return self.made("rows", lambda: [self.found.rows[i] for i in self.frame.index])

    @property
    def origin(self) -> Origin | None:
        """Of the times that are ranked."""
        return self.made("origin", lambda: ranking_origin(self._timed_rows()))

    def _timed_rows(self) -> list[SweepRow]:
        return [row for row in self.rows if row.interval is not None]


def draw(found: Found, finals: list[TuneResult], name: str, *, is_over: bool) -> None:
    """Everything that was found, narrowed by two filters. `finals`: of a sweep on a GPU."""
    if not found.rows:
        _nothing(is_over)
        return
    part = Part(found, *_filters(found))
    if part.frame.empty:
        empty(
            "filtered",
            "No point is left",
            "No point of this problem has these variants: widen the filters above.",
        )
        return
    tabs = st.tabs(TABS, key="sweep_tab", on_change="rerun", bind="query-params")
    for tab, title in zip(tabs, TABS, strict=True):
        if not tab.open:
            continue
        with tab:
            if title == "Table":
                _table(part, name)
            elif title == "Without a time":
                _without(part)
            elif part.timed.empty:
                _no_times(part)
            elif title == "Winners":
                _winners(part, finals)
            elif title == "Parallel coordinates":
                _parallel(part)
            elif title == "Importance":
                _importance(part)
            else:
                _occupancy(part)


def _nothing(is_over: bool) -> None:
    if is_over:
        empty("nothing yet", "No point was evaluated", "It ended before its first one: Resume it.")
    else:
        empty("nothing yet", "No point is done yet", "The first ones take a few seconds.")


def _no_times(part: Part) -> None:
    lost = sweep_frames.without_time(part.frame)
    top = lost.iloc[0]
    problem(
        f"None of {len(part.frame):,} points has a time. Most often ({top['points']:,} ×) "
        f"{top['status']}: {top['reason']} Every reason is under Without a time."
    )


def _filters(found: Found) -> tuple[str | None, tuple[str, ...]]:
    problems = found.made("problems", lambda: list(dict.fromkeys(found.frame["problem"])))
    if len(problems) == 1 and found.frame["variant"].nunique() == 1:
        return None, ()
    left, right = st.columns(2, gap="small")
    if st.session_state.get("sweep_problem") not in (None, _EVERY, *problems):
        st.session_state["sweep_problem"] = _EVERY  # of another sweep
    wanted = left.selectbox(
        "Problem of the results", [_EVERY, *problems], key="sweep_problem", persist_state="session"
    )
    chosen = right.multiselect(
        "Variants of the results",
        [v.id for v in LADDER],
        key="sweep_only",
        placeholder="all",
        persist_state="session",
    )
    return (None if wanted == _EVERY else wanted), tuple(chosen)


def _origins(part: Part) -> None:
    """Where the times come from; predicted is said in words."""
    assert part.origin is not None  # there are times
    with st.container(horizontal=True, vertical_alignment="center"):
        origin_badge(part.origin)
        if part.origin == "predicted":
            st.caption("Times are the model's, for the target GPU; none of them was measured.")


def _winners(part: Part, finals: list[TuneResult]) -> None:
    _origins(part)
    frame = part.made("winners", lambda: winner_map(part.rows))
    frame = frame[frame["origin"] == part.origin]
    if len(frame) > 1:
        _winner_map(frame, part)
    finals = [r for r in finals if part.problem in (None, r.problem.label())]
    results = finals or part.made("results", lambda: tune_results(part.rows))
    st.caption(
        plain_markdown(results[0].reason)
        if len(results) == 1
        else "The best five of each problem; places that the times do not tell apart are ties."
    )
    places = part.made(("best", len(finals)), lambda: sweep_frames.best(results, part.rows))
    _pick(_row_of(places, "sweep_places"), part.rows, "places")


def _winner_map(frame: pd.DataFrame, part: Part) -> None:
    """One map at a time: of the other dimensions, one combination is chosen."""
    groups = {
        "D={} {} {}".format(head_dim, "causal" if causal else "full", dtype): group
        for (head_dim, causal, dtype), group in frame.groupby(["head_dim", "causal", "dtype"])
    }
    name = next(iter(groups))
    if len(groups) > 1:
        name = _one_of("Map of", list(groups), "sweep_slice")
    event = st.plotly_chart(
        part.made(("map", name), lambda: sweep_charts.winner_map(groups[name], _COLORS, theme())),
        key="sweep_winners",
        on_select="rerun",
        selection_mode="points",
        config=_PLAIN,
    )
    st.caption("= marks a tie. Click a cell to take its winner to Tune.")
    _pick(_point_of(event), part.rows, "map")


def _one_of(label: str, options: list[str], key: str) -> str:
    """A choice that falls back to the first when another sweep has other options."""
    if st.session_state.get(key) not in options:
        st.session_state[key] = options[0]
    return st.selectbox(label, options, key=key) or options[0]


def _parallel(part: Part) -> None:
    frame, labels = part.made("axes", lambda: parallel_coordinates(part.timed))
    if len(frame.columns) < 2:
        empty("filtered", "Nothing varies", "All points left are the same: widen the filters.")
        return
    st.plotly_chart(
        part.made("parallel", lambda: sweep_charts.parallel(frame, labels, theme())),
        key="sweep_parallel",
        config=_PLAIN,
    )
    st.caption(
        f"One line per point, the fastest in the accent colour; {_origin_words(part)}. Drag along "
        f"an axis to see only what passes there. {sweep_charts.LACKS} is a tunable that the "
        "variant does not have."
    )


def _origin_words(part: Part) -> str:
    return "times are " + " and ".join(sorted(part.timed["origin"].unique()))


def _importance(part: Part) -> None:
    frame = part.made("importance", lambda: tunable_importance(part.timed))
    frame = frame[frame["origin"] == part.origin]
    if frame.empty:
        empty(
            "nothing yet",
            "No tunable varies",
            "Give a tunable several values above, or let them take every value.",
        )
        return
    st.plotly_chart(
        part.made("bars", lambda: sweep_charts.importance(frame, _COLORS, theme())),
        key="sweep_importance",
        config=_PLAIN,
    )
    st.caption(f"{TERMS['importance']} Here times are {part.origin}.")


def _occupancy(part: Part) -> None:
    problems = list(dict.fromkeys(part.timed["problem"]))
    name = problems[0]
    if len(problems) > 1:  # times of different problems do not compare
        name = _one_of("Scatter of", problems, "sweep_scatter")
    here = part.timed[(part.timed["problem"] == name) & (part.timed["origin"] == part.origin)]
    frame = part.made(("occupancy", name), lambda: occupancy_frame(here))
    if frame.empty or part.origin is None:
        empty("nothing yet", "No occupancy", "No point of this problem was compiled for a GPU.")
        return
    origin = part.origin
    event = st.plotly_chart(
        part.made(
            ("scatter", name), lambda: sweep_charts.occupancy(frame, _COLORS, origin, theme())
        ),
        key="sweep_occupancy",
        on_select="rerun",
        selection_mode="points",
        config=_PLAIN,
    )
    outliers = frame[frame["outlier"]].sort_values("median_us", ascending=False)
    if outliers.empty:
        st.caption("No outliers: no point with less occupancy is clearly faster than another.")
    else:
        st.markdown(
            f":material/rule: **{len(outliers):,} of {len(frame):,} points are outliers** (a "
            "cross): another point is faster with clearly less occupancy."
        )
        for says in outliers["says"].head(_OUTLIERS_SHOWN):
            st.caption(plain_markdown(says))
    _pick(_point_of(event), part.rows, "scatter")


def _table(part: Part, name: str) -> None:
    shown = part.made("table", lambda: sweep_frames.table(part.frame))
    picked = _row_of(shown, "sweep_table")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.download_button(
            "This table, CSV",
            lambda: csv(part.frame),
            file_name=f"sweep-{name}.csv",
            mime="text/csv",
            key="sweep_csv",
            icon=":material/download:",
            type="tertiary",
            on_click="ignore",
        )
        st.caption(
            f"{len(shown):,} points, the fastest first. Choose a row to take it to Tune. The file "
            "has further columns."
        )
    _pick(picked, part.rows, "table")


def _without(part: Part) -> None:
    lost = part.made("without", lambda: sweep_frames.without_time(part.frame))
    if lost.empty:
        empty("nothing yet", "Every point has a time", "Nothing failed and nothing was excluded.")
        return
    st.dataframe(lost, hide_index=True, width="stretch", height="content")
    st.caption("The points themselves are in the table, each with its reason.")


def _row_of(frame: pd.DataFrame, key: str) -> str | None:
    """Draw a table whose index is the point; the point of the chosen row."""
    numbers = {
        name: st.column_config.NumberColumn(format="%.4g")
        for name in frame.columns
        if frame[name].dtype.kind == "f"
    }
    event = st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height="content" if len(frame) <= 10 else 380,
        key=key,
        on_select="rerun",
        selection_mode="single-row",
        placeholder="",
        column_config=numbers,
    )
    rows = event["selection"]["rows"]
    return str(frame.index[rows[0]]) if rows and rows[0] < len(frame) else None


def _point_of(event: Any) -> str | None:
    """The row's id that a clicked point carries."""
    points = event["selection"]["points"]
    if not points:
        return None
    data = points[0].get("customdata")
    return str(data[0] if isinstance(data, list) else data) if data else None


def _pick(point: str | None, rows: list[SweepRow], key: str) -> None:
    """The chosen point in words, and the way to it on the Tune page."""
    row = next((r for r in rows if r.point == point), None)
    if row is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", key=f"sweep_picked_{key}"):
        time = f", {format_us(row.median_us)} {row.origin}" if row.median_us is not None else ""
        st.text(f"{row.label()}  {row.problem.label()} on {row.device}{time}")
        if st.button(
            "Take to Tune",
            key=f"sweep_tune_{key}",
            icon=":material/tune:",
            on_click=state.choose,
            args=(row.variant, row.config, row.problem, row.device),
        ):
            # Named, because a switch without any may not drop those that the axes are bound to.
            st.switch_page("app_pages/tune.py", query_params={"variant": row.variant})
    if row.reason and row.median_us is None:
        st.caption(plain_markdown(row.reason))
