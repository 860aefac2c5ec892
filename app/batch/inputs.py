"""What the Batch size page asks for beyond the sidebar: axis, price, traffic, waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.shared import url_state
from app.shared.selection import Selection
from app.shared.terms import TERMS
from engine.devices import all_devices
from engine.devices.spec import DeviceSpec
from engine.model.batch.types import BatchRequest
from engine.model.measurements import Measurement
from engine.problem import Problem

_LIMITS = (256, 1024, 4096, 16384)
_PRICES = "prices"  # in the tab's state: edited prices by GPU


def axis_inputs() -> dict[str, Any]:
    """What is varied, and how far."""
    left, right = st.columns([2, 3], vertical_alignment="bottom")
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
    """Price, traffic, utilisation."""
    left, middle, right = st.columns(3)
    prices: dict[str, float] = st.session_state.setdefault(_PRICES, {})
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
        "queries_per_day": _from_millions(traffic),
        "utilisation": _from_percent(utilisation),
    }


def _from_millions(count: float) -> float:
    """The field counts in millions, the engine in queries."""
    return count * 1e6


def _from_percent(value: float) -> float:
    """The field counts in percent, the engine in shares."""
    return value / 100


def waiting_inputs() -> dict[str, Any]:
    """Arrival rate and time budget; none where both are 0."""
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
    measurements: tuple[Measurement, ...] | None,
) -> BatchRequest:
    """The request to the model. `measurements` calibrate it."""
    problem = selection.problem
    assert problem is not None  # the page stops before this without one
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
        config=selection.config,
        batch_now=_present_batch(problem, inputs["heads_free"]),
        measured=measurements,
        **inputs,
    )


def _present_batch(problem: Problem, heads_free: bool) -> int:
    """Where the sidebar's problem lies on the axis."""
    return problem.batch * problem.num_heads if heads_free else problem.batch


def price_table() -> None:
    """Prices of every GPU, editable; they are kept for this browser tab."""
    edited: dict[str, float] = st.session_state.setdefault(_PRICES, {})
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
            st.session_state[_PRICES][name] = price
            st.session_state[f"price.{name}"] = price


def price_of(device: str) -> float | None:
    """The price in force: edited, or the table's."""
    edited: dict[str, float] = st.session_state.get(_PRICES, {})
    listed = next((d.price_usd_per_hour for d in all_devices() if d.name == device), None)
    return edited.get(device, listed)
