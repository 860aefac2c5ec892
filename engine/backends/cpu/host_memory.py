"""How much memory a job takes and how much there is."""

from __future__ import annotations

import sys
from pathlib import Path

from engine.backends.cpu.job import Job

_SHADOW_BYTES_PER_BYTE = 8  # of what a kernel writes, in the check build: native/runtime.h


def bytes_needed(job: Job) -> int:
    """Both processes together: buffers, the shared segment, the caller's copies of what returns."""
    needed = 0
    for buffer in job.buffers:
        needed += buffer.bytes
        if buffer.data is not None:
            needed += buffer.bytes
        if buffer.returned:
            needed += 2 * buffer.bytes
        if job.library.check and not buffer.read_only:
            needed += _SHADOW_BYTES_PER_BYTE * buffer.bytes
    return needed


def available_bytes() -> int:
    """Free memory of the machine, or of the container when that is less."""
    return min(_machine_available(), _container_available())


def _machine_available() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _container_available() -> int:
    """What a version 2 control group leaves; unlimited where there is none."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        statistics = (folder / "memory.stat").read_text(encoding="ascii").split()
        cached = int(statistics[statistics.index("inactive_file") + 1])  # given back on demand
    except (OSError, ValueError, IndexError):
        return sys.maxsize
    return sys.maxsize if limit == "max" else max(0, int(limit) - used + cached)
