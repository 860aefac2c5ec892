"""The parts of the page "Batch size": tiles, curve, table, alternatives, cost, validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from app.batch import frames
from app.batch import inputs as batch_inputs
from app.batch.answer import Answer, Checked
from app.batch.charts import curves
from app.batch.charts import validation as validation_chart
from app.batch.footprints import stop_compiling
from app.shared import plot
from app.shared.runs import run
from app.shared.selection import Chosen
from app.shared.terms import TERMS
from app.shared.widgets import empty, plain_markdown, problem, theme
from engine.devices.spec import DeviceSpec
from engine.jobs.manager import JobStatus
from engine.model.batch.table import Recommendation
from engine.model.batch.types import BatchResult
from engine.units import format_bytes, format_us

Ask = Callable[..., Answer]
GOAL_INSIDE = 0.8  # of the measured values inside the 90 % intervals, over all snapshots


def tiles(result: BatchResult, axis: str) -> None:
    """The present batch and one tile per target. `axis` is `B` or `B × H`."""
    with st.container(horizontal=True, gap="small", key="metrics"):
        now = result.table[result.table["batch"] == result.problem.batch].iloc[0]
        _tile(
            "Now",
            f"{axis} = {result.problem.batch:,}",
            f"{now['speedup_per_unit']:.3g}× per unit",
            f"{format_us(now['predicted_us'])} per launch predicted, {now['sm_fill']:.0%} SM fill",
            "The batch of the sidebar.",
        )
        for r in result.recommendations:
            _recommendation_tile(r, axis)


def _tile(label: str, value: str, badge: str, note: str, help_: str, color: str = "gray") -> None:
    st.metric(
        label,
        value,
        badge,
        delta_color=color,
        delta_arrow="off",
        delta_description=note,
        help=help_,
        border=True,
        height="stretch",
    )


def _recommendation_tile(r: Recommendation, axis: str) -> None:
    interval = f"{r.low_batch:,} – {r.high_batch:,}"
    memory = format_bytes(r.memory_bytes)
    if r.memory_share is not None:
        memory += f", {r.memory_share:.2g} of the GPU's" if r.memory_share >= 0.01 else ""
    _tile(
        f"{r.target:.0%} of the plateau",
        f"{axis} = {r.batch:,}",
        f"{r.speedup_per_unit:.3g}× per unit",
        f"between {interval}; {format_us(r.latency_us)} per launch predicted; {memory}",
        f"{TERMS['plateau']} The range is that of the model's 90 % interval.",
        color="violet",
    )


def sentences(result: BatchResult) -> None:
    """The middle target's reason; the others' and the model's notes are folded away."""
    found = result.recommendations
    middle = found[len(found) // 2]
    st.markdown(plain_markdown(middle.reason))
    for warning in result.warnings:
        st.warning(plain_markdown(warning), icon=":material/stairs:")
    with st.expander("Every target's reason, and what the model left out"):
        for r in found:
            st.markdown(f"- **{r.target:.0%}** {plain_markdown(r.reason)}")
        for note in result.notes:
            st.markdown(f"- {plain_markdown(note)}")


def curve(result: BatchResult, points: pd.DataFrame, axis: str, color: str) -> None:
    st.caption(
        "Two readings of the same launch: it takes longer as the batch grows, and each unit of "
        "work in it gets cheaper. Dashed with a band: predicted. Diamonds: recorded. Dotted lines: "
        "the present batch and the recommended ones. Ticks: another round of CTAs begins."
    )
    figure = curves(
        frames.curve(result.table),
        frames.marks(result.recommendations, result.problem.batch),
        points,
        axis,
        color,
        theme(),
    )
    plot.draw(figure, key="batch_curves")


def table(result: BatchResult, points: pd.DataFrame) -> None:
    everything = st.toggle("Every batch", key="every_batch")
    rows = result.table
    if not everything:
        rows = frames.rows_worth_seeing(result, result.problem.batch)
    number = st.column_config.NumberColumn
    frame = frames.table(rows, points)
    formats = {
        name: number(format="%.4g") for name in frame.columns if frame[name].dtype.kind == "f"
    }
    st.dataframe(frame, hide_index=True, width="stretch", column_config=formats, placeholder="")
    st.caption("The download stands at the table's upper right corner.")


def alternatives(ask: Ask, batch: str) -> list[JobStatus]:
    """What to do when the batch cannot grow; returns the compiles it waits for."""
    st.markdown(f"**If the batch has to stay at {batch}**")
    extra = batch_inputs.waiting_inputs()
    rank = st.toggle(
        "Rank the options",
        key="rank",
        help="Compiles other variants, and this one for smaller GPUs; that takes a while once.",
        persist_state="session",
    )
    answer = ask(alternatives=rank, **extra)
    if answer.result is None:
        problem(answer.why, answer.log)
        return list(answer.waiting)
    if answer.result.wait is not None:
        st.info(plain_markdown(answer.result.wait.reason), icon=":material/schedule:")
    if not rank:
        empty(
            "nothing yet",
            "Not ranked yet",
            "Other variants, a smaller GPU, waiting for more requests, or accepting it: switch on "
            "Rank the options to see them in numbers for this problem.",
        )
        return []
    if answer.waiting:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(
                f":material/progress_activity: {len(answer.waiting)} kernels are still to be "
                "compiled; the table fills as they come."
            )
            st.button("Stop", key="stop_rank", on_click=_stop_ranking)
    number = st.column_config.NumberColumn(format="%.3g")
    frame = frames.options(answer.result.options, batch_inputs.price_of)
    st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        column_config={n: number for n in frame.columns if frame[n].dtype.kind == "f"},
        placeholder="",
    )
    notes = [n for n in answer.result.notes if "not compiled yet" not in n]
    for note in notes:
        st.caption(plain_markdown(note))
    return list(answer.waiting)


def _stop_ranking() -> None:
    stop_compiling()
    st.session_state["rank"] = False


def cost(ask: Ask, device: DeviceSpec) -> None:
    inputs = batch_inputs.cost_inputs(device)
    answer = ask(**inputs)
    if answer.result is None:
        problem(answer.why, answer.log)
        return
    saving = answer.result.saving
    if saving is None:
        return
    st.success(plain_markdown(saving.reason), icon=":material/savings:")
    frame = frames.costs(saving)
    number = st.column_config.NumberColumn(format="%.4g")
    st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        column_config={n: number for n in frame.columns if frame[n].dtype.kind == "f"},
        placeholder="unknown",
    )
    if inputs["price_usd_per_hour"] is None:
        st.caption(f"No list price of {device.name} is known: enter one to see dollars.")
    with st.expander("Prices of every GPU", icon=":material/sell:"):
        batch_inputs.price_table()


def validate(checked: Checked, result: BatchResult, color: str) -> None:
    """Predicted against measured."""
    found = checked.validation
    if found is None:
        empty("nothing yet", "Nothing to validate against", checked.why)
        return
    draw = st.success if found.share_inside >= GOAL_INSIDE else st.warning
    draw(plain_markdown(found.reason), icon=":material/fact_check:")
    frame = frames.validation(found)
    left, right = st.columns([4, 5], gap="medium")
    with left:
        plot.draw(validation_chart(frame, color, theme()), key="validation")
    shown: dict[str, Any] = {
        name: st.column_config.NumberColumn(format="%.4g")
        for name in frames.VALIDATION_HEADS.values()
    }
    right.dataframe(
        frames.validation_table(frame), hide_index=True, width="stretch", column_config=shown
    )
    if result.loo is not None:
        st.caption(
            f"Calibrated on these points, each predicted by the others: "
            f"{result.loo.mean_error:.1%} off on average, {result.loo.worst_error:.1%} at worst. "
            "The table above is the model before calibration."
        )


def measure(chosen: Chosen, result: BatchResult) -> None:
    """Measure the present batch and the recommended ones, where the GPU is in this machine."""
    if chosen.gpu is not None:
        st.caption(
            f"Measuring needs {chosen.gpu_name} in this machine; without it, validate against a "
            "recorded snapshot or a CSV file (Measured points, above)."
        )
        return
    st.button(
        "Measure these batches",
        key="measure_batches",
        icon=":material/straighten:",
        on_click=_measure,
        args=(chosen, result),
    )


def _measure(chosen: Chosen, result: BatchResult) -> None:
    for batch in {result.problem.batch, *(r.batch for r in result.recommendations)}:
        problem_there = replace(result.problem, batch=batch)
        run(replace(chosen.request(execute=True), problem=problem_there))
