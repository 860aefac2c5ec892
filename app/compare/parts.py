"""A comparison on the page: what differs, regressions, all rows, the winner map."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.compare import charts
from app.shared import plot
from app.shared.downloads import csv
from app.shared.widgets import empty, plain_markdown, theme
from engine.sessions.compare.comparison import SessionComparison
from engine.sessions.compare.environment import Differences
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
    for found in comparison.differences:
        _differences(comparison, found)
    rows = rows_frame(comparison)
    if comparison.regressions:
        st.markdown("#### :material/trending_down: Slower or broken")
        _rows(rows[rows["regressed"]], "regressions")
    st.markdown("#### Evaluations")
    if rows.empty:
        empty(
            "nothing yet",
            "No evaluation stands in both",
            "Sessions are aligned by variant, config and problem: run one of them again with the "
            "other's, for instance with `python -m engine rerun`.",
        )
    else:
        _rows(rows, "rows")
        _downloads(comparison, rows)
    _winners(comparison)
    _unmatched(comparison)


def _counts(comparison: SessionComparison) -> None:
    verdicts = [str(row.verdict) if row.verdict else "" for row in comparison.rows]
    with st.container(horizontal=True, gap="small", key="metrics"):
        for label, count in (
            ("Slower", verdicts.count("SLOWER")),
            ("Broken", sum(row.broken for row in comparison.rows)),
            ("Faster", verdicts.count("FASTER")),
            ("Same", verdicts.count("SAME")),
            ("Undecided", verdicts.count("UNDECIDED")),
            ("No verdict", verdicts.count("")),
        ):
            st.metric(label, f"{count:,}", border=True)


def _differences(comparison: SessionComparison, found: Differences) -> None:
    with st.container(border=True):
        st.text(f"{found.session}, against {comparison.baseline}")
        if found.nothing:
            st.caption("Nothing in environment, flags and sources.")
            return
        frame = differences_frame(comparison)
        mine = frame[frame["session"] == found.session].drop(columns="session")
        if not mine.empty:
            st.dataframe(
                mine.assign(decisive=["no verdict" if x else "" for x in mine["decisive"]]),
                hide_index=True,
                width="stretch",
                height="content" if len(mine) <= _ROWS else 300,
                column_config={"decisive": "effect"},
            )
        for flags in found.flags:
            st.text(f"Flags of {flags.source}")
            changed = [f"- {f}" for f in flags.removed] + [f"+ {f}" for f in flags.added]
            st.code("\n".join(changed), language="diff")
        for source in found.sources:
            label = f"{source.name}, +{source.added_lines} −{source.removed_lines} lines"
            with st.expander(plain_markdown(label), icon=":material/difference:", expanded=True):
                tall = source.diff.count("\n") > 18
                height = _DIFF_HEIGHT_PX if tall else "content"
                st.code(source.diff, language="diff", height=height)
        for remark in found.remarks:
            st.text(remark)


def _rows(rows: pd.DataFrame, key: str) -> None:
    shown = pd.DataFrame(
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
        shown = shown.drop(columns="session")  # the heading above names it
    st.dataframe(
        shown,
        hide_index=True,
        width="stretch",
        height="content" if len(shown) <= _ROWS else 390,
        key=f"compare_{key}",
        placeholder="",
        column_config={
            "speed-up": st.column_config.NumberColumn(
                format="%.3f×", help="Baseline time / time: above 1 it got faster."
            ),
            "why": st.column_config.TextColumn(width="large"),
        },
    )


def _downloads(comparison: SessionComparison, rows: pd.DataFrame) -> None:
    def markdown() -> bytes:
        return to_markdown(comparison).encode()

    with st.container(horizontal=True, gap="small"):
        for label, made, name, mime in (
            ("CSV", lambda: csv(rows), "comparison.csv", "text/csv"),
            (
                "Markdown",
                lambda: to_markdown(comparison).encode(),
                "comparison.md",
                "text/markdown",
            ),
        ):
            st.download_button(
                label,
                made,
                file_name=name,
                mime=mime,
                key=f"compare_{label.lower()}",
                icon=":material/download:",
                type="tertiary",
                on_click="ignore",
            )


def _winners(comparison: SessionComparison) -> None:
    st.markdown("#### Fastest variant per problem")
    frame = winners_frame(comparison)
    if frame.empty:
        empty(
            "nothing yet",
            "No variant was timed",
            "Predictions do not compete: measure on a GPU, or import measurements.",
        )
        return
    st.caption(
        "Over all sessions shown, within the same GPU, driver and clocks. Hatched: the variants "
        "named cannot be told apart."
    )
    plot.draw(charts.winner_map(frame, theme()), key="winner_map")
    with st.expander("As a table", icon=":material/table:"):
        st.dataframe(frame, hide_index=True, width="stretch")


def _unmatched(comparison: SessionComparison) -> None:
    frame = unmatched_frame(comparison)
    if not frame.empty:
        with st.expander(
            f"In one session only, {len(frame):,} evaluations", icon=":material/unknown_document:"
        ):
            st.dataframe(frame, hide_index=True, width="stretch")
