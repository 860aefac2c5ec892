"""The row of tiles: correctness, latency, registers, how full the GPU is, occupancy and waves."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from app.evaluation.view import EvaluationView
from app.shared.palette import ORIGIN_COLOR, ORIGIN_ICON, STATUS_COLOR, STATUS_ICON
from app.shared.terms import TERMS
from app.shared.widgets import plain_markdown, tile, tile_row
from engine.attention.evaluation import Correctness, Evaluation, Occupancy, Resources
from engine.base.units import format_bytes, format_count, format_thread_fill, format_us
from engine.history.known_time import was_recorded_elsewhere
from engine.sessions.goal import deltas

_UNKNOWN = "–"


def draw(
    view: EvaluationView,
    *,
    is_compiling: bool = False,
    is_stale: bool = False,
    baseline: Evaluation | None = None,
) -> None:
    """Draw the row of tiles.

    Args:
        is_compiling: missing figures follow when the kernel is compiled.
        baseline: the pinned evaluation; tiles show how they differ from it.
    """
    main = view.problem.main_of(view.passes) if view.passes else None
    told = _deltas(view, baseline, is_stale)
    with tile_row("metrics_tune"):
        _correctness(view.evaluation, is_stale, told.get("correctness"))
        _latency(view, is_compiling, told.get("latency"))
        _resources(main.resources if main else None, is_compiling, told.get("registers"))
        _gpu_fill(main.occupancy if main else None, is_compiling, told.get("gpu_fill"))
        _occupancy(main.occupancy if main else None, is_compiling, told.get("occupancy"))
        _waves(main.occupancy if main else None, is_compiling, told.get("waves"))


def draw_notes(notes: Iterable[str]) -> None:
    """Draw the notes of an evaluation, for example the clock that the power limit sustains."""
    for note in dict.fromkeys(notes):
        st.caption(f":material/info: {plain_markdown(note)}")


def _deltas(view: EvaluationView, baseline: Evaluation | None, is_stale: bool) -> dict[str, str]:
    if baseline is None:
        return {}
    checked = view.evaluation.correctness if view.evaluation and not is_stale else None
    return deltas(
        baseline,
        problem=view.problem,
        device=view.device_name,
        correctness=checked,
        main=view.problem.main_of(view.passes) if view.passes else None,
        latency=view.latency,
    )


def _pending(label: str, term: str, is_compiling: bool) -> None:
    tile(label, _UNKNOWN, "compiling" if is_compiling else "not known", term=term)


def _correctness(evaluation: Evaluation | None, is_stale: bool, delta: str | None) -> None:
    label, term = "Correctness", TERMS["correctness"]
    if evaluation is None:
        tile(label, _UNKNOWN, "not run", term=term, icon=":material/radio_button_unchecked:")
        return
    if was_recorded_elsewhere(evaluation):
        icon = ORIGIN_ICON["recorded"]
        tile(label, "Not checked", "recorded", delta or "", term=term, color="gray", icon=icon)
        return
    status, c = evaluation.status, evaluation.correctness
    word = str(status).replace("_", " ").capitalize()
    badge, note = "see below", ""
    if c is not None:
        badge, note = _judged_by(c)
    if is_stale:
        badge, note = "older source", "run again"
    color = "orange" if is_stale else STATUS_COLOR[status]
    tile(label, word, badge, delta or note, term=term, color=color, icon=STATUS_ICON[status])


def _judged_by(c: Correctness) -> tuple[str, str]:
    """Return the figure that decided the verdict: non-finite elements first, then errors."""
    if c.unwritten_count:
        return f"{format_count(c.unwritten_count)} unwritten", "elements never written"
    if c.nonfinite_count:
        return f"{format_count(c.nonfinite_count)} NaN or Inf", "elements"
    if not c.passed and not c.bad_count:
        return "see below", "the errors are within the tolerance"
    return f"{c.max_abs_err:.2g}", f"of {c.tolerance:.2g} allowed"


def _latency(view: EvaluationView, is_compiling: bool, delta: str | None) -> None:
    latency = view.latency
    if latency is None and view.bound_us is not None:
        tile(
            "Latency",
            f"≥ {format_us(view.bound_us)}",
            "roofline bound",
            "lower bound of the time",
            term=TERMS["latency"],
        )
        return
    if latency is None:
        _pending("Latency", TERMS["latency"], is_compiling)
        return
    interval = f"{format_us(latency.low_us)} – {format_us(latency.high_us)}"
    if latency.low_us == latency.high_us:
        interval = "no interval"
    if latency.method:
        interval = f"by {latency.method}, {interval}"
    tile(
        "Latency",
        format_us(latency.median_us),
        latency.origin,
        delta or interval,
        term=TERMS["latency"],
        color=ORIGIN_COLOR[latency.origin],
    )


def _resources(resources: Resources | None, is_compiling: bool, delta: str | None) -> None:
    if resources is None:
        _pending("Registers", TERMS["registers"], is_compiling)
        return
    spills = resources.spill_bytes
    tile(
        "Registers",
        str(resources.registers_per_thread),
        f"{format_bytes(spills)} spilled" if spills else "no spills",
        delta or f"{format_bytes(resources.smem_bytes)} smem",
        term=TERMS["registers"],
        color="orange" if spills else "gray",
    )


def _occupancy(occupancy: Occupancy | None, is_compiling: bool, delta: str | None) -> None:
    if occupancy is None:
        _pending("Occupancy", TERMS["occupancy"], is_compiling)
        return
    tile(
        "Occupancy",
        f"{occupancy.occupancy:.0%}",
        occupancy.limited_by().replace("shared memory", "smem"),
        delta or f"{occupancy.ctas_per_sm} CTA{'s' if occupancy.ctas_per_sm != 1 else ''}/SM",
        term=TERMS["occupancy"],
    )


def _waves(occupancy: Occupancy | None, is_compiling: bool, delta: str | None) -> None:
    if occupancy is None or occupancy.waves is None:
        _pending("Waves", TERMS["waves"], is_compiling and occupancy is None)
        return
    tail = f"{occupancy.tail_ctas:,} in the tail" if occupancy.tail_ctas else "no tail"
    tile(
        "Waves",
        f"{occupancy.waves:.3g}",
        occupancy.launched(),
        delta or tail,
        term=TERMS["waves"],
    )


def _gpu_fill(occupancy: Occupancy | None, is_compiling: bool, delta: str | None) -> None:
    """Draw how full the GPU is, with its factors below."""
    label, term = "GPU fill", TERMS["gpu_fill"]
    if occupancy is None or occupancy.gpu_fill is None:
        _pending(label, term, is_compiling and occupancy is None)
        return
    idle = (occupancy.sm_fill or 0.0) < 1
    fill, waves, threads = (
        format_thread_fill(share or 0.0)
        for share in (occupancy.gpu_fill, occupancy.wave_efficiency, occupancy.thread_fill)
    )
    # The launch's threads are the same share of the GPU's if all CTAs run at once.
    also = f"; threads {threads}" if threads != fill else ""
    tile(
        label,
        fill,
        f"{occupancy.sm_fill:.0%} of {occupancy.num_sms} SMs",
        delta or f"occupancy {occupancy.occupancy:.0%} × wave efficiency {waves}{also}",
        term=term,
        color="orange" if idle else "gray",
    )
