"""The result tabs of a sweep: winners, tuned configs, charts, table, untimed points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import pandas as pd
import streamlit as st

from app.shared import known_times, tables, url_state
from app.shared.palette import colors_of, variant_color
from app.shared.roofline_chart import roofline
from app.shared.terms import TERMS
from app.shared.widgets import (
    empty,
    origin_badge,
    plain_markdown,
    problem,
    show_errors,
    theme,
)
from app.sweep import charts, frames, point_links, tuned_configs
from app.sweep.filtered_rows import FilteredRows
from app.sweep.frames import MAX_LINES
from app.sweep.result_rows import ResultRows
from engine.attention.config import TunedConfig, all_variants
from engine.base.errors import Status
from engine.base.table import Table
from engine.devices import find_device
from engine.model.roofline import LEVELS
from engine.search.autotune import ProblemResult, configs_to_save, problem_result
from engine.search.results import (
    ROOFLINE_COLUMNS,
    best_so_far,
    occupancy_frame,
    parallel_coordinates,
    roofline_lines,
    roofline_table,
    sweep_roofs,
    tunable_importance,
    tunable_slices,
    winner_line,
)
from engine.search.strategies import StrategyName

TABS = (
    "Winners",
    "Tuned configs",
    "Parallel coordinates",
    "Importance",
    "Slices",
    "Best so far",
    "Occupancy",
    "Roofline",
    "Table",
    "Not timed",
)
_EVERY = "all problems"
_OUTLIERS_SHOWN = 5
_PREPARED = "sweep_csv_prepared"  # the rows that it was made of, and its bytes
_MAX_CURVES = 12  # of problems
_MAX_DRAWN = 1500  # lines of the parallel coordinates


def _colors(rows: FilteredRows) -> Mapping[str, str]:
    """Return a colour for each of the sweep's variants, independent of the filters."""
    return colors_of(rows.all_rows.frame["variant"].unique())


def draw(
    all_rows: ResultRows,
    final_round: list[ProblemResult],
    name: str,
    strategy: StrategyName,
    *,
    is_over: bool,
) -> None:
    """Draw the results with their two filters. `final_round` exists for a sweep on a GPU."""
    if not all_rows.rows:
        _nothing(is_over)
        return
    rows = FilteredRows(all_rows, name, *_filters(all_rows))
    if rows.frame.empty:
        empty(
            "filtered",
            "No point matches",
            "No point of this problem has these variants: change the filters above.",
        )
        return
    tabs = url_state.tabs(TABS, "sweep_tab", {"Keep": "Tuned configs"})
    for tab, title in zip(tabs, TABS, strict=True):
        if not tab.open:
            continue
        with tab, show_errors():
            if title == "Table":
                _table(rows, name)
            elif title == "Not timed":
                _without(rows)
            elif rows.timed.empty:
                _no_times(rows)
            elif title == "Winners":
                _winners(rows, final_round)
            elif title == "Tuned configs":
                tuned_configs.draw(
                    rows.cached("tuned", lambda: _savable(rows, final_round, strategy))
                )
            elif title == "Parallel coordinates":
                _parallel(rows)
            elif title == "Importance":
                _importance(rows)
            elif title == "Slices":
                _slices(rows)
            elif title == "Best so far":
                _best_so_far(rows)
            elif title == "Occupancy":
                _occupancy(rows)
            else:
                _roofline(rows)


def _nothing(is_over: bool) -> None:
    if is_over:
        empty(
            "nothing yet",
            "No point was evaluated",
            "The sweep ended before its first point: press Resume.",
        )
    else:
        empty("nothing yet", "No point is done yet", "The first ones take a few seconds.")


def _no_times(rows: FilteredRows) -> None:
    top = frames.without_time(rows.frame).iloc[0]
    sentence = (
        f"None of {len(rows.frame):,} points has a time. Most often ({top['points']:,} ×) "
        f"{top['status']}: {top['reason']} All reasons are in the tab Not timed."
    )
    if set(rows.frame["status"]) <= {str(Status.SKIPPED)}:  # excluded by constraints, not failed
        st.info(plain_markdown(sentence), icon=":material/info:")
    else:
        problem(sentence)


def _filters(all_rows: ResultRows) -> tuple[str | None, tuple[str, ...]]:
    problems = all_rows.cached("problems", lambda: all_rows.frame["problem"].unique().tolist())
    if len(problems) == 1 and all_rows.frame["variant"].nunique() == 1:
        return None, ()
    left, right = st.columns(2, gap="small")
    if st.session_state.get("sweep_problem") not in (None, _EVERY, *problems):
        st.session_state["sweep_problem"] = _EVERY  # the selection belongs to another sweep
    problem = left.selectbox(
        "Show results of problem", [_EVERY, *problems], key="sweep_problem", persist_state="session"
    )
    variants = right.multiselect(
        "Show results of variants",
        [v.id for v in all_variants()],
        key="sweep_only",
        placeholder="all",
        persist_state="session",
    )
    return (None if problem == _EVERY else problem), tuple(variants)


def _origins(rows: FilteredRows) -> None:
    """Draw the origins of the times, with a sentence for predicted times."""
    assert rows.origin is not None  # there are times
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(origin_badge(rows.origin))
        if rows.origin == "predicted":
            st.caption("Times are predicted for the target GPU; none of them was measured.")


def _winners(rows: FilteredRows, final_round: list[ProblemResult]) -> None:
    _origins(rows)
    lines = rows.per_group("winners", lambda group, own: winner_line(*group, own))
    found = (line for line in lines.values() if line is not None)
    frame = Table.of("Winners", found).frame(dashes=False)
    frame = frame[frame["origin"] == rows.origin]
    if len(frame) > 1:
        _winner_map(frame, rows)
    results = _results(rows, final_round)
    st.caption(
        plain_markdown(results[0].reason)
        if len(results) == 1
        else "The best five of each problem. A tie: the times cannot be told apart."
    )
    places = rows.cached(("best", *final_round), lambda: _places(rows, results, final_round))
    point_links.draw(point_links.table(places, "sweep_places"), rows, "places")
    if len(places) == MAX_LINES:
        st.caption(f"The first {MAX_LINES:,} lines; select a problem above to see the others.")


def _places(
    rows: FilteredRows, results: Sequence[ProblemResult], final_round: Sequence[ProblemResult]
) -> pd.DataFrame:
    of = {(result.device, result.problem): result for result in results}
    each = rows.per_group(
        ("lines", *final_round),
        lambda group, own: frames.best(of[group], own) if group in of else [],
    )
    lines = list(chain.from_iterable(each.values()))[:MAX_LINES]
    table = Table.of("Best points", lines).frame(dashes=False)
    table = table.set_index("point") if lines else table
    return _beside_known(table, rows, "latency")


def _results(rows: FilteredRows, final_round: list[ProblemResult]) -> list[ProblemResult]:
    """Return the places of every problem that matches the filters."""
    of_these = [r for r in final_round if rows.problem in (None, r.problem.label())]
    if of_these:
        return of_these
    results = rows.per_group("results", lambda group, own: problem_result(group[0], own))
    return [result for result in results.values() if result is not None]


def _savable(
    rows: FilteredRows, final_round: list[ProblemResult], strategy: StrategyName
) -> list[TunedConfig]:
    # Places of the final round are among all variants.
    unfiltered = FilteredRows(rows.all_rows, rows.name, rows.problem, ())
    best = configs_to_save(_results(unfiltered, final_round), unfiltered.rows, strategy)
    return [e for e in best if not rows.variants or e.variant in rows.variants]


def _winner_map(frame: pd.DataFrame, rows: FilteredRows) -> None:
    """Draw the winner map over two dimensions, for one chosen combination of the others."""
    dimensions = ["head_dim", "causal", "dtype", "seqlen_kv", "num_heads_kv"]
    groups = {_slice(*key): group for key, group in frame.groupby(dimensions, dropna=False)}
    name = next(iter(groups))
    if len(groups) > 1:
        name = _one_of("Map of", list(groups), "sweep_slice")
    group, colors, words, among = groups[name], _colors(rows), "", "another variant"
    if frame["winner"].nunique() == 1:
        group, differ = frames.winners_by_config(group, {row.point: row for row in rows.rows})
        if differ:
            colors = {name: variant_color(i) for i, name in enumerate(group["winner"].unique())}
            among = "another config"
            words = f" All are {frame['winner'].iloc[0]}; the cells name the config that wins: "
            words += plain_markdown(" · ".join(n.replace("_", " ") for n in differ)) + "."
    figure = rows.cached(("map", name), lambda: charts.winner_map(group, colors, theme()))
    picked = point_links.chart(figure, "sweep_winners", rows, name)
    st.caption(f"= marks a tie with {among}. Click a cell to open its winner in Tune.{words}")
    point_links.draw(picked, rows, "map")


def _slice(
    head_dim: int, causal: bool, dtype: str, seqlen_kv: float | None, heads_kv: float | None
) -> str:
    keys = "" if pd.isna(seqlen_kv) else f" KV={seqlen_kv:,.0f}"
    shared = "" if pd.isna(heads_kv) else f" HKV={heads_kv:,.0f}"
    return f"D={head_dim} {'causal' if causal else 'full'} {dtype}{keys}{shared}"


def _one_of(label: str, options: list[str], key: str) -> str:
    """Draw a choice that falls back to the first option if another sweep lacks the selected one."""
    if st.session_state.get(key) not in options:
        st.session_state[key] = options[0]
    return st.selectbox(label, options, key=key) or options[0]


def _parallel(rows: FilteredRows) -> None:
    name, here = _of_one_problem(rows, "Lines of", "sweep_lines")
    few = rows.cached(("few", name), lambda: frames.fastest(here, _MAX_DRAWN))
    frame, labels = rows.cached(("axes", name), lambda: parallel_coordinates(few))
    if len(frame.columns) < 2:
        empty("filtered", "Nothing varies", "All matching points are the same: change the filters.")
        return
    figure = rows.cached(("parallel", name), lambda: charts.parallel(frame, labels, theme()))
    point_links.chart(figure, "sweep_parallel", rows, name)
    drawn = f": the {len(few):,} fastest of {len(here):,}" if len(few) < len(here) else ""
    st.caption(
        f"One line per point{drawn}, the fastest in the accent colour; times are {rows.origin}. "
        f"Drag along an axis to keep only the lines that pass there. {charts.LACKS}: the variant "
        "lacks this tunable."
    )


def _of_one_problem(rows: FilteredRows, label: str, key: str) -> tuple[str, pd.DataFrame]:
    """Draw the choice of a problem, if there are several, and return its points."""
    problems = rows.timed["problem"].unique().tolist()
    name = _one_of(label, problems, key) if len(problems) > 1 else problems[0]
    ranked = rows.ranked
    return name, ranked[ranked["problem"] == name]


def _importance(rows: FilteredRows) -> None:
    frame = rows.cached("importance", lambda: tunable_importance(rows.ranked))
    if frame.empty:
        empty(
            "nothing yet",
            "No tunable varies",
            "Give a tunable several values above, or set Values of other tunables to every value.",
        )
        return
    figure = rows.cached("bars", lambda: charts.importance(frame, _colors(rows), theme()))
    point_links.chart(figure, "sweep_importance", rows)
    st.caption(f"{TERMS['importance']} Here times are {rows.origin}.")


def _slices(rows: FilteredRows) -> None:
    name, here = _of_one_problem(rows, "Slices of", "sweep_slices_of")
    frame = rows.cached(("slices", name), lambda: tunable_slices(here))
    if frame.empty or rows.origin is None:
        empty(
            "nothing yet",
            "No tunable varies",
            "Give a tunable several values above, or set Values of other tunables to every value.",
        )
        return
    origin = rows.origin
    figure = rows.cached(
        ("slices drawn", name), lambda: charts.slices(frame, _colors(rows), origin, theme())
    )
    picked = point_links.chart(figure, "sweep_slices", rows, name)
    st.caption("The best time at each value, whatever the other tunables are. Click to open it.")
    point_links.draw(picked, rows, "slices")


def _best_so_far(rows: FilteredRows) -> None:
    ranked = rows.ranked["point"]
    timed = rows.frame["median_us"].where(rows.frame["point"].isin(ranked))
    # Failed points took time, too.
    frame = rows.cached("so far", lambda: best_so_far(rows.frame.assign(median_us=timed)))
    problems = frame["problem"].unique().tolist()[:_MAX_CURVES]
    assert rows.origin is not None  # there are times
    origin, spent_s = rows.origin, float(rows.frame["evaluated_in_s"].sum())
    figure = rows.cached(
        "so far drawn",
        lambda: charts.best_so_far(
            frame[frame["problem"].isin(problems)], spent_s, origin, theme()
        ),
    )
    picked = point_links.chart(figure, "sweep_so_far", rows)
    left_out = frame["problem"].nunique() - len(problems)
    st.caption(
        "Best time of each problem by evaluation time spent, summed over all processes. Click a "
        "point to open it in Tune."
        + (f" {left_out} more problems: select one above." if left_out else "")
    )
    point_links.draw(picked, rows, "so_far")


def _occupancy(rows: FilteredRows) -> None:
    name, here = _of_one_problem(rows, "Scatter of", "sweep_scatter")
    frame = rows.cached(("occupancy", name), lambda: occupancy_frame(here))
    if frame.empty or rows.origin is None:
        empty("nothing yet", "No occupancy", "No point of this problem was compiled for a GPU.")
        return
    origin = rows.origin
    figure = rows.cached(
        ("scatter", name), lambda: charts.occupancy(frame, _colors(rows), origin, theme())
    )
    picked = point_links.chart(figure, "sweep_occupancy", rows, name)
    outliers = frame[frame["outlier"]].sort_values("median_us", ascending=False)
    if outliers.empty:
        st.caption("No outliers: no point is clearly faster than one with clearly more occupancy.")
    else:
        st.markdown(
            f":material/rule: **{len(outliers):,} of {len(frame):,} points are outliers** (a "
            "cross): another point is faster with clearly less occupancy."
        )
        for sentence in outliers["sentence"].head(_OUTLIERS_SHOWN):
            st.caption(plain_markdown(sentence))
    point_links.draw(picked, rows, "scatter")


def _roofline(rows: FilteredRows) -> None:
    """Draw every point of one GPU beneath the GPU's roofs, for bytes from L2 or DRAM."""
    frame = rows.cached("roofline", lambda: _roofline_frame(rows))
    if frame.empty:
        empty("nothing yet", "No roofline", "No point has a time on a GPU of the device table.")
        return
    device = _one_of_several("GPU", frame["device"].unique().tolist(), "sweep_roofline_gpu")
    here = frame[frame["device"] == device]
    of_level = {str(level): group for level, group in here.groupby("level")}
    level = _one_of_several(
        "Bytes from", [x for x in LEVELS if x in of_level], "sweep_roofline_level"
    )
    few = frames.nearest_to_roof(of_level[level], _MAX_DRAWN)
    roofs = rows.cached("roofs", lambda: sweep_roofs(rows.rows))
    shown = [r for r in roofs if r.device == find_device(device).name]
    figure = roofline(few, shown, [level], _colors(rows), theme())
    picked = point_links.chart(figure, "sweep_roofline", rows, device, level)
    drawn = "" if len(few) == len(of_level[level]) else f"The {len(few):,} nearest to a roof. "
    st.caption(
        f"{drawn}Times are {' and '.join(sorted(few['origin'].unique()))}; bytes are modelled, of "
        "a warm launch: data that stays in L2 is not read from DRAM. Click a point to open it in "
        "Tune."
    )
    point_links.draw(picked, rows, "roofline")
    tables.draw(roofline_table(few).frame(), rows=10)


def _roofline_frame(rows: FilteredRows) -> pd.DataFrame:
    each = rows.per_group(
        "roofline", lambda _, own: list(chain.from_iterable(map(roofline_lines, own)))
    )
    lines = chain.from_iterable(each.values())
    values = tuple(tuple(line[name] for name in ROOFLINE_COLUMNS) for line in lines)
    return Table("Roofline", ROOFLINE_COLUMNS, values).frame(dashes=False)


def _one_of_several(label: str, options: list[str], key: str) -> str:
    """Draw a choice if there is more than one option."""
    return _one_of(label, options, key) if len(options) > 1 else options[0]


def _table(rows: FilteredRows, name: str) -> None:
    table = rows.cached(
        "table", lambda: _beside_known(frames.table(rows.frame), rows, "latency µs")
    )
    picked = point_links.table(table, "sweep_table")
    with st.container(horizontal=True, vertical_alignment="center"):
        _download(rows, name)
        count = f"{len(rows.frame):,} points"
        if len(rows.frame) > len(table):
            count = f"The first {len(table):,} of {count}"
        st.caption(
            f"{count}, the fastest first. Select a row to open it in Tune. The CSV has every "
            "point and more columns."
        )
    point_links.draw(picked, rows, "table")


def _beside_known(table: pd.DataFrame, rows: FilteredRows, after: str) -> pd.DataFrame:
    """Return the frame with times of the same kernels and of PyTorch's SDPA in sessions."""
    if table.empty:
        return table
    by_point = {row.point: row for row in rows.rows}
    return frames.beside_known(table, by_point, known_times.history(), after)


def _download(rows: FilteredRows, name: str) -> None:
    """Draw the download of the whole table. Its bytes are prepared before the click: a file created
    on the click is lost if the page updates before the browser has fetched it.
    """
    which = (name, rows.problem, rows.variants)
    data: bytes | None = None
    if len(rows.frame) <= MAX_LINES:
        data = rows.cached("csv", lambda: tables.csv(rows.frame))
    elif st.session_state.get(_PREPARED, ((), b""))[0] == which:
        data = st.session_state[_PREPARED][1]
    if data is None:
        st.button(
            f"Prepare a CSV of {len(rows.frame):,} points",
            key="sweep_csv_make",
            icon=":material/csv:",
            type="tertiary",
            on_click=_prepare,
            args=(which, rows),
        )
        return
    tables.download("This table, CSV", data, f"sweep-{name}.csv", key="sweep_csv")


def _prepare(which: tuple[object, ...], rows: FilteredRows) -> None:
    """A button's callback."""
    st.session_state[_PREPARED] = (which, tables.csv(rows.frame))


def _without(rows: FilteredRows) -> None:
    untimed = rows.cached("without", lambda: frames.without_time(rows.frame))
    if untimed.empty:
        empty("nothing yet", "Every point has a time", "Nothing failed and nothing was excluded.")
        return
    tables.draw(untimed, height="content")
    st.caption("Each point is in the tab Table, with its reason.")
