"""What the child process is asked to do, and what comes back: plain data.

`CpuBackend` makes a job from a launch plan. Tests and tools that need more than a plan says (other
buffers) make their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engine.base.errors import Status
from engine.base.launch import Argument
from engine.cuda_on_host.build import HostLibrary
from engine.cuda_on_host.error_kinds import ErrorKind
from engine.cuda_on_host.instrument import ExecutedStatements
from engine.cuda_on_host.toolchain import Schedule

# Bytes on either side of a buffer that a kernel can write and that are looked at afterwards; what
# lies further out cannot be touched at all.
DEFAULT_SLACK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Buffer:
    """One piece of global memory.

    With `data` its bytes are copied in; otherwise it has `size_bytes` bytes, zero or poisoned (NaN
    in every format, and "uninitialised" to the check build).
    """

    name: str
    data: npt.NDArray[Any] | None = None
    size_bytes: int = 0
    fill: Literal["poison", "zero"] = "poison"
    read_only: bool = False
    returned: bool = False  # its bytes after the first run come back
    # A buffer of a partial run: `size_bytes` of addresses, of which these pieces, (offset, bytes),
    # are accessible; `data` and what comes back are the pieces one after the other.
    pieces: tuple[tuple[int, int], ...] | None = None
    each_launch: bool = False  # `data` is copied in again before each run of all launches
    opens_itself: bool = False  # without pieces: what is touched becomes accessible

    @property
    def bytes(self) -> int:
        if self.pieces is not None:
            return sum(length for _, length in self.pieces)
        return self.size_bytes if self.data is None else self.data.nbytes


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Argument, ...]
    dynamic_smem_bytes: int = 0
    ctas: tuple[int, ...] | None = None  # linear indices of those that run; None: all
    # CTAs of a cluster, where the launch says it; None: what the kernel's __cluster_dims__ say.
    cluster: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Launches that run in order on one set of buffers."""

    library: HostLibrary
    buffers: tuple[Buffer, ...]
    launches: tuple[KernelLaunch, ...]
    schedule: Schedule = "in_order"
    seed: int = 0
    repeat: bool = False  # run everything twice and compare the returned buffers
    slack_bytes: int = DEFAULT_SLACK_BYTES
    inside: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # pointers into buffers
    # Run each CTA of the one launch until it touches a closed part of a buffer, and say where.
    probe: bool = False


@dataclass(frozen=True, slots=True)
class JobResult:
    """`status` PASSED means that it ran."""

    status: Status
    reason: str = ""
    log: str = ""  # what the kernel printed, or the process's last words
    returned: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    changed_inputs: tuple[str, ...] = ()
    repeatable: bool = True
    guards_intact: bool = True
    execution_ms: float | None = None  # all launches of the first run
    touched: tuple[tuple[str, int] | None, ...] = ()  # of a probe: (buffer, byte) of each CTA
    executed: ExecutedStatements | None = None  # in the check build
    warnings: tuple[str, ...] = ()  # suspicious, though it ran; in the check build
    kind: ErrorKind | None = None  # of an error that the runtime names
    warning_kinds: tuple[ErrorKind, ...] = ()  # of the warnings
    round_trip_ms: float | None = None  # from the caller to the child and back, execution included


# How much memory a job takes.


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
