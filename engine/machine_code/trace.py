"""What one CTA executes: flat arrays that the emulator writes and the simulator of an SM reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class AccessKind(IntEnum):
    """What a memory or synchronisation instruction did; the value in `CtaTrace.kind`."""

    GLOBAL_LOAD = 0
    GLOBAL_STORE = 1
    GLOBAL_ATOMIC = 2  # atom and red
    LOCAL_LOAD = 3  # spills and arrays on the stack
    LOCAL_STORE = 4
    SHARED_LOAD = 5  # lds, ldmatrix
    SHARED_STORE = 6  # sts, stmatrix
    SHARED_ATOMIC = 7
    SHUFFLE = 8  # shfl, movm: through the shared-memory crossbar, one wavefront
    ASYNC_COPY = 9  # cp.async: sectors of the source, wavefronts of the destination
    ASYNC_COMMIT = 10  # cp.async.commit_group
    ASYNC_WAIT = 11  # cp.async.wait_group; `amount` is how many groups may stay open
    BULK_LOAD = 12  # cp.async.bulk and TMA, to shared; `address`: mbarrier it completes on
    BULK_STORE = 13  # the other way
    BULK_WAIT = 14  # cp.async.bulk.wait_group; `amount` is how many groups may stay open
    MBARRIER_INIT = 15  # `amount`: arrivals a phase needs
    MBARRIER_ARRIVE = 16  # `amount`: arrivals; `size_bytes`: transfer bytes that are now expected
    MBARRIER_WAIT = 17  # once for each phase waited for, however often the code polls;
    # `amount`: the phase, counted from 0, that ended the wait
    BARRIER = 18  # bar.sync and friends; `address`: its number; `amount`: threads taking part
    BARRIER_ARRIVE = 19  # bar.arrive: counts and goes on
    TENSOR = 20  # wgmma: operands in shared memory; `size_bytes` read from there
    TENSOR_WAIT = 21  # wgmma.wait_group; `amount` is how many groups may stay open
    TENSOR_COMMIT = 22
    SET_REGISTERS = 23  # setmaxnreg; `amount`: registers per thread from here on


@dataclass(frozen=True, slots=True, eq=False)
class CtaTrace:
    """All warps of one CTA, each a run of executed instructions.

    Warp w's entries are `warp_start[w]` to `warp_start[w + 1]` of the arrays of length n. An entry
    that touches memory or synchronises names its row in the arrays of length m; several entries may
    share a row that is equal in every column. Row r's global cache lines are `line_start[r]` to
    `line_start[r + 1]` of the arrays of length k.
    """

    warp_start: NDArray[np.int64]  # [warps + 1]
    instruction: NDArray[np.int32]  # [n] index into Program.instructions
    lanes: NDArray[np.uint8]  # [n] lanes that executed it, predicate included: 0 … 32
    access: NDArray[np.int32]  # [n] row below, -1: none

    kind: NDArray[np.uint8]  # [m] AccessKind
    wavefronts: NDArray[np.uint16]  # [m] passes through shared memory
    ideal_wavefronts: NDArray[np.uint16]  # [m] passes that the same bytes need without conflicts
    sectors: NDArray[np.uint16]  # [m] distinct 32-byte sectors of global or local memory
    ideal_sectors: NDArray[np.uint16]  # [m] sectors that the same bytes need when they are dense
    size_bytes: NDArray[np.uint32]  # [m] bytes asked for by all lanes together
    address: NDArray[np.uint64]  # [m] lowest byte in shared memory, or a barrier (see AccessKind)
    amount: NDArray[np.int32]  # [m] see AccessKind; 0 elsewhere
    line_start: NDArray[np.int64]  # [m + 1]

    line: NDArray[np.uint64]  # [k] address of a 128-byte line of global or local memory
    line_sectors: NDArray[np.uint8]  # [k] bit s: its 32-byte sector s is touched

    cta: tuple[int, int, int]  # blockIdx
    data_branches: NDArray[np.int32]  # instructions whose branch depended on loaded data

    @property
    def num_warps(self) -> int:
        return len(self.warp_start) - 1
