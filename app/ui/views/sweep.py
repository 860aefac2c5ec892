"""Results of a sweep: winners, parallel coordinates, importance, occupancy, table, failures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.ui import linked, live_component, state, sweep_charts, sweep_frames
from app.ui.palette import variant_color
from app.ui.share import csv
from app.ui.sweep_frames import MOST_LINES
from app.ui.sweep_rows import Found
from app.ui.sweep_terms import TERMS
from app.ui.views import sweep_keep
from app.ui.widgets import empty, origin_badge, plain_markdown, problem, theme
from engine.evaluation import Origin
from engine.problem import Problem
from engine.search.keeping import keepable
from engine.search.ranking import by_problem, ranking_origin
from engine.search.results import (
    occupancy_frame,
    parallel_coordinates,
    tunable_importance,
    winner_line,
)
from engine.search.rows import SweepRow
from engine.search.strategies import StrategyName
from engine.search.tune import TuneResult, tune_group
from engine.search.tuned import TunedConfig
from engine.units import format_us
from kernels.ladder import LADDER

TABS = (
    "Winners",
    "Keep",
    "Parallel coordinates",
    "Importance",
    "Occupancy",
    "Table",
    "Without a time",
)
T = TypeVar("T")
Group: TypeAlias = tuple[str, Problem]
_EVERY = "all problems"
_COLORS: Mapping[str, str] = {v.id: variant_color(i) for i, v in enumerate(LADDER)}
_OUTLIERS_SHOWN = 5
_MOST_DRAWN = 1500  # lines of the parallel coordinates


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that the filters leave; what is drawn from them is made once."""

    found: Found
    name: str  # of the sweep
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
    def groups(self) -> dict[Group, list[SweepRow]]:
        """The rows by GPU and problem."""
        return self.made("groups", lambda: by_problem(self.rows))

    def each(self, what: str, make: Callable[[Group, list[SweepRow]], T]) -> dict[Group, T]:
        """What `make` returns for every group; only those that have changed are made again."""
        return self.found.each((what, self.problem, self.variants), self.groups, make)

    @property
    def origin(self) -> Origin | None:
        """Of the times that are ranked."""
        return self.made("origin", lambda: ranking_origin(self._timed_rows()))

    def _timed_rows(self) -> list[SweepRow]:
        return [row for row in self.rows if row.interval is not None]


def draw(
    found: Found,
    finals: list[TuneResult],
    name: str,
    strategy: StrategyName,
    *,
    is_over: bool,
) -> None:
    """Everything that was found, narrowed by two filters. `finals`: of a sweep on a GPU."""
    if not found.rows:
        _nothing(is_over)
        return
    part = Part(found, name, *_filters(found))
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
            elif title == "Keep":
                sweep_keep.draw(part.made("keep", lambda: _keepable(part, finals, strategy)))
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
    problems = found.made("problems", lambda: found.frame["problem"].unique().tolist())
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
    lines = part.each("winners", lambda group, rows: winner_line(*group, rows))
    frame = pd.DataFrame([line for line in lines.values() if line is not None])
    frame = frame[frame["origin"] == part.origin]
    if len(frame) > 1:
        _winner_map(frame, part)
    results = _results(part, finals)
    st.caption(
        plain_markdown(results[0].reason)
        if len(results) == 1
        else "The best five of each problem; places that the times do not tell apart are ties."
    )
    places = part.made(("best", len(finals)), lambda: _places(part, results))
    _pick(_row_of(places, "sweep_places"), part.rows, "places")
    if len(places) == MOST_LINES:
        st.caption(f"The first {MOST_LINES:,} lines; choose a problem above to see another's.")


def _places(part: Part, results: Sequence[TuneResult]) -> pd.DataFrame:
    lines: list[dict[str, Any]] = []
    for result in results:
        rows = part.groups.get((result.device, result.problem), [])
        lines += sweep_frames.best(result, rows)
        if len(lines) >= MOST_LINES:
            break
    return pd.DataFrame(lines[:MOST_LINES]).set_index("point") if lines else pd.DataFrame()


def _results(part: Part, finals: list[TuneResult]) -> list[TuneResult]:
    """The places of every problem that the filters leave."""
    of_these = [r for r in finals if part.problem in (None, r.problem.label())]
    if of_these:
        return of_these
    found = part.each("results", lambda group, rows: tune_group(group[0], rows))
    return [result for result in found.values() if result is not None]


def _keepable(part: Part, finals: list[TuneResult], strategy: StrategyName) -> list[TunedConfig]:
    whole = Part(part.found, part.name, part.problem, ())  # a final's places are among all variants
    found = keepable(_results(whole, finals), whole.rows, strategy)
    return [e for e in found if not part.variants or e.variant in part.variants]


def _winner_map(frame: pd.DataFrame, part: Part) -> None:
    """One map at a time: of the other dimensions, one combination is chosen."""
    dimensions = ["head_dim", "causal", "dtype", "seqlen_kv"]
    groups = {_slice(*key): group for key, group in frame.groupby(dimensions, dropna=False)}
    name = next(iter(groups))
    if len(groups) > 1:
        name = _one_of("Map of", list(groups), "sweep_slice")
    figure = part.made(
        ("map", name), lambda: sweep_charts.winner_map(groups[name], _COLORS, theme())
    )
    picked = _chart(figure, "sweep_winners", part, name)
    st.caption("= marks a tie. Click a cell to take its winner to Tune.")
    _pick(picked, part.rows, "map")


def _slice(head_dim: int, causal: bool, dtype: str, seqlen_kv: float | None) -> str:
    keys = "" if pd.isna(seqlen_kv) else f" KV={seqlen_kv:,.0f}"
    return f"D={head_dim} {'causal' if causal else 'full'} {dtype}{keys}"


def _chart(figure: go.Figure, key: str, part: Part, *shows: str) -> str | None:
    """Draw a chart whose zoom outlives updates, but not another choice; the point clicked."""
    figure.layout.uirevision = "|".join((part.name, part.problem or "", *part.variants, *shows))
    return live_component.draw(figure, key)


def _one_of(label: str, options: list[str], key: str) -> str:
    """A choice that falls back to the first when another sweep has other options."""
    if st.session_state.get(key) not in options:
        st.session_state[key] = options[0]
    return st.selectbox(label, options, key=key) or options[0]


def _parallel(part: Part) -> None:
    few = part.made("few", lambda: sweep_frames.fastest(part.timed, _MOST_DRAWN))
    frame, labels = part.made("axes", lambda: parallel_coordinates(few))
    if len(frame.columns) < 2:
        empty("filtered", "Nothing varies", "All points left are the same: widen the filters.")
        return
    figure = part.made("parallel", lambda: sweep_charts.parallel(frame, labels, theme()))
    _chart(figure, "sweep_parallel", part)
    st.caption(
        f"{_drawn(few, part)}, the fastest in the accent colour; {_origin_words(part)}. Drag along "
        f"an axis to see only what passes there. {sweep_charts.LACKS} is a tunable that the "
        "variant does not have."
    )


def _drawn(few: pd.DataFrame, part: Part) -> str:
    if len(few) == len(part.timed):
        return "One line per point"
    return (
        f"One line per point for the {len(few):,} that are the fastest of their problem, of "
        f"{len(part.timed):,}"
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
    figure = part.made("bars", lambda: sweep_charts.importance(frame, _COLORS, theme()))
    _chart(figure, "sweep_importance", part)
    st.caption(f"{TERMS['importance']} Here times are {part.origin}.")


def _occupancy(part: Part) -> None:
    problems = part.timed["problem"].unique().tolist()
    name = problems[0]
    if len(problems) > 1:  # times of different problems do not compare
        name = _one_of("Scatter of", problems, "sweep_scatter")
    here = part.timed[(part.timed["problem"] == name) & (part.timed["origin"] == part.origin)]
    frame = part.made(("occupancy", name), lambda: occupancy_frame(here))
    if frame.empty or part.origin is None:
        empty("nothing yet", "No occupancy", "No point of this problem was compiled for a GPU.")
        return
    origin = part.origin
    figure = part.made(
        ("scatter", name), lambda: sweep_charts.occupancy(frame, _COLORS, origin, theme())
    )
    picked = _chart(figure, "sweep_occupancy", part, name)
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
    _pick(picked, part.rows, "scatter")


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
        count = f"{len(part.frame):,} points"
        if len(part.frame) > len(shown):
            count = f"The first {len(shown):,} of {count}"
        st.caption(
            f"{count}, the fastest first. Choose a row to take it to Tune. The file has every "
            "point and further columns."
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


def _pick(point: str | None, rows: list[SweepRow], key: str) -> None:
    """The chosen point in words, and the way to it on the Tune page."""
    row = next((r for r in rows if r.point == point), None)
    if row is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", key=f"sweep_picked_{key}"):
        time = f", {format_us(row.median_us)} {row.origin}" if row.median_us is not None else ""
        st.text(f"{row.label()}  {row.problem.label()} on {row.device}{time}")
        # A link, which the browser follows by itself: after `st.switch_page` a last tick of this
        # page's polling fragments can come in, and the browser would clear the new page for it.
        st.page_link(
            "app_pages/tune.py",
            label="Take to Tune",
            icon=":material/tune:",
            query_params=linked.marked(
                state.coordinates(row.variant, row.config, row.problem, row.device)
            ),
        )
    if row.reason and row.median_us is None:
        st.caption(plain_markdown(row.reason))
