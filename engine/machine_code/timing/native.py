"""The cycle loop in C++: loading it, and handing it flat arrays."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import CompileError
from engine.machine_code.native_library import load_library
from engine.machine_code.timing.ops import OP, PIPES
from engine.machine_code.timing.result import PORTS, SmTiming, StallReason
from engine.machine_code.trace import CtaTrace

_SOURCE = Path(__file__).resolve().parent / "native" / "timing.cpp"
_LINE_BYTES = 128
_Item = TypeVar("_Item")
_Simulated = TypeVar("_Simulated")


class MachineRow(ctypes.Structure):
    """`Machine` of native/timing.h."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("fma_units", "operand_window", "queue_depth")),
        *((name, ctypes.c_int32) for name in ("dispatch_cycles", "barrier_cycles", "l1_cycles")),
        *((name, ctypes.c_int32) for name in ("l2_cycles", "l1_lines", "fetch_cycles")),
        *((name, ctypes.c_int32) for name in ("cta_start_cycles", "bulk_copy_cycles")),
        *((name, ctypes.c_int32) for name in ("registers", "warpgroup_cycles")),
        ("cycles_per_sector", ctypes.c_float),
        ("shared_bytes_per_cycle", ctypes.c_float),
    )


# Arrays of `Trace`, with what CtaTrace calls them and their type there.
_TRACE_ARRAYS = (
    ("warp_start", np.int64),
    ("instruction", np.int32),
    ("access", np.int32),
    ("kind", np.uint8),
    ("wavefronts", np.uint16),
    ("sectors", np.uint16),
    ("size_bytes", np.uint32),
    ("address", np.uint64),
    ("amount", np.int32),
    ("line_start", np.int64),
    ("line", np.uint64),
    ("line_sectors", np.uint8),
)


class _Trace(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name, _ in _TRACE_ARRAYS),
        ("num_warps", ctypes.c_int32),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("machine", ctypes.POINTER(MachineRow)),
        ("ops", ctypes.c_void_p),
        ("traces", ctypes.POINTER(_Trace)),
        ("queue", ctypes.c_void_p),
        ("num_code_lines", ctypes.c_int32),
        ("num_ctas", ctypes.c_int32),
        ("resident", ctypes.c_int32),
        ("num_sms", ctypes.c_int32),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("started", "finished", "stalls", "busy")),
        ("cycles", ctypes.c_double),
        ("issued", ctypes.c_int64),
        ("events", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("max_events", "num_events")),
    )


# `Event` of native/timing.h.
EVENT = np.dtype(
    [
        *((name, np.float64) for name in ("begin", "end")),
        *((name, np.int32) for name in ("kind", "cta", "warp", "op", "reason", "partition")),
    ]
)
ISSUED, PRODUCT, COPY = range(3)  # `EVENT`'s kind


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A program's rows and the machine that runs them: all that does not change with the CTAs."""

    ops: NDArray[np.void]  # [instructions] of dtype `OP`
    machine: MachineRow


def in_parallel(
    simulate: Callable[[_Item], _Simulated], items: Sequence[_Item]
) -> list[_Simulated]:
    """What `simulate` returns for each item; the calls below let other threads of Python run."""
    if len(items) < 2:
        return [simulate(item) for item in items]
    with ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as pool:
        # The last one, which is the longest, begins first.
        return list(pool.map(simulate, reversed(items)))[::-1]


def simulate_sm(
    kernel: Kernel,
    traces: Sequence[CtaTrace],
    queue: Sequence[int],
    resident: int,
    num_sms: int = 1,
    *,
    stalls: bool = True,
) -> SmTiming:
    """One SM, or several, work through a queue of CTAs, each SM `resident` at a time.

    Args:
        queue: for each CTA in order of starting, which of `traces` it executes.
        num_sms: that take CTAs from the queue: the first in turn, then whichever has room first.
        stalls: whether to work out what warps waited for, which takes a quarter of the time.

    Raises:
        CompileError: the CTAs wait for each other for ever, as the trace has them.
        ToolMissing: there is no C++ compiler to build the model with.
    """
    call = _Call(kernel, traces, queue, resident, num_sms, stalls)
    _check(_library().attune_time_sm(ctypes.byref(call.launch), ctypes.byref(call.result)))
    names = (*(p.value for p in PIPES), *PORTS)
    return SmTiming(
        cycles=call.result.cycles,
        issued=call.result.issued,
        started=call.started,
        finished=call.finished,
        busy_cycles=dict(zip(names, call.busy.tolist(), strict=True)),
        stalls=call.stalls,
    )


def follow_sm(
    kernel: Kernel, traces: Sequence[CtaTrace], queue: Sequence[int], resident: int, most: int
) -> NDArray[np.void]:
    """The first events, at most `most`, of one SM working through a queue of CTAs: `[n]` of dtype
    `EVENT`. Raises as `simulate_sm`."""
    call = _Call(kernel, traces, queue, resident, 1, stalls=True)
    events = np.zeros(most, EVENT)
    call.result.events, call.result.max_events = events.ctypes.data, most
    _check(_library().attune_time_sm(ctypes.byref(call.launch), ctypes.byref(call.result)))
    return events[: call.result.num_events]


def simulate_counts(
    kernel: Kernel, trace: CtaTrace, counts: Sequence[int], resident: int
) -> NDArray[np.float64]:
    """Cycles until as many equal CTAs on one SM are done, `[counts]`, in little more than the time
    of the largest count.

    Args:
        counts: ascending.

    Raises as `simulate_sm`.
    """
    call = _Call(kernel, [trace], [0] * counts[-1], resident, 1, stalls=False)
    wanted, ends = np.array(counts, dtype=np.int32), np.zeros(len(counts))
    arrays = wanted.ctypes.data, len(wanted), ends.ctypes.data, None
    at = ctypes.byref(call.launch), ctypes.byref(call.result)
    _check(_library().attune_time_counts(*at, *arrays))
    return ends


def simulate_freed(
    kernel: Kernel, traces: Sequence[CtaTrace], queue: Sequence[int], resident: int
) -> NDArray[np.float64]:
    """When the slots of an SM fall free that the CTAs beyond the first `resident` take, ascending,
    `[len(queue) - resident]`: those are not followed further than to the last of these cycles.

    Args:
        queue: for each CTA in order of starting, which of `traces` it executes.

    Raises as `simulate_sm`.
    """
    call = _Call(kernel, traces, queue, resident, 1, stalls=False)
    freed = np.zeros(max(0, len(queue) - resident))
    at = ctypes.byref(call.launch), ctypes.byref(call.result)
    _check(_library().attune_time_counts(*at, None, 0, None, freed.ctypes.data))
    return freed


class _Call:
    """The structures of one call, and the arrays that they point into."""

    def __init__(
        self,
        kernel: Kernel,
        traces: Sequence[CtaTrace],
        queue: Sequence[int],
        resident: int,
        num_sms: int,
        stalls: bool,
    ) -> None:
        self._order = np.ascontiguousarray(queue, dtype=np.int32)
        self._ops = np.ascontiguousarray(kernel.ops)
        assert self._ops.dtype == OP
        self._kept = []
        self._rows = (_Trace * len(traces))()
        for row, trace in zip(self._rows, traces, strict=True):
            for name, dtype in _TRACE_ARRAYS:
                array = np.ascontiguousarray(getattr(trace, name), dtype=dtype)
                self._kept.append(array)
                setattr(row, name, array.ctypes.data)
            row.num_warps = trace.num_warps
        self.started = np.zeros(len(self._order))
        self.finished = np.zeros(len(self._order))
        self.stalls = np.zeros((len(self._ops) if stalls else 0, len(StallReason)))
        self.busy = np.zeros(len(PIPES) + len(PORTS))
        self.launch = _Launch(
            ctypes.pointer(kernel.machine),
            self._ops.ctypes.data,
            self._rows,
            self._order.ctypes.data,
            int(self._ops["code_line"].max()) + 1,
            len(self._order),
            resident,
            num_sms,
        )
        self.result = _Result(
            self.started.ctypes.data,
            self.finished.ctypes.data,
            self.stalls.ctypes.data if stalls else None,
            self.busy.ctypes.data,
        )


def _check(status: int) -> None:
    if status:
        raise CompileError(
            "The simulated CTAs wait for each other for ever: a barrier counts more threads than "
            "reach it, or a branch on loaded data took a side that it never takes on a GPU."
        )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = load_library(_SOURCE)
    library.attune_time_sm.argtypes = [ctypes.POINTER(_Launch), ctypes.POINTER(_Result)]
    library.attune_time_sm.restype = ctypes.c_int
    library.attune_time_counts.argtypes = [
        *(ctypes.POINTER(_Launch), ctypes.POINTER(_Result)),
        *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
    ]
    library.attune_time_counts.restype = ctypes.c_int
    return library
