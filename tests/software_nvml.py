"""NVML of the software GPUs in this process, used by `pynvml` like that of a driver."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml
import pytest

from engine.base.errors import ToolMissing
from engine.software_gpu.process_environment import device_table, driver_folder

# Fields of a line of native/table.h.
_FIELDS = {"name": 0, "num_sms": 3, "clock_khz": 4, "memory_bytes": 5, "l2_bytes": 7, "power_w": 8}


def described(gpu: str, **figures: object) -> str:
    """Return the line of one GPU of the table, with these figures replaced."""
    fields = device_table(gpu).split(";")
    for name, value in figures.items():
        fields[_FIELDS[name]] = str(value)
    return ";".join(fields)


class SoftwareNvml:
    """Sets the answers of NVML until the test ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        try:
            library = ctypes.CDLL(str(driver_folder() / "libnvidia-ml.so.1"))
        except ToolMissing as missing:
            pytest.skip(str(missing))
        self._monkeypatch, self._file = monkeypatch, file
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.setenv("ATTUNE_SOFTWARE_NVML", str(file))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.has()

    def has(self, *lines: str) -> None:
        """Set the GPUs, in bus order."""
        self._monkeypatch.setenv("ATTUNE_SOFTWARE_GPU_TABLE", "\n".join(lines))
        self.says("")

    def says(self, words: str) -> None:
        """Set the answers, in the format of native/nvml.cpp."""
        self._file.write_text(words)

    def uuid(self, number: int, kind: str = "GPU") -> str:
        """Return the UUID of a GPU, or of its slice ("MIG")."""
        pynvml.nvmlInit()
        try:
            found = str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number)))
        finally:
            pynvml.nvmlShutdown()
        return found.replace("GPU", kind, 1)

    @property
    def is_open(self) -> bool:
        """Return True if an NVML session is still open."""
        return bool(pynvml.nvmlLib.nvmlShutdown() == 0)
