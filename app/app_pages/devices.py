"""Devices: the table of GPUs, each figure with its source, and what this machine has."""

from __future__ import annotations

import streamlit as st

from app.evaluation import frames
from app.shared.machine import local_gpu
from app.shared.widgets import empty
from engine.devices import all_devices


def page() -> None:
    st.markdown("### Devices\n:gray[dense rates with FP32 accumulation; an empty cell is unknown]")
    local = local_gpu()
    if local.spec is None:
        st.info(f"No local GPU. {local.why}", icon=":material/info:")
    else:
        st.success(f"{local.name} is in this machine.", icon=":material/developer_board:")
    wanted = st.text_input("Filter by name", key="device_filter", placeholder="H100, Ada, …")
    frame = frames.devices(all_devices(), wanted)
    if frame.empty:
        empty("filtered", "No GPU of the table has this in its name", "Clear the filter.")
        return
    st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height=min(36 * (len(frame) + 1), 900),
        column_config={
            "memory GB/s": st.column_config.NumberColumn(format="%,.0f"),
            "$/hour": st.column_config.NumberColumn(
                format="%.2f", help="A list price; change it where it is used."
            ),
        },
    )


page()
