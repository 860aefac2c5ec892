"""The correctness tab: the numbers with both bounds, the findings in words, the maps."""

from __future__ import annotations

import streamlit as st

from app.evaluation import charts, frames
from app.evaluation.view import EvaluationView
from app.shared import plot, tables
from app.shared.widgets import empty, failure, plain_markdown, theme
from engine.evaluation import Evaluation, Status

_TITLES = {
    "batch_by_head": "By batch and head",
    "query_tile_by_key_tile": "By query tile and key tile",
    "row_by_column": "By row and column d",
}


def draw(view: EvaluationView) -> None:
    evaluation = view.evaluation
    if evaluation is None:
        empty(
            "nothing yet",
            "Not run yet",
            "Press Run: the kernel is executed and its output is compared with a float64 "
            "reference and with PyTorch's SDPA.",
        )
        return
    if view.is_stale:
        st.warning(
            "This verdict is of an older source: the file has changed since. Press Run.",
            icon=":material/history:",
        )
    if evaluation.correctness is None:
        failure(evaluation.status, evaluation.reason, evaluation.log)
        return
    left, right = st.columns([5, 4], gap="medium")
    with left:
        tables.draw(
            frames.error_numbers(evaluation.correctness),
            height="content",
            columns={
                "value": st.column_config.TextColumn(alignment="right"),
                "allowed": st.column_config.TextColumn(alignment="right"),
            },
        )
    with right:
        _verdict(evaluation)
        _findings(evaluation)
        _execution(evaluation)
    _maps(view, evaluation.correctness.tolerance)


def _verdict(evaluation: Evaluation) -> None:
    if evaluation.status is Status.INCORRECT:
        failure(evaluation.status, evaluation.reason)
    else:
        st.success(
            plain_markdown(evaluation.reason) or "The output is correct.", icon=":material/check:"
        )


def _execution(evaluation: Evaluation) -> None:
    execution = evaluation.execution
    if execution is None:
        return
    if execution.backend == "cuda":
        st.caption("Executed on the GPU.")
        return
    time = ""
    if execution.cpu_execution_ms is not None:
        time = (
            f" in {execution.cpu_execution_ms:.3g} ms of CPU time, which says nothing about a GPU"
        )
    st.caption(
        f"Executed on the CPU ({execution.build} build, {execution.schedule.replace('_', ' ')} "
        f"schedule, seed {execution.seed}){time}."
    )


def _findings(evaluation: Evaluation) -> None:
    correctness = evaluation.correctness
    if correctness is None:
        return
    if correctness.findings:
        st.markdown("**Where it is wrong**")
        for finding in correctness.findings:
            st.markdown(f"- {plain_markdown(finding.sentence)} :gray[{finding.share:.0%}]")
    elif correctness.bad_count or correctness.nonfinite_count:
        st.markdown("**Where it is wrong**")
        st.markdown("It fits no known pattern: look at the maps.")
    if correctness.first_bad_index is not None:
        batch, head, row, column = correctness.first_bad_index
        st.caption(f"First wrong element: batch {batch}, head {head}, row {row}, column {column}.")


def _maps(view: EvaluationView, tolerance: float) -> None:
    if not view.maps:
        st.caption("This evaluation has no error maps.")
        return
    st.markdown(
        "**Where the error is** :gray[largest |error| of each cell as a multiple of the tolerance, "
        "log scale; cool: within, warm: beyond, ×: NaN or infinity]"
    )
    top = max(error_map.largest for error_map in view.maps)
    last = len(view.maps) - 1
    columns = st.columns([4] * last + [5])
    for i, (error_map, column) in enumerate(zip(view.maps, columns, strict=True)):
        with column:
            st.markdown(f":gray[{_TITLES.get(error_map.name, plain_markdown(error_map.name))}]")
            plot.draw(
                charts.error_map(
                    error_map.frame,
                    error_map.compared,
                    (error_map.row_axis, error_map.column_axis),
                    tolerance,
                    top,
                    theme(),
                    show_scale=i == last,
                ),
                key=f"map_{i}",
            )
