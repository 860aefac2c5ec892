"""How much memory a job takes."""

from __future__ import annotations

from engine.backends.cpu.job import Job

# In the check build, of what a kernel writes and of what it reads among that: native/runtime.h.
_BYTES_PER_WRITTEN_BYTE = 8
_BYTES_PER_READ_BYTE = 16


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
            needed += _BYTES_PER_WRITTEN_BYTE * buffer.bytes
            if not buffer.returned:  # an output is only written
                needed += _BYTES_PER_READ_BYTE * buffer.bytes
    return needed
