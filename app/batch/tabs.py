"""The tabs of the Batch size page: curve, table, options, cost, mix and validation."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from app.batch import charts, frames, inputs, mix
from app.batch.question import CheckedModel, Question
from app.shared import plot, tables, url_state
from app.shared.palette import color_of
from app.shared.runs import cancel_queued_compiles, run
from app.shared.selection import Selection
from app.shared.widgets import busy, empty, plain_markdown, problem, theme
from engine.choose.batch.types import BatchResult
from engine.jobs.manager import JobStatus

_TABS = ("Curve", "Table", "Batch cannot grow", "Cost", "Mix", "Validate")


def draw(question: Question, result: BatchResult, checked: CheckedModel) -> tuple[JobStatus, ...]:
    """Draw the open tab.

    Returns:
        The compiles that it waits for.
    """
    color = _color(question)
    heads_free = bool(question.axis["heads_free"])
    measured = frames.measured(question.points.measurements, result, heads_free)
    tabs = url_state.tabs(_TABS, "batch_tab")
    curve, table, alternatives, cost, traffic, validation = tabs
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
    if traffic.open:
        with traffic:
            return mix.draw(question)
    if validation.open:
        with validation:
            _validation(question, checked, color)
            _measure_button(question.selection, result)
    return ()


def _color(question: Question) -> str:
    return color_of(question.selection.variant.id)


def _curve(result: BatchResult, points: pd.DataFrame, axis: str, color: str) -> None:
    st.caption(
        "The same launches twice: above, the latency of a launch grows with the batch; below, the "
        "time per unit of work falls. Dashed with a band: predicted. Diamonds: measured or "
        "recorded, with their interval. Dotted lines: the present batch and the recommended ones. "
        "Ticks: another round of CTAs begins."
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
    """Draw the options if the batch cannot grow; return the compiles that it waits for."""
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
    wait = answer.result.wait
    if wait is not None:
        st.info(plain_markdown(wait.reason), icon=":material/schedule:")
        frame = frames.waiting(wait)
        plot.draw(charts.waiting(frame, wait.batch, _color(question), theme()), key="waiting")
    if not rank:
        empty(
            "nothing yet",
            "Not ranked yet",
            "Switch on Rank the options to compare other variants, a smaller GPU, waiting for more "
            "requests, and accepting it, with latency and cost for this problem.",
        )
        return ()
    if answer.waiting:
        with st.container(horizontal=True, vertical_alignment="center"):
            busy(f"{len(answer.waiting)} kernels are still to be compiled; the table fills up.")
            st.button("Stop", key="stop_rank", on_click=_stop_ranking)
    tables.draw(frames.options(answer.result.options), numbers="%.3g", placeholder="–")
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
    tables.draw(frames.costs(saving), numbers="%.4g", placeholder="–")
    if saving.usd_per_day is None:
        st.caption(f"No list price of {question.device.name} is known: enter one to see dollars.")
    with st.expander("Prices of every GPU", icon=":material/sell:"):
        inputs.price_table()


def _validation(question: Question, checked: CheckedModel, color: str) -> None:
    """Draw predicted and measured times."""
    validation = checked.validation
    if validation is None:
        empty("nothing yet", "Nothing to validate against", checked.reason)
        return
    draw = st.success if validation.is_worth_something else st.warning
    draw(plain_markdown(validation.reason), icon=":material/fact_check:")
    if not question.points.is_own_file:
        name = question.selection.variant.id
        st.caption(
            f"These times are of another kernel than the file of {name}. The prediction is for a "
            f"kernel with the launches of {name} whose time per CTA is assumed, not simulated: it "
            f"is no time of {name}, and a difference is not the model's error alone."
        )
    frame = frames.validation(validation)
    plot.draw(charts.validation(frame, color, theme()), key="validation")
    tables.draw(frames.validation_table(frame), numbers="%.4g")
    st.caption(
        "The prediction is the model's before calibration; the accuracy of the calibrated model "
        "on unseen points is at the top of the page."
    )


def _measure_button(selection: Selection, result: BatchResult) -> None:
    """Draw the button that measures the present and the recommended batches on this machine's
    GPU."""
    if selection.gpu is not None:
        st.caption(
            f"Measuring needs a local {selection.gpu_name}. Without one, validate against a "
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
