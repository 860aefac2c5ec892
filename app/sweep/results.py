"""Results of a sweep: winners, parallel coordinates, importance, occupancy, table, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import pandas as pd
import streamlit as st

from app.shared.downloads import csv
from app.shared.palette import variant_color
from app.shared.widgets import empty, origin_badge, plain_markdown, problem, theme
from app.sweep import charts, frames, keep, pick
from app.sweep.filtered import Part
from app.sweep.frames import MOST_LINES
from app.sweep.rows import Found
from app.sweep.terms import TERMS
from engine.search.autotune import ProblemResult, problem_result
from engine.search.keep import configs_to_keep
from engine.search.results import (
    occupancy_frame,
    parallel_coordinates,
    tunable_importance,
    winner_line,
)
from engine.search.strategies import StrategyName
from engine.tuned import TunedConfig
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
_EVERY = "all problems"
_COLORS: Mapping[str, str] = {v.id: variant_color(i) for i, v in enumerate(LADDER)}
_OUTLIERS_SHOWN = 5
_PREPARED = "sweep_csv_prepared"  # what of, and its bytes
_MOST_DRAWN = 1500  # lines of the parallel coordinates


def draw(
    found: Found,
    finals: list[ProblemResult],
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
                keep.draw(part.made("keep", lambda: _keepable(part, finals, strategy)))
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
    lost = frames.without_time(part.frame)
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


def _winners(part: Part, finals: list[ProblemResult]) -> None:
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
    places = part.made(("best", *finals), lambda: _places(part, results, finals))
    pick.pick(pick.row_of(places, "sweep_places"), part.rows, "places")
    if len(places) == MOST_LINES:
        st.caption(f"The first {MOST_LINES:,} lines; choose a problem above to see another's.")


def _places(
    part: Part, results: Sequence[ProblemResult], finals: Sequence[ProblemResult]
) -> pd.DataFrame:
    of = {(result.device, result.problem): result for result in results}
    each = part.each(
        ("lines", *finals),
        lambda group, rows: frames.best(of[group], rows) if group in of else [],
    )
    lines = list(chain.from_iterable(each.values()))[:MOST_LINES]
    return pd.DataFrame(lines).set_index("point") if lines else pd.DataFrame()


def _results(part: Part, finals: list[ProblemResult]) -> list[ProblemResult]:
    """The places of every problem that the filters leave."""
    of_these = [r for r in finals if part.problem in (None, r.problem.label())]
    if of_these:
        return of_these
    found = part.each("results", lambda group, rows: problem_result(group[0], rows))
    return [result for result in found.values() if result is not None]


def _keepable(part: Part, finals: list[ProblemResult], strategy: StrategyName) -> list[TunedConfig]:
    whole = Part(part.found, part.name, part.problem, ())  # a final's places are among all variants
    found = configs_to_keep(_results(whole, finals), whole.rows, strategy)
    return [e for e in found if not part.variants or e.variant in part.variants]


def _winner_map(frame: pd.DataFrame, part: Part) -> None:
    """One map at a time: of the other dimensions, one combination is chosen."""
    dimensions = ["head_dim", "causal", "dtype", "seqlen_kv"]
    groups = {_slice(*key): group for key, group in frame.groupby(dimensions, dropna=False)}
    name = next(iter(groups))
    if len(groups) > 1:
        name = _one_of("Map of", list(groups), "sweep_slice")
    figure = part.made(("map", name), lambda: charts.winner_map(groups[name], _COLORS, theme()))
    picked = pick.chart(figure, "sweep_winners", part, name)
    st.caption("= marks a tie. Click a cell to take its winner to Tune.")
    pick.pick(picked, part.rows, "map")


def _slice(head_dim: int, causal: bool, dtype: str, seqlen_kv: float | None) -> str:
    keys = "" if pd.isna(seqlen_kv) else f" KV={seqlen_kv:,.0f}"
    return f"D={head_dim} {'causal' if causal else 'full'} {dtype}{keys}"


def _one_of(label: str, options: list[str], key: str) -> str:
    """A choice that falls back to the first when another sweep has other options."""
    if st.session_state.get(key) not in options:
        st.session_state[key] = options[0]
    return st.selectbox(label, options, key=key) or options[0]


def _parallel(part: Part) -> None:
    few = part.made("few", lambda: frames.fastest(part.timed, _MOST_DRAWN))
    frame, labels = part.made("axes", lambda: parallel_coordinates(few))
    if len(frame.columns) < 2:
        empty("filtered", "Nothing varies", "All points left are the same: widen the filters.")
        return
    figure = part.made("parallel", lambda: charts.parallel(frame, labels, theme()))
    pick.chart(figure, "sweep_parallel", part)
    st.caption(
        f"{_drawn(few, part)}, the fastest in the accent colour; {_origin_words(part)}. Drag along "
        f"an axis to see only what passes there. {charts.LACKS} is a tunable that the "
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
    figure = part.made("bars", lambda: charts.importance(frame, _COLORS, theme()))
    pick.chart(figure, "sweep_importance", part)
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
    figure = part.made(("scatter", name), lambda: charts.occupancy(frame, _COLORS, origin, theme()))
    picked = pick.chart(figure, "sweep_occupancy", part, name)
    outliers = frame[frame["outlier"]].sort_values("median_us", ascending=False)
    if outliers.empty:
        st.caption("No outliers: no point with less occupancy is clearly faster than another.")
    else:
        st.markdown(
            f":material/rule: **{len(outliers):,} of {len(frame):,} points are outliers** (a "
            "cross): another point is faster with clearly less occupancy."
        )
        for sentence in outliers["sentence"].head(_OUTLIERS_SHOWN):
            st.caption(plain_markdown(sentence))
    pick.pick(picked, part.rows, "scatter")


def _table(part: Part, name: str) -> None:
    shown = part.made("table", lambda: frames.table(part.frame))
    picked = pick.row_of(shown, "sweep_table")
    with st.container(horizontal=True, vertical_alignment="center"):
        _download(part, name)
        count = f"{len(part.frame):,} points"
        if len(part.frame) > len(shown):
            count = f"The first {len(shown):,} of {count}"
        st.caption(
            f"{count}, the fastest first. Choose a row to take it to Tune. The file has every "
            "point and further columns."
        )
    pick.pick(picked, part.rows, "table")


def _download(part: Part, name: str) -> None:
    """The whole table. Its bytes are there before the click: a file that is made on the click is
    lost when the page is brought up to date before the browser has fetched it.
    """
    which = (name, part.problem, part.variants)
    data: bytes | None = None
    if len(part.frame) <= MOST_LINES:
        data = part.made("csv", lambda: csv(part.frame))
    elif st.session_state.get(_PREPARED, ((), b""))[0] == which:
        data = st.session_state[_PREPARED][1]
    if data is None:
        st.button(
            f"Make a CSV of {len(part.frame):,} points",
            key="sweep_csv_make",
            icon=":material/csv:",
            type="tertiary",
            on_click=_prepare,
            args=(which, part),
        )
        return
    st.download_button(
        "This table, CSV",
        data,
        file_name=f"sweep-{name}.csv",
        mime="text/csv",
        key="sweep_csv",
        icon=":material/download:",
        type="tertiary",
        on_click="ignore",
    )


def _prepare(which: tuple[object, ...], part: Part) -> None:
    """A button's callback."""
    st.session_state[_PREPARED] = (which, csv(part.frame))


def _without(part: Part) -> None:
    lost = part.made("without", lambda: frames.without_time(part.frame))
    if lost.empty:
        empty("nothing yet", "Every point has a time", "Nothing failed and nothing was excluded.")
        return
    st.dataframe(lost, hide_index=True, width="stretch", height="content")
    st.caption("The points themselves are in the table, each with its reason.")
