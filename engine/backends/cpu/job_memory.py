"""How much memory a job takes."""

from __future__ import annotations

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
