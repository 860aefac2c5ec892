"""The details of one rung: its header, and what it changed."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.ladder.overview import DETAIL
from app.shared import runs, url_state
from app.shared.runs import rerun_as_jobs_end
from app.shared.selection import variant_label
from app.shared.widgets import busy, plain_markdown, show_errors
from engine.base.table import as_markdown
from engine.choose.auto.candidates import code_digest, unused_instructions
from engine.devices.spec import DeviceSpec
from engine.kernel_figures import Rung
from engine.kernel_figures.changes import (
    Diff,
    counts_diff,
    gain,
    header_of,
    machine_code_diff,
    rung_before,
    source_diff,
)

_FOLLOWED = "kernels_rung_of"  # the sidebar's kernel at the last run
_POLL_S = 0.5
_MAX_LINES = 2000  # of a diff


def draw(rungs: list[Rung], chosen: str) -> None:
    """Draw the selected rung, with buttons to its neighbours.

    Args:
        chosen: id of the sidebar's kernel, which is shown until another rung is selected.
    """
    by_id = {rung.variant.id: rung for rung in rungs}
    first = chosen if chosen in by_id else next(iter(by_id))
    # The sidebar's selection, not the kernel that `auto` takes at the moment.
    asked = st.session_state.get("variant", first)
    if st.session_state.get(_FOLLOWED, asked) != asked and DETAIL in st.session_state:
        st.session_state[DETAIL] = first
    st.session_state[_FOLLOWED] = asked
    with st.container(horizontal=True, vertical_alignment="bottom", key="kernels_pick"):
        name = url_state.select(
            st,
            "Rung",
            DETAIL,
            list(by_id),
            first,
            format_func=lambda n: _named(by_id[n]),
            width=360,
        )
        ids = list(by_id)
        place = ids.index(name)
        for step, icon, word in ((-1, "arrow_back", "before"), (1, "arrow_forward", "after")):
            there = 0 <= place + step < len(ids)
            st.button(
                f"The rung {word}",
                key=f"kernels_{word}",
                icon=f":material/{icon}:",
                disabled=not there,
                on_click=_show_rung,
                args=(ids[place + step] if there else name,),
            )
    with st.container(border=True, key=f"rung_{name}"), show_errors():
        _draw_rung(by_id[name], by_id)


def _named(rung: Rung) -> str:
    return variant_label(rung.variant)


def _show_rung(name: str) -> None:
    """A button's callback."""
    st.session_state[DETAIL] = name


def draw_unused_instructions(device: DeviceSpec | None) -> None:
    """Draw which instructions of the GPU no rung uses."""
    if device is not None and (sentence := unused_instructions(device)):
        st.caption(plain_markdown(sentence))


def _draw_rung(rung: Rung, by_id: Mapping[str, Rung]) -> None:
    variant = rung.variant
    st.markdown(f"#### {plain_markdown(variant_label(variant))}")
    lines = [
        f"**{plain_markdown(label)}** {plain_markdown(text)}"
        for label, text in header_of(variant)
        if label
    ]
    st.markdown("  \n".join(lines) or plain_markdown(variant.idea))
    if rung.why_not:
        st.caption(f":material/block: {plain_markdown(rung.why_not)}")
    elif rung.config:
        st.caption(plain_markdown(f"Config: {rung.describe_config}"))
    before = rung_before(variant)
    if before is None:
        return
    earlier = by_id.get(before.id)
    if earlier is not None and not rung.why_not:
        st.markdown(plain_markdown(gain(earlier, rung)))
        counts = counts_diff(earlier, rung)
        if counts.rows:
            st.markdown(as_markdown(counts))
    source = st.expander(
        f"Source: what changed against {before.id}",
        key=f"source_{variant.id}",
        icon=":material/difference:",
        on_change="rerun",
    )
    if source.open:
        with source, show_errors():
            _draw_diff(source_diff(before, variant))
    if earlier is None or earlier.counts is None or rung.counts is None:
        return
    code = st.expander(
        f"Machine code: what changed against {before.id}",
        key=f"code_{variant.id}",
        icon=":material/memory:",
        on_change="rerun",
    )
    if code.open:
        with code, show_errors():
            _draw_machine_code(earlier, rung)


def _draw_machine_code(earlier: Rung, rung: Rung) -> None:
    """Draw the difference in machine code; the worker compiles rungs whose figures ship without
    code."""
    shipped = [r for r in (earlier, rung) if r.is_shipped]
    asked = [runs.compile_job(r.request, code_digest(r.variant), wait=True) for r in shipped]
    waiting = [job for job in asked if job is not None and not job.is_over]
    if waiting:
        rerun_as_jobs_end(waiting, _POLL_S, lambda _: busy("Compiling the two rungs"))
        return
    st.caption("Register and predicate numbers are left out.")
    _draw_diff(machine_code_diff(earlier, rung))


def _draw_diff(diff: Diff) -> None:
    lines = diff.text.splitlines()
    st.caption(f"{diff.summary()}.")
    st.code("\n".join(lines[:_MAX_LINES]), language="diff", height=520)
    if len(lines) > _MAX_LINES:
        st.caption(f"{len(lines) - _MAX_LINES:,} more lines are not shown.")
