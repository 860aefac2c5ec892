"""The Devices page: a GPU table without blank cells, and the kind of each price."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from software_nvml import SoftwareNvml, described
from streamlit.testing.v1 import AppTest
from words import says

from app.devices.frames import devices
from engine.devices import all_devices


def test_no_cell_is_blank_or_reads_none() -> None:
    frame = devices(all_devices())
    texts = frame.select_dtypes(exclude="number")
    assert len(texts.columns) >= 6
    for name in texts:
        words = [str(value).strip() for value in texts[name]]
        assert not {"", "None", "nan"}.intersection(words), name
    assert frame["SMs"].notna().all()
    assert frame["memory GB/s"].notna().all()


def test_each_price_names_its_kind() -> None:
    frame = devices(all_devices()).set_index("GPU")
    assert frame.loc["L4", "price basis"] != frame.loc["T4", "price basis"]
    without = frame[frame["$/hour"].isna()]
    assert len(without)
    assert all(says(basis, "without_list_price") for basis in without["price basis"])
    assert not says(frame[frame["$/hour"].notna()]["price basis"], "without_list_price")


def test_a_software_gpu_is_not_listed_as_local_gpu(
    software_nvml: SoftwareNvml,
    open_app: Callable[..., AppTest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    software_nvml.has(described("H200"))
    page = open_app("devices")
    assert [says(box.value, "gpu_in_software", "H200") for box in page.success] == [True]
    sweep = open_app("sweep")
    (gpus,) = (box for box in sweep.selectbox if box.label == "Target GPU")
    assert says(gpus.options[0], "software_not_timed", "H200")
    assert not says([toggle.label for toggle in sweep.toggle], "all_timings")
