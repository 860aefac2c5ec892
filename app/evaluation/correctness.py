"""The correctness tab: error figures with their bounds, findings in words, error maps."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.evaluation import charts, frames
from app.evaluation.source import line_links
from app.evaluation.view import EvaluationView
from app.shared import plot, tables
from app.shared.palette import ORIGIN_ICON
from app.shared.widgets import empty, failure, plain_markdown, theme
from engine.attention.evaluation import Correctness, Evaluation
from engine.base.errors import Status
from engine.base.units import format_us
from engine.correctness import ErrorMap
from engine.history.known_time import RECORDED, was_recorded_elsewhere


def draw(view: EvaluationView, *, tabs_key: str) -> None:
    """Draw the tab. `tabs_key` is the key of the tabs that include the source."""
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
            "This verdict is for an older version of the source file. Press Run.",
            icon=":material/history:",
        )
    if was_recorded_elsewhere(evaluation):
        st.info(
            f"**{RECORDED.capitalize()}.** {plain_markdown(evaluation.reason)}",
            icon=ORIGIN_ICON["recorded"],
        )
        return
    if evaluation.correctness is None:
        failure(evaluation.status, evaluation.reason, evaluation.log, run=evaluation.execution)
        line_links(view, f"{evaluation.reason} {evaluation.log}", "reason", tabs_key)
        return
    _verdict(evaluation)
    line_links(view, evaluation.reason, "verdict", tabs_key)
    for i, warning in enumerate(evaluation.correctness.warnings):
        st.warning(plain_markdown(warning), icon=":material/warning:")
        line_links(view, warning, f"warning_{i}", tabs_key)
    # For an incorrect output the findings come first, for a correct one the figures.
    parts = [_figures, _maps]
    if not evaluation.correctness.passed:
        _findings(view, evaluation.correctness, tabs_key)
        parts.reverse()
    for part in parts:
        part(view, evaluation.correctness)
    _execution(evaluation)


def _figures(_: EvaluationView, correctness: Correctness) -> None:
    tables.draw(
        frames.error_numbers(correctness),
        height="content",
        columns={
            "figure": st.column_config.TextColumn(width="medium"),
            "value": st.column_config.TextColumn(alignment="right", width="small"),
            "allowed": st.column_config.TextColumn(alignment="right", width="small"),
            "note": st.column_config.TextColumn(width="large"),
        },
    )
    st.caption(f"SDPA here is {plain_markdown(correctness.baseline_name)}.")


def _verdict(evaluation: Evaluation) -> None:
    if evaluation.status is Status.INCORRECT:
        failure(evaluation.status, evaluation.reason, run=evaluation.execution)
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
        took = format_us(1000 * execution.cpu_execution_ms)
        time = f" in {took} of CPU time, not a GPU time"
    if execution.backend == "machine-code":
        st.caption(f"Executed: {evaluation.executed_as} (seed {execution.seed}){time}.")
        if execution.partial:
            counts = plain_markdown(execution.partial)
            st.caption(f"{counts[:1].upper()}{counts[1:]}: the rest was not executed.")
        return
    st.caption(
        f"Executed on the CPU ({execution.build} build, {execution.schedule.replace('_', ' ')} "
        f"schedule, seed {execution.seed}){time}."
    )
    if execution.partial:
        counts = plain_markdown(execution.partial)
        st.caption(f"{counts[:1].upper()}{counts[1:]}: the rest was not executed.")


def _findings(view: EvaluationView, correctness: Correctness, tabs_key: str) -> None:
    st.markdown("**Where it is wrong**")
    for i, finding in enumerate(correctness.findings):
        st.markdown(f"- {plain_markdown(finding.sentence)} :gray[{finding.share:.0%}]")
        names = f"{finding.sentence} {finding.place}"
        if not line_links(view, names, f"finding_{i}", tabs_key) and finding.place:
            st.caption(f"See {plain_markdown(finding.place)}.")
    if not correctness.findings and (correctness.bad_count or correctness.nonfinite_count):
        st.markdown("The errors match no known pattern: look at the maps.")
    if correctness.first_bad_index is not None:
        batch, head, row, column = correctness.first_bad_index
        st.caption(f"First wrong element: batch {batch}, head {head}, row {row}, column {column}.")


def _maps(view: EvaluationView, correctness: Correctness) -> None:
    if not view.maps:
        st.caption("No error maps were saved for this evaluation.")
        return
    blank = "" if all(m.compared.all() for m in view.maps) else "; blank: not compared in float64"
    st.markdown(
        "**Where the error is** :gray[largest |error| of each cell as a multiple of the tolerance, "
        f"log scale; cool: within, warm: beyond, ×: NaN or infinity{blank}]"
    )
    # O has three maps in a row, dQ, dK and dV two each.
    for output in dict.fromkeys(error_map.output for error_map in view.maps):
        maps = [error_map for error_map in view.maps if error_map.output == output]
        _maps_of(output, maps, correctness)


def _maps_of(output: str, maps: Sequence[ErrorMap], correctness: Correctness) -> None:
    tolerances = {each.name: each.tolerance for each in correctness.outputs}
    top = max(error_map.largest for error_map in maps)
    last = len(maps) - 1
    columns = st.columns([4] * last + [5])
    for i, (error_map, column) in enumerate(zip(maps, columns, strict=True)):
        with column:
            axes = f"By {error_map.row_axis} and {error_map.column_axis}"
            title = f"{output} {axes.lower()}" if output else axes
            st.markdown(f":gray[{plain_markdown(title)}]")
            plot.draw(
                charts.error_map(
                    error_map.frame(),
                    error_map.compared,
                    (error_map.row_axis, error_map.column_axis),
                    tolerances.get(output, correctness.tolerance),
                    top,
                    theme(),
                    show_scale=i == last,
                ),
                key=f"map_{output}{i}",
            )
