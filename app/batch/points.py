"""Measured points to calibrate or validate the model: from a snapshot, a CSV file, or this
machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from app.shared import tables, url_state
from app.shared.runs import measured_here
from app.shared.selection import Selection
from app.shared.snapshots import open_snapshot
from app.shared.terms import TERMS
from app.shared.widgets import plain_markdown
from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, StoreError
from engine.choose.batch.validate import from_evaluations
from engine.devices.spec import DeviceSpec
from engine.history.known_time import source_match, times_of
from engine.model.kernel import Kernel
from engine.model.measured_points import (
    TEMPLATE,
    Measurement,
    is_csv_name,
    parse_measurements,
    store_csv,
    stored_csv,
)
from engine.sessions.store import Store, default_store

_NONE = "none"
_UPLOAD = "csv"
_MEASURED_HERE = "here"
_DEFAULT = "points_default"  # in the tab's state: the points used if none were selected
_MAX_LOOKED_INTO = 3  # snapshots that each step of a slider searches for matching points
_FILE = "points_file"  # in the URL: the name of the uploaded file
_TITLES = {_NONE: "none", _UPLOAD: "a CSV file", _MEASURED_HERE: "measured here"}


@dataclass(frozen=True, slots=True)
class MeasuredPoints:
    """Measured points of the selected variant and GPU."""

    title: str
    measurements: tuple[Measurement, ...]
    reason: str  # reason for no points
    is_own_file: bool = True  # measured with the variant's present source

    @property
    def is_from_here(self) -> bool:
        """True if this machine's Attune measured the points; False if they were recorded
        elsewhere."""
        return self.title == _TITLES[_MEASURED_HERE]

    @property
    def is_missing(self) -> bool:
        """True if the selected snapshot or file has no points."""
        return bool(self.reason) and self.title != _TITLES[_NONE]


def draw(selection: Selection, device: DeviceSpec) -> MeasuredPoints:
    """Draw the choice of measured points. The URL names the snapshot or the stored CSV file."""
    own = measured_here()
    mine = from_evaluations(own, Kernel.of(selection.variant, device, selection.config))
    try:
        store = default_store()
        snapshots = _snapshots(store.url, selection.variant.id, device.name)
    except AttuneError as error:
        st.caption(plain_markdown(str(error)))
        store, snapshots = None, {}
    sources = [_NONE, _UPLOAD, *([_MEASURED_HERE] if mine else []), *snapshots]
    default = _NONE
    if mine:
        default = _MEASURED_HERE
    elif store is not None:
        default = _matching(store, tuple(snapshots), selection, device)
    _follow(default, sources)
    titles = {**_TITLES, **snapshots}
    source = url_state.select(
        st,
        "Measured points",
        "points",
        sources,
        default,
        format_func=titles.__getitem__,
        help=TERMS["points"],
    )
    if source == _UPLOAD:
        return _uploaded()
    if source == _MEASURED_HERE:
        return _points(titles[source], own, selection, device)
    if source not in snapshots or store is None:
        return MeasuredPoints(titles[_NONE], (), "Select measured points above.")
    return _from_snapshot(store, titles[source], source, selection, device)


def _follow(default: str, sources: list[str]) -> None:
    """Update the default selection when variant, config or GPU change."""
    before = st.session_state.get(_DEFAULT, default)
    st.session_state[_DEFAULT] = default
    selected = st.session_state.get("points")
    if selected is not None and (selected == before or selected not in sources):
        st.session_state["points"] = default


def _matching(
    store: Store, names: tuple[str, ...], selection: Selection, device: DeviceSpec
) -> str:
    """Return the newest snapshot with times of the variant's present source, else "none"."""
    for name in names[:_MAX_LOOKED_INTO]:
        points = _from_snapshot(store, name, name, selection, device)
        if points.measurements and points.is_own_file:
            return name
    return _NONE


@st.cache_data(ttl=15, show_spinner=False)
def _snapshots(url: str, variant: str, device: str) -> dict[str, str]:
    """Return file → title of the snapshots that may hold such latencies, without opening them."""
    files = {}
    for info in Store(url).list():
        s = info.summary
        if s is None or variant not in s.variants or device not in s.devices:
            continue
        if s.origins != ("predicted",):
            files[info.name] = info.title
    return files


def _uploaded() -> MeasuredPoints:
    upload = st.file_uploader(
        "CSV: batch, num_heads, seqlen, head_dim, kernel_ms; optional: sdpa_ms, ctas",
        type=["csv"],
        key="points_csv",
    )
    tables.download("Template, CSV", TEMPLATE, "measurements.csv", key="points_template")
    url_state.seed(_FILE, "", lambda text: text if is_csv_name(text) else None)
    if upload is not None:
        st.session_state[_FILE] = _kept(upload.getvalue())
        points = _parsed(upload.getvalue(), upload.name)
    elif st.session_state[_FILE]:
        points = _from_link(st.session_state[_FILE])
    else:
        points = MeasuredPoints(_TITLES[_UPLOAD], (), "Upload a CSV file of measurements.")
    if url_state.keep(_FILE, st.session_state[_FILE], "") and points.measurements:
        st.caption("A link to this page opens this file, too. It is stored only on this machine.")
    return points


def _kept(data: bytes) -> str:
    """Store an uploaded file, and return its name; empty if it cannot be stored."""
    try:
        return store_csv(data)
    except StoreError as error:
        st.caption(plain_markdown(str(error)))
        return ""


def _from_link(name: str) -> MeasuredPoints:
    """Return the points of a file that was uploaded before."""
    st.button("Forget this file", key="points_forget", on_click=_forget, type="tertiary")
    try:
        return _parsed(stored_csv(name), _TITLES[_UPLOAD])
    except StoreError as error:
        return MeasuredPoints(_TITLES[_UPLOAD], (), str(error))


def _forget() -> None:
    st.session_state[_FILE] = ""


def _parsed(data: bytes, name: str) -> MeasuredPoints:
    try:
        return MeasuredPoints(name, parse_measurements(data.decode("utf-8-sig"), name), "")
    except UnicodeDecodeError:
        return MeasuredPoints(name, (), f"{name} is not UTF-8 text: save it as CSV.")
    except AttuneError as error:
        return MeasuredPoints(name, (), str(error))


def _from_snapshot(
    store: Store, title: str, name: str, selection: Selection, device: DeviceSpec
) -> MeasuredPoints:
    try:
        evaluations = open_snapshot(store, name).opened()
    except AttuneError as error:
        return MeasuredPoints(title, (), str(error))
    return _points(title, evaluations, selection, device)


def _points(
    title: str, evaluations: tuple[Evaluation, ...], selection: Selection, device: DeviceSpec
) -> MeasuredPoints:
    variant, config = selection.variant, selection.config
    points = from_evaluations(evaluations, Kernel.of(variant, device, config))
    if not points:
        return MeasuredPoints(title, (), f"{title} has no latency of this variant, config and GPU.")
    times = [t for t in times_of(evaluations, session=title) if t.name == variant.id]
    own = all(source_match(t, variant) == "this source" for t in times if t.device == device.name)
    return MeasuredPoints(title, _with_sdpa(points, evaluations), "", own)


def _with_sdpa(
    points: tuple[Measurement, ...], evaluations: tuple[Evaluation, ...]
) -> tuple[Measurement, ...]:
    """Add the fastest SDPA time of the same problem to each point."""
    best: dict[Problem, float] = {}
    for e in evaluations:
        for baseline in e.baselines:
            if baseline.latency is not None:
                us = baseline.latency.median_us
                best[e.problem] = min(us, best.get(e.problem, us))
    return tuple(replace(m, sdpa_us=best.get(m.problem)) for m in points)
