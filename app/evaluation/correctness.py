"""The correctness tab: the numbers with both bounds, the findings in words, the maps."""

from __future__ import annotations

import streamlit as st

from app.evaluation import charts, frames
from app.evaluation.view import Shown
from app.shared import plot
from app.shared.widgets import empty, failure, plain_markdown, theme
from engine.evaluation import Evaluation, Status

_TITLES = {
    "batch_by_head": "By batch and head",
    "query_tile_by_key_tile": "By query tile and key tile",
    "row_by_column": "By row and column d",
}


def draw(shown: Shown) -> None:
    found = shown.evaluation
    if found is None:
        empty(
            "nothing yet",
            "Not run yet",
            "Press Run: the kernel is really executed and its output compared with a float64 "
            "reference and with PyTorch's SDPA.",
        )
        return
    if found.correctness is None:
        failure(found.status, found.reason, found.log)
        return
    left, right = st.columns([5, 4], gap="medium")
    with left:
        st.dataframe(
            frames.error_numbers(found.correctness),
            hide_index=True,
            width="stretch",
            height="content",
            column_config={
                "value": st.column_config.TextColumn(alignment="right"),
                "allowed": st.column_config.TextColumn(alignment="right"),
            },
        )
    with right:
        _verdict(found)
        _findings(found)
        _execution(found)
    _maps(shown, found.correctness.tolerance)


def _verdict(found: Evaluation) -> None:
    if found.status is Status.INCORRECT:
        failure(found.status, found.reason)
    else:
        st.success(plain_markdown(found.reason) or "The output is right.", icon=":material/check:")


def _execution(found: Evaluation) -> None:
    execution = found.execution
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


def _findings(found: Evaluation) -> None:
    correctness = found.correctness
    if correctness is None:
        return
    if correctness.findings:
        st.markdown("**Where it is wrong**")
        for finding in correctness.findings:
            st.markdown(f"- {plain_markdown(finding.sentence)} :gray[{finding.share:.0%}]")
    elif correctness.bad_count or correctness.nonfinite_count:
        st.markdown("**Where it is wrong**")
        st.markdown("No known pattern: look at the maps.")
    if correctness.first_bad_index is not None:
        batch, head, row, column = correctness.first_bad_index
        st.caption(f"First wrong element: batch {batch}, head {head}, row {row}, column {column}.")


def _maps(shown: Shown, tolerance: float) -> None:
    if not shown.maps:
        st.caption("This evaluation holds no error maps.")
        return
    st.markdown(
        "**Where the error is** :gray[largest |error| of each cell as a multiple of the tolerance, "
        "logarithmic; cool is within, warm beyond, × is NaN or infinity]"
    )
    top = max(view.largest for view in shown.maps)
    last = len(shown.maps) - 1
    columns = st.columns([4] * last + [5])
    for i, (view, column) in enumerate(zip(shown.maps, columns, strict=True)):
        with column:
            st.markdown(f":gray[{_TITLES.get(view.name, plain_markdown(view.name))}]")
            plot.draw(
                charts.error_map(
                    view.frame,
                    view.compared,
                    (view.row_axis, view.column_axis),
                    tolerance,
                    top,
                    theme(),
                    show_scale=i == last,
                ),
                key=f"map_{view.name}",
            )
