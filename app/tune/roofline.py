"""The roofline tab: the selected kernel's FLOPs over its bytes, beneath the GPU's roofs."""

from __future__ import annotations

from operator import attrgetter

import pandas as pd
import streamlit as st

from app.evaluation.view import EvaluationView
from app.shared import plot, tables
from app.shared.palette import color_of
from app.shared.roofline_chart import roofline
from app.shared.terms import TERMS
from app.shared.widgets import empty, plain_markdown, theme
from engine.base.errors import InvalidProblem
from engine.base.table import Table
from engine.model.kernel import Kernel
from engine.model.roofline import (
    LEVELS,
    LaunchWork,
    RooflinePoint,
    Roofs,
    launch_work,
    points_table,
    roofline_points,
    roofs_of,
    work_table,
)

_POINT_COLUMNS = ("level", "intensity", "tflops", "origin", "time_us", "roof_tflops", "share")
_POINT_VALUES = attrgetter(*_POINT_COLUMNS)


def draw(view: EvaluationView) -> None:
    """Draw chart and tables, or a sentence that says which figures of the GPU are not known."""
    if view.kernel is None or view.device is None or not view.passes:
        empty(
            "nothing yet",
            "No roofline yet",
            plain_markdown(view.latency_reason) or "The kernel's registers are not known.",
        )
        return
    try:
        kernel = Kernel.of(view.kernel, view.device, view.config)
        plan = kernel.plan(view.problem)
        roofs = roofs_of(kernel.device, kernel.variant, view.problem.dtype)
        resident = view.problem.main_of(view.passes).occupancy.ctas_per_sm
        work = launch_work(kernel, plan, resident)
    except InvalidProblem as error:
        empty("nothing yet", "No roofline", plain_markdown(str(error)))
        return
    times = dict.fromkeys(x for x in (view.latency, view.predicted) if x is not None)
    points = roofline_points(roofs, work, [(x.median_us, x.origin) for x in times])
    _draw(view, roofs, work, points)


def _draw(
    view: EvaluationView, roofs: Roofs, work: LaunchWork, points: tuple[RooflinePoint, ...]
) -> None:
    st.markdown(
        "**Roofline** :gray[filled: measured; diamond: recorded; open: predicted]",
        help=TERMS["roofline"],
    )
    left, right = st.columns([3, 2], gap="medium")
    with left:
        figure = roofline(
            points_frame(view.variant, view.problem.label(), points),
            [roofs],
            [level for level in LEVELS if work.intensity(level) is not None],
            {view.variant: color_of(view.variant)},
            theme(),
        )
        plot.draw(figure, key="roofline", tools=False)
    with right:
        tables.draw(work_table(work).frame())
        st.caption(plain_markdown(work.dram_method))
    if points:
        tables.draw(points_table(points).frame())


def points_frame(variant: str, problem: str, points: tuple[RooflinePoint, ...]) -> pd.DataFrame:
    """Return the chart's rows."""
    columns = ("variant", "label", "problem", "point", *_POINT_COLUMNS)
    rows = ((variant, variant, problem, None, *_POINT_VALUES(p)) for p in points)
    return Table("Roofline", columns, tuple(rows)).frame(dashes=False)
