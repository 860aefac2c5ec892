"""Devices: the table of GPUs, each figure with its source, and the GPU of this machine."""

from __future__ import annotations

import streamlit as st

from app.devices import frames
from app.shared import tables
from app.shared.machine import local_gpu
from app.shared.widgets import empty, plain_markdown
from engine.devices import all_devices

_LARGE = ("boost MHz", "memory GB/s", "FP16 tensor TFLOP/s", "power W")


def page() -> None:
    st.markdown("# Devices\n:gray[Tensor rates are dense, with FP32 accumulation.]")
    local = local_gpu()
    if local.spec is None:
        st.info(f"No local GPU. {plain_markdown(local.why)}", icon=":material/info:")
    else:
        how = ", in software: it runs kernels but does not time them" if local.in_software else ""
        sentences = " ".join((f"Local GPU: {local.name}{how}.", *local.differences))
        st.success(plain_markdown(sentences), icon=":material/developer_board:")
    wanted = st.text_input("Filter by name", key="device_filter", placeholder="H100, Ada, …")
    frame = frames.devices(all_devices(), wanted)
    if frame.empty:
        empty("filtered", "No GPU has this in its name or aliases", "Clear the filter.")
        return
    tables.draw(
        frame,
        height="content",
        placeholder="–",
        columns={
            "memory": st.column_config.TextColumn(width=150),
            **{name: st.column_config.NumberColumn(format="localized") for name in _LARGE},
            "$/hour": st.column_config.NumberColumn(
                format="%.2f",
                help="List price; real prices differ between providers. Enter your own price on "
                "the Batch size page.",
            ),
        },
    )


page()
