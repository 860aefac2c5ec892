"""Execute one launch of machine code on the host, on real memory, and report hazards.

The native emulator computes the values that a GPU would.
"""

from __future__ import annotations

import ctypes
import re
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import AttuneError, CompileError
from engine.machine_code.cubin import Cubin, Entry, Section, read_sections
from engine.machine_code.disassembly import Instruction, Program
from engine.machine_code.emulation import Code, new_request
from engine.machine_code.launch import Launch
from engine.machine_code.native_library import is_built, load_library

# Hazards: pairs of unordered accesses to shared or global memory.

MAX_HAZARDS = 64  # distinct hazards that are recorded; further ones are only counted

HazardKind: TypeAlias = Literal[
    "read-after-write",
    "write-after-read",
    "write-after-write",
    "missing proxy fence",
    "exit before the end",  # the CTA exits while a copy still reads its shared memory
    "exit before a peer",  # the CTA exits while its cluster still uses its shared memory
]
_KINDS: tuple[HazardKind, ...] = get_args(HazardKind)
_DOES = ("reads", "overwrites", "overwrites", "reads", "gives up", "gives up")
_DID = ("wrote", "read", "wrote", "wrote", "read", "used from another CTA")
_DOING = ("writes", "reads", "writes", "writes", "reads", "uses")
_NO_ORDER = "no barrier orders the two"
_NO_PROXY_FENCE = "no fence.proxy.async lies between the two"
_NO_ORDER_BETWEEN_CTAS = (
    "no strong write behind a fence, read with a fence behind that, orders the two"
)
_COPIES = -1
_RESERVED = 1024  # bytes below a CTA's own shared memory from sm_90 on


class HazardRow(ctypes.Structure):
    """`Hazard` of native/request.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("before", ctypes.c_int32),
        ("now", ctypes.c_int32),
        ("under_way", ctypes.c_int32),
        ("warp_before", ctypes.c_int32),
        ("warp_now", ctypes.c_int32),
        ("cta", ctypes.c_uint32 * 3),
        ("is_global", ctypes.c_int32),
        ("warps_per_cta", ctypes.c_int32),
        ("address", ctypes.c_uint64),
        ("other_cluster", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two accesses to the same bytes of shared or global memory, at least one of them a write, that
    no barrier, mbarrier, atomic, fence or wait orders."""

    kind: HazardKind
    before: Instruction
    now: Instruction
    in_flight: bool  # `before` is asynchronous, and nothing waited for it to complete
    warps: tuple[int | None, int | None]  # index in the CTA; None: a TMA copy
    cta: tuple[int, int, int]  # owner of the shared memory, or the CTA that first executed `now`
    address: int  # bytes from the start of the CTA's shared memory, or of the buffer
    count: int  # accesses, in units of 2 bytes of shared or 4 bytes of global memory
    buffer: str = ""  # name of the global buffer; empty: shared memory
    cta_before: tuple[int, int, int] | None = None  # that executed `before`; None: shared memory

    @property
    def sentence(self) -> str:
        """A sentence that names both instructions, with their source lines if known."""
        number = _KINDS.index(self.kind)
        elsewhere = self.cta_before is not None and self.cta_before != self.cta
        if self.in_flight:
            why = f"which {place_of(self.before)} still {_DOING[number]}: nothing waited for it"
        else:
            missing = _NO_ORDER_BETWEEN_CTAS if elsewhere else _NO_ORDER
            if self.kind == "missing proxy fence":
                missing = _NO_PROXY_FENCE
            of = _of(self.warps[0])
            if elsewhere and self.cta_before is not None:
                of += f" of CTA {_numbers(self.cta_before)}"
            why = f"which {place_of(self.before)}{of} {_DID[number]}: {missing}"
        memory = f"buffer {self.buffer!r}" if self.buffer else "shared memory"
        return (
            f"{place_of(self.now)}{_of(self.warps[1])} {_DOES[number]} byte {self.address} of "
            f"{memory}, {why} (CTA {_numbers(self.cta)}; {self.count:,} times)."
        )


def _numbers(cta: tuple[int, int, int]) -> str:
    return ", ".join(map(str, cta))


def hazard_of(
    program: Program,
    row: HazardRow,
    launch: Launch,
    cluster: tuple[int, int, int],
    buffers: Sequence[GlobalBuffer],
) -> Hazard:
    """Convert a native row to a `Hazard`; `buffers` are in ascending order of address."""
    code = program.instructions
    if row.is_global:
        buffer = buffers[bisect_right([b.address for b in buffers], row.address) - 1]
        rank = row.warp_before // row.warps_per_cta
        return Hazard(
            kind=_KINDS[row.kind],
            before=code[row.before],
            now=code[row.now],
            in_flight=bool(row.under_way),
            warps=(row.warp_before % row.warps_per_cta, int(row.warp_now)),
            cta=(row.cta[0], row.cta[1], row.cta[2]),
            address=row.address - buffer.address,
            count=row.count,
            buffer=buffer.name,
            cta_before=_cta_of(row.other_cluster, rank, launch.grid, cluster),
        )
    warps = tuple(None if w == _COPIES else int(w) for w in (row.warp_before, row.warp_now))
    reserved = _RESERVED if int(program.arch[3:].rstrip("af")) >= 90 else 0
    return Hazard(
        kind=_KINDS[row.kind],
        before=code[row.before],
        now=code[row.now],
        in_flight=bool(row.under_way),
        warps=(warps[0], warps[1]),
        cta=(row.cta[0], row.cta[1], row.cta[2]),
        address=row.address - reserved,
        count=row.count,
    )


def _cta_of(
    number: int, rank: int, grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> tuple[int, int, int]:
    """blockIdx of a CTA by the number of its cluster, as native/execute_launch.h numbers them."""
    wide, high = grid[0] // cluster[0], grid[1] // cluster[1]
    return (
        number % wide * cluster[0] + rank % cluster[0],
        number // wide % high * cluster[1] + rank // cluster[0] % cluster[1],
        number // wide // high * cluster[2] + rank // (cluster[0] * cluster[1]),
    )


def place_of(at: Instruction) -> str:
    """`STS at 0x0190 (k.cu:10)`."""
    return f"{at.mnemonic} at 0x{at.address:04x}{lines_of(at)}"


def lines_of(at: Instruction | None) -> str:
    """` (tiles.cuh:31 in v08_mma_sync.cu:90)`, innermost first; empty without line information."""
    if at is None or not at.source:
        return ""
    first, last = at.source[0], at.source[-1]
    places = [f"{first.file}:{first.line}"]
    if last != first:
        places.append(f"{last.file}:{last.line}")
    return f" ({' in '.join(places)})"


def _of(warp: int | None) -> str:
    return "" if warp is None else f" of warp {warp}"


_SOURCE = Path(__file__).resolve().with_name("native") / "execute.cpp"
_ERROR_BYTES = 1024
_NO_LIMIT = 2**62
WINDOWS = (0x100, 0x200)  # SHARED_HIGH and LOCAL_HIGH of native/emulator.cpp
_PLACE = re.compile(r"^\S+ at 0x([0-9a-f]+) ")
_ADDRESS = re.compile(r" bytes at 0x([0-9a-f]+)")  # of global memory
_REACHES = re.compile(r"^\S+ at 0x[0-9a-f]+ reaches ")  # native message about an address
# Native messages about unsupported code, as opposed to wrong code.
_UNSUPPORTED = re.compile(r"\bnot supported here\b")
_BUFFER = re.compile(r"BUFFER (\d+)")
_WRITES_READ_ONLY = re.compile(r"^\S+ at 0x[0-9a-f]+ writes to BUFFER \d+, which is read-only")


class ExecutionFault(AttuneError):
    """The code did something invalid or unsupported: instruction, line, CTA."""


class UnsupportedInstruction(ExecutionFault):
    """An instruction, modifier or operand that the emulator does not support; the code may be
    right."""


class ReadOnlyWrite(ExecutionFault):
    """A write to a buffer that is read-only."""


class OutOfBounds(ExecutionFault):
    """An access outside every buffer of the launch; `address` is its first byte."""

    def __init__(self, message: str, address: int = 0) -> None:
        super().__init__(message)
        self.address = address


class ExecutionTimeout(AttuneError):
    """The launch exceeded its time limit."""


@dataclass(frozen=True, slots=True)
class GlobalBuffer:
    """A range of global memory: the bytes of `data` at `address`. Accesses outside every buffer are
    faults."""

    name: str
    address: int
    data: NDArray[np.uint8]
    read_only: bool = False  # `data` is shared: a write is a fault and changes nothing


@dataclass(frozen=True, slots=True)
class Watch:
    """Find the instruction that last writes the byte at a global address."""

    address: int
    writes: list[str]  # receives one sentence, or none if nothing wrote the byte


class _Write(ctypes.Structure):
    """`Write` of native/request.h."""

    _fields_ = (
        ("at", ctypes.c_int32),
        ("cta", ctypes.c_uint32 * 3),
        ("warp", ctypes.c_int32),
    )


class _Range(ctypes.Structure):
    """`Buffer` of native/request.h."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("host", ctypes.c_void_p),
        ("read_only", ctypes.c_uint64),
    )


def is_prepared() -> bool:
    """Whether the native library is already built."""
    return is_built(_SOURCE)


def prepare() -> None:
    """Build and load the native library before its first use.

    Raises:
        ToolMissing, CompileError: it cannot be built.
    """
    load_library(_SOURCE, ahead=True)


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
    """Run every CTA of the launch on the buffers.

    Args:
        threads: number of host threads.
        reverse: run CTAs, and the warps of each, in reverse order, so that missing synchronisation
            changes the result.
        hazards: receives the hazards found, also if an error ends the launch. None: do not look
            for hazards, which is several times faster.
        watch: a byte whose last writer is wanted; needs `threads` = 1.
        ctas: linear indices of the CTAs to run instead of all; only without clusters.

    Returns:
        Number of warp instructions executed.

    Raises:
        OutOfBounds: an access beyond a buffer.
        ReadOnlyWrite: a write to a read-only buffer.
        UnsupportedInstruction: an unsupported instruction.
        ExecutionFault: a misaligned access, a trap or a deadlock.
        ExecutionTimeout: the launch took longer than `timeout_s`.
        InvalidProblem: the launch does not match the entry.
        ToolMissing, CompileError: the native library cannot be built.
    """
    library = _library()
    code = Code.of(program, library)
    request = new_request(program, entry, launch, code, WINDOWS, cluster)
    ordered = sorted(buffers, key=lambda buffer: buffer.address)
    ranges = (_Range * len(ordered))(
        *(_Range(b.address, b.data.nbytes, b.data.ctypes.data, b.read_only) for b in ordered)
    )
    request.reversed = int(reverse)
    request.max_steps = _NO_LIMIT  # the time limit ends infinite loops
    request.buffers, request.buffer_count = ctypes.addressof(ranges), len(ordered)
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    cta, steps = np.zeros(3, np.uint32), np.zeros(1, np.int64)
    num_ctas = launch.ctas // prod(cluster)
    if ctas is not None:
        chosen = np.array(ctas, np.int64)
        request.chosen, request.chosen_count = chosen.ctypes.data, len(chosen)
        num_ctas = len(chosen)
    found, found_count = (HazardRow * MAX_HAZARDS)(), ctypes.c_int32(0)
    if hazards is not None:
        request.hazards, request.hazard_capacity = ctypes.addressof(found), MAX_HAZARDS
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
        rows = found[: min(MAX_HAZARDS, found_count.value)]
        hazards += (hazard_of(program, row, launch, cluster, ordered) for row in rows)
    if watch is not None and written.at >= 0:
        x, y, z = written.cta
        at = place_of(program.instructions[written.at])
        watch.writes.append(f"{program.entry}: {at} (CTA {x}, {y}, {z}, warp {written.warp})")
    if status == 1:
        names = [buffer.name for buffer in ordered]
        what = error.value.decode(errors="replace")
        said = _sentence(program, what, names, tuple(cta.tolist()))
        if _UNSUPPORTED.search(what):
            raise UnsupportedInstruction(said)
        if _WRITES_READ_ONLY.match(what):
            raise ReadOnlyWrite(said)
        if _REACHES.match(what):
            found_at = _ADDRESS.search(what)
            raise OutOfBounds(said, int(found_at[1], 16) if found_at is not None else 0)
        raise ExecutionFault(said)
    if status == 2:
        raise ExecutionTimeout(
            f"{program.entry} did not finish within {timeout_s:g} s.", code="execution_time_limit"
        )
    return int(steps[0])


def _sentence(program: Program, what: str, names: Sequence[str], cta: tuple[int, ...]) -> str:
    """Message of a fault, with its source line, the names of buffers and the CTA."""
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


# A loaded cubin: its global variables, and their addresses in constant banks.

_FIRST_ADDRESS = 0x6000_0000_0000
_STEP = 1 << 32
_NOWHERE = 0x7FA5_0000_0000
_NO_BITS = 8
_WITH_ADDENDS, _WITHOUT_ADDENDS = 4, 9  # SHT_RELA, SHT_REL
_ADDRESS_64, _FUNCTION_64 = 2, 35  # R_CUDA_64, R_CUDA_FUNC_DESC_64
_CONSTANTS = re.compile(r"\.rela?\.nv\.constant(\d)(?:\.(.+))?")


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded cubin: the state of its `__device__` variables, which all its launches share."""

    buffers: tuple[GlobalBuffer, ...]
    entries: Mapping[str, Entry]  # with the variables' addresses in their constants


def load_module(cubin: Cubin, first_address: int = _FIRST_ADDRESS) -> Module:
    """Place the cubin's variables in memory from `first_address` on.

    Raises:
        CompileError: the cubin contains an unsupported relocation.
    """
    sections = read_sections(cubin.data)
    buffers: list[GlobalBuffer] = []
    address_of: dict[int, int] = {}
    for number, section in enumerate(sections):
        if section.name not in (".nv.global", ".nv.global.init"):
            continue
        content = np.zeros(-(-section.size // 8) * 8, np.uint8)
        if section.kind != _NO_BITS:
            content[: section.size] = np.frombuffer(section.of(cubin.data), np.uint8)
        address_of[number] = first_address + len(buffers) * _STEP
        buffers.append(GlobalBuffer(section.name, address_of[number], content[: section.size]))
    entries = dict(cubin.entries)
    for section in sections:
        if section.kind not in (_WITH_ADDENDS, _WITHOUT_ADDENDS):
            continue
        if (found := _CONSTANTS.fullmatch(section.name)) is None:
            continue
        bank = int(found[1])
        for name, entry in entries.items():
            if found[2] in (None, name) and bank in entry.constants:
                patched = _relocated(cubin, sections, section, entry.constants[bank], address_of)
                entries[name] = replace(entry, constants={**entry.constants, bank: patched})
    return Module(tuple(buffers), entries)


def _relocated(
    cubin: Cubin,
    sections: list[Section],
    relocations: Section,
    content: bytes,
    address_of: Mapping[int, int],
) -> bytes:
    """The constant bank with its relocations applied."""
    symbols = next(s for s in sections if s.name == ".symtab").of(cubin.data)
    given = relocations.kind == _WITH_ADDENDS
    patched = bytearray(content)
    for where, info, *addend in struct.iter_unpack(
        "<QQq" if given else "<QQ", relocations.of(cubin.data)
    ):
        kind, symbol = info & 0xFFFFFFFF, info >> 32
        _, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", symbols, 24 * symbol)
        if kind not in (_ADDRESS_64, _FUNCTION_64) or where + 8 > len(patched):
            raise CompileError(
                f"This cubin's constants contain a relocation of type {kind}, which is not "
                "supported (a texture?)."
            )
        offset = addend[0] if given else struct.unpack_from("<q", patched, where)[0]
        # Functions have no address here; a call of one ends with a message.
        address = address_of[section] + value + offset if section in address_of else _NOWHERE
        struct.pack_into("<Q", patched, where, address)
    return bytes(patched)
