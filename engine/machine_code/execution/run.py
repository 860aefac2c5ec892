"""One launch of an entry, executed by the native emulator on real memory, on all cores."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import AttuneError
from engine.machine_code.cubin import Entry
from engine.machine_code.emulation import Code, new_request
from engine.machine_code.execution.hazards import (
    MOST,
    Hazard,
    HazardRow,
    hazard_of,
    lines_of,
    place_of,
)
from engine.machine_code.instruction import Program
from engine.machine_code.launch import Launch
from engine.machine_code.native_library import is_built, load_library

_SOURCE = Path(__file__).resolve().parents[1] / "native" / "execute.cpp"
_ERROR_BYTES = 1024
_NO_LIMIT = 2**62
WINDOWS = (0x100, 0x200)  # SHARED_HIGH and LOCAL_HIGH of native/emulator.cpp
_PLACE = re.compile(r"^\S+ at 0x([0-9a-f]+) ")
_ADDRESS = re.compile(r" bytes at 0x([0-9a-f]+)")  # of global memory
_REACHES = re.compile(r"^\S+ at 0x[0-9a-f]+ reaches ")  # what native code says of an address
# What native code says of code that it does not execute, rather than that is wrong.
_NOT_FOLLOWED = re.compile(r"\bnot (?:known|executed) here\b")
_BUFFER = re.compile(r"BUFFER (\d+)")


class ExecutionFault(AttuneError):
    """The code did what a GPU refuses or what is not known here: instruction, line, CTA."""


class NotFollowed(ExecutionFault):
    """An instruction, modifier or operand whose values are not known here: no fault of the code."""


class OutOfBounds(ExecutionFault):
    """An access to memory that is not the launch's; `address` is the first byte."""

    def __init__(self, message: str, address: int = 0) -> None:
        super().__init__(message)
        self.address = address


class ExecutionTimeout(AttuneError):
    """The launch did not end in time."""


@dataclass(frozen=True, slots=True)
class GlobalBuffer:
    """Global memory: `data` lies at `address`. What no buffer holds may not be touched."""

    name: str
    address: int
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Watch:
    """Asks who writes the byte at a global address last."""

    address: int
    writes: list[str]  # takes one sentence; none where nothing wrote it


class _Write(ctypes.Structure):
    """`Write` of native/request.h."""

    _fields_ = (
        ("at", ctypes.c_int32),
        ("cta", ctypes.c_uint32 * 3),
        ("warp", ctypes.c_int32),
    )


class _Range(ctypes.Structure):
    """`Buffer` of native/emulator.cpp."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("host", ctypes.c_void_p),
    )


def is_prepared() -> bool:
    """Whether the native library is there and nobody waits for its build."""
    return is_built(_SOURCE)


def prepare() -> None:
    """Build and load the native library ahead of its first use.

    Raises:
        ToolMissing, CompileError: it cannot be built.
    """
    _library()


def execute(
    program: Program,
    entry: Entry,
    launch: Launch,
    buffers: Sequence[GlobalBuffer],
    *,
    cluster: tuple[int, int, int] = (1, 1, 1),
    timeout_s: float = 60.0,
    threads: int = 1,
    reverse: bool = False,
    hazards: list[Hazard] | None = None,
    watch: Watch | None = None,
    ctas: Sequence[int] | None = None,
) -> int:
    """Run every CTA of the launch; the buffers hold what it wrote.

    Args:
        threads: of the host that run CTAs.
        reverse: CTAs, and warps of each, take turns in the reverse of their order. What nothing
            orders then ends otherwise.
        hazards: takes those of shared memory that are found, also where an error ends the launch;
            None: they are not looked for, which is several times faster.
        watch: a byte whose last writer is asked for; give one thread with it.
        ctas: linear indices of those that run in place of all; of a launch without clusters.

    Returns:
        How many warp instructions were executed.

    Raises:
        OutOfBounds: an access beyond a buffer.
        NotFollowed: an instruction that is not executed here.
        ExecutionFault: an access that is not aligned, a trap or a deadlock.
        ExecutionTimeout: it took longer than `timeout_s`.
        InvalidProblem: the launch does not fit the entry.
        ToolMissing, CompileError: the native library cannot be built.
    """
    library = _library()
    code = Code.of(program, library)
    request = new_request(program, entry, launch, code, WINDOWS, cluster)
    ordered = sorted(buffers, key=lambda buffer: buffer.address)
    ranges = (_Range * len(ordered))(
        *(_Range(b.address, b.data.nbytes, b.data.ctypes.data) for b in ordered)
    )
    request.reversed = int(reverse)
    request.max_steps = _NO_LIMIT  # the time limit ends what never ends
    request.buffers, request.buffer_count = ctypes.addressof(ranges), len(ordered)
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    cta, steps = np.zeros(3, np.uint32), np.zeros(1, np.int64)
    num_ctas = launch.ctas // prod(cluster)
    if ctas is not None:
        chosen = np.array(ctas, np.int64)
        request.chosen, request.chosen_count = chosen.ctypes.data, len(chosen)
        num_ctas = len(chosen)
    found, found_count = (HazardRow * MOST)(), ctypes.c_int32(0)
    if hazards is not None:
        request.hazards, request.hazard_capacity = ctypes.addressof(found), MOST
        request.hazard_count = ctypes.addressof(found_count)
    written = _Write(-1)
    if watch is not None:
        request.watched, request.last_write = watch.address, ctypes.addressof(written)
    status = library.sass_execute(
        ctypes.byref(request),
        max(1, min(threads, num_ctas)),
        ctypes.c_double(timeout_s),
        error,
        _ERROR_BYTES,
        ctypes.c_void_p(cta.ctypes.data),
        ctypes.c_void_p(steps.ctypes.data),
    )
    if hazards is not None:
        hazards += (hazard_of(program, found[n]) for n in range(min(MOST, found_count.value)))
    if watch is not None and written.at >= 0:
        x, y, z = written.cta
        at = place_of(program.instructions[written.at])
        watch.writes.append(f"{program.entry}: {at} (CTA {x}, {y}, {z}, warp {written.warp})")
    if status == 1:
        names = [buffer.name for buffer in ordered]
        what = error.value.decode(errors="replace")
        said = _sentence(program, what, names, tuple(cta.tolist()))
        if _NOT_FOLLOWED.search(what):
            raise NotFollowed(said)
        if _REACHES.match(what):
            found_at = _ADDRESS.search(what)
            raise OutOfBounds(said, int(found_at[1], 16) if found_at is not None else 0)
        raise ExecutionFault(said)
    if status == 2:
        raise ExecutionTimeout(f"{program.entry} did not finish within {timeout_s:g} s.")
    return int(steps[0])


def _sentence(program: Program, what: str, names: Sequence[str], cta: tuple[int, ...]) -> str:
    """The fault with its source line, the names of buffers and the CTA."""
    said = _BUFFER.sub(lambda found: f"{names[int(found[1])]!r}", what)
    place = _PLACE.match(what)
    line = ""
    if place is not None:
        at = next((i for i in program.instructions if i.address == int(place[1], 16)), None)
        line = lines_of(at)
    return f"{program.entry}{line}: {said} (CTA {cta[0]}, {cta[1]}, {cta[2]})."


def _library() -> Any:
    library = load_library(_SOURCE)
    library.sass_decode.restype = ctypes.c_void_p
    return library
