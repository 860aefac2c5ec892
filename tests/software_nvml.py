"""NVML of the GPUs in software, in this process: `pynvml` talks to it as to a driver's."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml
import pytest

from engine.base.errors import ToolMissing
from engine.software_gpu.process_environment import device_table, driver_folder

# Of a line of native/table.h.
_FIELDS = {"name": 0, "num_sms": 3, "clock_khz": 4, "memory_bytes": 5, "l2_bytes": 7, "power_w": 8}


def described(gpu: str, **figures: object) -> str:
    """The line of one GPU of the table, with these figures in place of its own."""
    fields = device_table(gpu).split(";")
    for name, value in figures.items():
        fields[_FIELDS[name]] = str(value)
    return ";".join(fields)


class SoftwareNvml:
    """What NVML says from now on, until the test ends."""

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
        """These GPUs, in the order of the bus."""
        self._monkeypatch.setenv("ATTUNE_SOFTWARE_GPU_TABLE", "\n".join(lines))
        self.says("")

    def says(self, words: str) -> None:
        """In the words of native/nvml.cpp."""
        self._file.write_text(words)

    def uuid(self, number: int, kind: str = "GPU") -> str:
        """Of a GPU, or of its slice ("MIG")."""
        pynvml.nvmlInit()
        try:
            found = str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number)))
        finally:
            pynvml.nvmlShutdown()
        return found.replace("GPU", kind, 1)

    @property
    def is_open(self) -> bool:
        """Whether a session has not been ended."""
        return bool(pynvml.nvmlLib.nvmlShutdown() == 0)
