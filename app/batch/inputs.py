"""Inputs of the Batch size page beyond the sidebar: axis, price, traffic, waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import streamlit as st

from app.batch.points import MeasuredPoints
from app.shared import url_state
from app.shared.selection import Selection
from app.shared.terms import TERMS
from engine.attention.problem import Problem, features_of
from engine.choose.batch.cost import TrafficUnit
from engine.choose.batch.types import BatchRequest
from engine.devices import all_devices
from engine.devices.spec import DeviceSpec

TRAFFIC_UNITS: tuple[TrafficUnit, ...] = get_args(TrafficUnit)
_LIMITS = (256, 1024, 4096, 16384)
_PRICES = "prices"  # in the tab's state: edited prices by GPU


def axis_inputs() -> dict[str, Any]:
    """Draw what is varied (B or B × H), and the largest batch."""
    left, right = st.columns([5, 9], vertical_alignment="bottom")
    free = url_state.toggle(left, "Vary B × H", "heads_free", help=TERMS["heads_free"])
    most = url_state.segments(
        right,
        "Largest batch",
        "max_batch",
        _LIMITS,
        4096,
        format_func=lambda n: f"{n:,}",
        help=TERMS["max_batch"],
    )
    return {"heads_free": free, "max_batch": most}


def cost_inputs(device: DeviceSpec) -> dict[str, Any]:
    """Draw the inputs for price, traffic and utilisation."""
    left, middle, unit_column, right = st.columns([3, 3, 2, 3])
    key = f"price.{device.name}"
    left.number_input(
        f"Price of {device.name}, $ per hour",
        min_value=0.0,
        value=own_prices().get(device.name, device.price_usd_per_hour),
        step=0.05,
        key=key,
        help=_price_help(device),
        on_change=lambda: _take_price(device.name, st.session_state[key]),
        persist_state="session",
    )
    unit = url_state.select(
        unit_column, "Traffic in", "traffic_unit", TRAFFIC_UNITS, "queries", help=TERMS["traffic"]
    )
    traffic = url_state.amount(
        middle,
        "Traffic a day, millions",
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
        "prices": own_prices(),
        "traffic_per_day": _from_millions(traffic),
        "traffic_unit": unit,
        "utilisation": _from_percent(utilisation),
    }


def _price_help(device: DeviceSpec) -> str:
    if not device.price_source:
        return TERMS["price"]
    return f"{device.price_source}: {device.price_basis}. {TERMS['price']}"


def own_prices() -> dict[str, float]:
    """Return the prices edited in this browser tab, by GPU."""
    prices: dict[str, float] = st.session_state.setdefault(_PRICES, {})
    return dict(prices)


def _take_price(gpu: str, price: float | None) -> None:
    if price is None:
        st.session_state[_PRICES].pop(gpu, None)
    else:
        st.session_state[_PRICES][gpu] = price


def _from_millions(count: float) -> float:
    """Convert millions, as in the field, to queries."""
    return count * 1e6


def _from_percent(value: float) -> float:
    """Convert per cent, as in the field, to a share."""
    return value / 100


def waiting_inputs() -> dict[str, Any]:
    """Draw arrival rate and time budget; return None if both are 0."""
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


def batch_request(
    selection: Selection,
    device: DeviceSpec,
    inputs: Mapping[str, Any],
    points: MeasuredPoints,
    calibrate: bool,
) -> BatchRequest:
    """Return the request to the batch model.

    Points of the variant's own source replace predictions at their batches. Points of another
    kernel are used only to calibrate, which makes the recommendation one for that kernel.
    """
    problem = selection.problem
    assert problem is not None  # without a problem the page stops earlier
    counted = points.measurements if calibrate or points.is_own_file else None
    return BatchRequest(
        variant=selection.variant.id,
        gpu=device,
        seqlen=problem.seqlen,
        seqlen_kv=problem.seqlen_kv,
        head_dim=problem.head_dim,
        heads=problem.num_heads,
        heads_kv=problem.num_heads_kv,
        causal=problem.causal,
        dtype=problem.dtype,
        features=features_of(problem),
        config=selection.config,
        batch_now=_present_batch(problem, inputs["heads_free"]),
        measured=counted or None,
        calibrate=calibrate,
        measured_here=points.is_from_here,
        measured_kernel=points.title if counted and not points.is_own_file else "",
        **inputs,
    )


def _present_batch(problem: Problem, heads_free: bool) -> int:
    """Return the sidebar's problem as a value of the batch axis."""
    return problem.batch * problem.num_heads if heads_free else problem.batch


def price_table() -> None:
    """Draw the editable prices of all GPUs; edits are kept for this browser tab."""
    edited = own_prices()
    st.data_editor(
        [
            {
                "GPU": d.name,
                "$ per hour": edited.get(d.name, d.price_usd_per_hour),
                "price basis": d.price_basis or "no list price is known",
                "price from": d.price_source or "unknown",
            }
            for d in all_devices()
        ],
        disabled=["GPU", "price basis", "price from"],
        hide_index=True,
        key="price_editor",
        on_change=_take_prices,
        placeholder="–",
        column_config={"$ per hour": st.column_config.NumberColumn(min_value=0.0, format="%.2f")},
    )


def _take_prices() -> None:
    names = [d.name for d in all_devices()]
    for row, change in st.session_state["price_editor"]["edited_rows"].items():
        name, price = names[int(row)], change.get("$ per hour")
        if price is not None:
            _take_price(name, price)
            st.session_state[f"price.{name}"] = price
