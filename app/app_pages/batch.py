"""Batch size: the batch that fills the GPU, why, what it saves, and whether the model is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.batch import frames, save
from app.batch import inputs as batch_inputs
from app.batch import parts as views
from app.batch.answer import Answer, Checked, ask, check
from app.batch.inputs import Points
from app.shared import sidebar
from app.shared.machine import local_gpu
from app.shared.palette import variant_color
from app.shared.runs import measured_here
from app.shared.selection import Chosen
from app.shared.terms import TERMS
from app.shared.widgets import problem
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.jobs.manager import JobStatus, manager
from engine.model.batch.types import BatchRequest, BatchResult
from kernels.ladder import LADDER

_TABS = ("Curve", "Table", "Batch cannot grow", "Cost", "Validate")
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """What the page is about: the choices, the GPU and the measured points."""

    chosen: Chosen
    device: DeviceSpec
    axis: dict[str, Any]
    points: Points
    calibrate: bool

    def request(self, **inputs: object) -> BatchRequest:
        measured = self.points.measurements if self.calibrate else None
        return batch_inputs.request(self.chosen, self.device, {**self.axis, **inputs}, measured)

    @property
    def unit(self) -> str:
        """What the batch axis counts."""
        return "B × H" if self.axis["heads_free"] else "B"

    @property
    def local_gpu(self) -> str:
        """The name under which the request calls the local GPU by no name."""
        return self.device.name if self.chosen.gpu is None else ""

    def ask(self, **inputs: object) -> Answer:
        return ask(self.request(**inputs), self.local_gpu)


def page() -> None:
    chosen = sidebar.draw(draggable=("H", "S"))
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.markdown(
            f"### Batch size  :small[:gray[{chosen.variant.id} {chosen.variant.title} on "
            f"{chosen.gpu_name}]]",
            width="stretch",
        )
        save_place = st.container(width="content")
    if chosen.problem is None:
        problem(chosen.why)
        return
    save.outcome()
    scene = _scene(chosen)
    answer = scene.ask()
    waiting = list(answer.waiting)
    if answer.result is None and answer.waiting:
        st.markdown(":material/progress_activity: Compiling the kernel for this GPU.")
    elif answer.result is None:
        problem(answer.why, answer.log)
    else:
        checked = _check(scene)
        waiting += checked.waiting
        with save_place:
            save.button(
                scene.request(),
                answer.result,
                chosen.gpu,
                scene.points.measurements,
                checked.validation,
            )
        views.tiles(answer.result, scene.unit)
        views.sentences(answer.result)
        waiting += _tabs(scene, answer.result, checked)
    _poll(waiting)


def _scene(chosen: Chosen) -> Scene:
    device = local_gpu().spec if chosen.gpu is None else find_device(chosen.gpu)
    assert device is not None  # the sidebar offers the local GPU only where there is one
    left, right = st.columns([3, 2], gap="medium")
    with left:
        axis = batch_inputs.axis_inputs()
    with right:
        points = batch_inputs.points(chosen, device, measured_here())
        if points.why and points.source != batch_inputs.NO_POINTS:
            st.caption(points.why)
        calibrate = st.toggle(
            "Calibrate on them",
            key="calibrate",
            help=TERMS["calibrate"],
            disabled=not points.measurements,
            persist_state="session",
        )
    return Scene(chosen, device, axis, points, calibrate and bool(points.measurements))


def _check(scene: Scene) -> Checked:
    if not scene.points.measurements:
        return Checked(None, scene.points.why)
    return check(scene.request(), scene.device, scene.points.measurements, scene.local_gpu)


def _tabs(scene: Scene, result: BatchResult, checked: Checked) -> list[JobStatus]:
    """The open tab; the compiles it waits for."""
    names = [v.id for v in LADDER]
    color = variant_color(names.index(scene.chosen.variant.id))
    free = bool(scene.axis["heads_free"])
    on_curve = filter(frames.same_series(result.problem, free), scene.points.measurements)
    measured = frames.measured(list(on_curve), free)
    tabs = st.tabs(_TABS, key="batch_tab", on_change="rerun", bind="query-params")
    curve, table, stuck, cost, validate = tabs
    if curve.open:
        with curve:
            views.curve(result, measured, scene.unit, color)
    if table.open:
        with table:
            views.table(result, measured)
    if stuck.open:
        with stuck:
            return views.alternatives(scene.ask, f"{scene.unit} = {result.problem.batch:,}")
    if cost.open:
        with cost:
            views.cost(scene.ask, scene.device)
    if validate.open:
        with validate:
            views.validate(checked, result, color)
            views.measure(scene.chosen, result)
    return []


def _poll(waiting: list[JobStatus]) -> None:
    """Draw the page again as compiles and measurements end."""
    if not waiting:
        return
    before = [job.job_id for job in waiting]

    @st.fragment(run_every=_POLL_S)
    def poll() -> None:
        now = [job_id for job_id in before if _is_open(job_id)]
        if len(now) < len(before):
            st.rerun()

    poll()


def _is_open(job_id: str) -> bool:
    job = manager().status(job_id)
    return job is not None and not job.is_over


page()
