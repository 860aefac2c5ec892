"""The row of figures at the top: status, latency, resources, occupancy, waves, SM fill."""

from __future__ import annotations

import streamlit as st

from app.evaluation.view import Shown
from app.shared.palette import ORIGIN_COLOR, STATUS_COLOR, STATUS_ICON
from app.shared.terms import TERMS
from engine.evaluation import Evaluation, Occupancy, Resources
from engine.units import format_bytes, format_count, format_us

_UNKNOWN = "–"


def draw(shown: Shown, *, waiting: bool = False, stale: bool = False) -> None:
    """The row. `waiting`: a compile is under way, so its figures are to come."""
    main = shown.passes[0] if shown.passes else None
    with st.container(horizontal=True, gap="small", key="metrics"):
        _correctness(shown.evaluation, stale)
        _latency(shown, waiting)
        _resources(main.resources if main else None, waiting)
        _occupancy(main.occupancy if main else None, waiting)
        _waves(main.occupancy if main else None, waiting)
        _sm_fill(main.occupancy if main else None, waiting)


def _tile(
    label: str,
    value: str,
    badge: str,
    note: str,
    help_: str,
    *,
    color: str = "gray",
    icon: str | None = None,
) -> None:
    st.metric(
        label,
        value,
        badge or None,
        delta_color=color,
        delta_arrow="off",
        delta_description=note or None,
        help=help_,
        icon=icon,
        border=True,
        height="stretch",
    )


def _pending(label: str, help_: str, waiting: bool) -> None:
    _tile(label, _UNKNOWN, "compiling" if waiting else "not known", "", help_)


def _correctness(evaluation: Evaluation | None, stale: bool) -> None:
    label, help_ = "Correctness", TERMS["correctness"]
    if evaluation is None:
        _tile(label, _UNKNOWN, "not run", "", help_, icon=":material/radio_button_unchecked:")
        return
    status, c = evaluation.status, evaluation.correctness
    word = str(status).replace("_", " ").capitalize()
    badge, note = "see below", ""
    if c is not None:
        badge, note = f"{c.max_abs_err:.2g}", f"of {c.tolerance:.2g} allowed"
    if stale:
        badge, note = "older source", "run again"
    color = "orange" if stale else STATUS_COLOR[status]
    _tile(label, word, badge, note, help_, color=color, icon=STATUS_ICON[status])


def _latency(shown: Shown, waiting: bool) -> None:
    latency = shown.latency
    if latency is None:
        _pending("Latency", TERMS["latency"], waiting)
        return
    _tile(
        "Latency",
        format_us(latency.median_us),
        latency.origin,
        f"{format_us(latency.low_us)} – {format_us(latency.high_us)}",
        TERMS["latency"],
        color=ORIGIN_COLOR[latency.origin],
    )


def _resources(resources: Resources | None, waiting: bool) -> None:
    if resources is None:
        _pending("Registers", TERMS["registers"], waiting)
        return
    spills = resources.spill_bytes
    _tile(
        "Registers",
        str(resources.registers_per_thread),
        f"{format_bytes(spills)} spilled" if spills else "no spills",
        f"{format_bytes(resources.smem_bytes)} smem",
        TERMS["registers"],
        color="orange" if spills else "gray",
    )


def _occupancy(occupancy: Occupancy | None, waiting: bool) -> None:
    if occupancy is None:
        _pending("Occupancy", TERMS["occupancy"], waiting)
        return
    _tile(
        "Occupancy",
        f"{occupancy.occupancy:.0%}",
        "CTA slots" if occupancy.limiter == "ctas" else str(occupancy.limiter),
        f"{occupancy.ctas_per_sm} CTAs/SM",
        TERMS["occupancy"],
    )


def _waves(occupancy: Occupancy | None, waiting: bool) -> None:
    if occupancy is None or occupancy.waves is None:
        _pending("Waves", TERMS["waves"], waiting and occupancy is None)
        return
    tail = f"{occupancy.tail_ctas:,} in the tail" if occupancy.tail_ctas else "no tail"
    _tile(
        "Waves",
        f"{occupancy.waves:.3g}",
        f"{format_count(occupancy.ctas)} CTAs",
        tail,
        TERMS["waves"],
    )


def _sm_fill(occupancy: Occupancy | None, waiting: bool) -> None:
    if occupancy is None or occupancy.sm_fill is None:
        _pending("SM fill", TERMS["sm_fill"], waiting and occupancy is None)
        return
    low = occupancy.sm_fill < 1
    _tile(
        "SM fill",
        f"{occupancy.sm_fill:.0%}",
        f"of {occupancy.num_sms} SMs",
        "rest idle" if low else "",
        TERMS["sm_fill"],
        color="orange" if low else "gray",
    )
