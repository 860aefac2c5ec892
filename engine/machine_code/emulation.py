"""Run the warps of one CTA in the native emulator, to get a trace as flat arrays, and totals."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import CompileError, InvalidCubin, InvalidProblem
from engine.base.memory import Newest
from engine.machine_code.cubin import Entry
from engine.machine_code.disassembly import Program
from engine.machine_code.launch import Launch, constant_bank
from engine.machine_code.native_library import load_library

# Trace of one CTA: flat arrays that the emulator writes and the SM simulator reads.


class AccessKind(IntEnum):
    """Kind of a memory or synchronisation instruction, as in `CtaTrace.kind`."""

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
    ASYNC_WAIT = 11  # cp.async.wait_group; `amount`: groups that may stay pending
    BULK_LOAD = 12  # cp.async.bulk and TMA, to shared; `address`: mbarrier it completes on
    BULK_STORE = 13  # cp.async.bulk and TMA, from shared
    BULK_WAIT = 14  # cp.async.bulk.wait_group; `amount`: groups that may stay pending
    MBARRIER_INIT = 15  # `amount`: arrivals that complete a phase
    MBARRIER_ARRIVE = 16  # `amount`: arrivals; `size_bytes`: added expected transaction bytes
    MBARRIER_WAIT = 17  # one entry for each phase waited for, however often the code polls;
    # `amount`: the phase, counted from 0, whose completion ended the wait
    BARRIER = 18  # bar.sync and similar; `address`: its number; `amount`: participating threads
    BARRIER_ARRIVE = 19  # bar.arrive, which does not block
    TENSOR = 20  # wgmma: operands in shared memory; `size_bytes` read from there
    TENSOR_WAIT = 21  # wgmma.wait_group; `amount`: groups that may stay pending
    TENSOR_COMMIT = 22
    SET_REGISTERS = 23  # setmaxnreg; `amount`: registers per thread from here on


@dataclass(frozen=True, slots=True, eq=False)
class CtaTrace:
    """Trace of one CTA: for each warp, the sequence of instructions that it executed.

    Warp w's entries are `warp_start[w]` to `warp_start[w + 1]` of the arrays of length n. An entry
    that touches memory or synchronises names its row in the arrays of length m; several entries may
    share a row that is equal in every column. Row r's global cache lines are `line_start[r]` to
    `line_start[r + 1]` of the arrays of length k.
    """

    warp_start: NDArray[np.int64]  # [warps + 1]
    instruction: NDArray[np.int32]  # [n] index into Program.instructions
    lanes: NDArray[np.uint8]  # [n] active lanes whose predicate was true: 0 … 32
    access: NDArray[np.int32]  # [n] row below, -1: none

    kind: NDArray[np.uint8]  # [m] AccessKind
    wavefronts: NDArray[np.uint16]  # [m] passes through shared memory
    ideal_wavefronts: NDArray[np.uint16]  # [m] passes without bank conflicts
    sectors: NDArray[np.uint16]  # [m] distinct 32-byte sectors of global or local memory
    ideal_sectors: NDArray[np.uint16]  # [m] sectors that the same bytes need if contiguous
    size_bytes: NDArray[np.uint32]  # [m] bytes requested by all lanes together
    address: NDArray[np.uint64]  # [m] lowest byte in shared memory, or a barrier (see AccessKind)
    amount: NDArray[np.int32]  # [m] see AccessKind; 0 elsewhere
    line_start: NDArray[np.int64]  # [m + 1]

    line: NDArray[np.uint64]  # [k] address of a 128-byte line of global or local memory
    line_sectors: NDArray[np.uint8]  # [k] bit s: its 32-byte sector s is touched

    cta: tuple[int, int, int]  # blockIdx

    @property
    def num_warps(self) -> int:
        return len(self.warp_start) - 1


_SOURCE = Path(__file__).resolve().parent / "native" / "emulator.cpp"
MAX_STEPS = 30_000_000  # warp instructions of one CTA; a trace takes 9 bytes each
_BANKS = 8
_RESERVED_SMEM_BYTES = 1024  # below a CTA's own shared memory since sm_90
_SMEM_UNIT_BYTES = 128  # allocation unit (Turing: 256)
_MIN_LOCAL_BYTES = 1024
_MAX_LOCAL_BYTES = 512 << 10  # per thread; CUDA C++ Programming Guide, as the limits below
_MAX_SMEM_BYTES = 256 << 10  # more than an SM of any GPU has
# CUDA C++ Programming Guide, technical specifications per compute capability.
_MAX_CTAS_BY_AXIS = (2**31 - 1, 65_535, 65_535)
_MAX_THREADS_BY_AXIS = (1024, 1024, 64)
_MAX_THREADS = 1024

# Columns of `Totals.values`.
EXECUTED, LANES, WAVEFRONTS, IDEAL_WAVEFRONTS, SECTORS, IDEAL_SECTORS, SIZE_BYTES, ACCESSES = range(
    8
)


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Counts of one CTA for each instruction of the program, summed over its warps."""

    values: NDArray[np.int64]  # [instructions, 8]: the columns named above
    data_branch: NDArray[np.bool_]  # [instructions] branch or predicate depends on loaded data
    data_address: NDArray[np.bool_]  # [instructions] address depends on loaded data
    stand_in: NDArray[np.bool_]  # [instructions] unsupported opcode: its result is made up
    control_axes: tuple[bool, bool, bool]  # branches or predicates depend on blockIdx.x, y, z
    cta: tuple[int, int, int]


class _Request(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_void_p),
        ("arch", ctypes.c_int32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cta", ctypes.c_uint32 * 3),
        ("constants", ctypes.c_char_p * _BANKS),
        ("constant_bytes", ctypes.c_int32 * _BANKS),
        ("smem_bytes", ctypes.c_uint32),
        ("local_bytes", ctypes.c_uint32),
        ("max_steps", ctypes.c_int64),
        ("keep_trace", ctypes.c_int32),
        ("left_out", ctypes.c_void_p),
        ("find_hazards", ctypes.c_int32),
        ("known_at", ctypes.c_uint64 * 2),
        ("known", ctypes.c_char_p * 2),
        ("known_bytes", ctypes.c_uint32 * 2),
        ("probe_site", ctypes.c_void_p),
        ("probe_out", ctypes.c_void_p),
        ("probe_sites", ctypes.c_int32),
        # Used only for whole launches on real memory (engine/machine_code/execution).
        ("buffers", ctypes.c_void_p),
        ("buffer_count", ctypes.c_int32),
        ("cluster", ctypes.c_uint32 * 3),
        ("clock", ctypes.c_uint64),
        ("reversed", ctypes.c_int32),
        ("hazards", ctypes.c_void_p),
        ("hazard_capacity", ctypes.c_int32),
        ("hazard_count", ctypes.c_void_p),
        ("watched", ctypes.c_uint64),
        ("last_write", ctypes.c_void_p),
        ("chosen", ctypes.c_void_p),
        ("chosen_count", ctypes.c_int64),
    )


def new_request(
    program: Program,
    entry: Entry,
    launch: Launch,
    code: Code,
    windows: tuple[int, int] = (0, 0),
    cluster: tuple[int, int, int] = (1, 1, 1),
) -> _Request:
    """Build the native request for a launch.

    Args:
        code: the decoded program.
        windows: upper 32 bits of the generic addresses of shared and local memory.
        cluster: CTAs of a cluster along x, y and z.

    Raises:
        InvalidProblem: the launch does not match the entry, or exceeds the limits of every GPU.
        InvalidCubin: the entry's stack is larger than CUDA allows.
    """
    _check_launch(launch)
    if any(size % by for size, by in zip(launch.grid, cluster, strict=True)):
        raise InvalidProblem(
            f"A grid of {', '.join(map(str, launch.grid))} is not a multiple of the cluster size "
            f"{', '.join(map(str, cluster))}, and CUDA does not launch it: give a multiple.",
            code="grid_cuts_clusters",
        )
    if entry.required_block not in (None, launch.block) or launch.threads > entry.max_threads:
        most = f"of up to {entry.max_threads:,} threads, by its __launch_bounds__"
        allowed = f"of exactly {entry.required_block}" if entry.required_block else most
        raise InvalidProblem(
            f"{entry.name} is compiled for CTAs {allowed}, and CUDA does not launch it with "
            f"{launch.threads:,}: change one of them.",
            code="block_beyond_bounds",
        )
    number = int(program.arch[3:].rstrip("af"))
    launched = constant_bank(entry, program.arch, launch, windows, cluster)
    constants = dict(entry.constants) | {0: launched}
    request = _Request()
    request.code = code.handle
    request.arch = number
    request.grid[:] = launch.grid
    request.block[:] = launch.block
    request.cluster[:] = cluster
    for bank, content in constants.items():
        request.constants[bank] = content
        request.constant_bytes[bank] = len(content)
    reserved = reserved_smem_bytes(program.arch)
    own = program.static_smem_bytes + launch.dynamic_smem_bytes
    if own > _MAX_SMEM_BYTES:
        raise InvalidProblem(
            f"{program.entry} is launched with {own:,} bytes of shared memory "
            f"({program.static_smem_bytes:,} of them static), more than a CTA can have on any GPU."
        )
    if entry.frame_bytes > _MAX_LOCAL_BYTES:
        raise InvalidCubin(
            f"{program.entry} needs {entry.frame_bytes:,} bytes of stack per thread, and CUDA "
            f"allows at most {_MAX_LOCAL_BYTES:,}: the cubin is damaged."
        )
    # Shared memory is allocated in units; compiled code may read whole vectors into the last one.
    request.smem_bytes = reserved + -(-own // _SMEM_UNIT_BYTES) * _SMEM_UNIT_BYTES
    request.local_bytes = local_bytes(entry)
    return request


def local_bytes(entry: Entry) -> int:
    """Local memory of a thread: the stack size rounded up to a power of two."""
    return 1 << (max(_MIN_LOCAL_BYTES, entry.frame_bytes + 256) - 1).bit_length()


def reserved_smem_bytes(arch: str) -> int:
    """Bytes that the system reserves below a CTA's own shared memory."""
    return _RESERVED_SMEM_BYTES if int(arch[3:].rstrip("af")) >= 90 else 0


class Emulator:
    """Emulator of one launch of a program; it can run any of its CTAs.

    Raises (from the constructor):
        InvalidProblem: the launch does not match the entry.
        ToolMissing, CompileError: the native library cannot be built.
    """

    def __init__(self, program: Program, entry: Entry, launch: Launch) -> None:
        self._library = _library()
        self.program, self.launch, self._outside = program, launch, entry.outside
        self._code = Code.of(program, self._library)
        request = self._request = new_request(program, entry, launch, self._code)
        for n, (address, content) in enumerate(launch.known):
            request.known_at[n], request.known[n] = address, content
            request.known_bytes[n] = len(content)
        request.max_steps = MAX_STEPS

    def totals(self, cta: tuple[int, int, int] = (0, 0, 0)) -> Totals:
        """Totals of what the CTA executes.

        Raises:
            CompileError: the emulation cannot continue; the message names the instruction.
        """
        handle = self._run(cta, keep_trace=False)
        try:
            return self._totals(handle, cta)
        finally:
            self._library.sass_free(handle)

    def trace(self, cta: tuple[int, int, int] = (0, 0, 0)) -> tuple[CtaTrace, Totals]:
        """Trace of the CTA, and its totals. Raises as `totals`."""
        handle = self._run(cta, keep_trace=True)
        try:
            totals = self._totals(handle, cta)
            return self._trace(handle, cta), totals
        finally:
            self._library.sass_free(handle)

    def first_sectors(
        self, sites: NDArray[np.int32], cta: tuple[int, int, int], max_steps: int
    ) -> NDArray[np.uint64]:
        """The lowest sector that each of some instructions touches at its first execution; 0 if the
        CTA does not execute it within `max_steps` warp instructions.

        Args:
            sites: indices of instructions, each once.
        """
        site_of = np.full(len(self.program.instructions), -1, np.int32)
        site_of[sites] = np.arange(len(sites), dtype=np.int32)
        found = np.zeros(len(sites), np.uint64)
        request = self._request
        request.probe_site, request.probe_out = site_of.ctypes.data, found.ctypes.data
        request.probe_sites, request.max_steps = len(sites), max_steps
        request.cta[:] = cta
        request.keep_trace = request.find_hazards = False
        try:
            handle = ctypes.c_void_p(self._library.sass_emulate(ctypes.byref(request)))
            self._library.sass_free(handle)
        finally:
            request.probe_site = request.probe_out = None
            request.max_steps = MAX_STEPS
        return found

    def idle_barriers(
        self, wanted: NDArray[np.bool_], cta: tuple[int, int, int] = (0, 0, 0)
    ) -> NDArray[np.bool_]:
        """Barriers that the CTA does not need, `[instructions]`; all can be removed together.

        They do not order accesses of different warps. If mbarriers, bulk copies, wgmma or barriers
        of a part of the warps also order accesses, none is reported. Raises as `totals`.

        Args:
            wanted: the barriers to test; the others stay.
        """
        left_out = np.zeros(len(self.program.instructions), np.uint8)
        while True:
            idle = np.flatnonzero(self._idle_barriers(cta, left_out) & wanted)
            if len(idle) == 0:
                return left_out.astype(np.bool_)
            left_out[idle[-1]] = 1  # one at a time: with it removed, others may be needed

    def _idle_barriers(
        self, cta: tuple[int, int, int], left_out: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Barriers that could each be removed in addition to `left_out`."""
        self._request.left_out = left_out.ctypes.data
        handle = self._run(cta, keep_trace=False, find_hazards=True)
        try:
            use = np.zeros(len(self.program.instructions), np.uint8)
            is_known = self._library.sass_barriers(handle, *_pointers([use]))
            return np.asarray((use == 1) & bool(is_known), np.bool_)
        finally:
            self._library.sass_free(handle)

    def _run(
        self, cta: tuple[int, int, int], keep_trace: bool, find_hazards: bool = False
    ) -> ctypes.c_void_p:
        self._request.cta[:] = cta
        self._request.keep_trace = keep_trace
        self._request.find_hazards = find_hazards
        handle = ctypes.c_void_p(self._library.sass_emulate(ctypes.byref(self._request)))
        error = self._library.sass_error(handle)
        if error is None:
            return handle
        self._library.sass_free(handle)
        what = error.decode()
        if what == "LIMIT":
            raise CompileError(
                f"{self.program.entry} runs more than {MAX_STEPS:,} warp instructions in one CTA: "
                "give a smaller problem, or check that loops which wait for memory written by "
                "other CTAs can end."
            )
        if what.startswith("CALL"):
            what += self._called_outside()
        raise CompileError(f"{self.program.entry} cannot be emulated: {what}.")

    def _called_outside(self) -> str:
        outside = self._outside
        if not outside:
            return " (a pointer to a function?)"
        return (
            f": the code calls {', '.join(outside)}, which the GPU's driver supplies. Compile it "
            "without such calls (printf, assert, malloc) to count the rest"
        )

    def _totals(self, handle: ctypes.c_void_p, cta: tuple[int, int, int]) -> Totals:
        count = len(self.program.instructions)
        values = np.zeros((count, 8), np.int64)
        data_branch, data_address, stand_in = (np.zeros(count, np.bool_) for _ in range(3))
        arrays: list[NDArray[Any]] = [values, data_branch, data_address, stand_in]
        self._library.sass_totals(handle, *_pointers(arrays))
        axes = self._sizes(handle)[4]
        return Totals(
            values=values,
            data_branch=data_branch,
            data_address=data_address,
            stand_in=stand_in,
            control_axes=(bool(axes & 1), bool(axes & 2), bool(axes & 4)),
            cta=cta,
        )

    def _trace(self, handle: ctypes.c_void_p, cta: tuple[int, int, int]) -> CtaTrace:
        warps, executed, rows, lines, *_ = self._sizes(handle)
        warp_start = np.zeros(warps + 1, np.int64)
        instruction, access = np.zeros(executed, np.int32), np.zeros(executed, np.int32)
        lanes = np.zeros(executed, np.uint8)
        self._library.sass_trace(handle, *_pointers([warp_start, instruction, lanes, access]))
        kind, wavefronts, ideal_wavefronts = (
            np.zeros(rows, np.uint8),
            np.zeros(rows, np.uint16),
            np.zeros(rows, np.uint16),
        )
        sectors, ideal_sectors = np.zeros(rows, np.uint16), np.zeros(rows, np.uint16)
        size_bytes, address = np.zeros(rows, np.uint32), np.zeros(rows, np.uint64)
        amount, line_start = np.zeros(rows, np.int32), np.zeros(rows + 1, np.int64)
        line, line_sectors = np.zeros(lines, np.uint64), np.zeros(lines, np.uint8)
        columns: list[NDArray[Any]] = [
            kind,
            wavefronts,
            ideal_wavefronts,
            sectors,
            ideal_sectors,
            size_bytes,
        ]
        columns += [address, amount, line_start, line, line_sectors]
        self._library.sass_rows(handle, *_pointers(columns))
        return CtaTrace(
            warp_start=warp_start,
            instruction=instruction,
            lanes=lanes,
            access=access,
            kind=kind,
            wavefronts=wavefronts,
            ideal_wavefronts=ideal_wavefronts,
            sectors=sectors,
            ideal_sectors=ideal_sectors,
            size_bytes=size_bytes,
            address=address,
            amount=amount,
            line_start=line_start,
            line=line,
            line_sectors=line_sectors,
            cta=cta,
        )

    def _sizes(self, handle: ctypes.c_void_p) -> list[int]:
        out = np.zeros(6, np.int64)
        self._library.sass_sizes(handle, *_pointers([out]))
        return [int(v) for v in out]


class Code:
    """A program decoded by a native library, which frees it with this object."""

    @staticmethod
    def of(program: Program, library: ctypes.CDLL) -> Code:
        """The decoded program; the last few are cached, as a kernel's CTAs are run many times."""
        key = (library._name, program.cubin_sha256, program.entry)
        if not program.cubin_sha256 or (code := _codes.get(key)) is None:
            code = Code(program, library)
            _codes[key] = code
        return code

    def __init__(self, program: Program, library: ctypes.CDLL) -> None:
        text, targets = text_and_targets(program)
        self.handle = ctypes.c_void_p(
            library.sass_decode(text.encode(), *_pointers([targets]), len(targets))
        )
        weakref.finalize(self, library.sass_free_code, self.handle)


_codes = Newest[tuple[str, str, str], Code](4)  # by library, cubin, entry


def _library() -> ctypes.CDLL:
    library = load_library(_SOURCE)
    library.sass_decode.restype = library.sass_emulate.restype = ctypes.c_void_p
    library.sass_error.restype = ctypes.c_char_p
    library.sass_barriers.restype = ctypes.c_bool
    return library


def _pointers(arrays: Sequence[NDArray[Any]]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def text_and_targets(program: Program) -> tuple[str, NDArray[np.int32]]:
    """The input of the native `sass_decode`.

    Returns:
        One line for each instruction, with its address, predicate, mnemonic and operands separated
        by tabs; and `[instructions]` the index of each branch target, -1 for none.
    """
    index_of: dict[int | None, int] = {i.address: n for n, i in enumerate(program.instructions)}
    targets = np.array([index_of.get(i.target, -1) for i in program.instructions], np.int32)
    lines = (
        "\t".join((str(i.address), i.predicate, i.mnemonic, *i.operands))
        for i in program.instructions
    )
    return "\n".join(lines) + "\n", targets


def _check_launch(launch: Launch) -> None:
    if min(launch.grid) < 1 or min(launch.block) < 1:
        raise InvalidProblem("Grid and block must be at least 1 in each dimension.")
    for what, sizes, most in (
        ("grid", launch.grid, _MAX_CTAS_BY_AXIS),
        ("block", launch.block, _MAX_THREADS_BY_AXIS),
    ):
        if any(size > limit for size, limit in zip(sizes, most, strict=True)):
            listed, limits = (", ".join(f"{n:,}" for n in each) for each in (sizes, most))
            raise InvalidProblem(
                f"A {what} of {listed} exceeds CUDA's limits: at most {limits} along x, y and z."
            )
    if launch.threads > _MAX_THREADS:
        raise InvalidProblem(f"A CTA has at most {_MAX_THREADS} threads, not {launch.threads}.")
