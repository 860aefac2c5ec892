"""A comparison on the page: what differs, regressions, all rows, the winner map."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.compare import charts
from app.shared import plot, tables
from app.shared.widgets import empty, plain_markdown, theme, tile, tile_row
from engine.sessions.compare import Differences, SessionComparison
from engine.sessions.compare.output import (
    differences_frame,
    rows_frame,
    to_markdown,
    unmatched_frame,
    winners_frame,
)
from engine.units import format_us

_ROWS = 10  # a longer table scrolls
_DIFF_HEIGHT_PX = 320


def draw(comparison: SessionComparison) -> None:
    """The whole comparison; differences first, then what got slower."""
    _counts(comparison)
    st.markdown("#### What differs")
    for differences in comparison.differences:
        _differences(comparison, differences)
    rows = rows_frame(comparison)
    if comparison.regressions:
        st.markdown("#### :material/trending_down: Slower or broken")
        _rows(rows[rows["regressed"]], "regressions")
    st.markdown("#### Evaluations")
    if rows.empty:
        empty(
            "nothing yet",
            "No evaluation is in both sessions",
            "Evaluations are matched by variant, config and problem: repeat one session's on the "
            "other machine, for instance with `python -m engine rerun`.",
        )
    else:
        _rows(rows, "rows")
        _downloads(comparison, rows)
    _winners(comparison)
    _unmatched(comparison)


def _counts(comparison: SessionComparison) -> None:
    verdicts = [str(row.verdict) if row.verdict else "" for row in comparison.rows]
    with tile_row():
        for label, count in (
            ("Slower", verdicts.count("SLOWER")),
            ("Broken", sum(row.broken for row in comparison.rows)),
            ("Faster", verdicts.count("FASTER")),
            ("Same", verdicts.count("SAME")),
            ("Undecided", verdicts.count("UNDECIDED")),
            ("No verdict", verdicts.count("")),
        ):
            tile(label, f"{count:,}")


def _differences(comparison: SessionComparison, differences: Differences) -> None:
    with st.container(border=True):
        st.text(f"{differences.session}, compared with {comparison.baseline}")
        if differences.nothing:
            st.caption("Environment, flags and sources are the same.")
            return
        frame = differences_frame(comparison)
        mine = frame[frame["session"] == differences.session].drop(columns="session")
        if not mine.empty:
            tables.draw(
                mine.assign(decisive=["no verdict" if x else "" for x in mine["decisive"]]),
                rows=_ROWS,
                columns={"decisive": "effect"},
            )
        for flags in differences.flags:
            st.text(f"Flags of {flags.source}")
            changed = [f"- {f}" for f in flags.removed] + [f"+ {f}" for f in flags.added]
            st.code("\n".join(changed), language="diff")
        for source in differences.sources:
            label = f"{source.name}, +{source.added_lines} −{source.removed_lines} lines"
            with st.expander(plain_markdown(label), icon=":material/difference:", expanded=True):
                tall = source.diff.count("\n") > 18
                height = _DIFF_HEIGHT_PX if tall else "content"
                st.code(source.diff, language="diff", height=height)
        for remark in differences.remarks:
            st.text(remark)


def _rows(rows: pd.DataFrame, key: str) -> None:
    table = pd.DataFrame(
        {
            "verdict": [
                "BROKEN" if v == "BROKEN" else f"{v}, across" if across and v else v or "–"
                for v, across in zip(rows["verdict"], rows["across"], strict=True)
            ],
            "speed-up": rows["speedup"],
            "95 % interval": [
                f"{low:.4g} to {high:.4g}" if pd.notna(low) else ""
                for low, high in zip(rows["speedup_low"], rows["speedup_high"], strict=True)
            ],
            "baseline": [format_us(t) if pd.notna(t) else "" for t in rows["baseline_us"]],
            "time": [format_us(t) if pd.notna(t) else "" for t in rows["time_us"]],
            "origin": rows["origin"],
            "variant": rows["variant"],
            "config": rows["config"],
            "problem": rows["problem"],
            "GPU": rows["device"],
            "session": rows["session"],
            "why": rows["reason"],
        }
    )
    if rows["session"].nunique() == 1:
        table = table.drop(columns="session")  # the heading above names it
    tables.draw(
        table,
        rows=_ROWS,
        key=f"compare_{key}",
        columns={
            "speed-up": st.column_config.NumberColumn(
                format="%.3f×", help="Time of the baseline / time: above 1 is faster."
            ),
            "why": st.column_config.TextColumn(width="large"),
        },
    )


def _downloads(comparison: SessionComparison, rows: pd.DataFrame) -> None:
    def markdown() -> bytes:
        return to_markdown(comparison).encode()

    with st.container(horizontal=True, gap="small"):
        tables.download("CSV", lambda: tables.csv(rows), "comparison.csv", key="compare_csv")
        tables.download(
            "Markdown", markdown, "comparison.md", mime="text/markdown", key="compare_markdown"
        )


def _winners(comparison: SessionComparison) -> None:
    st.markdown("#### Fastest variant per problem")
    frame = winners_frame(comparison)
    if frame.empty:
        empty(
            "nothing yet",
            "No variant was timed",
            "Predictions are not ranked here: measure on a GPU, or import measurements.",
        )
        return
    st.caption(
        "Over all sessions selected, within the same GPU, driver and clocks. Hatched: a tie of "
        "the variants that are named."
    )
    plot.draw(charts.winner_map(frame, theme()), key="winner_map")
    with st.expander("As a table", icon=":material/table:"):
        tables.draw(frame)


def _unmatched(comparison: SessionComparison) -> None:
    frame = unmatched_frame(comparison)
    if not frame.empty:
        with st.expander(
            f"In one session only, {len(frame):,} evaluations", icon=":material/unknown_document:"
        ):
            tables.draw(frame)
