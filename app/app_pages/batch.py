"""Batch size: the batch that fills the GPU, why, what it saves, and whether the model is right."""

from __future__ import annotations

import streamlit as st

from app.batch import inputs, invariance, points, save, summary, tabs
from app.batch.question import Question
from app.shared import saving, sidebar, url_state
from app.shared.machine import device_of
from app.shared.runs import rerun_as_jobs_end
from app.shared.selection import Selection
from app.shared.terms import TERMS
from app.shared.widgets import busy, plain_markdown, problem

_POLL_S = 0.5


def page() -> None:
    selection = sidebar.draw(draggable=("H", "S"))
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.markdown(
            f"# Batch size  :small[:gray[{selection.variant.id} {selection.variant.title} on "
            f"{selection.gpu_name}]]",
            width="stretch",
        )
        save_container = st.container(width="content")
    if selection.problem is None:
        problem(selection.error)
        return
    saving.draw_outcome("batch")
    question = _question(selection)
    answer = question.ask()
    waiting = answer.waiting
    if answer.result is not None and answer.result.is_bound and waiting:
        summary.draw_bound(question)
    elif answer.result is not None:
        checked = question.check()
        with save_container:
            save.button(question, answer.result, checked.validation)
        summary.draw(answer.result, question)
        waiting += invariance.draw(question, answer.result)
        waiting += checked.waiting + tabs.draw(question, answer.result, checked)
    elif waiting:
        busy("Compiling the kernel for this GPU.")
    else:
        problem(answer.error, answer.log)
    rerun_as_jobs_end(waiting, _POLL_S)


def _question(selection: Selection) -> Question:
    device = device_of(selection.gpu)
    assert device is not None  # the sidebar offers the local GPU only where there is one
    left, right = st.columns([5, 3], gap="medium")
    with left:
        axis = inputs.axis_inputs()
    with right:
        measured = points.draw(selection, device)
        if measured.is_missing:
            st.caption(plain_markdown(measured.reason))
        calibrate = url_state.toggle(
            st,
            "Calibrate on measured points",
            "calibrate",
            default=True,
            help=TERMS["calibrate"],
            disabled=not measured.measurements,
        )
    return Question(selection, device, axis, measured, calibrate and bool(measured.measurements))


page()
