"""Below the table, what a learner reads: each rung's header, and what it changed."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.shared.selection import variant_label
from app.shared.widgets import errors_as_sentences, plain_markdown
from engine.auto.reach import out_of_reach
from engine.base.table import as_markdown
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

_MOST_LINES = 2000  # of a diff that is shown


def draw(rungs: list[Rung]) -> None:
    """One section for each rung, from the first to the last."""
    by_id = {rung.variant.id: rung for rung in rungs}
    for rung in rungs:
        with st.container(border=True, key=f"rung_{rung.variant.id}"), errors_as_sentences():
            _draw_rung(rung, by_id)


def draw_out_of_reach(device: DeviceSpec | None) -> None:
    """What the GPU could do that no rung does."""
    if device is not None and (sentence := out_of_reach(device)):
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
        with source, errors_as_sentences():
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
        with code, errors_as_sentences():
            st.caption("Registers and predicates stand without their numbers.")
            _draw_diff(machine_code_diff(earlier, rung))


def _draw_diff(diff: Diff) -> None:
    lines = diff.text.splitlines()
    st.caption(f"{diff.summary()}.")
    st.code("\n".join(lines[:_MOST_LINES]), language="diff", height=520)
    if len(lines) > _MOST_LINES:
        st.caption(f"{len(lines) - _MOST_LINES:,} more lines are not shown.")
