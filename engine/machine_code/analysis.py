"""Machine code and its counts, from the cache on disk where they were made before."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.cuda_source.cache import cache_root, read_entry, write_entry
from engine.machine_code.counts import LaunchCounts, count_launch
from engine.machine_code.cubin import Cubin, Entry, read_cubin
from engine.machine_code.disassembly import (
    Disassembly,
    disassemble,
    find_entry,
    list_live_registers,
)
from engine.machine_code.emulation import Emulator
from engine.machine_code.instruction import Program
from engine.machine_code.launch import Launch

_FORMAT = "4"  # of the entries below
_MOST_PROGRAMS = 16  # kept in memory
_ARRAYS = ("totals", "work", "data_branch", "data_address", "stand_in")


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """One launch: its code, and what it executes."""

    program: Program
    entry: Entry
    launch: Launch
    counts: LaunchCounts
    live_registers: dict[int, int]  # {address: general registers alive there}

    @property
    def smem_bytes(self) -> int:
        """Of a CTA, without what the system reserves."""
        return self.program.static_smem_bytes + self.launch.dynamic_smem_bytes


def disassembled(cubin: Cubin) -> Disassembly:
    """`disassemble`, from the cache where the same cubin was read before."""
    path = _cubin_path(cubin, "listing")
    if (payload := read_entry(path)) is not None:
        try:
            return Disassembly(cubin, _sha256(cubin), zlib.decompress(payload).decode())
        except (ValueError, zlib.error):
            pass  # it is read again
    made = disassemble(cubin)
    write_entry(path, zlib.compress(made.listing.encode(), level=1))
    return made


def live_registers(cubin: Cubin, entry: str) -> dict[int, int]:
    """{address: general registers alive there} of one entry, from the cache or by nvdisasm.

    Raises:
        ToolMissing, CompileError: as `disassemble`.
    """
    path = _cubin_path(cubin, "live")
    if (payload := read_entry(path)) is not None:
        try:
            return {int(k): int(v) for k, v in json.loads(payload)[entry].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            pass  # it is read again
    listed = list_live_registers(cubin)
    write_entry(path, json.dumps(listed).encode())
    return listed.get(entry, {})


def program_of(cubin: Cubin, entry: str) -> Program:
    """One entry's machine code, read once in a process. Raises as `disassemble`."""
    key = (_sha256(cubin), entry)
    if key not in _programs:
        while len(_programs) >= _MOST_PROGRAMS:
            _programs.pop(next(iter(_programs)), None)
        _programs[key] = disassembled(cubin).program(entry)
    return _programs[key]


_programs: dict[tuple[str, str], Program] = {}


def analyse(cubin: bytes, entry: str | None, launch: Launch) -> Analysis:
    """Count one launch of an entry; None: the cubin's only one.

    Raises:
        CompileError: no cubin, or code that cannot be run on.
        UnknownName: there is no such entry.
        InvalidProblem: the launch does not fit it.
        ToolMissing: nvdisasm or a C++ compiler is not installed.
    """
    read = read_cubin(cubin)
    described = find_entry(read, entry)
    with ThreadPoolExecutor(1) as pool:  # nvdisasm runs beside the emulator
        live = pool.submit(live_registers, read, described.name)
        program = program_of(read, described.name)
        counts = _counted(program, described, launch)
        return Analysis(program, described, launch, counts, live.result())


def count(cubin: bytes, entry: str | None, launch: Launch) -> LaunchCounts:
    """What one launch of an entry executes, without the rest of `analyse`. Raises as it does."""
    read = read_cubin(cubin)
    described = find_entry(read, entry)
    return _counted(program_of(read, described.name), described, launch)


def _counted(program: Program, entry: Entry, launch: Launch) -> LaunchCounts:
    parts = [_FORMAT, _native_digest(), program.cubin_sha256, program.entry]
    parts += [repr((launch.grid, launch.block, launch.dynamic_smem_bytes, launch.arguments))]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    path = _folder() / key[:2] / f"{key}-counts"
    if (payload := read_entry(path)) is not None:
        try:
            return _from_bytes(payload, program, launch)
        except (ValueError, KeyError, TypeError, OSError):
            pass  # it is counted again
    counts = count_launch(Emulator(program, entry, launch))
    write_entry(path, _to_bytes(counts))
    return counts


def _to_bytes(counts: LaunchCounts) -> bytes:
    file = io.BytesIO()
    head: list[object] = [counts.longest_cta, counts.shortest_cta]
    head += [counts.emulated, counts.exact, counts.exact_sectors]
    arrays = {name: getattr(counts, name) for name in _ARRAYS}
    np.savez_compressed(file, head=np.array(json.dumps(head)), **arrays)
    return file.getvalue()


def _from_bytes(payload: bytes, program: Program, launch: Launch) -> LaunchCounts:
    with np.load(io.BytesIO(payload), allow_pickle=False) as stored:
        longest, shortest, emulated, exact, exact_sectors = json.loads(str(stored["head"]))
        return LaunchCounts(
            program=program,
            launch=launch,
            longest_cta=tuple(longest),
            shortest_cta=tuple(shortest),
            emulated=emulated,
            exact=exact,
            exact_sectors=exact_sectors,
            **{name: stored[name] for name in _ARRAYS},
        )


@functools.cache
def _native_digest() -> str:
    """Of the emulator: a change of it counts everything again."""
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parent
    for file in sorted([*(folder / "native").iterdir(), folder / "counts.py"]):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


@functools.cache
def code_digest() -> str:
    """Of everything that reads, counts and times machine code."""
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parent
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".py", ".cpp", ".h"):
            digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _sha256(cubin: Cubin) -> str:
    return hashlib.sha256(cubin.data).hexdigest()


def _cubin_path(cubin: Cubin, what: str) -> Path:
    sha256 = _sha256(cubin)
    return _folder() / sha256[:2] / f"{sha256}-{what}-{_FORMAT}"


def _folder() -> Path:
    return cache_root() / "sass"
