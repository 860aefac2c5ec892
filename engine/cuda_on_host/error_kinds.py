"""What an error or a warning of the CPU backend is: its code, beside the sentence for people.

The values are what the runtime library (`native/`) says before its sentence; a test compares them.
"""

from __future__ import annotations

from enum import StrEnum

from engine.base.status import Status


class ErrorKind(StrEnum):
    ARITHMETIC_FAULT = "arithmetic fault"
    ARRAY_INDEX = "array index out of bounds"
    OPEN_BARRIER = "arrivals that nobody waited for"
    ASSERTION = "assertion failed"
    COPY_NOT_COMPLETE = "asynchronous copy not complete"
    STORE_NOT_COMPLETE = "asynchronous store not complete"
    BAD_BARRIER = "bad barrier"
    BAD_CLUSTER_RANK = "bad cluster rank"
    BAD_CP_ASYNC = "bad cp.async"
    BAD_MBARRIER = "bad mbarrier"
    BAD_MMA = "bad mma"
    BAD_SETMAXNREG = "bad setmaxnreg"
    BAD_TENSOR_MAP = "bad tensor map"
    BAD_WARP_MASK = "bad warp mask"
    BAD_WARPGROUP = "bad warpgroup"
    BAD_WGMMA = "bad wgmma"
    BAD_WMMA = "bad wmma"
    SHARED_BARRIER = "barrier of two groups"
    CLUSTER_BARRIER = "cluster barrier"
    DEADLOCK = "deadlock"
    DIVERGENT_BARRIER = "divergent barrier"
    GLOBAL_OTHER_HEAD = "global memory of another head"
    GLOBAL_BOUNDS = "global memory out of bounds"
    GLOBAL_RACE = "global memory race"
    GRID_TOO_LARGE = "grid too large"
    GUARD_ZONE = "guard zone damaged"
    ILLEGAL_ADDRESS = "illegal address"
    INVALID_LAUNCH = "invalid launch"
    LIVELOCK = "livelock"
    MBARRIER_FENCE = "mbarrier fence missing"
    MBARRIER_TWICE = "mbarrier initialised twice"
    MBARRIER_MISSING = "mbarrier not initialised"
    OPEN_PHASE = "mbarrier phase never complete"
    MISALIGNED = "misaligned address"
    PROXY_FENCE = "proxy fence missing"
    RUNNING_WGMMA_REGISTERS = "registers of a running wgmma"
    REGISTERS_NEVER_FREE = "setmaxnreg waits for ever"
    CTA_HAS_LEFT = "shared memory of a CTA that has left"
    CTA_NOT_STARTED = "shared memory of a CTA that may not have started"
    SHARED_BOUNDS = "shared memory out of bounds"
    SHARED_RACE = "shared memory race"
    STACK_OVERFLOW = "stack overflow"
    TIME_LIMIT = "time limit"
    TOO_MANY_ARRIVALS = "too many mbarrier arrivals"
    TRAP = "trap"
    GLOBAL_UNINITIALISED = "uninitialised global memory"
    LOCAL_UNINITIALISED = "uninitialised local variable"
    SHARED_UNINITIALISED = "uninitialised shared memory"
    UNSUPPORTED_PTX = "unsupported PTX"
    UNSUPPORTED_WGMMA_LAYOUT = "unsupported wgmma layout"
    WARP_DIVERGENCE = "warp divergence"
    WARPGROUP_DIVERGENCE = "warpgroup divergence"
    WGMMA_NOT_COMPLETE = "wgmma not complete"
    WGMMA_FENCE = "wgmma_fence missing"
    INPUT_WRITTEN = "write to an input"


_RACES = frozenset(
    {
        ErrorKind.GLOBAL_RACE,
        ErrorKind.SHARED_RACE,
        ErrorKind.PROXY_FENCE,
        ErrorKind.COPY_NOT_COMPLETE,
        ErrorKind.STORE_NOT_COMPLETE,
        ErrorKind.WGMMA_NOT_COMPLETE,
        ErrorKind.RUNNING_WGMMA_REGISTERS,
    }
)
_BOUNDS = frozenset(
    {
        ErrorKind.ARRAY_INDEX,
        ErrorKind.GLOBAL_BOUNDS,
        ErrorKind.GLOBAL_OTHER_HEAD,
        ErrorKind.GUARD_ZONE,
        ErrorKind.ILLEGAL_ADDRESS,
        ErrorKind.SHARED_BOUNDS,
    }
)


def status_of(kind: ErrorKind) -> Status:
    """What a run ends with that an error of this kind ended."""
    if kind in _RACES:
        return Status.RACE
    return Status.OUT_OF_BOUNDS if kind in _BOUNDS else Status.LAUNCH_ERROR
