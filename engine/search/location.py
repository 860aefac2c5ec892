"""Where an evaluation ran: which machine, and which of the GPUs of one model.

A GPU's name says only its model. Two of one model differ by a few percent, in clocks, cooling and
power, so their times are kept apart unless the driver says that they are the same device.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from engine.evaluation import Evaluation

_SHOWN_ID = len("GPU-5ac8f2e1")  # of a GPU's UUID; other names are shown whole


@dataclass(frozen=True, slots=True)
class Location:
    """The machine, and the GPU that the evaluation was executed on."""

    host: str = ""  # empty: not recorded
    gpu: str = ""  # its UUID; empty where no GPU executed it, or where that was not recorded

    def label(self, device: str) -> str:
        """`NVIDIA L4 (GPU-5ac8f2e1 on node7)`."""
        if not self.gpu:
            return f"{device} (which one was not recorded)"
        shown = self.gpu[:_SHOWN_ID] if self.gpu.startswith("GPU-") else self.gpu
        return f"{device} ({shown} on {self.host})"


UNKNOWN_LOCATION = Location()


def location_of(evaluation: Evaluation) -> Location:
    """Where an evaluation that this process has made ran."""
    on_gpu = evaluation.execution is not None and evaluation.execution.backend == "cuda"
    return Location(platform.node(), local_gpu_id() if on_gpu else "")


def local_gpu_id() -> str:
    """What names the GPU that this process uses among all machines': its UUID.

    Machine and index where the driver gives none.
    """
    from engine.devices.detect import detect_local

    local = detect_local()
    uuid = "" if isinstance(local, str) else local.uuid
    return uuid or f"{platform.node()}:{os.environ.get('CUDA_VISIBLE_DEVICES', '0')}"
