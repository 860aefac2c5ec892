"""The results of a comparison: regressions, before and after, winners, other differences."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.compare import charts
from app.shared import plot, tables
from app.shared.widgets import empty, plain_markdown, theme, tile, tile_row
from engine.base.table import Table
from engine.base.units import format_us
from engine.sessions.compare import ComparedRow, Differences, SessionComparison
from engine.sessions.compare.comparison import Kind
from engine.sessions.compare.formats import (
    change_of,
    changes_table,
    environment_table,
    figure_records,
    findings_table,
    rows_frame,
    to_markdown,
    unmatched_frame,
    winners_frame,
    winners_table,
)

_ROWS = 10  # a longer table scrolls
_DIFF_HEIGHT_PX = 320


def draw(comparison: SessionComparison) -> None:
    """Draw the comparison, regressions first."""
    _counts(comparison)
    if comparison.findings:
        st.markdown("#### :material/trending_down: What got worse")
        tables.draw(
            findings_table(comparison).frame(),
            rows=_ROWS,
            columns={"finding": st.column_config.TextColumn(width="large")},
        )
    _side_by_side(comparison)
    _winners(comparison)
    if comparison.differences:
        st.markdown("#### Other differences")
    for differences in comparison.differences:
        _differences(comparison, differences)
    _unmatched(comparison)


def _counts(comparison: SessionComparison) -> None:
    """Draw a tile with the count of each verdict that occurs."""
    verdicts = [str(row.verdict) if row.verdict else "" for row in comparison.rows]
    counts = {
        "Broken": sum(row.broken for row in comparison.rows),
        "Slower": verdicts.count("SLOWER"),
        "Simulated slower": verdicts.count("SIMULATED SLOWER"),
        "Counted worse": _rows_with(comparison, "counts"),
        "More registers": _rows_with(comparison, "registers"),
        "Faster": verdicts.count("FASTER"),
        "Simulated faster": verdicts.count("SIMULATED FASTER"),
        "Counted better": verdicts.count("COUNTED BETTER"),
        "Same": verdicts.count("SAME"),
        "Same code": verdicts.count("SAME CODE"),
        "Undecided": verdicts.count("UNDECIDED"),
        "No verdict": verdicts.count(""),
    }
    if any(counts.values()):
        with tile_row():
            for label, count in counts.items():
                if count:
                    tile(label, f"{count:,}")


def _rows_with(comparison: SessionComparison, kind: Kind) -> int:
    return sum(any(f.kind == kind for f in row.findings) for row in comparison.rows)


def _side_by_side(comparison: SessionComparison) -> None:
    st.markdown("#### Before and after")
    rows = comparison.rows
    if not rows:
        empty(
            "nothing yet",
            "No problem is in both sessions",
            "Kernels are compared on problems that both sessions have, and PyTorch's SDPA does not "
            "count as a kernel. Repeat one session on the other machine, for instance with "
            "`attune rerun`.",
        )
        return
    chosen = 0
    if len(rows) > 1:
        chosen = _rows(rows)
    row = rows[chosen]
    with st.container(border=True):
        st.text(f"{row.problem.label()} on {row.device}")
        st.caption(plain_markdown(row.reason))
        tables.draw(changes_table(row).frame(), rows=20)
    _downloads(comparison, rows_frame(comparison))


def _differences(comparison: SessionComparison, differences: Differences) -> None:
    with st.container(border=True):
        st.text(f"{differences.session}, compared with {comparison.baseline}")
        if differences.nothing:
            st.caption("Environment, flags and sources are the same.")
            return
        if differences.environment:
            frame = environment_table(differences).frame()
            tables.draw(frame, rows=_ROWS, columns={"here": "other"})
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


def rows_table(rows: Sequence[ComparedRow]) -> pd.DataFrame:
    """Return a line per row: verdict, times before and after with their origins, figures."""
    records = [
        {
            "verdict": _verdict(row),
            "change": change_of(row) or "",
            "time before": format_us(row.baseline_us) if row.baseline_us is not None else "",
            "time after": format_us(row.time_us) if row.time_us is not None else "",
            "origin": row.origin
            if row.origin == row.baseline_origin
            else f"{row.baseline_origin or '–'} → {row.origin or '–'}",
            **record,
            "GPU": row.device,
            "session": row.session,
            "why": row.reason,
        }
        for row, record in zip(rows, figure_records(rows), strict=True)
    ]
    table = Table.of("Compared evaluations", records).frame(dashes=False)
    return table.drop(columns="session") if table["session"].nunique() == 1 else table


def _rows(rows: Sequence[ComparedRow]) -> int:
    """Draw all rows; return the index of the selected row."""
    event = tables.draw(
        rows_table(rows),
        rows=_ROWS,
        key="compare_rows",
        on_select="rerun",
        selection_mode="single-row-required",
        columns={"why": st.column_config.TextColumn(width="large")},
    )
    selected = event["selection"]["rows"]
    return int(selected[0]) if selected and selected[0] < len(rows) else 0


def _verdict(row: ComparedRow) -> str:
    if row.broken:
        return "BROKEN"
    if row.verdict is None:
        return "–"
    return f"{row.verdict}, across" if row.across else str(row.verdict)


def _downloads(comparison: SessionComparison, rows: pd.DataFrame) -> None:
    def markdown() -> bytes:
        return to_markdown(comparison).encode()

    with st.container(horizontal=True, gap="small"):
        tables.download("CSV", lambda: tables.csv(rows), "comparison.csv", key="compare_csv")
        tables.download(
            "Markdown", markdown, "comparison.md", mime="text/markdown", key="compare_markdown"
        )


def _winners(comparison: SessionComparison) -> None:
    st.markdown("#### Fastest kernel per problem")
    frame = winners_frame(comparison)
    if frame.empty:
        empty(
            "nothing yet",
            "No kernel was timed",
            "Predictions are not ranked here: measure on a GPU, or import measurements.",
        )
        return
    if (frame["runner_up"] != "").sum() > 1:
        st.caption("Over all selected sessions. Hatched: a tie of the named kernels.")
        plot.draw(charts.winner_map(frame, theme()), key="winner_map")
    winners = winners_table(comparison).frame()
    # The first rows may have no runner-up.
    width_px = tables.text_px(winners["runner-up"])
    wide = {"runner-up": st.column_config.TextColumn(width=width_px)}
    tables.draw(winners, rows=_ROWS, columns=wide)


def _unmatched(comparison: SessionComparison) -> None:
    frame = unmatched_frame(comparison)
    if not frame.empty:
        with st.expander(
            f"In one session only: {len(frame):,}", icon=":material/unknown_document:"
        ):
            tables.draw(frame)
