"""The summary above the tabs: the model's accuracy, the recommended batch, and why."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

import streamlit as st

from app.batch.question import Question
from app.shared.terms import TERMS
from app.shared.widgets import busy, plain_markdown, tile, tile_row
from engine.base.units import format_bytes, format_thread_fill, format_us
from engine.choose.batch.batch_table import Recommendation
from engine.choose.batch.types import BatchResult
from engine.history.known_time import not_comparable

if TYPE_CHECKING:
    import pandas as pd


def draw(result: BatchResult, question: Question) -> None:
    _quality(result, question)
    _tiles(result, question.unit)
    _reasons(result)


def draw_bound(question: Question) -> None:
    """Draw the roofline bound until the kernel is simulated. The bound is not a prediction."""
    problem, bound_us = question.selection.problem, question.bound_us()
    assert problem is not None
    with tile_row():
        tile(
            "Now",
            f"{question.unit} = {problem.batch:,}",
            "roofline bound",
            f"at least {format_us(bound_us)} per launch" if bound_us is not None else "",
            term=f"The batch in the sidebar. {TERMS['thread_fill']}",
        )
        tile("Recommended", "–", "simulating", term=TERMS["plateau"])
    busy("Simulating the kernel's machine code; the recommendation follows.")


def _quality(result: BatchResult, question: Question) -> None:
    """Draw the accuracy of the figures below, and which kernel they describe."""
    points = question.points
    if points.measurements and not points.is_own_file:
        name = question.selection.variant.id
        whose = f"The points of {points.title} are of another kernel than the local file of {name}"
        rest = (
            "the figures below are that kernel's."
            if result.kernel
            else f"the figures below are those of {name}, and the points do not validate them."
        )
        st.info(plain_markdown(f"{whose}: {rest}"), icon=":material/fork_right:")
    quality = result.calibration_quality()
    if not quality:
        st.caption(
            f"Not calibrated: predicted by {result.method}. Select measured points to narrow the "
            "intervals."
        )
        return
    first, *notes = (plain_markdown(sentence) for sentence in quality)
    st.markdown(f":material/fact_check: {first}")
    if notes:
        st.caption(" ".join(notes))


def _per_unit(speedup: float | None, origin: str, table: pd.DataFrame) -> str:
    if speedup is None or math.isnan(speedup):
        return not_comparable(origin, str(table["origin"].iloc[0]))
    return f"{speedup:.3g}× throughput"


def _of_plateau(recommended: Recommendation) -> str:
    if recommended.share_of_plateau is None:
        why = not_comparable(recommended.origin, recommended.plateau_origin)
        return f"share of the plateau: {why}"
    return f"{recommended.share_of_plateau:.0%} of the plateau"


def now_note(now: pd.Series) -> str:
    """Return the line below the present batch: `59.1 µs per launch predicted, SM fill 88%, …`."""
    return (
        f"{format_us(now['latency_us'])} per launch {now['origin']}, "
        f"SM fill {now['sm_fill']:.0%}, thread fill {format_thread_fill(now['thread_fill'])}"
    )


def present(result: BatchResult) -> pd.Series:
    """Return the line of the batch table for the present batch."""
    return result.table[result.table["batch"] == result.problem.batch].iloc[0]


def _tiles(result: BatchResult, axis: str) -> None:
    """Draw the present and the recommended batch, and the other targets in a line below."""
    recommended = result.recommended
    with tile_row():
        now = present(result)
        tile(
            "Now",
            f"{axis} = {result.problem.batch:,}",
            _per_unit(now["speedup_per_unit"], now["origin"], result.table),
            now_note(now),
            term="The batch in the sidebar. Throughput (units of work per second) is relative to "
            f"{axis} = {result.table['batch'].iloc[0]:,}.",
        )
        tile(
            "Recommended",
            f"{axis} = {recommended.batch:,}",
            _per_unit(recommended.speedup_per_unit, recommended.origin, result.table),
            f"{_of_plateau(recommended)}; {_interval(recommended, axis)}"
            f"{format_us(recommended.latency_us)} per launch {recommended.origin}; "
            f"{_memory(recommended)}",
            term=f"{TERMS['plateau']} The interval follows the uncertainty of the latency.",
            color="gray" if recommended.speedup_per_unit is None else "violet",
            icon=":material/recommend:",
        )
    others = groupby(
        (r for r in result.recommendations if r is not recommended),
        key=lambda r: (r.batch, _between(r)),
    )
    words = [
        f"**{axis} = {batch:,}**{between} for {' and '.join(f'{r.target:.0%}' for r in rs)}"
        for (batch, between), rs in others
    ]
    st.markdown(f":gray[Of the plateau:] {', '.join(words)}")


def _interval(r: Recommendation, axis: str) -> str:
    """Return `90 % interval B = 18 – 32; `; empty for one batch."""
    words = _between(r).strip(" ()")
    return f"90 % interval {axis} = {words}; " if words else ""


def _between(r: Recommendation) -> str:
    """Return the interval of batches, if it has more than one."""
    if r.low_batch == r.high_batch:
        return ""
    return f" ({r.low_batch:,} – {r.high_batch:,})"


def _memory(r: Recommendation) -> str:
    memory = format_bytes(r.memory_bytes)
    if r.memory_share is None or r.memory_share < 0.01:
        return memory
    return f"{memory}, {r.memory_share:.0%} of the GPU's"


def _reasons(result: BatchResult) -> None:
    """Draw why this batch, why the knee is there and what to measure next; other reasons are
    folded."""
    st.markdown(plain_markdown(result.recommended.reason))
    if result.knee:
        st.markdown(plain_markdown(result.knee))
    if result.next_point is not None:
        st.markdown(f":material/straighten: {plain_markdown(result.next_point.reason)}")
    for warning in result.warnings:
        st.warning(plain_markdown(warning), icon=":material/stairs:")
    for note in result.axis_notes:
        st.caption(plain_markdown(note))
    with st.expander("The reasons of all targets, and what the model leaves out"):
        for r in result.recommendations:
            st.markdown(f"- **{r.target:.0%}** {plain_markdown(r.reason)}")
        for note in result.notes:
            st.markdown(f"- {plain_markdown(note)}")
