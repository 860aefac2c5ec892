"""The GPU table as the Devices page shows it: no blank cells, and what each price is for."""

from __future__ import annotations

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


def test_prices_of_different_kinds_say_so() -> None:
    frame = devices(all_devices()).set_index("GPU")
    assert frame.loc["L4", "rented for it"] != frame.loc["T4", "rented for it"]
    without = frame[frame["$/hour"].isna()]
    assert (without["rented for it"] == "no list price").all()
    assert (frame[frame["$/hour"].notna()]["rented for it"] != "no list price").all()
