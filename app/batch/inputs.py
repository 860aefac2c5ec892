"""What the page "Batch size" asks for beyond the sidebar, and where measured points come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import streamlit as st

from app.shared import url_state
from app.shared.selection import Chosen
from app.shared.terms import TERMS
from engine.devices import all_devices
from engine.devices.spec import DeviceSpec
from engine.errors import AttuneError
from engine.evaluation import Evaluation
from engine.model.batch.types import BatchRequest
from engine.model.batch.validate import from_evaluations
from engine.model.measurements import Measurement, parse_measurements
from engine.problem import Problem
from engine.records.codec import loads
from engine.sessions.store.store import Store, default_store

NO_POINTS = "none"
UPLOAD = "a CSV file"
MEASURED_HERE = "measured here"
LIMITS = (256, 1024, 4096, 16384)
PRICES = "prices"


@dataclass(frozen=True, slots=True)
class Points:
    """Measured points to calibrate on or to validate against."""

    source: str
    measurements: tuple[Measurement, ...]
    why: str  # why there are none, in a sentence


def axis_inputs() -> dict[str, Any]:
    """What is varied, and how far."""
    left, right = st.columns(2, vertical_alignment="bottom")
    free = url_state.toggle(left, "Vary B × H", "heads_free", help=TERMS["heads_free"])
    most = url_state.segments(
        right,
        "Largest batch",
        "max_batch",
        LIMITS,
        4096,
        format_func=lambda n: f"{n:,}",
        help=TERMS["max_batch"],
    )
    return {"heads_free": free, "max_batch": most}


def cost_inputs(device: DeviceSpec) -> dict[str, Any]:
    """Price, traffic, utilisation."""
    left, middle, right = st.columns(3)
    prices: dict[str, float] = st.session_state.setdefault(PRICES, {})
    price = left.number_input(
        f"Price of {device.name}, $ per hour",
        min_value=0.0,
        value=prices.get(device.name, device.price_usd_per_hour),
        step=0.05,
        key=f"price.{device.name}",
        help=device.price_source or TERMS["price"],
        persist_state="session",
    )
    traffic = url_state.amount(
        middle,
        "Traffic, million queries per day",
        "traffic",
        1000.0,
        low=0.001,
        step=100.0,
        help=TERMS["traffic"],
    )
    utilisation = url_state.number(
        right,
        "Planned utilisation, %",
        "utilisation",
        100,
        low=1,
        high=100,
        help=TERMS["utilisation"],
    )
    return {
        "price_usd_per_hour": price,
        "queries_per_day": million(traffic),
        "utilisation": percent(utilisation),
    }


def million(count: float) -> float:
    """The field counts in millions, the engine in queries."""
    return count * 1e6


def percent(value: float) -> float:
    """The field counts in percent, the engine in shares."""
    return value / 100


def waiting_inputs() -> dict[str, Any]:
    """Arrival rate and time budget; both 0 means that waiting is not asked about."""
    left, right = st.columns(2)
    rate = url_state.amount(
        left,
        "Requests arriving per second",
        "arrivals",
        0.0,
        low=0.0,
        step=100.0,
        help=TERMS["arrivals"],
    )
    budget = url_state.amount(
        right,
        "Latency that waiting may add, ms",
        "budget",
        0.0,
        low=0.0,
        step=1.0,
        help=TERMS["budget"],
    )
    if not rate and not budget:
        return {}
    return {"arrivals_per_s": rate, "budget_ms": budget}


def request(
    chosen: Chosen,
    device: DeviceSpec,
    inputs: Mapping[str, Any],
    measurements: tuple[Measurement, ...] | None,
) -> BatchRequest:
    """The question to the model. `measurements` calibrate it."""
    problem = chosen.problem
    assert problem is not None  # the page stops before this without one
    return BatchRequest(
        variant=chosen.variant.id,
        gpu=device,
        seqlen=problem.seqlen,
        seqlen_kv=problem.seqlen_kv,
        head_dim=problem.head_dim,
        heads=problem.num_heads,
        causal=problem.causal,
        dtype=problem.dtype,
        config=chosen.config,
        batch_now=present_batch(problem, inputs["heads_free"]),
        measured=measurements,
        **inputs,
    )


def present_batch(problem: Problem, heads_free: bool) -> int:
    """Where the sidebar's problem lies on the axis."""
    return problem.batch * problem.num_heads if heads_free else problem.batch


def points(chosen: Chosen, device: DeviceSpec, own: tuple[Evaluation, ...]) -> Points:
    """Choose where measured points come from: a snapshot, a CSV, or what was measured here."""
    mine = from_evaluations(own, chosen.variant, chosen.config, device)
    try:
        store = default_store()
        snapshots = _snapshots(store.url, chosen.variant.id, device.name)
    except AttuneError as error:
        st.caption(str(error))
        store, snapshots = None, {}
    sources = [NO_POINTS, UPLOAD, *([MEASURED_HERE] if mine else []), *snapshots]
    if st.session_state.get("points") not in sources:
        st.session_state["points"] = NO_POINTS
    source = st.selectbox(
        "Measured points", sources, key="points", help=TERMS["points"], persist_state="session"
    )
    if source == UPLOAD:
        return _uploaded()
    if source == MEASURED_HERE:
        return Points(source, _with_sdpa(mine, own), "")
    if source not in snapshots or store is None:
        return Points(NO_POINTS, (), "No measured points are chosen.")
    return _from_snapshot(store, source, snapshots[source], chosen, device)


@st.cache_data(ttl=15, show_spinner=False)
def _snapshots(url: str, variant: str, device: str) -> dict[str, str]:
    """Title → file of the snapshots that may hold such latencies; a drag must not list them all."""
    found = {}
    for info in Store(url).list():
        s = info.summary
        if s is None or variant not in s.variants or device not in s.devices:
            continue
        if s.origins != ("predicted",):
            found[info.title] = info.name
    return found


def _uploaded() -> Points:
    upload = st.file_uploader(
        "CSV: batch, num_heads, seqlen, head_dim, kernel_ms, and if known sdpa_ms, ctas",
        type=["csv"],
        key="points_csv",
    )
    if upload is None:
        return Points(UPLOAD, (), "Choose a CSV file of measurements.")
    try:
        text = upload.getvalue().decode("utf-8-sig")
        return Points(upload.name, parse_measurements(text, upload.name), "")
    except UnicodeDecodeError:
        return Points(upload.name, (), f"{upload.name} is not UTF-8 text: save it as CSV.")
    except AttuneError as error:
        return Points(upload.name, (), str(error))


@lru_cache(maxsize=8)
def _opened(data: bytes, name: str) -> tuple[Evaluation, ...]:
    return loads(data, name=name).opened()


def _from_snapshot(
    store: Store, title: str, name: str, chosen: Chosen, device: DeviceSpec
) -> Points:
    try:
        evaluations = _opened(store.read(name), name)
    except AttuneError as error:
        return Points(title, (), str(error))
    found = from_evaluations(evaluations, chosen.variant, chosen.config, device)
    if not found:
        return Points(title, (), f"{title} has no latency of this variant, config and GPU.")
    return Points(title, _with_sdpa(found, evaluations), "")


def _with_sdpa(
    found: tuple[Measurement, ...], evaluations: tuple[Evaluation, ...]
) -> tuple[Measurement, ...]:
    """The fastest SDPA of the same problem beside each point."""
    best: dict[Problem, float] = {}
    for e in evaluations:
        for baseline in e.baselines:
            if baseline.latency is not None:
                us = baseline.latency.median_us
                best[e.problem] = min(us, best.get(e.problem, us))
    return tuple(replace(m, sdpa_us=best.get(m.problem)) for m in found)


def price_table() -> None:
    """Prices of every GPU, editable; they hold for this browser session."""
    edited: dict[str, float] = st.session_state.setdefault(PRICES, {})
    st.data_editor(
        [
            {
                "GPU": d.name,
                "$ per hour": edited.get(d.name, d.price_usd_per_hour),
                "price from": d.price_source,
            }
            for d in all_devices()
        ],
        disabled=["GPU", "price from"],
        hide_index=True,
        key="price_editor",
        on_change=_take_prices,
        column_config={"$ per hour": st.column_config.NumberColumn(min_value=0.0, format="%.2f")},
    )


def _take_prices() -> None:
    names = [d.name for d in all_devices()]
    for row, change in st.session_state["price_editor"]["edited_rows"].items():
        name, price = names[int(row)], change.get("$ per hour")
        if price is not None:
            st.session_state[PRICES][name] = price
            st.session_state[f"price.{name}"] = price


def price_of(device: str) -> float | None:
    """The price in force: edited, or the table's."""
    edited: dict[str, float] = st.session_state.get(PRICES, {})
    listed = next((d.price_usd_per_hour for d in all_devices() if d.name == device), None)
    return edited.get(device, listed)
