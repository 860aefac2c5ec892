"""The answer on the Batch size page: tiles, reasons, and the tabs below them."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from app.batch import charts, frames, inputs
from app.batch.question import CheckedModel, Question
from app.shared import plot, tables
from app.shared.palette import color_of
from app.shared.runs import cancel_queued_compiles, run
from app.shared.selection import Selection
from app.shared.terms import TERMS
from app.shared.widgets import busy, empty, plain_markdown, problem, theme, tile, tile_row
from engine.jobs.manager import JobStatus
from engine.model.batch.table import Recommendation
from engine.model.batch.types import BatchResult
from engine.units import format_bytes, format_us

_TABS = ("Curve", "Table", "Batch cannot grow", "Cost", "Validate")
_GOAL_INSIDE = 0.8  # of the measured values inside the 90 % intervals, over all snapshots


def draw(question: Question, result: BatchResult, checked: CheckedModel) -> tuple[JobStatus, ...]:
    """The open tab.

    Returns:
        The compiles that it waits for.
    """
    color = color_of(question.selection.variant.id)
    heads_free = bool(question.axis["heads_free"])
    measured = frames.measured(question.points.measurements, result.problem, heads_free)
    tabs = st.tabs(_TABS, key="batch_tab", on_change="rerun", bind="query-params")
    curve, table, alternatives, cost, validation = tabs
    if curve.open:
        with curve:
            _curve(result, measured, question.unit, color)
    if table.open:
        with table:
            _table(result, measured)
    if alternatives.open:
        with alternatives:
            return _alternatives(question, result)
    if cost.open:
        with cost:
            _cost(question)
    if validation.open:
        with validation:
            _validation(checked, result, color)
            _measure_button(question.selection, result)
    return ()


def tiles(result: BatchResult, axis: str) -> None:
    """The present batch and one tile per target. `axis` is `B` or `B × H`."""
    with tile_row():
        now = result.table[result.table["batch"] == result.problem.batch].iloc[0]
        tile(
            "Now",
            f"{axis} = {result.problem.batch:,}",
            f"{now['speedup_per_unit']:.3g}× per unit",
            f"{format_us(now['predicted_us'])} per launch predicted, {now['sm_fill']:.0%} SM fill",
            term="The batch in the sidebar.",
        )
        for r in result.recommendations:
            _recommendation_tile(r, axis)


def _recommendation_tile(r: Recommendation, axis: str) -> None:
    interval = f"{r.low_batch:,} – {r.high_batch:,}"
    memory = format_bytes(r.memory_bytes)
    if r.memory_share is not None:
        memory += f", {r.memory_share:.2g} of the GPU's" if r.memory_share >= 0.01 else ""
    tile(
        f"{r.target:.0%} of the plateau",
        f"{axis} = {r.batch:,}",
        f"{r.speedup_per_unit:.3g}× per unit",
        f"between {interval}; {format_us(r.latency_us)} per launch predicted; {memory}",
        term=f"{TERMS['plateau']} The range is that of the model's 90 % interval.",
        color="violet",
    )


def reasons(result: BatchResult) -> None:
    """The middle target's reason; the others' and the model's notes are folded away."""
    recommendations = result.recommendations
    middle = recommendations[len(recommendations) // 2]
    st.markdown(plain_markdown(middle.reason))
    for warning in result.warnings:
        st.warning(plain_markdown(warning), icon=":material/stairs:")
    with st.expander("The reasons of all targets, and what the model leaves out"):
        for r in recommendations:
            st.markdown(f"- **{r.target:.0%}** {plain_markdown(r.reason)}")
        for note in result.notes:
            st.markdown(f"- {plain_markdown(note)}")


def _curve(result: BatchResult, points: pd.DataFrame, axis: str, color: str) -> None:
    st.caption(
        "The same launches twice: above, the latency of a launch grows with the batch; below, the "
        "time per unit of work falls. Dashed with a band: predicted. Diamonds: recorded. Dotted "
        "lines: the present batch and the recommended ones. Ticks: another round of CTAs begins."
    )
    figure = charts.curves(
        frames.curve(result.table),
        frames.marks(result.recommendations, result.problem.batch),
        points,
        axis,
        color,
        theme(),
    )
    plot.draw(figure, key="batch_curves")


def _table(result: BatchResult, points: pd.DataFrame) -> None:
    everything = st.toggle("Every batch", key="every_batch")
    rows = result.table
    if not everything:
        rows = frames.selected_rows(result, result.problem.batch)
    frame = frames.table(rows, points)
    tables.draw(frame, numbers="%.4g")
    tables.download(
        "This table, CSV", lambda: tables.csv(frame), "batch.csv", key="batch_table_csv"
    )


def _alternatives(question: Question, result: BatchResult) -> tuple[JobStatus, ...]:
    """What to do when the batch cannot grow; returns the compiles it waits for."""
    st.markdown(f"**If the batch has to stay at {question.unit} = {result.problem.batch:,}**")
    waiting_inputs = inputs.waiting_inputs()
    rank = st.toggle(
        "Rank the options",
        key="rank",
        help="Compiles other variants, and this one for smaller GPUs; slow the first time.",
        persist_state="session",
    )
    answer = question.ask(alternatives=rank, **waiting_inputs)
    if answer.result is None:
        problem(answer.error, answer.log)
        return answer.waiting
    if answer.result.wait is not None:
        st.info(plain_markdown(answer.result.wait.reason), icon=":material/schedule:")
    if not rank:
        empty(
            "nothing yet",
            "Not ranked yet",
            "Switch on Rank the options to compare other variants, a smaller GPU, waiting for more "
            "requests, and accepting it, in numbers for this problem.",
        )
        return ()
    if answer.waiting:
        with st.container(horizontal=True, vertical_alignment="center"):
            busy(f"{len(answer.waiting)} kernels are still to be compiled; the table fills up.")
            st.button("Stop", key="stop_rank", on_click=_stop_ranking)
    tables.draw(frames.options(answer.result.options, inputs.price_of), numbers="%.3g")
    notes = [n for n in answer.result.notes if "not compiled yet" not in n]
    for note in notes:
        st.caption(plain_markdown(note))
    return answer.waiting


def _stop_ranking() -> None:
    cancel_queued_compiles()
    st.session_state["rank"] = False


def _cost(question: Question) -> None:
    cost_inputs = inputs.cost_inputs(question.device)
    answer = question.ask(**cost_inputs)
    if answer.result is None:
        problem(answer.error, answer.log)
        return
    saving = answer.result.saving
    if saving is None:
        return
    st.success(plain_markdown(saving.reason), icon=":material/savings:")
    tables.draw(frames.costs(saving), numbers="%.4g", placeholder="unknown")
    if cost_inputs["price_usd_per_hour"] is None:
        st.caption(f"No list price of {question.device.name} is known: enter one to see dollars.")
    with st.expander("Prices of every GPU", icon=":material/sell:"):
        inputs.price_table()


def _validation(checked: CheckedModel, result: BatchResult, color: str) -> None:
    """Predicted against measured."""
    validation = checked.validation
    if validation is None:
        empty("nothing yet", "Nothing to validate against", checked.reason)
        return
    draw = st.success if validation.share_inside >= _GOAL_INSIDE else st.warning
    draw(plain_markdown(validation.reason), icon=":material/fact_check:")
    frame = frames.validation(validation)
    left, right = st.columns([4, 5], gap="medium")
    with left:
        plot.draw(charts.validation(frame, color, theme()), key="validation")
    with right:
        tables.draw(frames.validation_table(frame), numbers="%.4g")
    if result.loo is not None:
        st.caption(
            f"Calibrated on these points, each predicted by the others: mean error "
            f"{result.loo.mean_error:.1%}, largest error {result.loo.worst_error:.1%}. The table "
            "above is the model before calibration."
        )


def _measure_button(selection: Selection, result: BatchResult) -> None:
    """Measure the present batch and the recommended ones, where the GPU is in this machine."""
    if selection.gpu is not None:
        st.caption(
            f"Measuring needs a local {selection.gpu_name}. Without it, validate against a "
            "recorded snapshot or a CSV file: select it under Measured points above."
        )
        return
    st.button(
        "Measure these batches",
        key="measure_batches",
        icon=":material/straighten:",
        on_click=_measure,
        args=(selection, result),
    )


def _measure(selection: Selection, result: BatchResult) -> None:
    request = selection.request(execute=True)
    for batch in {result.problem.batch, *(r.batch for r in result.recommendations)}:
        run(replace(request, problem=replace(result.problem, batch=batch)))
