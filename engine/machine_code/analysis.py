"""Analysis of a launch: machine code, counts and derived figures, cached by content."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import InvalidCubin
from engine.base.files import cache_root, read_entry, write_entry
from engine.base.memory import Newest
from engine.machine_code.counts import LaunchCounts, count_launch
from engine.machine_code.cubin import Cubin, Entry, read_cubin
from engine.machine_code.disassembly import (
    Disassembly,
    Instruction,
    Loop,
    Program,
    SourceLine,
    disassemble,
    find_entry,
    find_loops,
    list_live_registers,
)
from engine.machine_code.emulation import (
    ACCESSES,
    EXECUTED,
    IDEAL_SECTORS,
    IDEAL_WAVEFRONTS,
    LANES,
    SECTORS,
    SIZE_BYTES,
    WAVEFRONTS,
    Emulator,
)
from engine.machine_code.launch import Launch

_FORMAT = "5"  # version of the cache entries below
_ARRAYS = ("totals", "work", "data_branch", "data_address", "stand_in")


@dataclass(frozen=True, eq=False)
class Analysis:
    """Machine code and counts of one launch."""

    program: Program
    entry: Entry
    launch: Launch
    counts: LaunchCounts
    cubin: Cubin

    @functools.cached_property
    def live_registers(self) -> dict[int, int]:
        """{address: live general registers}; empty if not known.

        The first call runs nvdisasm, for about half a second.
        """
        return live_registers(self.cubin, self.entry.name)

    @property
    def most_live(self) -> int | None:
        """Largest number of live registers; None if not known."""
        return max(self.live_registers.values(), default=None)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA, without what the system reserves."""
        return self.program.static_smem_bytes + self.launch.dynamic_smem_bytes


def disassembled(cubin: Cubin) -> Disassembly:
    """`disassemble` with a cache on disk."""
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
    """{address: live general registers} of one entry, from the cache or by nvdisasm.

    Empty if nvdisasm lists a file but cannot analyse its registers, as for some older compilers.

    Raises:
        ToolMissing, CompileError: as `disassemble`.
    """
    path = _cubin_path(cubin, "live")
    if (payload := read_entry(path)) is not None:
        try:
            return {int(k): int(v) for k, v in json.loads(payload)[entry].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            pass  # it is read again
    try:
        listed = list_live_registers(cubin)
    except InvalidCubin:
        listed = {}
    write_entry(path, json.dumps(listed).encode())
    return listed.get(entry, {})


def program_of(cubin: Cubin, entry: str) -> Program:
    """Machine code of one entry, cached in memory. Raises as `disassemble`."""
    key = (_sha256(cubin), entry)
    if (program := _programs.get(key)) is None:
        program = _programs[key] = disassembled(cubin).program(entry)
    return program


_programs = Newest[tuple[str, str], Program](16)


def analyse(cubin: bytes, entry: str | None, launch: Launch) -> Analysis:
    """Count what one launch of an entry executes.

    Args:
        cubin: a complete cubin.
        entry: its name; None: the cubin's only entry.
        launch: grid, block, shared memory and arguments.

    Raises:
        CompileError: the data is not a cubin, or its code cannot be emulated.
        UnknownName: there is no such entry.
        InvalidProblem: the launch does not match the entry.
        ToolMissing: nvdisasm or a C++ compiler is not installed.
    """
    read = read_cubin(cubin)
    described = find_entry(read, entry)
    program = program_of(read, described.name)
    return Analysis(program, described, launch, _counted(program, described, launch), read)


@contextlib.contextmanager
def live_registers_in_background(analyses: Sequence[Analysis]) -> Iterator[None]:
    """Run nvdisasm for the live registers of each launch in parallel with the `with` block."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: [analysis.live_registers for analysis in analyses])
        yield


def count(cubin: bytes, entry: str | None, launch: Launch) -> LaunchCounts:
    """Only the counts of `analyse`. Raises as that."""
    read = read_cubin(cubin)
    described = find_entry(read, entry)
    return _counted(program_of(read, described.name), described, launch)


def _counted(program: Program, entry: Entry, launch: Launch) -> LaunchCounts:
    parts = [_FORMAT, _native_digest(), program.cubin_sha256, program.entry]
    parts += [repr((launch.grid, launch.block, launch.dynamic_smem_bytes, launch.arguments))]
    parts += [repr((address, hashlib.sha256(data).hexdigest())) for address, data in launch.known]
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
    """Digest of the emulator's sources: a change of them invalidates all counts."""
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parent
    for file in sorted([*(folder / "native").iterdir(), folder / "counts.py"]):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


@functools.cache
def code_digest() -> str:
    """Digest of all code that reads, counts and times machine code."""
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
    return cache_root() / "machine_code"


# Figures derived from the counts: by pipe, memory space, loop and source line.

_LOCAL = {"LDL", "STL"}
_SHUFFLES = {"SHFL", "MOVM"}
_SCALAR_MATH = {"FFMA", "FFMA2", "HFMA2", "FADD", "FMUL", "FADD2", "FMUL2", "HMUL2", "DFMA"}
_TENSOR_MATH = {"HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA"}
_CONVERSIONS = {"F2F", "F2FP", "I2F", "I2FP", "F2I", "F2IP", "I2I", "FRND"}
_BARRIERS = {"BAR", "SYNCS", "WARPSYNC"}


@dataclass(frozen=True, slots=True)
class Figures:
    """Exact counts over some instructions of a launch; instructions are warp instructions."""

    instructions: dict[str, int]  # by pipe, for instructions executed at least once
    lanes: int  # sum of the active threads
    shared_wavefronts: int
    ideal_shared_wavefronts: int
    global_sectors: int  # of 32 bytes
    ideal_global_sectors: int
    global_bytes: int  # requested by threads
    local_sectors: int  # spills and arrays on the stack
    barriers: int
    mufu: int
    conversions: int
    scalar_math: int  # FFMA and similar
    tensor_math: int  # HMMA and similar

    @property
    def executed(self) -> int:
        return sum(self.instructions.values())

    @property
    def lane_share(self) -> float:
        """Average share of the 32 lanes that are active; 1 without divergence."""
        return self.lanes / (32 * self.executed) if self.executed else 0.0


@dataclass(frozen=True, slots=True)
class LoopFigures:
    loop: Loop
    source: SourceLine | None  # the loop's first line, in the kernel itself
    iterations: int  # of all warps together
    figures: Figures  # of the whole loop, inner loops included

    @property
    def instructions_per_iteration(self) -> float:
        return self.figures.executed / self.iterations if self.iterations else 0.0


@dataclass(frozen=True, slots=True)
class LineFigures:
    """Counts of one line of the kernel, code inlined there included."""

    source: SourceLine
    figures: Figures


def launch_figures(counts: LaunchCounts) -> Figures:
    return _figures(counts, range(len(counts.program.instructions)))


def loop_figures(counts: LaunchCounts) -> tuple[LoopFigures, ...]:
    """The loops that were executed, in code order."""
    result = []
    instructions = counts.program.instructions
    for loop in find_loops(instructions):
        iterations = int(counts.totals[loop.first, EXECUTED])
        if iterations:
            figures = _figures(counts, range(loop.first, loop.last + 1))
            source = outer_line(instructions[loop.first])
            result.append(LoopFigures(loop, source, iterations, figures))
    return tuple(result)


def line_figures(counts: LaunchCounts) -> tuple[LineFigures, ...]:
    """The kernel's executed lines, most instructions first."""
    by_line: dict[SourceLine, list[int]] = {}
    for n, instruction in enumerate(counts.program.instructions):
        source = outer_line(instruction)
        if source is not None and counts.totals[n, EXECUTED]:
            by_line.setdefault(source, []).append(n)
    lines = [LineFigures(source, _figures(counts, n)) for source, n in by_line.items()]
    return tuple(sorted(lines, key=lambda item: -item.figures.executed))


def outer_line(instruction: Instruction) -> SourceLine | None:
    """Source line in the kernel itself, outside any inlined function."""
    return instruction.source[-1] if instruction.source else None


def is_conversion(instruction: Instruction) -> bool:
    """True if the instruction converts between types; HADD2.F32 does, from half to float."""
    to_float = instruction.opcode == "HADD2" and "F32" in instruction.modifiers
    return to_float or instruction.opcode in _CONVERSIONS


def useful_math(figures: Figures) -> float:
    """Share of instructions that are multiply-adds: tensor instructions if there are any."""
    useful = figures.tensor_math or figures.scalar_math
    return useful / figures.executed if figures.executed else 0.0


def _figures(counts: LaunchCounts, chosen: Sequence[int]) -> Figures:
    indices = np.asarray(chosen, np.intp)
    totals = counts.totals[indices]
    instructions = [counts.program.instructions[n] for n in chosen]
    opcodes = np.array([i.opcode for i in instructions])
    executed = totals[:, EXECUTED]
    by_pipe: dict[str, int] = {}
    for instruction, count in zip(instructions, executed.tolist(), strict=True):
        if count:
            by_pipe[instruction.pipe.value] = by_pipe.get(instruction.pipe.value, 0) + count

    def among(names: set[str]) -> NDArray[np.bool_]:
        return np.isin(opcodes, list(names))

    local, shared = among(_LOCAL), ~among(_SHUFFLES)
    conversions = np.array([is_conversion(i) for i in instructions], np.bool_)

    def total(column: int, where: NDArray[np.bool_]) -> int:
        return int(totals[where, column].sum())

    everywhere = np.ones(len(instructions), np.bool_)
    accesses_memory = (totals[:, SECTORS] > 0) & ~local
    return Figures(
        instructions=by_pipe,
        lanes=total(LANES, everywhere),
        shared_wavefronts=total(WAVEFRONTS, shared),
        ideal_shared_wavefronts=total(IDEAL_WAVEFRONTS, shared),
        global_sectors=total(SECTORS, ~local),
        ideal_global_sectors=total(IDEAL_SECTORS, ~local),
        global_bytes=total(SIZE_BYTES, accesses_memory),
        local_sectors=total(SECTORS, local),
        barriers=total(ACCESSES, among(_BARRIERS)),
        mufu=total(EXECUTED, among({"MUFU"})),
        conversions=total(EXECUTED, conversions),
        scalar_math=total(EXECUTED, among(_SCALAR_MATH)),
        tensor_math=total(EXECUTED, among(_TENSOR_MATH)),
    )


# Notes on the limits of an analysis, one sentence each.


def has_guessed_addresses(analysis: Analysis) -> bool:
    """True if addresses depend on a table in memory whose contents are not known."""
    return bool(analysis.counts.data_address.any())


def copies_by_unknown_map(counts: LaunchCounts) -> NDArray[np.bool_]:
    """TMA copies, `[instructions]`, whose tensor map and thus memory is not known."""
    is_copy = np.array([i.opcode in _TENSOR_COPIES for i in counts.program.instructions])
    by_unknown: NDArray[np.bool_] = (
        is_copy & (counts.totals[:, EXECUTED] > 0) & (counts.totals[:, SECTORS] == 0)
    )
    return by_unknown


_TENSOR_COPIES = ("UTMALDG", "UTMASTG")
_MUCH_START_SPREAD = 0.05


def notes(
    analysis: Analysis, iterations: tuple[int, int] | None = None, start_spread: float = 0.0
) -> Iterator[str]:
    """Notes on data-dependent code, made-up values, interpolated counts and extrapolated times.

    Args:
        iterations: of the longest CTA's loop (simulated, executed); None if all were simulated.
        start_spread: relative spread of the time over start offsets of CTAs.
    """
    counts = analysis.counts
    if iterations is not None:
        simulated, executed = iterations
        yield (
            f"CTAs are long: {simulated:,} of the {executed:,} iterations of the loop were "
            "simulated, and the time of the others is extrapolated linearly. Counts include all."
        )
    if start_spread > _MUCH_START_SPREAD:
        yield (
            f"The time depends on how far apart the CTAs of an SM start: by {start_spread:.0%} "
            "(standard deviation over some offsets), which the interval includes."
        )
    if counts.data_branch.any():
        lines = _lines(analysis, counts.data_branch)
        yield (
            f"Control flow at {lines} depends on loaded data: the counts assume that all floats "
            "and halves are 1.0, and that integers have the same bits (1,065,353,216)."
        )
    if has_guessed_addresses(analysis):
        lines = _lines(analysis, counts.data_address)
        yield (
            f"Addresses at {lines} depend on loaded data: their sectors are guessed, and the error "
            "of the time is not known. --arg file:PATH gives the table that they come from."
        )
    by_unknown_map = copies_by_unknown_map(counts)
    if by_unknown_map.any():
        yield (
            f"The tensor maps at {_lines(analysis, by_unknown_map)} are not known: their copies "
            "are missing from the DRAM figures. Give a map with --arg tensormap:…, or a pointer "
            "to a map with --arg ptr:tensormap:…"
        )
    if counts.stand_in.any():
        names = sorted(
            {
                i.mnemonic
                for i, made_up in zip(analysis.program.instructions, counts.stand_in, strict=True)
                if made_up
            }
        )
        yield (
            f"{', '.join(names)} is not supported, and its result is treated as data: counts of "
            "code that depends on it may be wrong."
        )
    if not counts.exact:
        yield (
            f"CTAs differ too much to run each kind: {counts.emulated} were run, and the counts of "
            "the others are interpolated."
        )
    elif not counts.exact_sectors:
        yield (
            "The sector alignment of rows depends on the CTA: the number of global sectors is "
            f"interpolated from the {counts.emulated} CTAs that were run."
        )


def _lines(analysis: Analysis, where: np.ndarray) -> str:
    sources = {
        outer_line(i)
        for i, marked in zip(analysis.program.instructions, where, strict=True)
        if marked
    }
    named = sorted({(s.file, s.line) for s in sources if s is not None})
    if not named:
        return f"{int(where.sum())} instructions"
    shown = ", ".join(f"{file}:{line}" for file, line in named[:4])
    return shown + (f" and {len(named) - 4} more lines" if len(named) > 4 else "")
